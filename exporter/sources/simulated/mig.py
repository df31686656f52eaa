"""Simulated NVML functions for MIG instances and their GPM metrics."""
# ruff: noqa: N802  # the functions' names are pynvml's

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import pynvml

from exporter.simulation import HOPPER, SimulatedGpuState, SimulatedInstance, instance_percent
from exporter.sources.simulated.library import Handle, Library, raise_nvml_error

_MAX_INSTANCES = 7


class SimulatedMig(Library):
    """MIG instances and GPM samples of a GPU."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._sample_numbers = itertools.count(1)
        self._samples: dict[int, tuple[float, float]] = {}
        """Time and percentage of busy multiprocessors by sample number."""

    def nvmlDeviceGetMigMode(self, device: Handle) -> list[int]:
        gpu, _ = self._gpu(device)
        if not gpu.product.is_of_data_centre:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 2 * [int(gpu.instances is not None)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Handle) -> int:
        return _MAX_INSTANCES if self._gpu(device)[0].product.is_of_data_centre else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Handle, index: int) -> Handle:
        gpu, _ = self._gpu(device)
        if not 0 <= index < _MAX_INSTANCES:
            raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if index >= len(gpu.instances or ()):
            raise_nvml_error(pynvml.NVML_ERROR_NOT_FOUND)
        return Handle(device.position, index + 1)

    def nvmlDeviceGetGpuInstanceId(self, device: Handle) -> int:
        return self._instance(device)[1].number

    def nvmlDeviceGetComputeInstanceId(self, device: Handle) -> int:
        self._instance(device)
        return 0

    def _instance(self, device: Handle) -> tuple[SimulatedGpuState, SimulatedInstance]:
        gpu, _, instance = self._any(device)
        if instance is None:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu, instance

    def nvmlGpmQueryDeviceSupport(self, device: Handle) -> Any:
        is_supported = self._gpu(device)[0].product.architecture >= HOPPER
        return pynvml.c_nvmlGpmSupport_t(version=pynvml.NVML_GPM_SUPPORT_VERSION, isSupportedDevice=is_supported)

    def nvmlGpmSampleAlloc(self) -> Any:
        return ctypes.cast(ctypes.c_void_p(next(self._sample_numbers)), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, gpmSample: Any) -> None:  # noqa: N803  # pynvml's
        self._samples.pop(_number(gpmSample), None)

    def nvmlGpmMigSampleGet(self, device: Handle, gpuInstanceId: int, gpmSample: Any) -> Any:  # noqa: N803  # pynvml's
        gpu, now = self._gpu(device)
        if gpu.product.architecture < HOPPER:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        instance = next((one for one in gpu.instances or () if one.number == gpuInstanceId), None)
        if instance is None:
            raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self._samples[_number(gpmSample)] = now, instance_percent(gpu, instance)
        return gpmSample

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> Any:  # noqa: N803  # pynvml's
        self._call()
        (before_s, _), (after_s, percent) = (
            self._samples[_number(sample)] for sample in (metricsGet.sample1, metricsGet.sample2)
        )
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = percent
            if metric.metricId == pynvml.NVML_GPM_METRIC_SM_UTIL:
                metric.nvmlReturn = pynvml.NVML_SUCCESS if after_s > before_s else pynvml.NVML_ERROR_NO_DATA
        return metricsGet


def _number(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
