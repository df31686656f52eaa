"""Estimation of a sensor's update times from polls between which its value changed (pure)."""

from __future__ import annotations

import cmath
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from wattline.figures import NORMAL_95
from wattline_exporter.sensors.readings import Poll

SENSOR_PERIOD_S = 0.1
"""Update period of a driver's energy and power, unless the polls show another."""
AVERAGING_S = 1.0
"""Window of the driver's averaged power."""
POWER_REFIT_S = 5.0
COUNTER_REFIT_S = 0.005
"""Time until the next fit, per known change: the more changes are known, the less another one adds.
"""

CHANGES_S = 30.0
"""Time for which the changes of a counter are kept. With polls each 47 ms, 30 s of changes have a
slack of 0.65 to 0.9 ms, and 24 s one of 0.7 to 1.1 ms; 12 s with a burst each 2 s have 0.95 to
1.2 ms.
"""
COMPLETE_SHARE = 0.8
"""Share of the counter's updates in CHANGES_S that must be known: late polls miss some."""

COMPLETE_SLACK_S = 0.0016
"""Slack of a clock above which a burst of polls narrows it: polls that beat slowly with the updates
bound them less.
"""

PhaseRange = Callable[[float], tuple[float, float]]
_MIN_CHANGES = 8
_MANY_CHANGES = 64
_SEARCH_STEPS = 24
_BISECTIONS = 12
_PERIODS = 9
_CANDIDATES = 10
_WIDEST = 1.5
"""Widest change that is used, as a multiple of their median: wider ones may contain two updates."""
_FOLLOWED_SLACKS = 4.0
_POSSIBLE_SLACKS = 2.0
"""Limits of the distances from a known clock of the changes that bound the next one, and from that
of the other possible clocks, in slacks.
"""
_JITTER_S = 0.001
_SCATTER = 0.05
"""Largest scatter of a real sensor's changes, as a share of its period; includes delays of calls.
"""


@dataclass(frozen=True, slots=True)
class SensorClock:
    """Updates at `phase_s` + k · `period_s`, each known to ± `slack_s`."""

    phase_s: float
    period_s: float
    slack_s: float

    def before(self, t_s: float) -> float:
        """Return the time of the last update at or before `t_s`."""
        return self.phase_s + math.floor((t_s - self.phase_s) / self.period_s) * self.period_s

    def nearest(self, t_s: float) -> float:
        return self.phase_s + round((t_s - self.phase_s) / self.period_s) * self.period_s


def power_changes(polls: Iterable[Poll]) -> list[tuple[float, float]]:
    """Return the intervals in which the power changed, between polls close enough for a fit."""
    changes: list[tuple[float, float]] = []
    value: float | None = None
    begin_s = -math.inf
    for poll in polls:
        before = value
        value = poll.integrand_w
        end_s = poll.after_s
        is_changed = before is not None and value is not None and before != value
        if is_changed and end_s - begin_s < SENSOR_PERIOD_S:
            changes.append((begin_s, end_s))
        begin_s = poll.before_s
    return changes


class PowerClockTracker:
    """Clock of the sensor of a device's power, fitted again at intervals."""

    def __init__(self) -> None:
        self.clock: SensorClock | None = None
        self._due_s = -math.inf

    def at(self, polls: Iterable[Poll], now_s: float) -> SensorClock | None:
        """Return the clock at the latest of `polls`, at `now_s`."""
        if now_s >= self._due_s:
            self.clock = fit_sensor_clock(power_changes(polls), self.clock)
            self._due_s = now_s + POWER_REFIT_S
        return self.clock


class CounterClockTracker:
    """Clock of a device's counter, fitted again at intervals to its latest changes."""

    def __init__(self) -> None:
        self._clock: SensorClock | None = None
        self._changes: deque[tuple[float, float]] = deque()
        self._due_s = -math.inf

    def note_change(self, before: Poll, after: Poll) -> None:
        """Note that the counter changed between two polls, if they are close enough for a fit."""
        if after.after_s - before.before_s < SENSOR_PERIOD_S:
            self._changes.append((before.before_s, after.after_s))
            self._discard(after.after_s)

    def at(self, now_s: float) -> SensorClock | None:
        """Return the clock at the latest poll, at `now_s`."""
        if now_s >= self._due_s:
            self._discard(now_s)
            self._clock = fit_sensor_clock(self._changes, self._clock)
            self._due_s = now_s + COUNTER_REFIT_S * len(self._changes)
        return self._clock

    def is_complete(self, poll_period_s: float, now_s: float) -> bool:
        """Return whether polls of this period alone show when the counter changes, and have done
        so for CHANGES_S up to `now_s`: more frequent ones would hardly narrow the clock's slack.
        """
        clock = self._clock
        if clock is None or clock.period_s < 2 * poll_period_s or clock.slack_s > COMPLETE_SLACK_S:
            return False
        recent = sum(end_s >= now_s - CHANGES_S for _, end_s in self._changes)
        return recent * clock.period_s >= COMPLETE_SHARE * CHANGES_S

    def _discard(self, now_s: float) -> None:
        while self._changes and self._changes[0][1] < now_s - CHANGES_S:
            self._changes.popleft()


def fit_sensor_clock(
    changes: Collection[tuple[float, float]], known: SensorClock | None = None
) -> SensorClock | None:
    """Return the clock that best explains `changes`: (a, b] in seconds, in each of which the value
    changed once.

    `known` is a clock of earlier changes. If many changes all agree with it, they only correct it,
    and no other one is searched.

    Every change means a < phase + k·period ≤ b. Any clock that satisfies all of these may be the
    true one. The result is their mean; its slack covers 95 % of them at the first and at the last
    change.

    Return None where there are too few changes, or one with every poll, which determines no period.
    """
    if len(changes) < _MIN_CHANGES:
        return None
    widths = [b - a for a, b in changes]
    narrow = _WIDEST * median(widths)
    narrow_changes = [
        change for change, width in zip(changes, widths, strict=True) if width <= narrow
    ]
    if known and len(narrow_changes) >= _MANY_CHANGES:
        followed = _follow(known, narrow_changes)
        if followed:
            return followed
    middles = [(a + b) / 2 for a, b in narrow_changes]
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
        refined.append(_refine(candidate, narrow_changes))
        if refined[-1][0] <= 0:
            break
    scatter_s, clock = min(refined, key=lambda found: found[0])
    return (
        clock
        if scatter_s <= clock.period_s * _SCATTER and clock.slack_s <= clock.period_s / 4
        else None
    )


def _follow(known: SensorClock, changes: Sequence[tuple[float, float]]) -> SensorClock | None:
    """Return the mean of the clocks near `known` that satisfy all changes; None if there are none,
    or if they may be further away than the changes that are examined show.

    Only a change whose polls are near its update bounds these clocks, one in five of those between
    polls each 47 ms.
    """
    margin_s = _FOLLOWED_SLACKS * known.slack_s + _JITTER_S
    first_s = sum(changes[0]) / 2
    known = replace(known, phase_s=known.nearest(first_s))  # else the numbers grow with uptime
    phase_s = known.phase_s
    period_s = known.period_s
    near = [changes[0]]
    for change in changes[1:-1]:
        begin_s, end_s = change
        number = round(((begin_s + end_s) / 2 - phase_s) / period_s)
        update_s = phase_s + number * period_s
        if update_s - begin_s < margin_s or end_s - update_s < margin_s:
            near.append(change)
    near.append(changes[-1])
    scatter_s, clock = _refine(known, near)
    if scatter_s > 0:
        return None
    for t_s in (changes[0][0], changes[-1][1]):
        update_s = clock.nearest(t_s)
        distance_s = abs(known.nearest(update_s) - update_s)
        if distance_s + _POSSIBLE_SLACKS * clock.slack_s > margin_s:
            return None
    return clock


def _strongest(instants: Sequence[float], period_s: float) -> list[SensorClock]:
    """Return the periods within 5 % of `period_s` at which the instants modulo the period lie
    closest together.

    The measure is the length of their mean on the unit circle; its peak is one part in the number
    of periods wide. The strongest peak is not always the sensor's, since the polling period beats
    with it.
    """
    elapsed = [instant - instants[0] for instant in instants]
    span = elapsed[-1] / period_s
    reach = math.ceil(0.05 * span * 4)
    means: list[tuple[float, SensorClock]] = []
    for step in range(-reach, reach + 1):
        candidate = period_s * (1 + step / (4 * span))
        turn = 2j * math.pi / candidate
        mean = sum([cmath.exp(turn * elapsed_s) for elapsed_s in elapsed])
        phase_s = instants[0] + cmath.phase(mean) / (2 * math.pi) * candidate
        means.append((abs(mean), SensorClock(phase_s, candidate, candidate / 4)))
    peaks = [
        means[i]
        for i in range(len(means))
        if means[i][0]
        == max(length for length, _ in means[max(0, i - 2) : i + 3])  # the highest within its width
    ]
    peaks.sort(key=lambda peak: -peak[0])
    return [clock for _, clock in peaks[:_CANDIDATES]]


def _refine(
    clock: SensorClock, changes: Sequence[tuple[float, float]]
) -> tuple[float, SensorClock]:
    """Return the scatter of `changes` and their best clock; `clock` must be good enough to number
    their updates.

    The scatter is 0 or less where the clock satisfies all changes.
    """
    origin = clock.phase_s
    numbers = [round(((a + b) / 2 - origin) / clock.period_s) for a, b in changes]
    low = [(a - origin, k) for (a, _), k in zip(changes, numbers, strict=True)]
    high = [(b - origin, k) for (_, b), k in zip(changes, numbers, strict=True)]

    # of all changes, those on the hull bound the phase; lists, whose max and min take half the time
    # of generators
    first_after = _upper_hull(low)
    last_before = [(-y, k) for y, k in _upper_hull([(-b, k) for b, k in high])]

    def phases(period_s: float) -> tuple[float, float]:
        return max([a - k * period_s for a, k in first_after]), min(
            [b - k * period_s for b, k in last_before]
        )

    reach = 2 * median(b - a for a, b in changes) / max(1, numbers[-1])
    widest_s = _widest(phases, clock.period_s - reach, clock.period_s + reach)
    first, last = phases(widest_s)
    if last <= first:  # no clock satisfies every change: they scatter
        slack_s = first - last + median(b - a for a, b in changes) / 4
        return first - last, SensorClock(origin + (first + last) / 2, widest_s, slack_s)
    return first - last, _mean(origin, _possible_clocks(phases, widest_s, reach), numbers)


def _upper_hull(points: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the points (y, k), in the order of k, that have the largest y - k * slope for some
    slope.
    """
    hull: list[tuple[float, int]] = []
    for y, k in points:
        while len(hull) > 1:
            (y1, k1) = hull[-2]
            (y2, k2) = hull[-1]
            if (y2 - y1) * (k - k1) > (y - y1) * (k2 - k1):
                break
            hull.pop()
        hull.append((y, k))
    return hull


def _mean(
    origin: float, clocks: list[tuple[float, float, float]], numbers: list[int]
) -> SensorClock:
    """Return the mean of possible clocks (period, first phase, last phase), with a slack that
    covers 95 % of them.
    """
    weights = [last - first for _, first, last in clocks]
    total = sum(weights)
    period_s = sum(w * period for w, (period, _, _) in zip(weights, clocks, strict=True)) / total
    phase_s = (
        sum(w * (first + last) / 2 for w, (_, first, last) in zip(weights, clocks, strict=True))
        / total
    )

    def variance(number: int) -> float:
        """Return the variance of the time of update `number`."""
        off = [
            (first + last) / 2 - phase_s + number * (period - period_s)
            for period, first, last in clocks
        ]
        return sum(w * (o**2 + w**2 / 12) for w, o in zip(weights, off, strict=True)) / total

    return SensorClock(
        origin + phase_s,
        period_s,
        NORMAL_95 * math.sqrt(max(variance(numbers[0]), variance(numbers[-1]))),
    )


def _possible_clocks(
    phases: PhaseRange, widest_s: float, reach: float
) -> list[tuple[float, float, float]]:
    """Return periods from the shortest to the longest that satisfy all changes, each with its range
    of phases.
    """
    ends = []
    for far_s in (widest_s - reach, widest_s + reach):
        inside = widest_s
        outside = far_s
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            first, last = phases(middle)
            inside, outside = (middle, outside) if last > first else (inside, middle)
        ends.append(inside)
    low, high = ends
    periods = [low + (high - low) * (i + 0.5) / _PERIODS for i in range(_PERIODS)]
    return [(period, *phases(period)) for period in periods]


def _widest(phases: PhaseRange, low: float, high: float) -> float:
    """Return the period with the widest range of phases, by golden-section search.

    The width is concave in the period: a minimum of lines less a maximum of lines.
    """
    ratio = (math.sqrt(5) - 1) / 2

    def width(period: float) -> float:
        first, last = phases(period)
        return last - first

    left = high - ratio * (high - low)
    right = low + ratio * (high - low)
    at_left = width(left)
    at_right = width(right)
    for _ in range(_SEARCH_STEPS):
        if at_left >= at_right:
            high = right
            right = left
            at_right = at_left
            left = high - ratio * (high - low)
            at_left = width(left)
        else:
            low = left
            left = right
            at_left = at_right
            right = low + ratio * (high - low)
            at_right = width(right)
    return (low + high) / 2
