"""When a run was in a phase, from the rise of its seconds, and what a counter showed then. Pure."""

from __future__ import annotations

import numpy as np

from analyzer.model.samples import Samples, clean

_LEAST_RISE = 1e-6


def stretches(seconds: Samples) -> list[tuple[float, float]]:
    """When the phase was on, in the time of the samples; `seconds` is `wattline_run_phase_seconds_total` of one phase.

    It rises by a second each second while the phase is on, but is shown some seconds late: what rose by more than the
    time between two samples began before the first of them. A stretch that began between two samples ended with the
    second.
    """
    found: list[tuple[float, float]] = []
    if not len(seconds):
        return found
    times, values = seconds.t, seconds.value
    if values[0] > _LEAST_RISE:
        found.append((float(times[0] - values[0]), float(times[0])))
    for position in range(1, len(times)):
        rise_s = float(values[position] - values[position - 1])
        if rise_s <= _LEAST_RISE:
            continue
        before_s, now_s = float(times[position - 1]), float(times[position])
        if found and found[-1][1] >= before_s:
            found[-1] = (found[-1][0], max(found[-1][1], min(before_s + rise_s, now_s)))
        else:
            found.append((max(now_s - rise_s, found[-1][1]) if found else now_s - rise_s, now_s))
    return found


def span(seconds: Samples) -> tuple[float, float] | None:
    """From the phase's first begin to its last end; None where it was never seen."""
    found = stretches(seconds)
    return (found[0][0], found[-1][1]) if found else None


def at(counter: Samples, moments: tuple[float, float], knots: tuple[tuple[float, float], ...] = ()) -> float:
    """The rise of a counter between two moments, linear between samples; `knots` are (t, value) known besides.

    Outside of all that is known the counter stands still.
    """
    more_t, more_value = np.array([t for t, _ in knots]), np.array([value for _, value in knots])
    line = clean(np.concatenate([more_t, counter.t]), np.concatenate([more_value, counter.value]))
    if not len(line):
        return 0.0
    begin, end = np.interp(moments, line.t, line.value)
    return float(end - begin)
