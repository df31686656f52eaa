"""The processes on a card, or on a MIG instance of it."""
# ruff: noqa: N802  # the functions' names are pynvml's

from __future__ import annotations

from typing import Any

import pynvml

from exporter.simulation import Process, process_percent, process_sample_us
from exporter.sources.simulated.library import Handle, Library, fail

_NO_INSTANCE = 0xFFFFFFFF


class Processes(Library):
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        gpu, _, instance = self._any(handle)
        number = instance.number if instance else None
        return [_listed(process) for process in gpu.processes if number in {None, process.instance}]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle) -> list[Any]:
        self._any(handle)
        return []

    nvmlDeviceGetMPSComputeRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses  # noqa: N815  # none either

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, timeStamp: int) -> list[Any]:  # noqa: N803  # pynvml's
        """One sample for each process that was busy; NOT_FOUND where there is none that is newer."""
        gpu, now = self._gpu(handle)
        at_us = process_sample_us(gpu, now)
        if gpu.instances is not None:
            fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        percents = [(process.pid, process_percent(gpu, process)) for process in gpu.processes]
        samples = [
            pynvml.c_nvmlProcessUtilizationSample_t(
                pid=pid, timeStamp=at_us, smUtil=percent, memUtil=percent // 2, encUtil=0, decUtil=0
            )
            for pid, percent in percents
            if percent and at_us > timeStamp
        ]
        if not samples:
            fail(pynvml.NVML_ERROR_NOT_FOUND)
        return samples


def _listed(process: Process) -> Any:
    return pynvml.nvmlFriendlyObject(
        {
            "pid": process.pid,
            "usedGpuMemory": process.memory_bytes,
            "gpuInstanceId": process.instance or _NO_INSTANCE,
            "computeInstanceId": 0 if process.instance else _NO_INSTANCE,
        }
    )
