"""For how long each clock-event reason held: the driver's counters, or else what looking at its bit mask adds up to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from exporter.sources.nvml.card import Card, Fields, clock_event_fields
from exporter.sources.nvml.errors import Ask

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
_OF_OLD = 0x1FF
"""Those that every driver knows; the later ones only where it says so."""


class ClockEvents:
    """Of one card. `fields` are the fields that count, by reason.

    A reason without one, or whose field the card lacks, is sampled: the time since the last look counts for it, unless
    that is a gap, of which nothing is known.
    """

    def __init__(self, card: Card, ask: Ask) -> None:
        self._card = card
        self._ask = ask
        self.fields = clock_event_fields(card.info.driver_version)
        self._sampled_s: dict[str, float] = {}
        self._looked_s: float | None = None
        self._supported: int | None = None

    def seconds(self, values: dict[int, float], batch: Fields) -> Iterator[tuple[str, float]]:
        """By reason; `values` is what the fields said just now."""
        for reason, field in self.fields.items():
            if field in values:
                yield reason, values[field] / 1e9
        sampled = [reason for reason in _BITS if reason not in self.fields or batch.lacks(self.fields[reason])]
        yield from self._sample(sampled)

    def _sample(self, reasons: list[str]) -> Iterator[tuple[str, float]]:
        mask = self._mask("Current")
        now = self._card.now()
        step_s = 0.0 if self._looked_s is None else now - self._looked_s
        if step_s > LONGEST_STEP_S:
            step_s = 0.0
        self._looked_s = None if mask is None else now
        if mask is None:
            return
        if self._supported is None:
            self._supported = self._mask("Supported")
        for reason in reasons:
            bit = _BITS[reason]
            if bit & (_OF_OLD if self._supported is None else self._supported):
                held_s = step_s if mask & bit else 0.0
                self._sampled_s[reason] = self._sampled_s.get(reason, 0.0) + held_s
                yield reason, self._sampled_s[reason]

    def _mask(self, which: str) -> int | None:
        """Drivers before 535 know it by an older name."""
        for name in (f"nvmlDeviceGet{which}ClocksEventReasons", f"nvmlDeviceGet{which}ClocksThrottleReasons"):
            mask = self._ask(name, partial(self._read, name))
            if mask is not None:
                return int(mask)
        return None

    def _read(self, name: str) -> int:
        return int(getattr(self._card.api, name)(self._card.handle))
