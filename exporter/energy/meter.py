"""Joules of one device from its counter and from its power, and at any instant between the sensor's updates.

Everything here is pure but for `EnergyLine`, which holds the running totals. Times are CLOCK_BOOTTIME seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from exporter.energy import interpolation
from exporter.energy import sensor_clock as update_clock
from exporter.energy.counters import MAX_DEVICE_W, counter_step, is_plausible
from exporter.energy.interpolation import (
    NEIGHBOURHOOD_S,
    SENSOR_PERIOD_S,
    EnergyPoint,
    after_s,
    value_changes,
    counter_points,
    integral_points,
    power_w,
)
from exporter.energy.marks import ZERO_TOTALS, EnergyMark, MeteredPoll, MeterTotals, mark_at_totals
from exporter.energy.sensor_clock import SensorClock
from exporter.model import Poll

GAP_PERIODS = 2.5
BRIDGED_S = 1.0
"""A pause up to this long is no gap: power is taken to have gone evenly from one poll to the next."""
FROZEN_S = 2.5
"""A counter that has not moved for so long stands still: of what flowed since it knows nothing."""
UNRESOLVED_S = 0.025 / 4
"""A load that switches faster than the power sensor's window of 25 ms is seen as its mean and leaves no trace in the
range of powers: at an edge its energy is off by up to a quarter of the window times its swing, taken as that mean."""
LIMIT_MARGIN = 1.5
"""`EnergyLine.most_w` is so many times the card's limit, which its mean power keeps."""
PACKAGE_MOST_W = 1_000.0
"""More than any CPU package draws."""
AVERAGING_S = 1.0
"""The window of the driver's averaged power."""
KEPT_S = 12.0
"""For how long polls are kept, however fast they come; and KEPT_POLLS of them, however slowly."""
KEPT_POLLS = 64


class _Step(NamedTuple):
    """What happened from one poll to the next; `counted` where the counter told."""

    last: Poll
    poll: Poll
    added_j: float
    fell: bool
    gap: bool
    counted: bool


class DeviceMeter:
    """The energy of one device since the state folder was fresh, and its recent polls.

    `period_s` is how often the device is polled now; the caller keeps it right. `update_s` is how often the counter
    moves: `SENSOR_PERIOD_S` for a GPU, a millisecond for RAPL. `last` is when a former exporter left `totals`.
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
        self.counts = last is not None and last.counter_j is not None
        """Whether the device's own counter feeds the line, as far as the last poll tells."""
        self._update_s = update_s
        self._longest_s = period_s
        self._seen: deque[MeteredPoll] = deque([MeteredPoll(last, totals, None)] if last else ())
        self._resumed = last is not None
        self._forgot = False
        self._view: tuple[list[MeteredPoll], list[float], list[EnergyPoint]] | None = None
        self.counter_restarts = False
        """Set where the driver was not loaded: its counter comes back from 0, be it above or below where it was."""
        self.most_w = MAX_DEVICE_W
        """More than the device can draw: LIMIT_MARGIN times its limit, where that is known."""
        self.sensor_share = 1.0
        """The share of the time that its instant power sees. It counts only where there is nothing better."""
        self.implausible_s = -math.inf
        """When its counter last moved by more than it can draw."""
        self._doubted: Poll | None = None
        self._counted_s = last.after_s if last else -math.inf
        """When the counter last moved: it may catch up with all that was drawn since."""
        self._counted_integral_j = totals.integrated_j
        self._clock: SensorClock | None = None
        self._clock_due_s = -math.inf

    @property
    def latest(self) -> Poll | None:
        return self._seen[-1].poll if self._seen else None

    @property
    def uses_instant_power(self) -> bool:
        """Whether the instant power is all there is."""
        return not self.counts and self.latest is not None and self.latest.average_w is None

    @property
    def unseen_ratio(self) -> float:
        """The share of the time of which the energy knows nothing, however often the sensor is read."""
        return 1.0 - self.sensor_share if self.uses_instant_power else 0.0

    def totals_before(self, t_s: float) -> MeterTotals:
        """The totals as they were last read at or before `t_s`."""
        right = bisect_right(self._seen, t_s, key=after_s)
        return self._seen[max(0, right - 1)].totals if self._seen else self.totals

    def has_discarded(self, t_s: float) -> bool:
        """Whether the polls around `t_s` are no longer kept."""
        return self._forgot and t_s < after_s(self._seen[0])

    def push(self, poll: Poll) -> float:
        """Takes a poll in; returns the joules that it added."""
        last, old = self.latest, self.totals
        elapsed_s = poll.after_s - last.after_s if last else math.inf
        if elapsed_s <= 0:
            return 0.0
        uncounted_s = poll.after_s - self._counted_s
        if self._is_doubtful(poll, uncounted_s):
            return 0.0
        steady_s = GAP_PERIODS * max(self.period_s, self._longest_s, self._update_s)
        gap = last is None or self._resumed or elapsed_s > max(steady_s, BRIDGED_S)
        integral_j, variance_j2, moved_s = self._integrate(last, poll) if last and not gap else (0.0, 0.0, None)
        fell = self._fell(poll, uncounted_s)
        counted_j = self._count(poll, uncounted_s, fell=fell)
        added_j = integral_j if counted_j is None else counted_j
        peak_w = max(old.peak_w, poll.power_w or 0.0, poll.average_w or 0.0)
        step = _Step(last, poll, added_j, fell, gap, counted_j is not None) if last else None
        unseen_j = self._unseen(step, peak_w) if step else 0.0
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
        self.counts = poll.counter_j is not None
        self._longest_s, self._resumed = self.period_s, False
        self._view = None
        self._seen.append(MeteredPoll(poll, self.totals, moved_s))
        while len(self._seen) > KEPT_POLLS and after_s(self._seen[1]) < poll.after_s - KEPT_S:
            self._seen.popleft()
            self._forgot = True
        return added_j

    def _unseen(self, step: _Step, peak_w: float) -> float:
        """What may have been drawn in the step on top of what it added, or below it."""
        elapsed_s = step.poll.after_s - step.last.after_s
        if step.gap and step.poll.counter_range_j and PACKAGE_MOST_W * elapsed_s > step.poll.counter_range_j:
            return PACKAGE_MOST_W * elapsed_s - step.added_j  # it may have wrapped any number of times meanwhile
        if step.fell or (step.gap and not step.counted):
            # also of the time before the last poll in which the counter was behind
            greatest_w = peak_w if self._resumed or elapsed_s > KEPT_S else self._swing_w(step.poll)[1]
            return max(0.0, greatest_w * (elapsed_s + self._update_s) - step.added_j)
        if step.counted:
            return 0.0
        if step.poll.counter_j is not None and self.totals.raw_j is not None:
            return self._swing_w(step.poll)[1] * self._update_s  # it jumped: what it was behind, before and after
        if elapsed_s <= GAP_PERIODS * max(self.period_s, self._longest_s, self._update_s):
            return 0.0
        least_w, most_w = self._swing_w(step.poll)
        return (most_w - least_w) * elapsed_s / 2

    def _swing_w(self, poll: Poll) -> tuple[float, float]:
        """The least and the greatest power of the polls that are kept, and of this one."""
        polls = [*(seen.poll for seen in self._seen), poll]
        watts = [w for one in polls for w in (one.power_w, one.average_w) if w is not None]
        return min(watts, default=0.0), max(watts, default=0.0)

    def _is_doubtful(self, poll: Poll, elapsed_s: float) -> bool:
        """Whether the counter fell, or moved by more than can be: that is believed when a second poll says so."""
        if poll.counter_j is None or self.totals.raw_j is None or self.counter_restarts:
            return False
        fell = poll.counter_j < self.totals.raw_j and poll.counter_range_j is None
        step_j = counter_step(self.totals.raw_j, poll.counter_j, poll.counter_range_j, elapsed_s, self.most_w)
        if step_j is None:
            self.implausible_s = poll.after_s
        elif not fell:
            self._doubted = None
            return False
        first, self._doubted = self._doubted, poll
        if first is None or first.counter_j is None:
            return True
        between_s = poll.after_s - first.after_s
        return counter_step(first.counter_j, max(poll.counter_j, first.counter_j), None, between_s, self.most_w) is None

    def _integrate(self, last: Poll, poll: Poll) -> tuple[float, float, float]:
        """Joules between two polls by their powers, the variance of that, and when the power moved."""
        moved_s, slack_s = self._moved(last, poll)
        from_w, to_w = power_w(last), power_w(poll)
        if from_w is None or to_w is None:
            return 0.0, 0.0, moved_s
        joules = from_w * (moved_s - last.after_s) + to_w * (poll.after_s - moved_s)
        return joules, ((to_w - from_w) * slack_s) ** 2 / 3, moved_s

    def _fell(self, poll: Poll, elapsed_s: float) -> bool:
        """Whether the counter began anew, at 0, since it was last read."""
        if poll.counter_j is None or self.totals.raw_j is None or poll.counter_range_j is not None:
            return False
        plausible = is_plausible(poll.counter_j, elapsed_s, self.most_w)
        return poll.counter_j < self.totals.raw_j or (self.counter_restarts and plausible)

    def _count(self, poll: Poll, elapsed_s: float, *, fell: bool) -> float | None:
        """The counter's step; None where there is none, was none at the poll before, or it cannot be true."""
        if poll.counter_j is None or self.totals.raw_j is None:
            return None
        self.counter_restarts = False
        before_j = math.inf if fell else self.totals.raw_j
        return counter_step(before_j, poll.counter_j, poll.counter_range_j, elapsed_s, self.most_w)

    def _moved(self, a: Poll, b: Poll) -> tuple[float, float]:
        """When the power shown moved between two polls, and how sure that is.

        It moved in one step when the sensor updated. Where that instant is not known the middle is taken, and the
        integral is the trapezoid.
        """
        start_s, end_s = a.after_s, b.after_s
        middle_s, slack_s = (start_s + end_s) / 2, (end_s - start_s) / 2
        clock = self._learned(b) if b.counter_j is None and end_s - start_s < SENSOR_PERIOD_S else None
        if not clock:
            return middle_s, slack_s
        return min(max(clock.nearest(middle_s), start_s), end_s), min(slack_s, clock.slack_s)

    def _learned(self, poll: Poll) -> SensorClock | None:
        """The update clock of the power sensor, learned anew every few seconds."""
        if poll.after_s >= self._clock_due_s:
            self._clock = update_clock.fit_sensor_clock(value_changes([seen.poll for seen in self._seen], counter=False))
            self._clock_due_s = poll.after_s + 5.0
        return self._clock

    def settling_s(self) -> float:
        """How long after an instant its mark is as good as it gets."""
        if self.counts or self.latest is None:
            return 2.2 * self._update_s
        return self._lag_s() + 0.1

    def _lag_s(self) -> float:
        """By how much the power shown trails the power drawn: half an averaging window and half an update."""
        period_s = self._clock.period_s if self._clock else SENSOR_PERIOD_S
        window_s = AVERAGING_S if self.latest and self.latest.average_w is not None else period_s
        return (period_s + window_s) / 2

    def mark(self, t_s: float) -> EnergyMark:
        """The line at `t_s`, the better the more polls lie around it (`settling_s` after, a few seconds before)."""
        if not self._seen:
            old = self.totals
            return mark_at_totals(old)
        seen, times, knots = self._looked_at()
        nearby = seen[bisect_left(times, t_s - NEIGHBOURHOOD_S) : bisect_right(times, t_s + NEIGHBOURHOOD_S)]
        powers_w = [poll.power_w if poll.power_w is not None else poll.average_w for poll, _, _ in nearby]
        known_w = [power_w for power_w in powers_w if power_w is not None]
        joules, half_width_j = interpolation.interpolate_energy(knots, t_s, known_w)
        if self._update_s >= SENSOR_PERIOD_S and known_w:
            unresolved_s = SENSOR_PERIOD_S / 4 if self.uses_instant_power else UNRESOLVED_S
            half_width_j += unresolved_s * sum(known_w) / len(known_w)
        if not self.counts and seen[-1].poll.average_w is not None and known_w:
            # a mean over a window is off by at most an eighth of the window times the greatest step
            half_width_j += (max(known_w) - min(known_w)) * AVERAGING_S / 8
        if self.counts and t_s - self._counted_s > FROZEN_S:
            half_width_j += max(0.0, self.totals_before(t_s).integrated_j - self._counted_integral_j)
        right = bisect_right(times, t_s)
        before, after = seen[max(0, right - 1)].totals, seen[min(right, len(seen) - 1)].totals
        share = 0.0 if right in (0, len(seen)) else (t_s - times[right - 1]) / (times[right] - times[right - 1])
        return EnergyMark(
            joules,
            half_width_j,
            before.variance_j2,
            before.integrated_j + share * (after.integrated_j - before.integrated_j),
            before.covered_s + share * (after.covered_s - before.covered_s),
            before.resets,
            self.unseen_ratio,
            self.most_w / LIMIT_MARGIN,
            before.unseen_j,
        )

    def _looked_at(self) -> tuple[list[MeteredPoll], list[float], list[EnergyPoint]]:
        """The polls, their times and the knots, put together once for all marks between two polls."""
        if self._view is None:
            seen = list(self._seen)
            if self.counts:
                knots = counter_points(seen, self._counter_clock(seen), self._update_s)
            else:
                knots = integral_points(seen, self._lag_s(), self._clock.slack_s if self._clock else SENSOR_PERIOD_S / 2)
            self._view = seen, [after_s(item) for item in seen], knots
        return self._view

    def _counter_clock(self, seen: Sequence[MeteredPoll]) -> SensorClock | None:
        """When the counter updates; learned again once the polls have gone on for a while."""
        now_s = after_s(seen[-1])
        if now_s >= self._clock_due_s:
            seen_changes = value_changes([item.poll for item in seen], counter=True)
            self._clock = update_clock.fit_sensor_clock(seen_changes)
            self._clock_due_s = now_s + 0.005 * len(seen_changes)  # the more is known, the less another change tells
        return self._clock
