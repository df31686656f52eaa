"""CPU and memory use of the node and of the exporter's processes."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from wattline.contract.metrics import (
    HOST_CPU_UTILIZATION,
    HOST_MEMORY_TOTAL,
    HOST_MEMORY_USED,
    PROCESS_CPU,
    PROCESS_MEMORY,
)
from wattline_exporter.sensors.processes.procfs import host_cpu_seconds
from wattline_exporter.sensors.readings import Batch, Reading, SourceError


class HostSource:
    """Source of the node's usage; `roles` returns the exporter's PIDs by role, `exporter` and
    `nvml_worker`.
    """

    name = "host"

    def __init__(self, roles: Callable[[], dict[str, int]] = dict) -> None:
        self._roles = roles
        self._last: tuple[float, float] | None = None

    def read(self) -> Batch:
        try:
            return Batch((*self._utilization(), *_memory(), *self._processes()))
        except OSError as error:
            raise SourceError(
                f"cannot read {error.filename}: {error.strerror}",
                f"check that proc is mounted: ls {psutil.PROCFS_PATH}",
            ) from error

    def _utilization(self) -> list[Reading]:
        """Return the utilization since the last read, nothing at the first."""
        busy_s, total_s = host_cpu_seconds()
        last = self._last
        self._last = (busy_s, total_s)
        if last is None or total_s <= last[1]:
            return []
        ratio = (busy_s - last[0]) / (total_s - last[1])
        return [
            Reading(HOST_CPU_UTILIZATION, (), min(max(ratio, 0.0), 1.0))
        ]  # the kernel's iowait may decrease

    def _processes(self) -> list[Reading]:
        readings = []
        for role, pid in self._roles().items():
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                memory = process.memory_info()
            except psutil.NoSuchProcess:
                continue
            readings.append(Reading(PROCESS_CPU, (role,), times.user + times.system))
            readings.append(Reading(PROCESS_MEMORY, (role,), memory.rss))
        return readings


def _memory() -> list[Reading]:
    memory = psutil.virtual_memory()
    return [
        Reading(HOST_MEMORY_USED, (), memory.total - memory.available),
        Reading(HOST_MEMORY_TOTAL, (), memory.total),
    ]
