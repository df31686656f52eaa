"""Slots of carbon intensity that an interval of time spans (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wattline_exporter.sensors.readings import Slot

LONG_S = 5.0
"""Interval up to which all energy is assigned to the slot at its end."""
MAX_S = 86_400.0
_STEP_S = 900.0
"""Step to the next lookup where no slot is in force."""
_MIN_STEP_S = 1.0

EmissionKey = tuple[str, str, str, str]
"""Component, device, basis and quality."""

SlotLookup = Callable[[float], tuple[Slot, ...]]
"""Function from a Unix time to the carbon intensities in force then, at most one per basis."""


def split_over_slots(
    slots_at: SlotLookup, until_at: float, elapsed_s: float
) -> Iterator[tuple[float, Slot]]:
    """Yield the slots of the last `elapsed_s` before `until_at` (Unix time), each with its share of
    that time.
    """
    if elapsed_s <= LONG_S:
        for slot in slots_at(until_at):
            yield 1.0, slot
        return
    spans = list(slots_since(slots_at, until_at, elapsed_s))
    ends_at = [*(begin_at for begin_at, _ in spans[1:]), until_at]
    for (begin_at, slots), end_at in zip(spans, ends_at, strict=True):
        for slot in slots:
            yield (end_at - begin_at) / (until_at - spans[0][0]), slot


def slots_since(
    slots_at: SlotLookup, until_at: float, elapsed_s: float
) -> Iterator[tuple[float, tuple[Slot, ...]]]:
    """Yield the slots in force in the last `elapsed_s` before `until_at`, a day at most, each with
    its start.
    """
    at = max(until_at - elapsed_s, until_at - MAX_S)
    while True:
        slots = slots_at(at)
        yield at, slots
        at = max(min((slot.end_s for slot in slots), default=at + _STEP_S), at + _MIN_STEP_S)
        if at >= until_at:
            break
    if slots_at(until_at) != slots:
        yield until_at, slots_at(until_at)
