"""Memory and utilization of the processes on the GPUs, by name or by cgroup: opt-in, and of the largest only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from exporter.contract.metrics import GPU_PROCESS_MEMORY, GPU_PROCESS_UTILIZATION
from exporter.model import Batch, GpuProcess, Reading
from exporter.sources.processes.groups import GpuGroup, Group, largest_gpu_groups


class GpuProcessTable:
    """`on_gpus` are the processes by the GPU's UUID, and `indices` the index of each GPU, as they are known now."""

    name = "gpu_processes"

    def __init__(
        self,
        on_gpus: Callable[[], Mapping[str, Sequence[GpuProcess]]],
        indices: Callable[[], Mapping[str, str]],
        group_of: Callable[[int], Group],
    ) -> None:
        self._on_gpus = on_gpus
        self._indices = indices
        self._group_of = group_of
        self._shown: list[GpuGroup] = []

    def read(self) -> Batch:
        self._shown = largest_gpu_groups(self._on_gpus(), self._group_of, self._shown)
        indices = self._indices()
        return Batch(tuple(r for shown in self._shown if shown.on in indices for r in _readings(shown, indices)))


def _readings(shown: GpuGroup, indices: Mapping[str, str]) -> Iterator[Reading]:
    labels = (indices[shown.on], shown.uuid, shown.group.name)
    if shown.memory_bytes is not None:
        yield Reading(GPU_PROCESS_MEMORY, labels, float(shown.memory_bytes), shown.group.extra)
    if shown.utilization is not None:
        yield Reading(GPU_PROCESS_UTILIZATION, labels, shown.utilization, shown.group.extra)
