"""MIG instances of a GPU, which may change. Power and energy exist only for the whole GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from wattline.contract.metrics import (
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_MIG_INFO,
    GPU_UTILIZATION,
)
from wattline_exporter.sensors.nvml.card import GpuHandle, NvmlQuery, if_supported, nvml_text
from wattline_exporter.sensors.readings import Reading

SCAN_EVERY_S = 10.0
_MIN_SAMPLE_INTERVAL_S = 0.1
"""Shortest interval between two GPM samples that NVML allows."""
_GONE = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_UNKNOWN)


@dataclass(frozen=True, slots=True)
class MigInstance:
    uuid: str
    handle: Any
    profile: str
    gpu_instance: int
    compute_instance: int


class MigInstances:
    """MIG instances of one GPU. `is_on` and `instances` are as of the last `update`."""

    def __init__(self, card: GpuHandle, query: NvmlQuery) -> None:
        self.is_on = False
        self.instances: tuple[MigInstance, ...] = ()
        self._card = card
        self._scan_s = 0.0
        self._busy = SmUtilization(card, query)

    def update(self) -> bool:
        """Scan for instances every SCAN_EVERY_S. Return whether MIG was switched on or off."""
        now = self._card.now()
        if now < self._scan_s:
            return False
        self._scan_s = now + SCAN_EVERY_S
        was_on = self.is_on
        self.is_on = self._mode()
        self.instances = tuple(self._find()) if self.is_on else ()
        self._busy.keep({instance.gpu_instance for instance in self.instances})
        return was_on != self.is_on

    def _mode(self) -> bool:
        mode = if_supported(lambda: self._card.api.nvmlDeviceGetMigMode(self._card.handle))
        return bool(mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE)

    def _find(self) -> Iterator[MigInstance]:
        api = self._card.api
        for index in range(
            if_supported(lambda: api.nvmlDeviceGetMaxMigDeviceCount(self._card.handle)) or 0
        ):
            instance = if_supported(partial(self._instance, index))
            if instance:
                yield instance

    def _instance(self, index: int) -> MigInstance:
        api = self._card.api
        handle = api.nvmlDeviceGetMigDeviceHandleByIndex(self._card.handle, index)
        uuid, name = (
            nvml_text(read(handle)) for read in (api.nvmlDeviceGetUUID, api.nvmlDeviceGetName)
        )
        numbers = api.nvmlDeviceGetGpuInstanceId(handle), api.nvmlDeviceGetComputeInstanceId(handle)
        return MigInstance(uuid, handle, name.rpartition(" MIG ")[2], *numbers)

    def readings(self) -> Iterator[Reading]:
        for instance in self.instances:
            try:
                yield from self._readings(instance)
            except pynvml.NVMLError as error:
                if error.value not in _GONE:
                    raise
                self._scan_s = 0.0

    def _readings(self, instance: MigInstance) -> Iterator[Reading]:
        index, parent_uuid = self._card.labels
        gpu = index, instance.uuid
        memory = self._card.api.nvmlDeviceGetMemoryInfo(instance.handle)
        numbers = str(instance.gpu_instance), str(instance.compute_instance)
        yield Reading(GPU_MIG_INFO, (*gpu, parent_uuid, instance.profile, *numbers), 1.0)
        yield Reading(GPU_MEMORY_USED, gpu, float(memory.used))
        yield Reading(GPU_MEMORY_TOTAL, gpu, float(memory.total))
        busy = self._busy.ratio(instance.gpu_instance)
        if busy is not None:
            yield Reading(GPU_UTILIZATION, (*gpu, "gpu"), busy)


class SmUtilization:
    """Share of a GPU instance's multiprocessors that were busy since the last sample, by GPM
    (Hopper and later).

    Compute instances of one GPU instance have the same value, since GPM does not distinguish them.
    """

    def __init__(self, card: GpuHandle, query: NvmlQuery) -> None:
        self._card = card
        self._query = query
        self._last: dict[int, tuple[float, Any, float | None]] = {}
        """Time, sample and ratio by GPU instance."""

    def keep(self, numbers: set[int]) -> None:
        for number in self._last.keys() - numbers:
            self._card.api.nvmlGpmSampleFree(self._last.pop(number)[1])

    def ratio(self, number: int) -> float | None:
        """Return the busy ratio; None at the first sample, and where GPM is not supported."""
        last = self._last.get(number)
        now = self._card.now()
        if last and now < last[0] + _MIN_SAMPLE_INTERVAL_S:
            return last[2]
        sample = self._query("gpm", lambda: self._sample(number))
        if sample is None:
            return None
        ratio = self._query("gpm metrics", lambda: self._between(last[1], sample)) if last else None
        if last:
            self._card.api.nvmlGpmSampleFree(last[1])
        self._last[number] = now, sample, ratio
        return None if ratio is None else float(ratio)

    def _sample(self, number: int) -> Any:
        sample = self._card.api.nvmlGpmSampleAlloc()
        try:
            return self._card.api.nvmlGpmMigSampleGet(self._card.handle, number, sample)
        except pynvml.NVMLError:
            self._card.api.nvmlGpmSampleFree(sample)
            raise

    def _between(self, before: Any, after: Any) -> float:
        metrics = pynvml.c_nvmlGpmMetricsGet_t(
            version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=1
        )
        metrics.sample1 = before
        metrics.sample2 = after
        metric = metrics.metrics[0]
        metric.metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        self._card.api.nvmlGpmMetricsGet(metrics)
        if metric.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(metric.nvmlReturn)
        return float(metric.value) / 100
