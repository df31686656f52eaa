"""Joules at any instant between the updates of an energy counter, with bounds (pure).

Times are seconds on one clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from exporter.energy.marks import MeteredPoll
from exporter.energy.sensor_clock import SensorClock
from exporter.model import Poll

NEIGHBOURHOOD_S = 1.5
"""How far around an instant the least and the greatest power are looked for."""
EXTRAPOLATION_S = 0.3
"""How far beyond the last update energy is carried on; from a sensor that is silent for longer nothing is invented."""
_JITTER_S = 0.001
"""By how much the instants of updates and calls scatter on a machine at work."""


@dataclass(frozen=True, slots=True)
class EnergyPoint:
    """The energy at an instant that is known to ± `slack_s`."""

    t_s: float
    joules: float
    slack_s: float


def interpolate_energy(knots: Sequence[EnergyPoint], t_s: float, powers_w: Sequence[float] = ()) -> tuple[float, float]:
    """Joules at `t_s` and the half-width of the interval that holds them.

    Between two updates the energy is known at both ends, and the power lies between the least and the greatest seen
    nearby (`powers_w` and the knots' own slopes): that bounds it from both sides. Inside the bounds, the estimate is
    the step in power that explains the interval and both its neighbours, else a straight line.
    """
    if not knots:
        return 0.0, 0.0
    if len(knots) == 1:
        return knots[0].joules, max(powers_w, default=0.0) * (abs(t_s - knots[0].t_s) + knots[0].slack_s)
    right = bisect_right(knots, t_s, key=_t_s)
    nearby = knots[_first_within(knots, t_s - NEIGHBOURHOOD_S) : _last_within(knots, t_s + NEIGHBOURHOOD_S)]
    slopes = [_slope(a, b) for a, b in pairwise(nearby)]
    inner = min(max(right, 1), len(knots) - 1)
    slope_w = _slope(knots[inner - 1], knots[inner])
    low_w, high_w = min(slope_w, *slopes, *powers_w), max(slope_w, *slopes, *powers_w)
    if right in (0, len(knots)):  # outside of what was seen: as it went on, but for no longer than REACH_S
        edge = knots[0] if right == 0 else knots[-1]
        reach_s = min(max(t_s - edge.t_s, -EXTRAPOLATION_S), EXTRAPOLATION_S)
        beyond_s = abs(t_s - edge.t_s) - abs(reach_s)
        half_width_j = abs(reach_s) * (high_w - low_w) + (beyond_s + edge.slack_s) * high_w
        return edge.joules + slope_w * reach_s, half_width_j
    left, after = knots[right - 1], knots[right]
    x_s, rest_s = t_s - left.t_s, after.t_s - t_s
    least = max(left.joules + low_w * x_s, after.joules - high_w * rest_s)
    most = min(left.joules + high_w * x_s, after.joules - low_w * rest_s)
    joules = min(max(_stepwise(knots, right, t_s, low_w, high_w), least), most)
    return joules, max(most - joules, joules - least, 0.0) + (max(left.slack_s, after.slack_s) + _JITTER_S) * slope_w


def _slope(a: EnergyPoint, b: EnergyPoint) -> float:
    return (b.joules - a.joules) / (b.t_s - a.t_s)


def _first_within(knots: Sequence[EnergyPoint], t_s: float) -> int:
    """Two knots before `t_s`: of a long silence also the power before it."""
    return max(0, bisect_right(knots, t_s, key=_t_s) - 2)


def _last_within(knots: Sequence[EnergyPoint], t_s: float) -> int:
    return bisect_right(knots, t_s, key=_t_s) + 2


def _t_s(knot: EnergyPoint) -> float:
    return knot.t_s


def _stepwise(knots: Sequence[EnergyPoint], right: int, t_s: float, low_w: float, high_w: float) -> float:
    """Joules at `t_s`, if the power stepped once from the slope before the interval to the slope after it.

    Where one of the two is not known, the step is taken to be the greatest that was seen nearby.
    """
    left, after = knots[right - 1], knots[right]
    slope_w = _slope(left, after)
    line = left.joules + slope_w * (t_s - left.t_s)
    span_s = after.t_s - left.t_s
    before_w, after_w = _neighbour(knots, right - 1, span_s), _neighbour(knots, right + 1, span_s)
    if before_w is None and after_w is not None:
        before_w = low_w if slope_w < after_w else high_w
    if after_w is None and before_w is not None:
        after_w = low_w if slope_w < before_w else high_w
    if before_w is None or after_w is None or before_w == after_w:
        return line
    if not min(before_w, after_w) <= slope_w <= max(before_w, after_w):
        return line
    step_at = left.t_s + span_s * (after_w - slope_w) / (after_w - before_w)
    if t_s <= step_at:
        return left.joules + before_w * (t_s - left.t_s)
    return after.joules - after_w * (after.t_s - t_s)


def _neighbour(knots: Sequence[EnergyPoint], right: int, span_s: float) -> float | None:
    """The slope of the interval that ends at knot number `right`, unless it is much longer than `span_s`."""
    if not 1 <= right < len(knots) or knots[right].t_s - knots[right - 1].t_s > 1.5 * span_s:
        return None
    return _slope(knots[right - 1], knots[right])


SENSOR_PERIOD_S = 0.1
"""How often a driver updates energy and power, unless the polls tell."""


def counter_points(seen: Sequence[MeteredPoll], clock: SensorClock | None, update_s: float) -> list[EnergyPoint]:
    """One knot for each update of the counter that was seen, at the instant of the update."""
    first_s = seen[0].poll.after_s
    updated_s, slack_s = (clock.before(first_s), clock.slack_s) if clock else (first_s, update_s)
    knots = [EnergyPoint(updated_s, seen[0].totals.energy_j, slack_s)]
    for a, b in pairwise(seen):
        if b.poll.counter_j is None or b.totals.energy_j == a.totals.energy_j:
            continue
        earliest_s, latest_s = a.poll.before_s, b.poll.after_s
        if clock:
            if latest_s - earliest_s < 0.75 * clock.period_s:
                first_s = last_s = clock.nearest((earliest_s + latest_s) / 2)
            else:  # the value is that of the last update before the call looked at it, whenever that was
                first_s, last_s = clock.before(b.poll.before_s), clock.before(latest_s)
            t_s = min(max((first_s + last_s) / 2, earliest_s), latest_s)
            slack_s = clock.slack_s + (last_s - first_s) / 2
        else:
            earliest_s = max(earliest_s, b.poll.before_s - update_s)
            t_s, slack_s = (earliest_s + latest_s) / 2, (latest_s - earliest_s) / 2
        if t_s > knots[-1].t_s:
            knots.append(EnergyPoint(t_s, b.totals.energy_j, slack_s))
    return knots


def integral_points(seen: Sequence[MeteredPoll], lag_s: float, slack_s: float) -> list[EnergyPoint]:
    """One knot for each update of the power, earlier by `lag_s`, by which the power shown trails the power drawn."""
    edges = [item for a, b in pairwise(seen) if b.moved_s is None for item in (a, b)]  # of gaps
    knots = [EnergyPoint(after_s(item) - lag_s, item.totals.energy_j, slack_s) for item in [seen[0], *edges, seen[-1]]]
    for a, b in pairwise(seen):
        watts = power_w(a.poll)
        if b.moved_s is not None and watts is not None and watts != power_w(b.poll):
            joules = a.totals.energy_j + watts * (b.moved_s - a.poll.after_s)
            knots.append(EnergyPoint(b.moved_s - lag_s, joules, slack_s))
    knots.sort(key=lambda knot: knot.t_s)
    return [knot for i, knot in enumerate(knots) if i == 0 or knot.t_s > knots[i - 1].t_s]


def after_s(item: MeteredPoll) -> float:
    return item.poll.after_s


def power_w(poll: Poll) -> float | None:
    return poll.average_w if poll.average_w is not None else poll.power_w


def value_changes(polls: Sequence[Poll], *, counter: bool) -> list[tuple[float, float]]:
    """Between which instants the value changed, for every change that was seen closely enough to tell a clock."""
    value = (lambda poll: poll.counter_j) if counter else power_w
    return [
        (a.before_s, b.after_s)
        for a, b in pairwise(polls)
        if b.after_s - a.before_s < SENSOR_PERIOD_S
        and value(a) is not None
        and value(b) is not None
        and value(a) != value(b)
    ]
