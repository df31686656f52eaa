"""Readings of one GPU, each at the rate at which it changes; slow ones are repeated in between.

PCIe bytes come from the driver's counters where they have 64 bits: those of 32 bits wrap several
times a second at full speed. nvmlDeviceGetPcieThroughput is not used: it blocks for 20 ms per
direction and measures only these 20 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pynvml

from wattline.contract.metrics import (
    GPU_CLOCK,
    GPU_CLOCK_EVENT_SECONDS,
    GPU_CLOCK_MAX,
    GPU_ECC_ERRORS,
    GPU_FAN,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_PCIE_BYTES,
    GPU_PERFORMANCE_STATE,
    GPU_POWER_LIMIT,
    GPU_TEMPERATURE,
    GPU_TEMPERATURE_LIMIT,
    GPU_UTILIZATION,
    Metric,
)
from wattline_exporter.sensors.nvml.card import (
    FieldReader,
    GpuHandle,
    NvmlQuery,
    clock_event_fields,
)
from wattline_exporter.sensors.readings import Reading

PERIOD_S = 1.0
LONGEST_STEP_S = 2.5 * PERIOD_S
_BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}
_ALWAYS_SUPPORTED = 0x1FF
"""Reasons of every driver; later ones are used only where the driver reports that it supports them.
"""


class ClockEventTimes:
    """Clock event times of one GPU. `fields` are the counting fields by reason.

    A reason without a supported field is sampled: the time since the previous sample counts for it,
    unless that is a gap.
    """

    def __init__(self, card: GpuHandle, query: NvmlQuery) -> None:
        self._card = card
        self._query = query
        self.fields = clock_event_fields(card.info.driver_version)
        self._sampled_s: dict[str, float] = {}
        self._sampled_at_s: float | None = None
        self._supported: int | None = None

    def seconds(self, values: dict[int, float], reader: FieldReader) -> Iterator[tuple[str, float]]:
        """Yield seconds by reason; `values` are the current values of the fields."""
        for reason, field in self.fields.items():
            if field in values:
                yield reason, values[field] / 1e9
        sampled = [
            reason
            for reason in _BITS
            if reason not in self.fields or reader.lacks(self.fields[reason])
        ]
        yield from self._sample(sampled)

    def _sample(self, reasons: list[str]) -> Iterator[tuple[str, float]]:
        mask = self._mask("Current")
        now = self._card.now()
        step_s = 0.0 if self._sampled_at_s is None else now - self._sampled_at_s
        if step_s > LONGEST_STEP_S:
            step_s = 0.0
        self._sampled_at_s = None if mask is None else now
        if mask is None:
            return
        if self._supported is None:
            self._supported = self._mask("Supported")
        for reason in reasons:
            bit = _BITS[reason]
            if bit & (_ALWAYS_SUPPORTED if self._supported is None else self._supported):
                active_s = step_s if mask & bit else 0.0
                self._sampled_s[reason] = self._sampled_s.get(reason, 0.0) + active_s
                yield reason, self._sampled_s[reason]

    def _mask(self, which: str) -> int | None:
        """Return the bit mask, by its older name on drivers before 535."""
        for name in (
            f"nvmlDeviceGet{which}ClocksEventReasons",
            f"nvmlDeviceGet{which}ClocksThrottleReasons",
        ):
            mask = self._query(name, partial(self._read, name))
            if mask is not None:
                return int(mask)
        return None

    def _read(self, name: str) -> int:
        return int(getattr(self._card.api, name)(self._card.handle))


SLOW_S = 10.0
"""Period of values that change slowly or take a millisecond: fans, ECC, PCIe, the requested power
limit.
"""
STATIC_S = 60.0
"""Period of constants of the GPU."""

_CLOCKS = {
    "sm": pynvml.NVML_CLOCK_SM,
    "memory": pynvml.NVML_CLOCK_MEM,
    "graphics": pynvml.NVML_CLOCK_GRAPHICS,
    "video": pynvml.NVML_CLOCK_VIDEO,
}
_THRESHOLDS = {
    ("gpu", "shutdown"): pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    ("gpu", "slowdown"): pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    ("gpu", "max_operating"): pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
    ("memory", "max_operating"): pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
}
_PCIE = {"tx": pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, "rx": pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES}
_ECC = {
    "corrected": (pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL, pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
    "uncorrected": (pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL, pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
}
"""Aggregate count, else, where the GPU does not support it, the count since the driver was loaded.

A count that is temporarily unavailable is not replaced by the other, since the difference would
look like errors.
"""
_SLOW_FIELDS = (*_PCIE.values(), *(field for fields in _ECC.values() for field in fields))
_PSTATES = 16


class GpuReadings:
    """Reader of one GPU's readings."""

    def __init__(self, card: GpuHandle, query: NvmlQuery) -> None:
        self._card = card
        self._query = query
        self._labels = card.labels
        self._fields = FieldReader(card, query)
        self._events = ClockEventTimes(card, query)
        self._kept: dict[float, tuple[float, list[Reading]]] = {}

    def read(self) -> Iterator[Reading]:
        yield from self._fast()
        yield from self._cached(SLOW_S, self._slow)
        yield from self._cached(STATIC_S, self._static)

    def forget(self) -> None:
        """Discard kept values, after a change of the GPU's mode."""
        self._kept.clear()

    def _cached(self, period_s: float, read: Callable[[], Iterator[Reading]]) -> list[Reading]:
        now = self._card.now()
        cached = self._kept.get(period_s)
        if cached is None or not 0 <= now - cached[0] < period_s:
            cached = self._kept[period_s] = now, list(read())
        return cached[1]

    def _call(self, function: str, *arguments: Any) -> Any:
        """Return the result, or None where the GPU or this version of pynvml does not support the
        function.
        """
        call = getattr(self._card.api, function, None)
        if call is None:
            return None
        return self._query((function, *arguments), lambda: call(self._card.handle, *arguments))

    def _reading(
        self, metric: Metric, value: float | None, *labels: str, unit: float = 1.0
    ) -> tuple[Reading, ...]:
        """Return the reading, or nothing where the value is missing."""
        return () if value is None else (Reading(metric, (*self._labels, *labels), value * unit),)

    def _fast(self) -> Iterator[Reading]:
        values = self._fields.read((pynvml.NVML_FI_DEV_MEMORY_TEMP, *self._events.fields.values()))
        for reason, active_s in self._events.seconds(values, self._fields):
            yield from self._reading(GPU_CLOCK_EVENT_SECONDS, active_s, reason)
        yield from self._reading(GPU_TEMPERATURE, self._call("nvmlDeviceGetTemperature", 0), "gpu")
        yield from self._reading(
            GPU_TEMPERATURE, values.get(pynvml.NVML_FI_DEV_MEMORY_TEMP), "memory"
        )
        yield from self._reading(
            GPU_TEMPERATURE_LIMIT, self._call("nvmlDeviceGetMarginTemperature"), "gpu", "margin"
        )
        enforced_mw = self._call("nvmlDeviceGetEnforcedPowerLimit")
        yield from self._reading(GPU_POWER_LIMIT, enforced_mw, "enforced", unit=1e-3)
        for domain, number in _CLOCKS.items():
            yield from self._reading(
                GPU_CLOCK, self._call("nvmlDeviceGetClockInfo", number), domain, unit=1e6
            )
        state = self._call("nvmlDeviceGetPerformanceState")
        yield from self._reading(
            GPU_PERFORMANCE_STATE, state if state is not None and state < _PSTATES else None
        )
        yield from self._utilization()
        memory = self._call("nvmlDeviceGetMemoryInfo")
        if memory is not None:
            yield from self._reading(GPU_MEMORY_USED, float(memory.used))
            yield from self._reading(GPU_MEMORY_TOTAL, float(memory.total))

    def _utilization(self) -> Iterator[Reading]:
        rates = self._call("nvmlDeviceGetUtilizationRates")
        if rates is not None:
            yield from self._reading(GPU_UTILIZATION, rates.gpu, "gpu", unit=0.01)
            yield from self._reading(GPU_UTILIZATION, rates.memory, "memory", unit=0.01)
        for engine in ("Encoder", "Decoder"):
            answer = self._call(f"nvmlDeviceGet{engine}Utilization")
            yield from self._reading(
                GPU_UTILIZATION, answer and answer[0], engine.lower(), unit=0.01
            )

    def _slow(self) -> Iterator[Reading]:
        values = self._fields.read(_SLOW_FIELDS, only_wide=frozenset(_PCIE.values()))
        for direction, field in _PCIE.items():
            yield from self._reading(GPU_PCIE_BYTES, values.get(field), direction)
        for number, (kind, (aggregate, volatile)) in enumerate(_ECC.items()):
            field = next(
                (field for field in (aggregate, volatile) if not self._fields.lacks(field)), None
            )
            count = self._errors(number) if field is None else values.get(field)
            yield from self._reading(GPU_ECC_ERRORS, count, kind)
        requested_mw = self._call("nvmlDeviceGetPowerManagementLimit")
        yield from self._reading(GPU_POWER_LIMIT, requested_mw, "requested", unit=1e-3)
        yield from self._reading(GPU_FAN, self._fan_percent(), unit=0.01)

    def _errors(self, kind: int) -> float | None:
        """Return the count by the older call."""
        for counter in (pynvml.NVML_AGGREGATE_ECC, pynvml.NVML_VOLATILE_ECC):
            call = ("nvmlDeviceGetTotalEccErrors", kind, counter)
            count = self._call(*call)
            if count is not None:
                return float(count)
            if not self._query.is_unsupported(call):
                return None
        return None

    def _fan_percent(self) -> float | None:
        """Return the speed of the fastest fan."""
        fans = self._call("nvmlDeviceGetNumFans")
        if fans is None:
            percent = self._call("nvmlDeviceGetFanSpeed")
            return None if percent is None else float(percent)
        percents = (self._call("nvmlDeviceGetFanSpeed_v2", fan) for fan in range(fans))
        return max((float(percent) for percent in percents if percent is not None), default=None)

    def _static(self) -> Iterator[Reading]:
        default_mw = self._call("nvmlDeviceGetPowerManagementDefaultLimit")
        yield from self._reading(GPU_POWER_LIMIT, default_mw, "default", unit=1e-3)
        bounds_mw = self._call("nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
        for kind, bound_mw in zip(("min", "max"), bounds_mw, strict=True):
            yield from self._reading(GPU_POWER_LIMIT, bound_mw, kind, unit=1e-3)
        for labels, threshold in _THRESHOLDS.items():
            celsius = self._call("nvmlDeviceGetTemperatureThreshold", threshold)
            yield from self._reading(GPU_TEMPERATURE_LIMIT, celsius, *labels)
        for domain, number in _CLOCKS.items():
            yield from self._reading(
                GPU_CLOCK_MAX, self._call("nvmlDeviceGetMaxClockInfo", number), domain, unit=1e6
            )
