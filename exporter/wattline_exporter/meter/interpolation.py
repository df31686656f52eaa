"""Interpolation of energy between sensor updates, with its uncertainty.

Pure functions. Times are CLOCK_BOOTTIME seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from wattline_exporter.meter.counter_track import MAX_DEVICE_W
from wattline_exporter.meter.sensor_clock import SensorClock
from wattline_exporter.meter.totals import (
    CounterChange,
    MeteredPoll,
    RecentPolls,
    poll_time_s,
)
from wattline_exporter.meter.uncertainty import (
    SHORT_WINDOW_S,
    ShapeBounds,
    between_updates_j,
    extrapolation_j,
    hidden_shape_j,
    holds_levels,
    levels_in_update_w,
    located_step_j,
    peak_w,
    shape_bounds,
    unread_j,
    update_time_j,
)

NEIGHBOURHOOD_S = 1.5
"""Range around an instant in which the smallest and the largest power bound the interpolation."""
EXTRAPOLATION_S = 0.3
"""Longest extrapolation of the energy beyond the updates; further away, only the half-width grows.
"""
_JITTER_S = 0.001
"""Scatter of update and call times on a busy machine."""
_LONGER = 1.5
"""Ratio of two intervals between points from which on the longer one contains several updates."""
_MARGIN_SLACKS = 2.0
"""Margin around an update in multiples of the clock's slack, which covers 95 % of the possible
clocks.
"""


class EnergyPoint(NamedTuple):
    """Energy at the time of a sensor update; the time is known to ± `slack_s`.

    A tuple, since a view of a meter makes more than 100.
    """

    t_s: float
    joules: float
    slack_s: float


class PowerLimits(NamedTuple):
    """Powers between which a device always is."""

    least_w: float
    most_w: float


NO_LIMITS = PowerLimits(0.0, MAX_DEVICE_W)
"""Limits of a device of which nothing is known."""


class ShownPower(NamedTuple):
    """What the polls around an instant show of the power."""

    powers_w: Sequence[float] = ()
    """Readings of the power."""
    is_instant: bool = True
    """True if they are instantaneous, else averaged."""
    limits: PowerLimits = NO_LIMITS
    is_polled: bool = True
    """True if a poll shows the energy at the instant; else any power up to the limit may have
    flowed.
    """
    is_counted: bool = True
    """True if the points are updates of a counter; else of the power that is integrated."""
    shows_shape: bool = True
    """True if the readings have a shorter window than an update."""
    window_j: float = 0.0
    """Error at one instant, of a load that is faster than that window."""


NOTHING_SHOWN = ShownPower()


def _power_bounds(slopes_w: Sequence[float], shown: ShownPower, *, is_held: bool) -> ShapeBounds:
    """Return the bounds of the power between two points, by the slopes and the readings nearby."""
    low_w = min(*slopes_w, *shown.powers_w, math.inf)
    high_w = max(*slopes_w, *shown.powers_w, -math.inf)
    limits = shown.limits
    if not shown.is_polled:
        return ShapeBounds(0.0, max(high_w, limits.most_w), is_known=False)
    if not shown.powers_w:  # the slopes are means, of a load that may switch faster
        return ShapeBounds(0.0, peak_w(high_w), is_known=False)
    if is_held:
        return ShapeBounds(low_w, high_w, is_known=True)
    readings_w = shown.powers_w if shown.shows_shape else ()
    return shape_bounds(slopes_w, readings_w, limits.least_w, limits.most_w)


def _energy_bounds(
    left: EnergyPoint, after: EnergyPoint, t_s: float, low_w: float, high_w: float
) -> tuple[float, float]:
    """Return the least and the most joules at `t_s` between two points, at powers in a range."""
    since_s = t_s - left.t_s
    rest_s = after.t_s - t_s
    least_j = max(left.joules + low_w * since_s, after.joules - high_w * rest_s)
    most_j = min(left.joules + high_w * since_s, after.joules - low_w * rest_s)
    return least_j, most_j


class EnergyLine:
    """Energy over time through points in their order."""

    def __init__(self, points: Sequence[EnergyPoint]) -> None:
        self._points = points
        self._times_s = [point.t_s for point in points]
        self._slopes_w = [
            (b_j - a_j) / (b_s - a_s) for (a_s, a_j, _), (b_s, b_j, _) in pairwise(points)
        ]

    def at(self, t_s: float, shown: ShownPower = NOTHING_SHOWN) -> tuple[float, float]:
        """Return the joules at `t_s` and the half-width of their interval.

        Between two updates the energy is known at both ends. The power between them has bounds by
        the readings nearby and the slopes between the points, which bound the energy from both
        sides. Within these bounds, the estimate assumes one step in power that fits this interval
        and both its neighbours. If there is none, it assumes constant power.
        """
        points = self._points
        times_s = self._times_s
        powers_w = shown.powers_w
        if not points:
            return 0.0, 0.0
        if len(points) == 1:
            most_w = max(powers_w, default=0.0) if shown.is_polled else shown.limits.most_w
            away_s = abs(t_s - points[0].t_s) + points[0].slack_s
            return points[0].joules, unread_j(away_s, most_w)
        right = bisect_right(times_s, t_s)
        first = max(
            0, bisect_right(times_s, t_s - NEIGHBOURHOOD_S) - 2
        )  # covers the power before a long gap as well
        slopes_w = self._slopes_w[first : bisect_right(times_s, t_s + NEIGHBOURHOOD_S) + 1]
        slope_w = self._slopes_w[min(max(right, 1), len(points) - 1) - 1]
        step_low_w = min(slope_w, *slopes_w, *powers_w)
        step_high_w = max(slope_w, *slopes_w, *powers_w)
        is_held = self._is_held(first, right, slopes_w, shown)
        bounds = _power_bounds(slopes_w, shown, is_held=is_held)
        low_w = bounds.low_w
        high_w = bounds.high_w
        error_j = shown.window_j if shown.shows_shape else 0.0
        if is_held:
            error_j = self._held_level_j(right, slope_w, bounds, shown)
        if right in (0, len(points)):  # outside of the points
            edge = points[0] if right == 0 else points[-1]
            reach_s = min(max(t_s - edge.t_s, -EXTRAPOLATION_S), EXTRAPOLATION_S)
            beyond_s = abs(t_s - edge.t_s) - abs(reach_s)
            half_width_j = extrapolation_j(abs(reach_s), beyond_s, edge.slack_s, low_w, high_w)
            return edge.joules + slope_w * reach_s, half_width_j + error_j
        left = points[right - 1]
        after = points[right]
        least_j, most_j = _energy_bounds(left, after, t_s, low_w, high_w)
        joules = min(max(self._stepwise(right, t_s, step_low_w, step_high_w), least_j), most_j)
        half_width_j = between_updates_j(joules, least_j, most_j)
        if bounds.is_known and shown.is_counted:
            half_width_j = min(half_width_j, self._located_j(right, bounds, half_width_j))
        half_width_j += error_j
        if is_held and not shown.shows_shape:  # at most that of any load with these means
            any_load = shape_bounds(slopes_w, (), *shown.limits)
            possible_j = _energy_bounds(left, after, t_s, any_load.low_w, any_load.high_w)
            half_width_j = min(half_width_j, between_updates_j(joules, *possible_j))
        slack_s = max(left.slack_s, after.slack_s) + _JITTER_S
        return joules, half_width_j + update_time_j(slack_s, slope_w, high_w)

    def _is_held(
        self, first: int, right: int, slopes_w: Sequence[float], shown: ShownPower
    ) -> bool:
        """Return whether the load holds its levels in the updates of `slopes_w`, from point `first`
        on; intervals that are much longer than the one before point `right` do not count.
        """
        if not (shown.powers_w and shown.is_polled and shown.is_counted):
            return False
        times_s = self._times_s
        right = min(max(right, 1), len(times_s) - 1)
        longest_s = _LONGER * (times_s[right] - times_s[right - 1])
        steps_w = [
            slope_w
            for index, slope_w in enumerate(slopes_w, first)
            if times_s[index + 1] - times_s[index] <= longest_s
        ]
        return holds_levels(steps_w, shown.powers_w if shown.is_instant else ())

    def _held_level_j(
        self, right: int, slope_w: float, bounds: ShapeBounds, shown: ShownPower
    ) -> float:
        """Return the error at one instant before point `right`, of levels that are bursts.

        Bursts whose period divides the window of the readings have the same mean in each reading,
        as a flat load has. The window is a part of the update, or the whole of it.
        """
        right = min(max(right, 1), len(self._times_s) - 1)
        window_s = self._times_s[right] - self._times_s[right - 1]
        if shown.shows_shape:
            window_s = min(window_s, SHORT_WINDOW_S)
        return max(
            hidden_shape_j(level_w, *shown.limits, window_s)
            for level_w in levels_in_update_w(slope_w, bounds.low_w, bounds.high_w)
        )

    def _stepwise(self, right: int, t_s: float, low_w: float, high_w: float) -> float:
        """Return the joules at `t_s`, assuming one change of power: from the slope before the
        interval to that after.

        If one slope is unknown, it is the smallest or largest nearby power. Without a possible
        step, the power is constant.
        """
        left = self._points[right - 1]
        after = self._points[right]
        slope_w = self._slopes_w[right - 1]
        span_s = after.t_s - left.t_s
        before_w = self._neighbour_w(right - 1, span_s)
        after_w = self._neighbour_w(right + 1, span_s)
        if before_w is None and after_w is not None:
            before_w = low_w if slope_w < after_w else high_w
        if after_w is None and before_w is not None:
            after_w = low_w if slope_w < before_w else high_w
        if before_w is None or after_w is None or before_w == after_w:
            return left.joules + slope_w * (t_s - left.t_s)
        if not min(before_w, after_w) <= slope_w <= max(before_w, after_w):
            return left.joules + slope_w * (t_s - left.t_s)
        step_at = left.t_s + span_s * (after_w - slope_w) / (after_w - before_w)
        if t_s <= step_at:
            return left.joules + before_w * (t_s - left.t_s)
        return after.joules - after_w * (after.t_s - t_s)

    def _located_j(self, right: int, bounds: ShapeBounds, otherwise_j: float) -> float:
        """Return the error of an energy before point `right` if one change of power explains it."""
        span_s = self._points[right].t_s - self._points[right - 1].t_s
        before_w = self._neighbour_w(right - 1, span_s)
        after_w = self._neighbour_w(right + 1, span_s)
        if before_w is None or after_w is None:
            return otherwise_j
        located_j = located_step_j(before_w, after_w, bounds.low_w, bounds.high_w, span_s)
        return otherwise_j if located_j is None else located_j

    def _neighbour_w(self, right: int, span_s: float) -> float | None:
        """Return the slope of the interval that ends at point `right`; None if it is much longer
        than `span_s`.
        """
        times_s = self._times_s
        if not 1 <= right < len(times_s) or times_s[right] - times_s[right - 1] > _LONGER * span_s:
            return None
        return self._slopes_w[right - 1]


def counter_points(
    polls: RecentPolls, clock: SensorClock | None, update_s: float
) -> list[EnergyPoint]:
    """Return one point for each observed update of the counter, at the time of the update."""
    oldest = polls[0]
    changes = _changes_since(oldest, polls)
    points = [_first_point(oldest, changes, polls, clock, update_s)]
    before_j = _counted_j(oldest)
    for i, (before, after) in enumerate(changes):
        joules = _counted_j(after)
        if joules == before_j:
            continue
        before_j = joules
        earliest_s = before.poll.before_s
        latest_s = after.poll.after_s
        if clock is None:
            earliest_s = max(earliest_s, after.poll.before_s - update_s)
            t_s = (earliest_s + latest_s) / 2
            slack_s = (latest_s - earliest_s) / 2
        elif latest_s - earliest_s < 0.75 * clock.period_s:
            t_s = clock.nearest((earliest_s + latest_s) / 2)
            slack_s = clock.slack_s
        else:
            t_s, slack_s = _update_time(after, changes[i + 1 : i + 2], polls, clock)
        t_s = min(max(t_s, earliest_s), latest_s)
        if t_s > points[-1].t_s:
            points.append(EnergyPoint(t_s, joules, slack_s))
    return points


def _changes_since(oldest: MeteredPoll, polls: RecentPolls) -> list[CounterChange]:
    """Return the changes of the counter since the oldest poll. If that has no trusted value, the
    first one of the others counts as a change.
    """
    if oldest.counted_j is not None:
        return list(polls.changes)
    first = next((item for item in polls if item.counted_j is not None), None)
    if first is None:
        return []
    later = [change for change in polls.changes if poll_time_s(change.after) > poll_time_s(first)]
    return [CounterChange(oldest, first), *later]


def _counted_j(item: MeteredPoll) -> float:
    return item.totals.energy_j if item.counted_j is None else item.counted_j


def _first_point(
    oldest: MeteredPoll,
    changes: Sequence[CounterChange],
    polls: RecentPolls,
    clock: SensorClock | None,
    update_s: float,
) -> EnergyPoint:
    if clock is None or oldest.counted_j is None:
        return EnergyPoint(oldest.poll.after_s, _counted_j(oldest), update_s)
    t_s, slack_s = _update_time(oldest, changes[:1], polls, clock)
    return EnergyPoint(t_s, _counted_j(oldest), slack_s)


def _update_time(
    item: MeteredPoll, following: Sequence[CounterChange], polls: RecentPolls, clock: SensorClock
) -> tuple[float, float]:
    """Return the time of the update from which the counter's value in a poll dates, and its
    half-width. `following`: the next change of the counter, if there is one.

    A value dates from the last update before the driver read it, at any time during the call. Near
    an update it may date from that one or from the one before. Later polls decide: the value is the
    same until the next update.
    """
    poll = item.poll
    margin_s = _MARGIN_SLACKS * clock.slack_s + _JITTER_S
    first_s = clock.before(poll.before_s)
    last_s = clock.before(poll.after_s)
    earliest_s = clock.before(poll.before_s - margin_s)
    latest_s = clock.before(poll.after_s + margin_s)
    if earliest_s == latest_s:
        return first_s, clock.slack_s
    unchanged = polls.counted or item
    for before, after in following:
        unchanged = before
        if (after.poll.counter_j or 0.0) > (poll.counter_j or 0.0):
            latest_s = min(latest_s, clock.before(after.poll.after_s + margin_s) - clock.period_s)
    unchanged_s = clock.before(unchanged.poll.before_s - margin_s)
    if (
        earliest_s < unchanged_s <= latest_s
    ):  # later updates without a change are possible without power
        earliest_s = unchanged_s
    earliest_s = min(earliest_s, latest_s)
    t_s = min(max((first_s + last_s) / 2, earliest_s), latest_s)
    return t_s, clock.slack_s + max(latest_s - t_s, t_s - earliest_s)


def integral_points(
    polls: Sequence[MeteredPoll], lag_s: float, slack_s: float
) -> list[EnergyPoint]:
    """Return one point for each update of the power, `lag_s` earlier, since reported power lags the
    true power.
    """
    edges = [
        item for a, b in pairwise(polls) if b.moved_s is None for item in (a, b)
    ]  # both ends of each gap
    points = [
        EnergyPoint(item.poll.after_s - lag_s, item.totals.energy_j, slack_s)
        for item in [polls[0], *edges, polls[-1]]
    ]
    for a, b in pairwise(polls):
        watts = a.poll.integrand_w
        if b.moved_s is not None and watts is not None and watts != b.poll.integrand_w:
            joules = a.totals.energy_j + watts * (b.moved_s - a.poll.after_s)
            points.append(EnergyPoint(b.moved_s - lag_s, joules, slack_s))
    points.sort(key=lambda point: point.t_s)
    return [point for i, point in enumerate(points) if i == 0 or point.t_s > points[i - 1].t_s]


def bridged_points(
    polls: RecentPolls,
    clock: SensorClock | None,
    update_s: float,
    counted_s: float,
    slack_s: float,
) -> list[EnergyPoint]:
    """Return the points of a counter up to its value at `counted_s`, then those of the power that
    replaces it.
    """
    points = counter_points(polls, clock, update_s)
    if poll_time_s(polls[-1]) <= counted_s:
        return points
    bridged = list(islice(polls, bisect_right(polls, counted_s, key=poll_time_s), None))
    bridge = integral_points(bridged, 0.0, slack_s)
    return points + [point for point in bridge if point.t_s > points[-1].t_s]
