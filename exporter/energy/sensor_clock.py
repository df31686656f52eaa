"""When a sensor updates: learned from polls that only tell between which two of them its value changed (pure)."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

PhaseRange = Callable[[float], tuple[float, float]]
_MIN_CHANGES = 8
_SEARCH_STEPS = 24
_BISECTIONS = 12
_PERIODS = 9
_CANDIDATES = 10
_SCATTER = 0.05
"""By so much of its period the changes of a real sensor may scatter: calls are late, too."""


@dataclass(frozen=True, slots=True)
class SensorClock:
    """The sensor updates at `phase_s` + k · `period_s`, each instant known to ± `slack_s`."""

    phase_s: float
    period_s: float
    slack_s: float

    def before(self, t_s: float) -> float:
        """The last update at or before `t_s`."""
        return self.phase_s + math.floor((t_s - self.phase_s) / self.period_s) * self.period_s

    def nearest(self, t_s: float) -> float:
        return self.phase_s + round((t_s - self.phase_s) / self.period_s) * self.period_s


def fit_sensor_clock(changes: Sequence[tuple[float, float]]) -> SensorClock | None:
    """The clock that best explains `changes`: (a, b] are seconds between which the sensor's value changed once.

    Every change says a < phase + k·period ≤ b. Of all clocks that agree with every change any may be the true one:
    the mean of them is taken, and the slack is what 95 % of them keep at the first and at the last change.

    None where the changes are too few, or come with every poll, so that they carry no period.
    """
    if len(changes) < _MIN_CHANGES:
        return None
    widths = [b - a for a, b in changes]
    narrow = 1.5 * median(widths)
    kept = [change for change, width in zip(changes, widths, strict=True) if width <= narrow]
    middles = [(a + b) / 2 for a, b in kept]
    steps = [later - earlier for earlier, later in pairwise(middles)]
    if len(steps) < _MIN_CHANGES - 1:
        return None
    typical = median(steps)
    single = [step for step in steps if step < 1.75 * typical]
    period_s = sum(single) / len(single)
    if period_s < 1.3 * median(widths):
        return None
    refined: list[tuple[float, SensorClock]] = []
    for candidate in _strongest(middles, period_s):
        refined.append(_refine(candidate, kept))
        if refined[-1][0] <= 0:
            break
    scatter_s, clock = min(refined, key=lambda found: found[0])
    return clock if scatter_s <= clock.period_s * _SCATTER and clock.slack_s <= clock.period_s / 4 else None


def _strongest(instants: Sequence[float], period_s: float) -> list[SensorClock]:
    """Of the periods within 5 % of `period_s`, those at which the instants mod period lie closest together.

    The measure is the length of their mean on the circle; its peak is one part in the number of periods wide. The
    strongest is not always the sensor's: the polls have a period of their own, which beats with it.
    """
    span = (instants[-1] - instants[0]) / period_s
    reach = math.ceil(0.05 * span * 4)
    means: list[tuple[float, SensorClock]] = []
    for step in range(-reach, reach + 1):
        candidate = period_s * (1 + step / (4 * span))
        turn = 2j * math.pi / candidate
        mean = sum(cmath.exp(turn * (instant - instants[0])) for instant in instants)
        phase_s = instants[0] + cmath.phase(mean) / (2 * math.pi) * candidate
        means.append((abs(mean), SensorClock(phase_s, candidate, candidate / 4)))
    peaks = [
        means[i]
        for i in range(len(means))
        if means[i][0] == max(length for length, _ in means[max(0, i - 2) : i + 3])  # the highest of its width
    ]
    peaks.sort(key=lambda peak: -peak[0])
    return [clock for _, clock in peaks[:_CANDIDATES]]


def _refine(clock: SensorClock, changes: Sequence[tuple[float, float]]) -> tuple[float, SensorClock]:
    """The best clock for `changes`, whose updates `clock` is good enough to number; first how far they scatter.

    That is 0 or less where the clock agrees with all of them.
    """
    origin = clock.phase_s
    numbers = [round(((a + b) / 2 - origin) / clock.period_s) for a, b in changes]
    low, high = [a - origin for a, _ in changes], [b - origin for _, b in changes]

    def phases(period_s: float) -> tuple[float, float]:
        return (
            max(a - k * period_s for a, k in zip(low, numbers, strict=True)),
            min(b - k * period_s for b, k in zip(high, numbers, strict=True)),
        )

    reach = 2 * median(b - a for a, b in changes) / max(1, numbers[-1])
    widest_s = _widest(phases, clock.period_s - reach, clock.period_s + reach)
    first, last = phases(widest_s)
    if last <= first:  # no clock agrees with every change: they scatter
        slack_s = first - last + median(b - a for a, b in changes) / 4
        return first - last, SensorClock(origin + (first + last) / 2, widest_s, slack_s)
    return first - last, _mean(origin, _agreeing(phases, widest_s, reach), numbers)


def _mean(origin: float, clocks: list[tuple[float, float, float]], numbers: list[int]) -> SensorClock:
    """The mean of clocks (period, first and last phase) of which any may be the true one, and its slack of 95 %."""
    weights = [last - first for _, first, last in clocks]
    total = sum(weights)
    period_s = sum(w * period for w, (period, _, _) in zip(weights, clocks, strict=True)) / total
    phase_s = sum(w * (first + last) / 2 for w, (_, first, last) in zip(weights, clocks, strict=True)) / total

    def variance(number: int) -> float:
        """Of the instant of that update."""
        off = [(first + last) / 2 - phase_s + number * (period - period_s) for period, first, last in clocks]
        return sum(w * (o**2 + w**2 / 12) for w, o in zip(weights, off, strict=True)) / total

    return SensorClock(origin + phase_s, period_s, 1.96 * math.sqrt(max(variance(numbers[0]), variance(numbers[-1]))))


def _agreeing(phases: PhaseRange, widest_s: float, reach: float) -> list[tuple[float, float, float]]:
    """Periods from the shortest to the longest that agree with all changes, each with its range of phases."""
    ends = []
    for far_s in (widest_s - reach, widest_s + reach):
        inside, outside = widest_s, far_s
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            first, last = phases(middle)
            inside, outside = (middle, outside) if last > first else (inside, middle)
        ends.append(inside)
    low, high = ends
    periods = [low + (high - low) * (i + 0.5) / _PERIODS for i in range(_PERIODS)]
    return [(period, *phases(period)) for period in periods]


def _widest(phases: PhaseRange, low: float, high: float) -> float:
    """Golden-section search: the width is concave in the period, being a minimum less a maximum of lines."""
    ratio = (math.sqrt(5) - 1) / 2

    def width(period: float) -> float:
        first, last = phases(period)
        return last - first

    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = width(left), width(right)
    for _ in range(_SEARCH_STEPS):
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = width(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = width(right)
    return (low + high) / 2
