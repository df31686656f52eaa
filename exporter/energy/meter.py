"""Energy of one device from its counter or its power, at times in seconds of CLOCK_BOOTTIME."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from typing import NamedTuple

from exporter.energy.counter_wraps import MAX_DEVICE_W, counter_step, is_plausible
from exporter.energy.interpolation import (
    NEIGHBOURHOOD_S,
    EnergyPoint,
    counter_points,
    integral_points,
    interpolate_energy,
)
from exporter.energy.marks import ZERO_TOTALS, EnergyMark, MeteredPoll, MeterTotals, mark_at_totals, poll_time_s
from exporter.energy.sensor_clock import SENSOR_PERIOD_S, SensorClockTracker
from exporter.model import Poll

GAP_PERIODS = 2.5
BRIDGED_S = 1.0
"""Longest time between polls that is never a gap: power is interpolated in between."""
STALLED_S = 2.5
"""Time without a change after which a counter has stalled and does not include the latest energy."""
UNRESOLVED_S = 0.025 / 4
"""Quarter of the power sensor's window of 25 ms. Multiplied by the mean power, it is the error for loads that switch
faster: the sensor reports only their mean, so they do not widen the range of powers."""
LIMIT_MARGIN = 1.5
"""`DeviceMeter.max_w` as a multiple of the power limit, which the mean power does not exceed."""
PACKAGE_MAX_W = 1_000.0
"""Power that no CPU package exceeds."""
AVERAGING_S = 1.0
"""Window of the driver's averaged power."""
KEPT_S = 12.0
"""Time for which polls are kept at any rate; at a slow rate, the last KEPT_POLLS are kept."""
KEPT_POLLS = 64


class _Step(NamedTuple):
    """Change from one poll to the next; `counted` is True if its energy comes from the counter."""

    last: Poll
    poll: Poll
    added_j: float
    fell: bool
    gap: bool
    counted: bool


class DeviceMeter:
    """Energy of one device since the state folder was created, and its latest polls.

    `period_s` is the current polling period, kept up to date by the caller. `update_s` is the counter's update period:
    `SENSOR_PERIOD_S` for a GPU, a millisecond for RAPL. `last` is the state of the sensors when a previous exporter
    saved `totals`.
    """

    def __init__(
        self,
        totals: MeterTotals = ZERO_TOTALS,
        *,
        update_s: float = SENSOR_PERIOD_S,
        period_s: float = 1.0,
        last: Poll | None = None,
    ) -> None:
        self.totals = totals
        self.period_s = period_s
        self.has_counter = last is not None and last.counter_j is not None
        """True if the latest poll has a value of the device's energy counter."""
        self.counter_restarts = False
        """True after the driver was unloaded: the counter restarts from 0, and its next value may be higher."""
        self.max_w = MAX_DEVICE_W
        """Power that the device cannot exceed: LIMIT_MARGIN times its limit, where that is known."""
        self.sensor_share = 1.0
        """Share of time that the instantaneous power covers. It is used only without counter and averaged power."""
        self.implausible_s = -math.inf
        """Time of the counter's last step that exceeds the energy that the device can use."""
        self._update_s = update_s
        self._longest_s = period_s
        self._polls: deque[MeteredPoll] = deque([MeteredPoll(last, totals, None)] if last else ())
        self._resumed = last is not None
        self._discarded = False
        self._view: tuple[list[MeteredPoll], list[float], list[EnergyPoint]] | None = None
        self._doubted: Poll | None = None
        self._counted_s = last.after_s if last else -math.inf
        """Time of the counter's last change: its next step may include all the energy since then."""
        self._counted_integral_j = totals.integrated_j
        self._clock = SensorClockTracker()

    @property
    def latest(self) -> Poll | None:
        return self._polls[-1].poll if self._polls else None

    @property
    def uses_instant_power(self) -> bool:
        """True if the energy comes from instantaneous power only."""
        return not self.has_counter and self.latest is not None and self.latest.average_w is None

    @property
    def unmeasured_share(self) -> float:
        """Share of time that the sensor does not measure, however often it is read."""
        return 1.0 - self.sensor_share if self.uses_instant_power else 0.0

    def totals_before(self, t_s: float) -> MeterTotals:
        """Return the totals of the last poll at or before `t_s`."""
        right = bisect_right(self._polls, t_s, key=poll_time_s)
        return self._polls[max(0, right - 1)].totals if self._polls else self.totals

    def has_discarded(self, t_s: float) -> bool:
        """Return whether the polls around `t_s` are no longer kept."""
        return self._discarded and t_s < poll_time_s(self._polls[0])

    def push(self, poll: Poll) -> float:
        """Add a poll; return the increase of the energy in joules."""
        last, old = self.latest, self.totals
        elapsed_s = poll.after_s - last.after_s if last else math.inf
        if elapsed_s <= 0:
            return 0.0
        uncounted_s = poll.after_s - self._counted_s
        if self._is_doubtful(poll, uncounted_s):
            return 0.0
        gap = last is None or self._resumed or elapsed_s > max(self._steady_s(), BRIDGED_S)
        integral_j, variance_j2, moved_s = self._integrate(last, poll) if last and not gap else (0.0, 0.0, None)
        fell = self._fell(poll, uncounted_s)
        counted_j = self._count(poll, uncounted_s, fell=fell)
        added_j = integral_j if counted_j is None else counted_j
        peak_w = max(old.peak_w, poll.instant_w or 0.0, poll.average_w or 0.0)
        step = _Step(last, poll, added_j, fell, gap, counted_j is not None) if last else None
        unseen_j = self._unmeasured_j(step, peak_w) if step else 0.0
        if poll.counter_j != old.raw_j:
            self._counted_s, self._counted_integral_j = poll.after_s, old.integrated_j + integral_j
        self.totals = MeterTotals(
            energy_j=old.energy_j + added_j,
            integrated_j=old.integrated_j + integral_j,
            raw_j=poll.counter_j,
            variance_j2=old.variance_j2 + (variance_j2 if counted_j is None else 0.0),
            covered_s=old.covered_s + (0.0 if gap else elapsed_s),
            resets=old.resets + fell,
            unseen_j=old.unseen_j + unseen_j,
            peak_w=peak_w,
        )
        self.has_counter = poll.counter_j is not None
        self._longest_s, self._resumed = self.period_s, False
        self._view = None
        self._polls.append(MeteredPoll(poll, self.totals, moved_s))
        while len(self._polls) > KEPT_POLLS and poll_time_s(self._polls[1]) < poll.after_s - KEPT_S:
            self._polls.popleft()
            self._discarded = True
        return added_j

    def _steady_s(self) -> float:
        """Return the longest time between two polls at the expected rate."""
        return GAP_PERIODS * max(self.period_s, self._longest_s, self._update_s)

    def _unmeasured_j(self, step: _Step, peak_w: float) -> float:
        """Return the largest difference between the true energy of a step and `added_j`."""
        elapsed_s = step.poll.after_s - step.last.after_s
        if step.gap and step.poll.counter_range_j and PACKAGE_MAX_W * elapsed_s > step.poll.counter_range_j:
            return PACKAGE_MAX_W * elapsed_s - step.added_j  # it may have wrapped several times
        if step.fell or (step.gap and not step.counted):
            # `update_s` is the time by which the counter lagged at the last poll
            highest_w = peak_w if self._resumed or elapsed_s > KEPT_S else self._power_range_w(step.poll)[1]
            return max(0.0, highest_w * (elapsed_s + self._update_s) - step.added_j)
        if step.counted:
            return 0.0
        if step.poll.counter_j is not None and self.totals.raw_j is not None:
            return self._power_range_w(step.poll)[1] * self._update_s  # implausible jump: the delay before and after it
        if elapsed_s <= self._steady_s():
            return 0.0
        lowest_w, highest_w = self._power_range_w(step.poll)
        return (highest_w - lowest_w) * elapsed_s / 2

    def _power_range_w(self, poll: Poll) -> tuple[float, float]:
        """Return the lowest and the highest power of the kept polls and of this one."""
        polls = [*(item.poll for item in self._polls), poll]
        watts = [w for one in polls for w in (one.instant_w, one.average_w) if w is not None]
        return min(watts, default=0.0), max(watts, default=0.0)

    def _is_doubtful(self, poll: Poll, elapsed_s: float) -> bool:
        """Return True if the counter fell or rose implausibly, and no second poll has confirmed it yet."""
        if poll.counter_j is None or self.totals.raw_j is None or self.counter_restarts:
            return False
        fell = poll.counter_j < self.totals.raw_j and poll.counter_range_j is None
        step_j = counter_step(self.totals.raw_j, poll.counter_j, poll.counter_range_j, elapsed_s, self.max_w)
        if step_j is None:
            self.implausible_s = poll.after_s
        elif not fell:
            self._doubted = None
            return False
        first, self._doubted = self._doubted, poll
        if first is None or first.counter_j is None:
            return True
        between_s = poll.after_s - first.after_s
        return counter_step(first.counter_j, max(poll.counter_j, first.counter_j), None, between_s, self.max_w) is None

    def _integrate(self, last: Poll, poll: Poll) -> tuple[float, float, float]:
        """Return the joules between two polls by their powers, the variance, and the time when the power changed."""
        moved_s, slack_s = self._power_change(last, poll)
        from_w, to_w = last.integrand_w, poll.integrand_w
        if from_w is None or to_w is None:
            return 0.0, 0.0, moved_s
        joules = from_w * (moved_s - last.after_s) + to_w * (poll.after_s - moved_s)
        return joules, ((to_w - from_w) * slack_s) ** 2 / 3, moved_s

    def _fell(self, poll: Poll, elapsed_s: float) -> bool:
        """Return whether the counter restarted from 0 since the last poll."""
        if poll.counter_j is None or self.totals.raw_j is None or poll.counter_range_j is not None:
            return False
        plausible = is_plausible(poll.counter_j, elapsed_s, self.max_w)
        return poll.counter_j < self.totals.raw_j or (self.counter_restarts and plausible)

    def _count(self, poll: Poll, elapsed_s: float, *, fell: bool) -> float | None:
        """Return the counter's step; None if one of the polls has no counter, or the step is implausible."""
        if poll.counter_j is None or self.totals.raw_j is None:
            return None
        self.counter_restarts = False
        before_j = math.inf if fell else self.totals.raw_j
        return counter_step(before_j, poll.counter_j, poll.counter_range_j, elapsed_s, self.max_w)

    def _power_change(self, a: Poll, b: Poll) -> tuple[float, float]:
        """Return the time when the reported power changed between two polls, and its half-width.

        Reported power changes in one step, when the sensor updates. If the time of the update is unknown, the result is
        the middle, for which the integral is a trapezoid.
        """
        start_s, end_s = a.after_s, b.after_s
        middle_s, slack_s = (start_s + end_s) / 2, (end_s - start_s) / 2
        if b.counter_j is not None or end_s - start_s >= SENSOR_PERIOD_S:
            return middle_s, slack_s
        clock = self._clock.from_power((item.poll for item in self._polls), b.after_s)
        if not clock:
            return middle_s, slack_s
        return min(max(clock.nearest(middle_s), start_s), end_s), min(slack_s, clock.slack_s)

    def settling_s(self) -> float:
        """Return the time after an instant from which further polls no longer improve its mark."""
        if self.has_counter or self.latest is None:
            return 2.2 * self._update_s
        return self._lag_s() + 0.1

    def _lag_s(self) -> float:
        """Return the delay of reported power: half an averaging window and half an update period."""
        period_s = self._clock.clock.period_s if self._clock.clock else SENSOR_PERIOD_S
        window_s = AVERAGING_S if self.latest and self.latest.average_w is not None else period_s
        return (period_s + window_s) / 2

    def mark(self, t_s: float) -> EnergyMark:
        """Return the energy mark at `t_s`; it is most precise from `settling_s` after that time on."""
        if not self._polls:
            return mark_at_totals(self.totals)
        polls, times, points = self._interpolated()
        nearby = polls[bisect_left(times, t_s - NEIGHBOURHOOD_S) : bisect_right(times, t_s + NEIGHBOURHOOD_S)]
        powers_w = [item.poll.display_w for item in nearby if item.poll.display_w is not None]
        joules, half_width_j = interpolate_energy(points, t_s, powers_w)
        half_width_j += self._sensor_error_j(polls[-1].poll, powers_w)
        if self.has_counter and t_s - self._counted_s > STALLED_S:
            half_width_j += max(0.0, self.totals_before(t_s).integrated_j - self._counted_integral_j)
        right = bisect_right(times, t_s)
        before, after = polls[max(0, right - 1)].totals, polls[min(right, len(polls) - 1)].totals
        share = 0.0 if right in (0, len(polls)) else (t_s - times[right - 1]) / (times[right] - times[right - 1])
        return EnergyMark(
            joules,
            half_width_j,
            before.variance_j2,
            before.integrated_j + share * (after.integrated_j - before.integrated_j),
            before.covered_s + share * (after.covered_s - before.covered_s),
            before.resets,
            self.unmeasured_share,
            self.max_w / LIMIT_MARGIN,
            before.unseen_j,
        )

    def _sensor_error_j(self, latest: Poll, powers_w: list[float]) -> float:
        """Return the error at one instant that results from the averaging windows of sensor and driver."""
        error_j = 0.0
        if self._update_s >= SENSOR_PERIOD_S and powers_w:
            unresolved_s = SENSOR_PERIOD_S / 4 if self.uses_instant_power else UNRESOLVED_S
            error_j += unresolved_s * sum(powers_w) / len(powers_w)
        if not self.has_counter and latest.average_w is not None and powers_w:
            # a mean over a window is off by at most an eighth of the window times the largest step
            error_j += (max(powers_w) - min(powers_w)) * AVERAGING_S / 8
        return error_j

    def _interpolated(self) -> tuple[list[MeteredPoll], list[float], list[EnergyPoint]]:
        """Return the polls, their times and the interpolation points, computed once for all marks between two polls."""
        if self._view is None:
            polls = list(self._polls)
            if self.has_counter:
                clock = self._clock.from_counter((item.poll for item in polls), poll_time_s(polls[-1]))
                points = counter_points(polls, clock, self._update_s)
            else:
                slack_s = self._clock.clock.slack_s if self._clock.clock else SENSOR_PERIOD_S / 2
                points = integral_points(polls, self._lag_s(), slack_s)
            self._view = polls, [poll_time_s(item) for item in polls], points
        return self._view
