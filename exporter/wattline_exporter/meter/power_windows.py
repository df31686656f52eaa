"""Averaging windows of a GPU's powers, as the polls show them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from wattline_exporter.meter.interpolation import EnergyPoint
from wattline_exporter.meter.sensor_clock import AVERAGING_S
from wattline_exporter.meter.totals import MeteredPoll, poll_time_s
from wattline_exporter.meter.uncertainty import TOLERANCE, is_other_power
from wattline_exporter.sensors.readings import Poll

_STRETCHES = (1.0, 1.5, 2.0, 4.0, 8.0)
"""Windows that are tried, in multiples of the shortest one."""
_DELAYS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Times since the end of a window, in multiples of the counter's update."""
_SIGHTINGS = 2
_SIGHTED_S = 60.0
"""Readings in this time that exclude a window that does not explain them: one may be a glitch."""
_MEAN_SIGHTINGS = 4
"""Means of changing updates, in a row, that exclude a shorter window: its reading is near the mean
of such an update by chance.
"""


class CountedEnergy:
    """Bounds of the energy that a counter allows between any two instants.

    Between two updates, any part of the energy may lie before an instant, at up to `most_w`.
    """

    def __init__(self, points: Sequence[EnergyPoint], most_w: float) -> None:
        self._points = points
        self._times_s = [point.t_s for point in points]
        self._most_w = most_w

    def explains(self, power_w: float, t_s: float, window_s: float, update_s: float) -> bool:
        """Return whether a power that was read at `t_s` can be the mean over a window of at least
        `window_s` that ended within `update_s` before.
        """
        error_w = _error_w(power_w)
        for delay in _DELAYS:
            end_s = t_s - delay * update_s
            for stretch in _STRETCHES:
                bounds_w = self.bounds_w(end_s - stretch * window_s, end_s)
                if bounds_w is None or bounds_w[0] - error_w <= power_w <= bounds_w[1] + error_w:
                    return True
        return False

    def update_w(self, t_s: float, offset: int) -> float | None:
        """Return the mean power of the update that contains `t_s`, or of one as many updates later
        as `offset`; None outside of the points.
        """
        right = bisect_right(self._times_s, t_s) + offset
        if not 0 < right < len(self._points):
            return None
        left = self._points[right - 1]
        after = self._points[right]
        return (after.joules - left.joules) / (after.t_s - left.t_s)

    def bounds_w(self, begin_s: float, end_s: float) -> tuple[float, float] | None:
        """Return the lowest and the highest mean power; None before the first point."""
        begin_j = self._bounds_j(begin_s)
        end_j = self._bounds_j(end_s)
        if begin_j is None or end_j is None:
            return None
        span_s = end_s - begin_s
        return max(0.0, end_j[0] - begin_j[1]) / span_s, (end_j[1] - begin_j[0]) / span_s

    def _bounds_j(self, t_s: float) -> tuple[float, float] | None:
        right = bisect_right(self._times_s, t_s)
        if right == 0:
            return None
        most_w = self._most_w
        left = self._points[right - 1]
        since_s = t_s - left.t_s
        least_j = left.joules - most_w * max(0.0, left.slack_s - since_s)
        most_j = left.joules + most_w * (left.slack_s + since_s)
        if right == len(self._points):
            return least_j, most_j
        after = self._points[right]
        rest_s = after.t_s - t_s
        return (
            max(least_j, after.joules - most_w * (after.slack_s + rest_s)),
            min(most_j, after.joules + most_w * max(0.0, after.slack_s - rest_s)),
        )


class _Exclusion:
    """Exclusion of a window, by several readings that it does not explain."""

    def __init__(self) -> None:
        self.is_certain = False
        self._count = 0
        self._latest_s = -math.inf

    def forget(self) -> None:
        """Forget the readings so far, after one that contradicts them."""
        self._count = 0

    def note(self, t_s: float, sightings: int = _SIGHTINGS) -> None:
        """Note a reading at `t_s` that the window does not explain, the last one of `sightings`
        that exclude it.
        """
        self._count = self._count + 1 if t_s - self._latest_s <= _SIGHTED_S else 1
        self._latest_s = t_s
        self.is_certain |= self._count >= sightings


class PowerWindows:
    """Windows of the instantaneous and of the averaged power of one GPU.

    A mean over a window follows a change of the load only as far as the window has passed it. A
    reading that has gone further excludes all windows of that length, and all longer ones. A load
    that is flat, or locked to the updates, shows no window. So a window that was short in earlier
    runs counts until readings are the means of updates in which the load changes.
    """

    def __init__(self) -> None:
        self.is_short_by_model = False
        """True if measurements of the GPU's model found a window of the instantaneous power that is
        shorter than an update: one reading confirms it.
        """
        self.was_short = False
        """True if an earlier exporter saw that window on this GPU."""
        self._has_differed = False
        """True once the averaged power differed from the instantaneous one by more than noise."""
        self._examined_s = -math.inf
        self._not_whole = _Exclusion()
        """A window of a whole update, for the instantaneous power."""
        self._not_short = _Exclusion()
        """The window that an earlier exporter saw, for the instantaneous power."""
        self._not_long = _Exclusion()
        """A window of half of AVERAGING_S, for the averaged power."""

    @property
    def shows_shape(self) -> bool:
        """True if the window of the instantaneous power is shorter than an update of the counter:
        its readings show the powers inside an update.
        """
        if self._not_whole.is_certain:
            return True
        return self.was_short and not self._not_short.is_certain

    @property
    def averages_long(self) -> bool:
        """True if the averaged power has been seen to have a longer window than the instantaneous
        one. Else readings a second apart may miss the load between them.
        """
        return self._has_differed and not self._not_long.is_certain

    def averaging_s(self, poll: Poll) -> float:
        """Return the window of the averaged power, 0 for at most an update.

        It is AVERAGING_S, unless the power has changed faster than such a mean can, or has always
        been the same as the instantaneous one.
        """
        if poll.average_w is None or self._not_long.is_certain:
            return 0.0
        return AVERAGING_S if self._has_differed or poll.instant_w is None else 0.0

    def take(self, poll: Poll) -> bool:
        """Note the powers of a poll; return True if they differ for the first time."""
        if self._has_differed or poll.instant_w is None or poll.average_w is None:
            return False
        self._has_differed = is_other_power(poll.instant_w, poll.average_w)
        return self._has_differed

    def examine(
        self,
        polls: Sequence[MeteredPoll],
        points: Sequence[EnergyPoint],
        update_s: float,
        most_w: float,
    ) -> bool:
        """Compare the readings since the last call with the counter's energy at `points`; return
        True if the window of the averaged power turns out to be short.

        A counter in error contradicts any power. So a reading counts only if the counter confirms
        it: for the instantaneous power the next update, for the averaged one the update before.
        """
        was_long = not self._not_long.is_certain
        counted = CountedEnergy(points, most_w)
        first = bisect_right(polls, self._examined_s, key=poll_time_s)
        for index in range(max(first, 1), len(polls)):
            before = polls[index - 1].poll
            poll = polls[index].poll
            t_s = poll.after_s
            next_w = counted.update_w(t_s, 1)
            if next_w is None and t_s >= points[0].t_s:
                break  # until the next update is known
            instant_w = _changed_w(before.instant_w, poll.instant_w)
            if (
                instant_w is not None
                and _is_confirmed(instant_w, next_w)
                and not counted.explains(instant_w, t_s, update_s, update_s)
            ):
                self._not_whole.note(t_s, 1 if self.is_short_by_model else _SIGHTINGS)
            if instant_w is not None:
                self._note_mean(instant_w, t_s, counted)
            average_w = _changed_w(before.average_w, poll.average_w)
            if average_w is not None:
                if not _is_confirmed(average_w, counted.update_w(t_s, -1)):
                    self._not_long.forget()
                elif not counted.explains(average_w, t_s, AVERAGING_S / 2, update_s):
                    self._not_long.note(t_s)
            self._examined_s = t_s
        return was_long and self._not_long.is_certain

    def _note_mean(self, instant_w: float, t_s: float, counted: CountedEnergy) -> None:
        """Note whether a reading is the mean of the latest update, in which the load changed: the
        means of the updates before and after it differ.
        """
        before_w = counted.update_w(t_s, -2)
        mean_w = counted.update_w(t_s, -1)
        after_w = counted.update_w(t_s, 0)
        if before_w is None or mean_w is None or after_w is None:
            return
        if not (is_other_power(mean_w, before_w) and is_other_power(mean_w, after_w)):
            return
        if is_other_power(instant_w, mean_w):
            self._not_short.forget()
        else:
            self._not_short.note(t_s, _MEAN_SIGHTINGS)


def _is_confirmed(power_w: float, update_w: float | None) -> bool:
    """Return whether a power is the mean of an update, within the accuracy of both."""
    return update_w is not None and abs(power_w - update_w) <= _error_w(power_w)


def _error_w(power_w: float) -> float:
    """Return the largest difference of a power and a counter that are accurate: 1 W and 5 %."""
    return 1.0 + TOLERANCE * power_w


def _changed_w(before_w: float | None, power_w: float | None) -> float | None:
    """Return a power that differs from the one before by more than noise, else None."""
    if before_w is None or power_w is None or not is_other_power(before_w, power_w):
        return None
    return power_w
