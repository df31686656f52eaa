"""Integral of a device's reported power between polls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from wattline_exporter.meter.sensor_clock import AVERAGING_S, SENSOR_PERIOD_S, SensorClockTracker
from wattline_exporter.meter.uncertainty import DoubtfulWindow, MeteredPoll
from wattline_exporter.sensors.readings import Poll

LONGEST_ESTIMATE_S = 60.0
"""Longest time with implausible powers only that is estimated."""
LOWEST_SHARE = 0.01
"""Power of a busy device as a share of its limit: a lower reading is in error."""
PAUSE_S = 10.0
"""Longest pause of work between two reports of the device."""
STUCK_S = 5.0
"""Time after which the same power of a busy device, to the milliwatt, is no measurement."""


def without_implausible_power(poll: Poll, lowest_w: float, highest_w: float) -> Poll:
    """Return the poll without powers above `highest_w`, and without any where all are below
    `lowest_w`.
    """
    instant_w, average_w = poll.instant_w, poll.average_w
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


def power_range_w(polls: Sequence[Poll]) -> tuple[float, float]:
    """Return the lowest and the highest power of the polls."""
    instant_w = [poll.instant_w for poll in polls if poll.instant_w is not None]
    average_w = [poll.average_w for poll in polls if poll.average_w is not None]
    watts = instant_w + average_w
    return min(watts, default=0.0), max(watts, default=0.0)


class StuckPower:
    """Detects that a busy device without a usable counter reports one power again and again."""

    def __init__(self) -> None:
        self._powers_w: tuple[float | None, float | None] = None, None
        self._since_s = self._read_s = self._doubted_s = -math.inf

    def doubt(self, poll: Poll, most_w: float) -> DoubtfulWindow | None:
        """Return the time up to the poll of which the power is in doubt: since its last change,
        then each step.

        The true power is between 0 and `most_w`.
        """
        powers_w, power_w, t_s = (poll.instant_w, poll.average_w), poll.integrand_w, poll.after_s
        if powers_w != self._powers_w or t_s - self._read_s > STUCK_S / 2:
            self._powers_w, self._since_s = powers_w, t_s
        self._read_s = t_s
        if power_w is None or t_s - self._since_s < STUCK_S:
            return None
        begin_s, self._doubted_s = max(self._since_s, self._doubted_s), t_s
        joules = max(power_w, most_w - power_w) * (t_s - begin_s)
        return DoubtfulWindow(begin_s, t_s, joules, t_s, ((t_s, joules),))


class PowerIntegral:
    """Integration of power, whose update times it estimates where no counter shows them."""

    def __init__(self) -> None:
        self._busy_until_s = -math.inf
        """Time until which work runs on the device, including its pauses; later power may be idle
        power.
        """
        self._stuck = StuckPower()
        self._clock = SensorClockTracker()

    def note_busy(self, now_s: float, *, is_busy: bool) -> None:
        """Note whether the device reports at `now_s` that work runs on it."""
        self._busy_until_s = math.inf if is_busy else min(self._busy_until_s, now_s + PAUSE_S)

    def lowest_w(self, t_s: float, limit_w: float) -> float:
        """Return the power below which a reading is in error."""
        return LOWEST_SHARE * limit_w if t_s <= self._busy_until_s else 0.0

    def doubt(self, poll: Poll, most_w: float) -> DoubtfulWindow | None:
        """Return the time up to the poll of which the power is in doubt, since it does not change
        while work runs.
        """
        return self._stuck.doubt(poll, most_w) if poll.after_s <= self._busy_until_s else None

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

    def step(
        self, last: Poll, poll: Poll, polls: Iterable[MeteredPoll], *, known: bool, refused_s: float
    ) -> tuple[float, float, float | None]:
        """Return the joules between two polls by their powers, the variance, and the time when the
        power changed.

        Without known power in between, the time is None, and there is no energy. But if the sensor
        answered with an implausible power last at `refused_s`, the mean of the powers before and
        after is the best estimate.
        """
        from_w, to_w, elapsed_s = last.integrand_w, poll.integrand_w, poll.after_s - last.after_s
        if not known:
            is_refused = refused_s > last.after_s and elapsed_s <= LONGEST_ESTIMATE_S
            both = is_refused and from_w is not None and to_w is not None
            return ((from_w or 0.0) + (to_w or 0.0)) / 2 * elapsed_s if both else 0.0, 0.0, None
        moved_s, slack_s = self._power_change(last, poll, polls)
        from_w, to_w = from_w or 0.0, to_w or 0.0
        joules = from_w * (moved_s - last.after_s) + to_w * (poll.after_s - moved_s)
        return joules, ((to_w - from_w) * slack_s) ** 2 / 3, moved_s

    def _power_change(self, a: Poll, b: Poll, polls: Iterable[MeteredPoll]) -> tuple[float, float]:
        """Return the time when the reported power changed between two polls, and its half-width.

        Reported power changes in one step, when the sensor updates. If the time of the update is
        unknown, the result is the middle, for which the integral is a trapezoid.
        """
        start_s, end_s = a.after_s, b.after_s
        middle_s, slack_s = (start_s + end_s) / 2, (end_s - start_s) / 2
        if b.counter_j is not None or end_s - start_s >= SENSOR_PERIOD_S:
            return middle_s, slack_s
        clock = self._clock.from_power((item.poll for item in polls), b.after_s)
        if not clock:
            return middle_s, slack_s
        return min(max(clock.nearest(middle_s), start_s), end_s), min(slack_s, clock.slack_s)
