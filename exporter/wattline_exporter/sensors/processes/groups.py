"""Selection of the largest groups of processes, and labels for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from wattline_exporter.sensors.readings import GpuProcess

MAX_SERIES = 50
"""Limit per metric."""
HYSTERESIS = 1.5
"""Factor by which a group must exceed an exported one to replace it, so that series do not flap."""
MAX_CHARACTERS = 128

K = TypeVar("K", bound=Hashable)


class ProcessGroup(NamedTuple):
    """Processes exported as one series; `pid` is empty unless each process has its own."""

    name: str
    pid: str = ""

    @property
    def extra(self) -> tuple[tuple[str, str], ...]:
        return (("pid", self.pid),) if self.pid else ()


class GpuProcessGroup(NamedTuple):
    """Usage of one GPU by a group; None for a value that the GPU does not report for each process.

    `uuid` names the MIG instance, if any; `on` names the GPU under which the worker reported the
    processes.
    """

    on: str
    uuid: str
    group: ProcessGroup
    memory_bytes: int | None
    utilization: float | None


def safe_label(text: str) -> str:
    """Return the text with control characters replaced, cut to the length of a label."""
    cut = text[:MAX_CHARACTERS]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def select_largest(
    sizes: Mapping[K, float], current: Collection[K], most: int = MAX_SERIES
) -> set[K]:
    """Return the keys of the largest sizes, with an advantage for those already exported."""

    def rank(key: K) -> tuple[float, bool]:
        return sizes[key] * (HYSTERESIS if key in current else 1.0), key in current

    return set(sorted(sizes, key=rank, reverse=True)[:most])


def largest_gpu_groups(
    on_gpus: Mapping[str, Sequence[GpuProcess]],
    group_of: Callable[[int], ProcessGroup],
    current: Iterable[GpuProcessGroup] = (),
    most: int = MAX_SERIES,
) -> list[GpuProcessGroup]:
    """Group the processes of all GPUs (by UUID), and return the `most` largest by memory, then by
    utilization.

    `current` is the previous result. A group's memory is unknown if that of one of its processes
    is.
    """
    members: dict[tuple[str, str, ProcessGroup], list[GpuProcess]] = defaultdict(list)
    for uuid, processes in on_gpus.items():
        for process in processes:
            members[uuid, process.instance or uuid, group_of(process.pid)].append(process)
    groups = {
        key: GpuProcessGroup(*key, _memory(rows), _utilization(rows))
        for key, rows in members.items()
    }
    # utilization is below one byte: it decides only where the memory is unknown
    sizes = {
        key: float(group.memory_bytes or 0) + (group.utilization or 0.0)
        for key, group in groups.items()
    }
    chosen = select_largest(sizes, {(group.on, group.uuid, group.group) for group in current}, most)
    return [group for key, group in groups.items() if key in chosen]


def _memory(rows: Iterable[GpuProcess]) -> int | None:
    reported = [row.memory_bytes for row in rows]
    return None if None in reported else sum(bytes_ for bytes_ in reported if bytes_ is not None)


def _utilization(rows: Iterable[GpuProcess]) -> float | None:
    reported = [row.utilization for row in rows]
    return (
        None
        if None in reported
        else min(1.0, sum(share for share in reported if share is not None))
    )
