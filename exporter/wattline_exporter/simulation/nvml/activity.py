"""Simulated NVML functions for utilization, temperature, clocks, errors, processes and MIG."""
# ruff: noqa: N802  # the functions' names are pynvml's

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import pynvml

from wattline_exporter.simulation import (
    HOPPER,
    SimulatedGpuState,
    SimulatedInstance,
    SimulatedProcess,
    fan_percent,
    instance_percent,
    is_capped,
    margin_celsius,
    memory_used_bytes,
    process_percent,
    process_sample_us,
    sm_clock_mhz,
    temperature_celsius,
    utilization,
)
from wattline_exporter.simulation.nvml.library import Handle, Library, raise_nvml_error

_THRESHOLDS_CELSIUS = {
    pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: 92,
    pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: 89,
    pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX: 95,
    pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: 85,
}
_CODEC_PERIOD_US = 100_000
_ALL_REASONS = 0x1FF


class Activity(Library):
    """Readings of a GPU other than power and energy."""

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Any:
        percent = _busy_percent(*self._gpu(handle))
        return pynvml.c_nvmlUtilization_t(gpu=percent, memory=percent // 2)

    def nvmlDeviceGetEncoderUtilization(self, handle: Handle) -> list[int]:
        return [_busy_percent(*self._gpu(handle)) // 10, _CODEC_PERIOD_US]

    def nvmlDeviceGetDecoderUtilization(self, handle: Handle) -> list[int]:
        return [_busy_percent(*self._gpu(handle)) // 5, _CODEC_PERIOD_US]

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> Any:
        gpu, _, instance = self._any(handle)
        used = memory_used_bytes(gpu, instance)
        total = (instance or gpu.product).memory_bytes
        memory = pynvml.c_nvmlMemory_v2_t(version=version) if version else pynvml.c_nvmlMemory_t()
        memory.total = total
        memory.used = used
        memory.free = total - used
        return memory

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int:
        if sensor != pynvml.NVML_TEMPERATURE_GPU:
            raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return temperature_celsius(*self._gpu(handle))

    def nvmlDeviceGetTemperatureThreshold(self, handle: Handle, threshold: int) -> int:
        product = self._gpu(handle)[0].product
        if not 0 <= threshold < pynvml.NVML_TEMPERATURE_THRESHOLD_COUNT:
            raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        celsius = _THRESHOLDS_CELSIUS.get(threshold)
        of_memory = threshold == pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX
        if (
            celsius is None
            or product.architecture >= HOPPER
            or (of_memory and not product.is_of_data_centre)
        ):
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return celsius

    def nvmlDeviceGetMarginTemperature(self, handle: Handle) -> int:
        gpu, now = self._gpu(handle)
        if gpu.product.architecture < HOPPER:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return margin_celsius(gpu, now)

    def nvmlDeviceGetNumFans(self, device: Handle) -> int:
        return self._gpu(device)[0].product.fans

    def nvmlDeviceGetFanSpeed_v2(self, handle: Handle, fan: int) -> int:
        gpu, now = self._gpu(handle)
        if not gpu.product.fans:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if not 0 <= fan < gpu.product.fans:
            raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return fan_percent(gpu, now, fan)

    def nvmlDeviceGetFanSpeed(self, handle: Handle) -> int:
        return self.nvmlDeviceGetFanSpeed_v2(handle, 0)

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, errorType: int, counterType: int) -> int:  # noqa: N803  # pynvml's
        gpu, _ = self._gpu(handle)
        if errorType not in {0, 1} or counterType not in {0, 1}:
            raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if not gpu.product.is_of_data_centre:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu.ecc_uncorrected if errorType else gpu.ecc_corrected

    def nvmlDeviceGetClockInfo(self, handle: Handle, type: int) -> int:  # noqa: A002  # pynvml's name
        gpu, now = self._gpu(handle)
        return gpu.product.memory_clock_mhz if _is_memory(type) else sm_clock_mhz(gpu, now)

    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, type: int) -> int:  # noqa: A002  # pynvml's name
        product = self._gpu(handle)[0].product
        return product.memory_clock_mhz if _is_memory(type) else product.sm_clock_mhz

    def nvmlDeviceGetSupportedClocksEventReasons(self, handle: Handle) -> int:
        self._gpu(handle)
        return _ALL_REASONS

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle) -> int:
        gpu, now = self._gpu(handle)
        if is_capped(gpu, now):
            return int(pynvml.nvmlClocksEventReasonSwPowerCap)
        idle = utilization(gpu, now) == 0
        return int(
            pynvml.nvmlClocksEventReasonGpuIdle if idle else pynvml.nvmlClocksEventReasonNone
        )

    def nvmlDeviceGetPerformanceState(self, handle: Handle) -> int:
        self._gpu(handle)
        return int(pynvml.NVML_PSTATE_0)  # data-centre GPUs stay there when idle


def _busy_percent(gpu: SimulatedGpuState, now: float) -> int:
    """Return the utilization, which a GPU in MIG mode does not support."""
    if gpu.instances is not None:
        raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return int(utilization(gpu, now) * 100 + 0.5)


def _is_memory(domain: int) -> bool:
    if not 0 <= domain < pynvml.NVML_CLOCK_COUNT:
        raise_nvml_error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return bool(domain == pynvml.NVML_CLOCK_MEM)


_NO_INSTANCE = 0xFFFFFFFF


class SimulatedProcesses(Library):
    """Processes on a GPU or MIG instance."""

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        gpu, _, instance = self._any(handle)
        number = instance.number if instance else None
        return [
            _process_entry(process)
            for process in gpu.processes
            if number in {None, process.instance}
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle) -> list[Any]:
        self._any(handle)
        return []

    nvmlDeviceGetMPSComputeRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses  # noqa: N815  # none either

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, timeStamp: int) -> list[Any]:  # noqa: N803  # pynvml's
        """Return one sample per busy process, or fail with NOT_FOUND where none is newer."""
        gpu, now = self._gpu(handle)
        at_us = process_sample_us(gpu, now)
        if gpu.instances is not None:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        percents = [(process.pid, process_percent(gpu, process)) for process in gpu.processes]
        samples = [
            pynvml.c_nvmlProcessUtilizationSample_t(
                pid=pid, timeStamp=at_us, smUtil=percent, memUtil=percent // 2, encUtil=0, decUtil=0
            )
            for pid, percent in percents
            if percent and at_us > timeStamp
        ]
        if not samples:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_FOUND)
        return samples


def _process_entry(process: SimulatedProcess) -> Any:
    return pynvml.nvmlFriendlyObject(
        {
            "pid": process.pid,
            "usedGpuMemory": process.memory_bytes,
            "gpuInstanceId": process.instance or _NO_INSTANCE,
            "computeInstanceId": 0 if process.instance else _NO_INSTANCE,
        }
    )


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
        return pynvml.c_nvmlGpmSupport_t(
            version=pynvml.NVML_GPM_SUPPORT_VERSION, isSupportedDevice=is_supported
        )

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
                metric.nvmlReturn = (
                    pynvml.NVML_SUCCESS if after_s > before_s else pynvml.NVML_ERROR_NO_DATA
                )
        return metricsGet


def _number(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
