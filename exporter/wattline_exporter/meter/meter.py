"""Energy of one device from its counter or its power, at times in seconds of CLOCK_BOOTTIME."""

from __future__ import annotations

import math

from wattline.counters import further_wraps
from wattline_exporter.meter.counter_track import (
    LOST_S,
    MAX_DEVICE_W,
    PACKAGE_MAX_W,
    STALLED_J,
    STALLED_S,
    CounterStep,
    CounterTracker,
)
from wattline_exporter.meter.interpolation import TOLERANCE, bridged_points, integral_points
from wattline_exporter.meter.meter_view import BRIDGED_S, MeterView, RecentPolls, SensorState
from wattline_exporter.meter.power_comparison import SensorComparison
from wattline_exporter.meter.power_integral import (
    PowerIntegral,
    power_range_w,
    without_implausible_power,
)
from wattline_exporter.meter.sensor_clock import SENSOR_PERIOD_S, SensorClockTracker
from wattline_exporter.meter.uncertainty import (
    ZERO_TOTALS,
    EnergyMark,
    MeteredPoll,
    MeterTotals,
    mark_at_totals,
    poll_time_s,
)
from wattline_exporter.sensors.readings import Poll

GAP_PERIODS = 2.5
LIMIT_MARGIN = 1.5
"""`DeviceMeter.max_w` as a multiple of the power limit, which the mean power does not exceed."""


class DeviceMeter:
    """Energy of one device since the state folder was created, and its latest polls.

    `period_s` is the current polling period, kept up to date by the caller. `update_s` is the
    counter's update period: `SENSOR_PERIOD_S` for a GPU, a millisecond for RAPL. `last` is the
    state of the sensors when a previous exporter saved `totals`.
    """

    def __init__(
        self,
        totals: MeterTotals = ZERO_TOTALS,
        *,
        update_s: float = SENSOR_PERIOD_S,
        period_s: float = 1.0,
        last: Poll | None = None,
    ) -> None:
        self.totals, self.period_s = totals, period_s
        self.counter_restarts = False
        """True after the driver was unloaded: the counter restarts from 0, and its next value may
        be higher.
        """
        self.max_w = MAX_DEVICE_W
        """Power that the device cannot exceed: LIMIT_MARGIN times its limit, where that is known.
        """
        self.sensor_share = 1.0
        """Share of time that the instantaneous power covers. It is used only without averaged
        power.
        """
        self.implausible_s = -math.inf
        """Time of the latest counter step or power that the device cannot have."""
        self.display_w: float | None = None
        """Power of the latest poll, also of one that came late; None where it is unknown or
        implausible.
        """
        self._update_s, self._longest_s = update_s, period_s
        self.counter = CounterTracker(update_s, last, totals.energy_j)
        self._changed_integrated_j = totals.integrated_j
        """Integral of power at the counter's latest change."""
        self._pending_j = 0.0
        """Largest error of the energy since the counter's latest value, until its next value
        corrects it.
        """
        self._bridged_s = 0.0
        """Time for which power has replaced the counter."""
        self._sensors = SensorComparison(self.counter.update)
        self.comparison = self._sensors.result
        counted_j = totals.energy_j if self.counter.raw_j is not None else None
        self.polls = RecentPolls([MeteredPoll(last, totals, None, counted_j)] if last else ())
        self._resumed, self._clock, self._integral = (
            last is not None,
            SensorClockTracker(),
            PowerIntegral(),
        )
        self._view: MeterView | None = None

    @property
    def latest(self) -> Poll | None:
        return self.polls[-1].poll if self.polls else None

    @property
    def has_counter(self) -> bool:
        """True if the device's energy counter has a value that can be used."""
        return self.latest is not None and self.latest.after_s - self.counter.read_s <= STALLED_S

    @property
    def uses_instant_power(self) -> bool:
        """True if the energy comes from instantaneous power only."""
        return not self.has_counter and self.latest is not None and self.latest.average_w is None

    @property
    def unmeasured_share(self) -> float:
        """Share of time that the sensor does not measure, however often it is read."""
        return 1.0 - self.sensor_share if self.uses_instant_power else 0.0

    @property
    def most_w(self) -> float:
        """Mean power that may have flowed while nothing was measured."""
        limit_w = PACKAGE_MAX_W if self._update_s < SENSOR_PERIOD_S else self.max_w / LIMIT_MARGIN
        return max(limit_w, self.totals.peak_w)

    def totals_before(self, t_s: float) -> MeterTotals:
        """Return the totals of the last poll at or before `t_s`."""
        return self.polls.totals_before(t_s) if self.polls else self.totals

    def push(self, poll: Poll) -> float:
        """Add a poll; return the increase of the energy in joules."""
        last, old = self.latest, self.totals
        if last and self._is_regular(last, poll):
            return self._follow(last, poll)
        if (
            checked := without_implausible_power(poll, self._lowest_w(poll.after_s), self.max_w)
        ) is not poll:
            poll, self.implausible_s = checked, poll.after_s
        self.display_w = poll.display_w
        elapsed_s = poll.after_s - last.after_s if last else math.inf
        if elapsed_s <= 0 or (poll.counter_j is None and poll.integrand_w is None):
            return 0.0
        gap = last is None or self._resumed or elapsed_s > max(self._steady_s(), BRIDGED_S)
        known = (
            last is not None
            and not gap
            and last.integrand_w is not None
            and poll.integrand_w is not None
        )
        step = last and self._integral.step(
            last, poll, self.polls, known=known, refused_s=self.implausible_s
        )
        integral_j, variance_j2, moved_s = step or (0.0, 0.0, None)
        integrated_j = old.integrated_j + integral_j
        counted = self._count(poll, old.energy_j + integral_j, integrated_j)
        is_counted = counted.kind == "counted"
        if counted.energy_j is None:
            poll = poll._replace(counter_j=None)
        energy_j = max(old.energy_j, self._energy_j(counted, integral_j, integrated_j))
        unseen_j = (
            self._unseen_j(counted, last, poll, energy_j - old.energy_j, known=known)
            if last
            else 0.0
        )
        if not is_counted and (doubt := self._integral.doubt(poll, self.most_w)):
            unseen_j += self.comparison.note_stuck_power(doubt)
        raw_j, resets = (
            self.counter.raw_at(energy_j, poll.counter_range_j),
            old.resets + (counted.kind == "restarted"),
        )
        variance_j2, unseen_j = (
            old.variance_j2 + (0.0 if is_counted else variance_j2),
            old.unseen_j + unseen_j,
        )
        covered_s = old.covered_s + (elapsed_s if not gap and (known or is_counted) else 0.0)
        peak_w = max(old.peak_w, poll.instant_w or 0.0, poll.average_w or 0.0)
        self.totals = MeterTotals(
            energy_j, integrated_j, raw_j, variance_j2, covered_s, resets, unseen_j, peak_w
        )
        self._longest_s, self._resumed, self._view = self.period_s, False, None
        counted_j = None if counted.energy_j is None else self.counter.energy_j
        self.polls.append(MeteredPoll(poll, self.totals, moved_s, counted_j))
        self._compare_if_due(known=known)
        return energy_j - old.energy_j

    def _compare_if_due(self, *, known: bool) -> None:
        """Note the power of the latest poll; compare the sensors where that is due."""
        if self._update_s >= SENSOR_PERIOD_S and self._sensors.add_power(
            self.polls, known=known, sensor_share=self.sensor_share, most_w=self.most_w
        ):
            self.compare_sensors()

    def compare_sensors(self) -> None:
        """Compare the counter with the power at the latest poll; widen the interval where they
        differ.
        """
        if self.polls and (doubt_j := self._sensors.compare(self.polls)):
            self.totals = self.totals._replace(unseen_j=self.totals.unseen_j + doubt_j)
            self.polls[-1] = self.polls[-1]._replace(totals=self.totals)
            self._view = None

    def _is_regular(self, last: Poll, poll: Poll) -> bool:
        """Return whether a GPU's poll continues the latest one, with a counter and powers that are
        plausible.
        """
        counter, max_w, t_s, elapsed_s = (
            self.counter,
            self.max_w,
            poll.after_s,
            poll.after_s - last.after_s,
        )
        instant_w, average_w, lowest_w = poll.instant_w, poll.average_w, self._lowest_w(t_s)
        return (
            (instant_w is not None and average_w is not None and last.average_w is not None)
            and lowest_w <= instant_w <= max_w
            and lowest_w <= average_w <= max_w
            and (0 < elapsed_s <= BRIDGED_S or 0 < elapsed_s <= self._steady_s())
            and counter.continues(poll, max_w)
            and t_s - counter.changed_s <= counter.stalled_s
            and self.totals.energy_j == counter.energy_j
            and not (self._resumed or self.counter_restarts or self._bridged_s)
            and self._update_s >= SENSOR_PERIOD_S
        )

    def _follow(self, last: Poll, poll: Poll) -> float:
        """Add a regular poll, in few steps; return the increase of the energy in joules."""
        counter, old, t_s = self.counter, self.totals, poll.after_s
        instant_w, average_w, before_w = (
            poll.instant_w or 0.0,
            poll.average_w or 0.0,
            last.average_w or 0.0,
        )
        elapsed_s, middle_s = t_s - last.after_s, (last.after_s + t_s) / 2
        integrated_j = old.integrated_j + (
            before_w * (middle_s - last.after_s) + average_w * (t_s - middle_s)
        )
        if counter.follow(poll):
            self._changed_integrated_j = integrated_j
        covered_s, peak_w = old.covered_s + elapsed_s, max(old.peak_w, instant_w, average_w)
        self.totals = totals = MeterTotals(
            counter.energy_j,
            integrated_j,
            counter.raw_j,
            old.variance_j2,
            covered_s,
            old.resets,
            old.unseen_j,
            peak_w,
        )
        self.display_w, self._longest_s, self._pending_j, self._view = (
            instant_w,
            self.period_s,
            0.0,
            None,
        )
        self.polls.append(MeteredPoll(poll, totals, middle_s, totals.energy_j))
        self._compare_if_due(known=True)
        return totals.energy_j - old.energy_j

    def note_busy(self, now_s: float, *, is_busy: bool) -> None:
        """Note whether the device reports at `now_s` that work runs on it."""
        self._integral.note_busy(now_s, is_busy=is_busy)

    def _lowest_w(self, t_s: float) -> float:
        """Return the power below which a reading is in error."""
        return (
            self._integral.lowest_w(t_s, self.max_w / LIMIT_MARGIN)
            if self.max_w < MAX_DEVICE_W
            else 0.0
        )

    def _steady_s(self) -> float:
        """Return the longest time between two polls at the expected rate."""
        return GAP_PERIODS * max(self.period_s, self._longest_s, self._update_s)

    def _count(self, poll: Poll, bridged_j: float, integrated_j: float) -> CounterStep:
        """Return the counter's step. A counter that does not change while energy flows counts as
        missing.
        """
        counter, t_s = self.counter, poll.after_s
        if self._bridged_s > LOST_S:
            counter.raw_j = (
                None  # the power has replaced it for too long: a new value is a new beginning
            )
        raw_j, flowed_j = counter.raw_j, integrated_j - self._changed_integrated_j
        is_still = (
            raw_j is not None
            and poll.counter_j == raw_j
            and t_s - counter.changed_s > counter.stalled_s
        )
        if is_still and flowed_j > STALLED_J:
            lag_j, lags = (
                self._sensors.lag_error_j(self.polls),
                counter.energy_j + flowed_j > bridged_j + 1.0,
            )
            self.comparison.note_stall(counter.changed_s, t_s, flowed_j + lag_j, lags=lags)
            return CounterStep("missing")
        counted = counter.take(poll, bridged_j, max_w=self.max_w, restarts=self.counter_restarts)
        if counted.kind in ("doubtful", "replaced"):
            self.implausible_s = t_s
        if counted.energy_j is not None:
            self.counter_restarts = False
            if counter.changed_s == t_s:
                self._changed_integrated_j = integrated_j
        return counted

    def _energy_j(self, counted: CounterStep, integral_j: float, integrated_j: float) -> float:
        """Return the device's energy after a poll; the power adds to it while the counter has no
        trusted value.
        """
        if counted.energy_j is not None:
            return counted.energy_j
        if self.counter.raw_j is None:
            return self.totals.energy_j + integral_j
        bridged_j = self.counter.energy_j + integrated_j - self._changed_integrated_j
        return min(
            bridged_j, self.totals.energy_j + 2 * integral_j
        )  # in steps that no device exceeds

    def _unseen_j(
        self, counted: CounterStep, last: Poll, poll: Poll, added_j: float, *, known: bool
    ) -> float:
        """Return by how much the total's error may have grown; the counter's next value corrects
        the rest.
        """
        excess_j = 0.0 if counted.energy_j is None else self.totals.energy_j - counted.energy_j
        if counted.energy_j is not None:
            self._bridged_s = 0.0
        if counted.kind == "counted" and excess_j <= 0:
            self._pending_j = 0.0
            if not poll.counter_range_j:
                return counted.doubt_j
            is_gap = self._resumed or poll.after_s - last.after_s > max(self._steady_s(), BRIDGED_S)
            most_j = PACKAGE_MAX_W * (poll.after_s - last.after_s) if is_gap else 0.0
            return counted.doubt_j + further_wraps(poll.counter_range_j, most_j, added_j)
        pending_j, delay_j = self._pending_j, 2 * self.counter.update.s * self.most_w
        if counted.kind == "counted":
            if excess_j <= pending_j + delay_j:
                self._pending_j = excess_j
                return counted.doubt_j
            self.counter.energy_j, self._pending_j = self.totals.energy_j, 0.0
            self.implausible_s = poll.after_s
            return excess_j + delay_j
        unmeasured_j = self._unmeasured_j(last, poll, added_j, known=known)
        if counted.energy_j is None and self.counter.raw_j is not None:
            self._bridged_s += poll.after_s - last.after_s if known else 0.0
            self._pending_j = (
                self._pending_j or self._sensors.lag_error_j(self.polls)
            ) + unmeasured_j
            return 0.0
        self._pending_j = 0.0
        return pending_j + unmeasured_j + (0.0 if counted.kind in ("missing", "first") else delay_j)

    def _unmeasured_j(self, last: Poll, poll: Poll, added_j: float, *, known: bool) -> float:
        """Return the largest error of the energy that the power, or nothing, gives between two
        polls.
        """
        elapsed_s = poll.after_s - last.after_s
        if not known:
            return max(added_j, self.most_w * elapsed_s - added_j)
        bridged_j = TOLERANCE * added_j if self.counter.raw_j is not None else 0.0
        if elapsed_s <= self._steady_s():
            return bridged_j
        lowest_w, highest_w = power_range_w([*(item.poll for item in self.polls), poll])
        return bridged_j + (highest_w - lowest_w) * elapsed_s / 2

    def settling_s(self) -> float:
        """Return the time after an instant from which further polls no longer improve its mark."""
        if self.has_counter or self.latest is None:
            return 2.2 * self._update_s
        return self._integral.lag_s(self.latest) + 0.1

    def mark(self, t_s: float) -> EnergyMark:
        """Return the energy mark at `t_s`; it is most precise from `settling_s` after that time
        on.
        """
        if not self.polls:
            return mark_at_totals(self.totals)
        self._view = self._view or self._make_view()
        return self._view.mark(t_s)

    def energy_at(self, t_s: float) -> tuple[float, float]:
        """Return the joules of the mark at `t_s` and their half-width, in less time."""
        if not self.polls:
            return self.totals.energy_j, 0.0
        self._view = self._view or self._make_view()
        return self._view.energy_at(t_s)

    def _make_view(self) -> MeterView:
        polls, is_counted = list(self.polls), self.counter.raw_j is not None
        if is_counted:
            clock = self._clock.from_counter((item.poll for item in polls), poll_time_s(polls[-1]))
            update_s = (
                self.counter.update.s if self._update_s >= SENSOR_PERIOD_S else self._update_s
            )
            points = bridged_points(
                polls, clock, update_s, self.counter.read_s, self._integral.slack_s
            )
        else:
            points = integral_points(
                polls, self._integral.lag_s(polls[-1].poll), self._integral.slack_s
            )
        return MeterView(
            polls,
            points,
            self.comparison.doubt_j,
            SensorState(
                has_counter=self.has_counter,
                resolves_updates=self._update_s >= SENSOR_PERIOD_S,
                uses_instant_power=self.uses_instant_power,
                power_update_s=self._sensors.power_update.s,
                unmeasured_share=self.unmeasured_share,
                limit_w=self.max_w / LIMIT_MARGIN,
                most_w=self.most_w,
                counted_s=self.counter.read_s,
                pending_j=self._pending_j,
                bridge_error_j=self._sensors.lag_error_j(polls)
                if is_counted and not self.has_counter
                else 0.0,
                settled_s=poll_time_s(polls[-1]) - self.settling_s()
                if self.has_counter
                else points[-1].t_s,
            ),
        )
