"""Update period of a driver's value, from much faster polls (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.bench.window_errors import quantile
from wattline_exporter.meter import sensor_clock as update_clock

_MIN_CHANGES = 8


@dataclass(frozen=True, slots=True)
class TimedPoll:
    """Poll whose call lay between two instants (CLOCK_BOOTTIME seconds)."""

    before_s: float
    after_s: float
    value: float


def update_period(polls: list[TimedPoll]) -> dict[str, Any] | None:
    """Return the time between changes and the clock that the exporter would learn, or None for too
    few changes.

    A change to an equal value is invisible, so single steps can be multiples of the period; the
    median counts.
    """
    changes = [(a.before_s, b.after_s) for a, b in pairwise(polls) if a.value != b.value]
    if len(changes) < _MIN_CHANGES:
        return None
    middles = [(begin_s + end_s) / 2 for begin_s, end_s in changes]
    steps_s = [b - a for a, b in pairwise(middles)]
    polled_s = [b.after_s - a.after_s for a, b in pairwise(polls)]
    learned = update_clock.fit_sensor_clock(changes)
    return {
        "changes": len(changes),
        "polled_every_seconds": quantile(polled_s, 0.5),
        "median_seconds": quantile(steps_s, 0.5),
        "p05_seconds": quantile(steps_s, 0.05),
        "p95_seconds": quantile(steps_s, 0.95),
        "learned_period_seconds": learned.period_s if learned else None,
        "learned_slack_seconds": learned.slack_s if learned else None,
    }
