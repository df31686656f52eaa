"""Processes as a page shows them: by name or by cgroup, the largest only, under labels that are safe (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from exporter.model import GpuProcess

MOST_SERIES = 50
"""Of each metric, whatever runs on the node."""
STAYS = 1.5
"""One that is shown gives way only to one that is so many times as large: series do not come and go with every look."""
MOST_CHARACTERS = 128

K = TypeVar("K", bound=Hashable)


class Group(NamedTuple):
    """Processes that are shown as one; `pid` is empty unless each is shown for itself."""

    name: str
    pid: str = ""

    @property
    def extra(self) -> tuple[tuple[str, str], ...]:
        return (("pid", self.pid),) if self.pid else ()


class GpuGroup(NamedTuple):
    """What the processes of a group have on a GPU; None is what the card does not tell of each of them.

    `uuid` is the MIG instance's where they are on one, `on` the GPU under which the sampler told of them.
    """

    on: str
    uuid: str
    group: Group
    memory_bytes: int | None
    utilization: float | None


def label(text: str) -> str:
    """Without control characters, and not too long for a label."""
    cut = text[:MOST_CHARACTERS]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def largest(sizes: Mapping[K, float], shown: Collection[K], most: int = MOST_SERIES) -> set[K]:
    """The largest, where one of those that are shown counts as larger than it is."""

    def rank(key: K) -> tuple[float, bool]:
        return sizes[key] * (STAYS if key in shown else 1.0), key in shown

    return set(sorted(sizes, key=rank, reverse=True)[:most])


def largest_gpu_groups(
    on_gpus: Mapping[str, Sequence[GpuProcess]],
    group_of: Callable[[int], Group],
    shown: Iterable[GpuGroup] = (),
    most: int = MOST_SERIES,
) -> list[GpuGroup]:
    """The processes of all GPUs, by UUID, in groups; the `most` of the node by memory, then by utilization.

    `shown` is the last answer, so that series do not flap. Where the card does not tell the memory of one process of a
    group, the group's is not known either.
    """
    members: dict[tuple[str, str, Group], list[GpuProcess]] = defaultdict(list)
    for uuid, processes in on_gpus.items():
        for process in processes:
            members[uuid, process.instance or uuid, group_of(process.pid)].append(process)
    groups = {key: GpuGroup(*key, _memory(rows), _utilization(rows)) for key, rows in members.items()}
    # a byte is less than any share of time: where the card tells no memory, the share alone decides
    sizes = {key: float(group.memory_bytes or 0) + (group.utilization or 0.0) for key, group in groups.items()}
    chosen = largest(sizes, {(group.on, group.uuid, group.group) for group in shown}, most)
    return [group for key, group in groups.items() if key in chosen]


def _memory(rows: Iterable[GpuProcess]) -> int | None:
    known = [row.memory_bytes for row in rows]
    return None if None in known else sum(bytes_ for bytes_ in known if bytes_ is not None)


def _utilization(rows: Iterable[GpuProcess]) -> float | None:
    known = [row.utilization for row in rows]
    return None if None in known else min(1.0, sum(share for share in known if share is not None))
