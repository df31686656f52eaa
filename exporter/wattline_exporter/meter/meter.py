r"""Energy of one device from its counter or its power, at times in seconds of CLOCK_BOOTTIME.

After each poll the meter is in one of four states. The state takes the next poll. It returns the
increment of the totals and the state that follows.

    Counting     the poll has a trusted counter value, which is the energy
    Bridging     the counter's value is missing, doubtful or stalled; power replaces it, until the
                 next trusted value contains the energy since the last one
    Integrating  no counter, or one that is lost; the energy is the integral of power
    Blind        the poll shows neither; the state before takes the next poll that shows something

    from \ to     Counting            Bridging             Integrating         Blind
    Counting     trusted value       no trusted value     -                   nothing known
    Bridging     trusted value       no trusted value     after LOST_S        nothing known
    Integrating  first value         -                    power               nothing known
    Blind        value that follows  power, counter kept  power, no counter   nothing known
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
from wattline_exporter.meter.interpolation import (
    PowerLimits,
    bridged_points,
    integral_points,
)
from wattline_exporter.meter.meter_view import BRIDGED_S, MeterView, SensorState
from wattline_exporter.meter.power_comparison import SensorComparison, power_range_w
from wattline_exporter.meter.power_windows import PowerWindows
from wattline_exporter.meter.sensor_clock import (
    AVERAGING_S,
    SENSOR_PERIOD_S,
    CounterClockTracker,
    PowerClockTracker,
)
from wattline_exporter.meter.totals import (
    ZERO_TOTALS,
    LastPoll,
    MeteredPoll,
    MeterTotals,
    PowerStep,
    RecentPolls,
    Step,
    poll_time_s,
)
from wattline_exporter.meter.uncertainty import (
    EnergyMark,
    bridge_tolerance_j,
    counter_delay_j,
    long_interval_j,
    step_variance_j2,
    unknown_power_j,
)
from wattline_exporter.sensors.readings import Poll

GAP_PERIODS = 2.5
LIMIT_MARGIN = 1.5
"""`DeviceMeter.max_w` as a multiple of the power limit, which the mean power does not exceed."""
LONGEST_ESTIMATE_S = 60.0
"""Longest time with implausible powers only that is estimated."""
LOWEST_SHARE = 0.01
"""Power of a busy device as a share of its limit: a lower reading is in error."""
PAUSE_S = 10.0
"""Longest pause of work between two reports of the device."""

NOT_POLLED = "not polled yet"
NO_VALUES = "reports neither energy nor power"
DOUBTFUL_COUNTER = "reports a doubtful energy counter and no power"


class PollInterval(NamedTuple):
    """Time between two polls of a device: the later poll, and what limits the energy."""

    poll: Poll
    power: PowerStep
    before: MeterTotals
    polls: Sequence[MeteredPoll]
    """Latest polls, without this one."""
    steady_s: float
    """Longest time between two polls at the expected rate."""
    max_w: float
    """Power above which a step of the counter is implausible."""
    most_w: float
    """Mean power that may have flowed while nothing was measured."""
    is_busy: bool
    """True if work may run on the device at the poll."""
    restarts: bool
    """True if the counter may have restarted from 0 since the poll before."""

    @property
    def integrated_j(self) -> float:
        """Integral of power since the state folder was created, up to the poll."""
        return self.before.integrated_j + self.power.joules

    def unmeasured_j(self, added_j: float, *, has_counter: bool) -> float:
        """Return the largest error of `added_j`, the energy by the power, in joules.

        Where the interval is long, the power lies between the lowest and the highest of the latest
        polls.
        """
        if self.power.moved_s is None:
            return unknown_power_j(added_j, self.most_w, self.power.elapsed_s)
        tolerance_j = bridge_tolerance_j(added_j) if has_counter else 0.0
        if self.power.elapsed_s <= self.steady_s:
            return tolerance_j
        lowest_w, highest_w = power_range_w([*(item.poll for item in self.polls), self.poll])
        return tolerance_j + long_interval_j(highest_w - lowest_w, self.power.elapsed_s)

    def stuck_j(self, sensors: SensorComparison) -> float:
        """Return the doubt about a power that does not change while work runs, in joules."""
        return sensors.stuck_power_j(self.poll, self.most_w) if self.is_busy else 0.0


class MeterState(Protocol):
    """State of a meter after a poll."""

    @property
    def pending_j(self) -> float:
        """Largest error of the energy since the counter's latest trusted value, in joules."""

    def take(self, now: PollInterval, sensors: SensorComparison) -> tuple[Step, MeterState]:
        """Return the increment of the totals by the next poll, and the state after it."""


@dataclass(slots=True)
class Counting:
    """The latest poll has a trusted counter value.

    `pending_j`: how far the total is ahead of the counter, because power replaced it before and
    gave more. Totals never fall, so the counter catches up first.
    """

    counter: CounterTracker
    pending_j: float = 0.0

    def follow(
        self, poll: Poll, power: PowerStep, before: MeterTotals, max_w: float
    ) -> Step | None:
        """Return the step of a regular poll, the same as that of `take` in less time, else None.

        A poll is regular if there is no gap before it, and its counter has the same value for a
        short time, or a plausible higher one.
        """
        counter = self.counter
        if before.energy_j != counter.energy_j:  # ahead, if only by a rounding error
            return None
        if not counter.follow(poll, before.integrated_j + power.joules, max_w):
            return None
        energy_j = counter.energy_j
        return Step(energy_j, power.joules, 0.0, power.elapsed_s, 0.0, 0, energy_j)

    def take(self, now: PollInterval, sensors: SensorComparison) -> tuple[Step, MeterState]:
        return _take_counter(Bridging(self.counter, self.pending_j), now, sensors)


@dataclass(slots=True)
class Bridging:
    """Power has replaced the counter for `bridged_s`.

    `pending_j`: largest error of the energy since the counter's latest value. A later value
    corrects it.
    """

    counter: CounterTracker
    pending_j: float
    bridged_s: float = 0.0

    def take(self, now: PollInterval, sensors: SensorComparison) -> tuple[Step, MeterState]:
        if self.bridged_s > LOST_S:
            self.counter.forget()
            return Integrating(self.counter, self.pending_j).take(now, sensors)
        return _take_counter(self, now, sensors)


@dataclass(slots=True)
class Integrating:
    """The energy is the integral of power; a first counter value ends that.

    `pending_j`: error of the energy from before a counter was lost, which no value will correct
    any more. The next poll adds it to the unseen energy.
    """

    counter: CounterTracker
    pending_j: float = 0.0

    def take(self, now: PollInterval, sensors: SensorComparison) -> tuple[Step, MeterState]:
        counted = _read_counter(self.counter, now, sensors)
        if counted.energy_j is not None:
            return _restart(self, counted, counted.energy_j, now, sensors)
        energy_j = now.before.energy_j + now.power.joules
        unmeasured_j = now.unmeasured_j(energy_j - now.before.energy_j, has_counter=False)
        step = Step(
            energy_j=energy_j,
            integrated_j=now.power.joules,
            variance_j2=step_variance_j2(now.power.risen_w, now.power.slack_s),
            covered_s=now.power.known_s,
            unseen_j=self.pending_j + unmeasured_j + now.stuck_j(sensors),
        )
        return step, Integrating(self.counter) if self.pending_j else self


@dataclass(slots=True)
class Blind:
    """The latest poll shows neither energy nor power, for a `reason`.

    The state `before` takes the next poll that shows something: if a counter continues, its value
    contains the energy of the time in between.
    """

    before: MeterState
    reason: str

    @property
    def pending_j(self) -> float:
        return self.before.pending_j

    def take(self, now: PollInterval, sensors: SensorComparison) -> tuple[Step, MeterState]:
        return self.before.take(now, sensors)


def _take_counter(
    state: Bridging, now: PollInterval, sensors: SensorComparison
) -> tuple[Step, MeterState]:
    """Return the step of a device that has a counter, and the next state.

    `state` is the bridge so far. If the latest poll had a trusted value, it has just begun.
    """
    counted = _read_counter(state.counter, now, sensors)
    if counted.energy_j is None:
        return _bridge(state, counted, now, sensors)
    if counted.kind == "counted":
        return _count(state, counted, counted.energy_j, now)
    return _restart(state, counted, counted.energy_j, now, sensors)


def _read_counter(
    counter: CounterTracker, now: PollInterval, sensors: SensorComparison
) -> CounterStep:
    """Return the counter's step. A counter that does not change while energy flows counts as
    missing.
    """
    poll = now.poll
    bridged_j = now.before.energy_j + now.power.joules
    if (
        poll.counter_j is not None
        and poll.counter_j == counter.raw_j
        and poll.after_s - counter.changed_s > counter.stalled_s
    ):
        flowed_j = now.integrated_j - counter.changed_integrated_j
        if flowed_j > STALLED_J:
            most_j = flowed_j + sensors.lag_error_j(now.polls)
            lags = counter.energy_j + flowed_j > bridged_j + 1.0
            sensors.result.note_stall(counter.changed_s, poll.after_s, most_j, lags=lags)
            return CounterStep("missing")
    counted = counter.take(poll, bridged_j, max_w=now.max_w, restarts=now.restarts)
    if counted.energy_j is not None and counter.changed_s == poll.after_s:
        counter.changed_integrated_j = now.integrated_j
    return counted


def _count(
    state: Bridging, counted: CounterStep, counted_j: float, now: PollInterval
) -> tuple[Step, MeterState]:
    """Return the step to a counter value that continues the latest trusted one.

    Where the total is ahead of the counter, it waits. A counter that is behind by more than the
    error of the bridge and its delay continues from the total.
    """
    counter = state.counter
    before_j = now.before.energy_j
    power = now.power
    covered_s = 0.0 if power.is_gap else power.elapsed_s
    ahead_j = before_j - counted_j
    if ahead_j <= 0:
        unseen_j = counted.doubt_j
        if range_j := now.poll.counter_range_j:
            most_j = PACKAGE_MAX_W * power.elapsed_s if power.is_gap else 0.0
            unseen_j += further_wraps(range_j, most_j, counted_j - before_j)
        step = Step(counted_j, power.joules, 0.0, covered_s, unseen_j, counted_j=counted_j)
        return step, Counting(counter)
    delay_j = counter_delay_j(counter.update.s, now.most_w)
    if ahead_j <= state.pending_j + delay_j:
        step = Step(before_j, power.joules, 0.0, covered_s, counted.doubt_j, counted_j=counted_j)
        return step, Counting(counter, ahead_j)
    counter.energy_j = before_j
    step = Step(before_j, power.joules, 0.0, covered_s, ahead_j + delay_j, counted_j=before_j)
    return step._replace(is_implausible=True), Counting(counter)


def _bridge(
    state: Bridging, counted: CounterStep, now: PollInterval, sensors: SensorComparison
) -> tuple[Step, MeterState]:
    """Return the step by the power that replaces the counter, at most twice the power's energy."""
    counter = state.counter
    before_j = now.before.energy_j
    bridged_j = counter.energy_j + now.integrated_j - counter.changed_integrated_j
    energy_j = max(before_j, min(bridged_j, before_j + 2 * now.power.joules))
    unmeasured_j = now.unmeasured_j(energy_j - before_j, has_counter=True)
    step = Step(
        energy_j=energy_j,
        integrated_j=now.power.joules,
        variance_j2=step_variance_j2(now.power.risen_w, now.power.slack_s),
        covered_s=now.power.known_s,
        unseen_j=now.stuck_j(sensors),
        is_implausible=counted.kind == "doubtful",
    )
    after = Bridging(
        counter,
        (state.pending_j or sensors.lag_error_j(now.polls)) + unmeasured_j,
        state.bridged_s + now.power.known_s,
    )
    if now.poll.integrand_w is None:
        return step, Blind(after, DOUBTFUL_COUNTER)
    return step, after


def _restart(
    state: Bridging | Integrating,
    counted: CounterStep,
    counted_j: float,
    now: PollInterval,
    sensors: SensorComparison,
) -> tuple[Step, MeterState]:
    """Return the step to a counter value that is the first, or does not continue the latest one."""
    energy_j = max(now.before.energy_j, counted_j)
    unmeasured_j = now.unmeasured_j(energy_j - now.before.energy_j, has_counter=True)
    delay_j = 0.0
    if counted.kind != "first":
        delay_j = counter_delay_j(state.counter.update.s, now.most_w)
    step = Step(
        energy_j=energy_j,
        integrated_j=now.power.joules,
        variance_j2=step_variance_j2(now.power.risen_w, now.power.slack_s),
        covered_s=now.power.known_s,
        unseen_j=state.pending_j + unmeasured_j + delay_j + now.stuck_j(sensors),
        resets=int(counted.kind == "restarted"),
        counted_j=counted_j,
        is_implausible=counted.kind == "replaced",
    )
    return step, Counting(state.counter)


def without_implausible_power(poll: Poll, lowest_w: float, highest_w: float) -> Poll:
    """Return the poll without powers above `highest_w`, and without any where all are below
    `lowest_w`.
    """
    instant_w = poll.instant_w
    average_w = poll.average_w
    if (instant_w is None or lowest_w <= instant_w <= highest_w) and (
        average_w is None or lowest_w <= average_w <= highest_w
    ):
        return poll
    powers_w = [watts for watts in (instant_w, average_w) if watts is not None]
    if min(powers_w) >= 0 and lowest_w <= max(powers_w) <= highest_w:
        return poll
    if max(powers_w) < lowest_w:
        return poll._replace(instant_w=None, average_w=None)
    return poll._replace(
        instant_w=_at_most(instant_w, highest_w), average_w=_at_most(average_w, highest_w)
    )


def _at_most(power_w: float | None, highest_w: float) -> float | None:
    return power_w if power_w is not None and 0 <= power_w <= highest_w else None


class PowerClock:
    """Times at which reported power changes, estimated where no counter shows them.

    Reported power changes in one step, when the sensor updates.
    """

    def __init__(self) -> None:
        self._clock = PowerClockTracker()

    @property
    def slack_s(self) -> float:
        """Largest error of the times when the power changed."""
        return self._clock.clock.slack_s if self._clock.clock else SENSOR_PERIOD_S / 2

    def lag_s(self, latest: Poll) -> float:
        """Return the delay of reported power: half an averaging window and half an update
        period.
        """
        period_s = self._clock.clock.period_s if self._clock.clock else SENSOR_PERIOD_S
        return (period_s + (AVERAGING_S if latest.average_w is not None else period_s)) / 2

    def nearest_update(
        self, polls: Iterable[MeteredPoll], begin_s: float, end_s: float
    ) -> tuple[float, float]:
        """Return the time of the update between two polls, and its half-width.

        If it is unknown, the result is the middle, for which the integral is a trapezoid.
        """
        middle_s = (begin_s + end_s) / 2
        slack_s = (end_s - begin_s) / 2
        clock = self._clock.at((item.poll for item in polls), end_s)
        if not clock:
            return middle_s, slack_s
        return min(max(clock.nearest(middle_s), begin_s), end_s), min(slack_s, clock.slack_s)


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
        self.totals = totals
        self.period_s = period_s
        self.counter_restarts = False
        """True after the driver was unloaded: the counter restarts from 0, and its next value may
        be higher.
        """
        self.max_w = MAX_DEVICE_W
        """Power that the device cannot exceed: LIMIT_MARGIN times its limit, where that is known.
        """
        self.least_w = 0.0
        """Power that the device never falls below: its idle power, less the spread of that; 0 while
        it is unknown.
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
        self._update_s = update_s
        self._longest_s = period_s
        self.counter = CounterTracker(update_s, last, totals.energy_j, totals.integrated_j)
        has_value = self.counter.raw_j is not None
        self.state: MeterState = Blind(
            Counting(self.counter) if has_value else Integrating(self.counter), NOT_POLLED
        )
        self._sensors = SensorComparison(self.counter.update)
        self.comparison = self._sensors.result
        self._busy_until_s = -math.inf
        """Time until which work runs on the device, including its pauses; later power may be idle
        power.
        """
        self.polls = RecentPolls()
        if last:
            self.polls.append(
                MeteredPoll(last, totals, None, totals.energy_j if has_value else None)
            )
        self._is_restored = last is not None
        """True until the first poll after those of the previous exporter."""
        self._clock = CounterClockTracker()
        self._power_clock = PowerClock()
        self._view: MeterView | None = None

    @property
    def windows(self) -> PowerWindows:
        """Windows of the device's powers."""
        return self._sensors.windows

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
        is_busy = poll.after_s <= self._busy_until_s
        checked = without_implausible_power(poll, self._lowest_w() if is_busy else 0.0, self.max_w)
        if checked is not poll:
            poll = checked
            self.implausible_s = poll.after_s
        self.display_w = poll.display_w
        last = self.polls[-1].poll if self.polls else None
        if last and poll.after_s <= last.after_s:
            return 0.0
        if poll.counter_j is None and poll.integrand_w is None:
            before = self.state.before if isinstance(self.state, Blind) else self.state
            self.state = Blind(before, NO_VALUES)
            return 0.0
        before_j = self.totals.energy_j
        self._add(last, poll, is_busy)
        return self.totals.energy_j - before_j

    def _add(self, last: Poll | None, poll: Poll, is_busy: bool) -> None:
        """Add a plausible poll with values after the latest one."""
        power = self._power_since(last, poll)
        state = self.state
        step = None
        if not (power.is_gap or self.counter_restarts) and isinstance(state, Counting):
            step = state.follow(poll, power, self.totals, self.max_w)
        if step is None:
            step, self.state = state.take(self._interval(poll, power, is_busy), self._sensors)
            if step.counted_j is None:
                poll = poll._replace(counter_j=None)
            else:
                self.counter_restarts = False
            if step.is_implausible:
                self.implausible_s = poll.after_s
        counter = self.counter
        raw_j = counter.raw_j
        if step.energy_j != counter.energy_j:
            raw_j = counter.raw_at(step.energy_j, poll.counter_range_j)
        self.totals = self.totals.after(step, raw_j, poll)
        if (
            last
            and None not in (last.counter_j, poll.counter_j)
            and last.counter_j != poll.counter_j
        ):
            self._clock.note_change(last, poll)
        self._longest_s = self.period_s
        self._is_restored = False
        self._view = None
        self.polls.append(MeteredPoll(poll, self.totals, power.moved_s, step.counted_j))
        if self._update_s >= SENSOR_PERIOD_S and self._sensors.add_power(
            poll, power, self.sensor_share, self.most_w
        ):
            self.compare_sensors()

    def _lowest_w(self) -> float:
        """Return the power below which a reading of a busy device is in error."""
        return LOWEST_SHARE * (self.max_w / LIMIT_MARGIN) if self.max_w < MAX_DEVICE_W else 0.0

    def _steady_s(self) -> float:
        """Return the longest time between two polls at the expected rate."""
        return GAP_PERIODS * max(self.period_s, self._longest_s, self._update_s)

    def _power_since(self, last: Poll | None, poll: Poll) -> PowerStep:
        """Return the energy since the poll before by the reported powers.

        Without known power there is none. But if the sensor answered with an implausible power in
        between, the mean of the powers before and after is the best estimate.
        """
        if last is None:
            return PowerStep(0.0, True)
        from_w = last.integrand_w
        to_w = poll.integrand_w
        begin_s = last.after_s
        end_s = poll.after_s
        elapsed_s = end_s - begin_s
        is_gap = self._is_restored or (elapsed_s > BRIDGED_S and elapsed_s > self._steady_s())
        if from_w is None or to_w is None:
            return PowerStep(elapsed_s, is_gap)
        if is_gap:
            is_refused = self.implausible_s > begin_s and elapsed_s <= LONGEST_ESTIMATE_S
            estimated_j = (from_w + to_w) / 2 * elapsed_s if is_refused else 0.0
            return PowerStep(elapsed_s, True, estimated_j)
        moved_s = (begin_s + end_s) / 2
        slack_s = elapsed_s / 2
        if poll.counter_j is None and elapsed_s < SENSOR_PERIOD_S:
            moved_s, slack_s = self._power_clock.nearest_update(self.polls, begin_s, end_s)
        joules = from_w * (moved_s - begin_s) + to_w * (end_s - moved_s)
        return PowerStep(elapsed_s, False, joules, moved_s, slack_s, to_w - from_w)

    def _interval(self, poll: Poll, power: PowerStep, is_busy: bool) -> PollInterval:
        return PollInterval(
            poll,
            power,
            self.totals,
            self.polls,
            self._steady_s(),
            self.max_w,
            self.most_w,
            is_busy,
            self.counter_restarts,
        )

    def compare_sensors(self) -> None:
        """Compare the counter with the power at the latest poll; widen the interval where they
        differ.
        """
        if self.polls and (doubt_j := self._sensors.compare(self.polls)):
            self.totals = self.totals._replace(unseen_j=self.totals.unseen_j + doubt_j)
            self.polls[-1] = self.polls[-1]._replace(totals=self.totals)
            self._view = None

    def note_busy(self, now_s: float, *, is_busy: bool) -> None:
        """Note whether the device reports at `now_s` that work runs on it."""
        self._busy_until_s = math.inf if is_busy else min(self._busy_until_s, now_s + PAUSE_S)

    @property
    def shows_updates(self) -> bool:
        """True if the polls at the current period show when the counter changes, as well as more
        frequent ones would.
        """
        latest = self.latest
        return (
            self.has_counter
            and latest is not None
            and self._clock.is_complete(self.period_s, latest.after_s)
        )

    def settling_s(self) -> float:
        """Return the time after an instant from which further polls no longer improve its mark."""
        if self.has_counter or self.latest is None:
            return 2.2 * self._update_s
        return self._power_clock.lag_s(self.latest) + 0.1

    def last_poll(self) -> LastPoll | None:
        """Return the latest poll as a later exporter needs it; None before the first one.

        A counter's value dates from the last update before the call, an integral of power lags by
        the delay of the power.
        """
        latest = self.latest
        if latest is None:
            return None
        if not self.has_counter:
            delay_s = self.settling_s()
        elif self._update_s >= SENSOR_PERIOD_S:
            delay_s = self.counter.update.s
        else:
            delay_s = self._update_s
        return LastPoll(
            latest.after_s,
            self.max_w / LIMIT_MARGIN,
            latest.before_s - delay_s,
            self.state.pending_j,
        )

    def mark(self, t_s: float) -> EnergyMark | None:
        """Return the energy mark at `t_s`; it is most precise from `settling_s` after that time
        on. None before the first poll, when the energy is unknown.
        """
        if not self.polls:
            return None
        self._view = self._view or self._make_view()
        return self._view.mark(t_s)

    def energy_at(self, t_s: float) -> tuple[float, float]:
        """Return the joules of the mark at `t_s` and their half-width, in less time."""
        if not self.polls:
            return self.totals.energy_j, 0.0
        self._view = self._view or self._make_view()
        return self._view.energy_at(t_s)

    def _make_view(self) -> MeterView:
        polls = list(self.polls)
        is_counted = self.counter.raw_j is not None
        if is_counted:
            clock = self._clock.at(poll_time_s(polls[-1]))
            update_s = (
                self.counter.update.s if self._update_s >= SENSOR_PERIOD_S else self._update_s
            )
            points = bridged_points(
                self.polls, clock, update_s, self.counter.read_s, self._power_clock.slack_s
            )
            if self._update_s >= SENSOR_PERIOD_S:
                period_s = clock.period_s if clock else update_s
                self._sensors.examine_windows(polls, points, period_s, self.most_w)
        else:
            points = integral_points(
                polls, self._power_clock.lag_s(polls[-1].poll), self._power_clock.slack_s
            )
        return MeterView(
            polls,
            points,
            self.comparison.doubt_j,
            SensorState(
                has_counter=self.has_counter,
                resolves_updates=self._update_s >= SENSOR_PERIOD_S,
                uses_instant_power=self.uses_instant_power,
                shows_shape=self.windows.shows_shape,
                power_update_s=self._sensors.power_update.s,
                unmeasured_share=self.unmeasured_share,
                limit_w=self.max_w / LIMIT_MARGIN,
                limits=PowerLimits(self.least_w, self.most_w),
                counted_s=self.counter.read_s,
                pending_j=self.state.pending_j,
                bridge_error_j=self._sensors.lag_error_j(polls)
                if is_counted and not self.has_counter
                else 0.0,
                settled_s=poll_time_s(polls[-1]) - self.settling_s()
                if self.has_counter
                else points[-1].t_s,
            ),
        )
