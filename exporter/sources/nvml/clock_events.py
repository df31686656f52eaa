"""Active time of each clock event reason, from the driver's counters or from samples of its bit mask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from exporter.sources.nvml.card import FieldReader, GpuHandle, clock_event_fields
from exporter.sources.nvml.errors import NvmlQuery

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
"""Reasons of every driver; later ones are used only where the driver reports that it supports them."""


class ClockEventTimes:
    """Clock event times of one GPU. `fields` are the counting fields by reason.

    A reason without a supported field is sampled: the time since the previous sample counts for it, unless that is a
    gap.
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
        sampled = [reason for reason in _BITS if reason not in self.fields or reader.lacks(self.fields[reason])]
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
        for name in (f"nvmlDeviceGet{which}ClocksEventReasons", f"nvmlDeviceGet{which}ClocksThrottleReasons"):
            mask = self._query(name, partial(self._read, name))
            if mask is not None:
                return int(mask)
        return None

    def _read(self, name: str) -> int:
        return int(getattr(self._card.api, name)(self._card.handle))
