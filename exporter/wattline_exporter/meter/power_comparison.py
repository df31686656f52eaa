"""Comparison of a GPU's energy counter with its power, over windows from a second to a minute."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import islice
from operator import add, mul, sub

from wattline_exporter.meter.counter_track import UpdateInterval
from wattline_exporter.meter.interpolation import EnergyPoint
from wattline_exporter.meter.power_windows import PowerWindows
from wattline_exporter.meter.sensor_clock import AVERAGING_S, SENSOR_PERIOD_S
from wattline_exporter.meter.totals import MeteredPoll, PowerStep, poll_time_s
from wattline_exporter.meter.uncertainty import (
    ComparedEnergy,
    DoubtfulWindow,
    allowed_difference_j,
    averaged_slack_j,
    compared_slack_j,
    difference_j,
    disagreement_j,
    doubt_at_j,
    outside_range_j,
    replaced_counter_j,
    sensor_delays_j,
    step_variance_j2,
    stuck_power_j,
    unaveraged_j,
    unsampled_j,
)
from wattline_exporter.sensors.readings import Poll

MEAN_S = 2.0
"""Time over which the energies of a load with fast steps are averaged."""
WINDOW_ERROR = 0.1
"""Largest relative error of the window of the driver's averaged power."""
LONGEST_SPACING_S = 2 * SENSOR_PERIOD_S
"""Longest time between two polls for an average."""
EVERY_S = 1.2
AT_LEAST_S = 0.5
"""Longest and shortest time between two comparisons."""
LONGEST_S = 64.0
_KEPT_OF_EACH = 3
"""Instants kept for each power of two of their number."""
WIDENED_S = 5.0
"""Time after a disagreement for which all energy is in doubt."""
BASE_S = 10.0
"""Longest window of doubt: after it, a new one starts."""
STUCK_S = 5.0
"""Time after which the same power of a busy device, to the milliwatt, is no measurement."""


def power_range_w(polls: Sequence[Poll]) -> tuple[float, float]:
    """Return the lowest and the highest power of the polls."""
    watts = [power_w for poll in polls if (power_w := poll.instant_w) is not None]
    watts += [power_w for poll in polls if (power_w := poll.average_w) is not None]
    return min(watts, default=0.0), max(watts, default=0.0)


class PowerComparison:
    """Detects that counter and power differ by more than their accuracy and delays allow.

    From the first disagreement on, the difference since the start of its window widens the
    interval, so that the interval contains both energies.
    """

    def __init__(self) -> None:
        self.disagreed_s = -math.inf
        """Time of the latest disagreement."""
        self.stuck_s = -math.inf
        """Time of the latest power that is in doubt, since it does not change."""
        self._kept: dict[int, ComparedEnergy] = {}
        self._count = 0
        self.latest_s = -math.inf
        """Time of the latest comparison."""
        self._base: ComparedEnergy | None = None
        self._last: ComparedEnergy | None = None
        self._windows: deque[DoubtfulWindow] = deque(maxlen=16)

    def restart(self) -> None:
        """Forget the instants so far, after a time that one of the two energies does not
        include.
        """
        self._kept.clear()
        self._base = self._last = None

    def add(self, now: ComparedEnergy) -> float:
        """Compare with the earlier instants; return the joules by which the interval is wider
        now.
        """
        worst = max(
            (then for then in self._kept.values() if _disagrees(then, now)),
            key=lambda then: difference_j(then, now),
            default=None,
        )
        last = self._last
        self._last = now
        if worst is not None:
            self.disagreed_s = now.t_s
            self._kept.clear()
        self._keep(now)
        self.latest_s = now.t_s
        if now.t_s - self.disagreed_s > WIDENED_S:
            self._base = None
            return 0.0
        return self._widen(worst, last or now, now)

    def _widen(
        self, worst: ComparedEnergy | None, last: ComparedEnergy, now: ComparedEnergy
    ) -> float:
        base = self._base or worst or now
        begin_s = base.t_s - base.age_s
        known = (
            self._windows.pop() if self._windows and self._windows[-1].begin_s == begin_s else None
        )
        before_j, detected_s, steps = (
            (known.joules, known.detected_s, known.steps) if known else (0.0, now.t_s, ())
        )
        joules = before_j
        if now.t_s > base.t_s:
            joules = max(before_j, disagreement_j(base, last, now, EVERY_S))
        steps += ((now.t_s, joules - before_j),)
        self._windows.append(DoubtfulWindow(begin_s, now.t_s, joules, detected_s, steps))
        self._base = now if now.t_s - base.t_s > BASE_S else base
        return joules - before_j

    def note_stall(self, begin_s: float, now_s: float, most_j: float, *, lags: bool) -> None:
        """Note that the counter has not changed since `begin_s`, while up to `most_j` flowed.

        `lags`: the exported energy has not caught up with the power yet.
        """
        stall = next((window for window in self._windows if window.begin_s == begin_s), None)
        if stall is None:
            self.disagreed_s = now_s
            self._windows.append(DoubtfulWindow(begin_s, now_s, most_j, now_s))
        elif lags:
            self._windows[self._windows.index(stall)] = stall._replace(end_s=now_s)

    def note_stuck_power(self, doubt: DoubtfulWindow) -> float:
        """Note a power that does not change; return the joules by which the interval is wider."""
        self.stuck_s = doubt.end_s
        if doubt.end_s - doubt.begin_s >= STUCK_S:
            self._windows.append(doubt)
        return doubt.joules

    def doubt_j(self, t_s: float) -> tuple[float, float]:
        """Return the doubt at `t_s`, and what to add to the totals' unseen energy at `t_s`."""
        return doubt_at_j(self._windows, t_s)

    def detected(self, after_s: float, until_s: float) -> list[DoubtfulWindow]:
        """Return the windows with a doubt that was detected after `after_s`, up to `until_s`."""
        return [
            window
            for window in self._windows
            if after_s < window.detected_s <= until_s and window.joules
        ]

    def _keep(self, now: ComparedEnergy) -> None:
        """Keep the instant, and fewer of the older ones the older they are: every 2^k-th for
        _KEPT_OF_EACH · 2^k.
        """
        self._count += 1
        self._kept = {
            number: then
            for number, then in self._kept.items()
            if self._count - number <= _KEPT_OF_EACH * (number & -number)
            and now.t_s - then.t_s <= LONGEST_S
        }
        self._kept[self._count] = now


def _disagrees(then: ComparedEnergy, now: ComparedEnergy) -> bool:
    found_j = difference_j(then, now)
    return found_j > then.slack_j + now.slack_j and found_j > allowed_difference_j(then, now)


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
        powers_w = (poll.instant_w, poll.average_w)
        power_w = poll.integrand_w
        t_s = poll.after_s
        if powers_w != self._powers_w or t_s - self._read_s > STUCK_S / 2:
            self._powers_w = powers_w
            self._since_s = t_s
        self._read_s = t_s
        if power_w is None or t_s - self._since_s < STUCK_S:
            return None
        begin_s = max(self._since_s, self._doubted_s)
        self._doubted_s = t_s
        joules = stuck_power_j(power_w, most_w, t_s - begin_s)
        return DoubtfulWindow(begin_s, t_s, joules, t_s, ((t_s, joules),))


class SensorComparison:
    """Comparison of a GPU's counter, whose update interval is `counter_update`, with its power."""

    def __init__(self, counter_update: UpdateInterval) -> None:
        self.result = PowerComparison()
        self.windows = PowerWindows()
        self.power_update = UpdateInterval(SENSOR_PERIOD_S)
        self._counter_update = counter_update
        self._stuck = StuckPower()
        self.sampling_j = self._variance_j2 = 0.0

    def add_power(self, poll: Poll, power: PowerStep, sensor_share: float, most_w: float) -> bool:
        """Note the power of the latest poll; return True if a comparison is due.

        `sensor_share`: share of time that the instantaneous power covers. `most_w`: power that may
        have flowed in the rest.
        """
        if self.windows.take(poll):
            self.result.restart()
        to_w = poll.integrand_w
        if power.moved_s is None or to_w is None:
            self.result.restart()
            return False
        elapsed_s = power.elapsed_s
        if power.risen_w:
            self._variance_j2 += step_variance_j2(power.risen_w, elapsed_s / 2)
        self.power_update.take(poll.after_s, to_w)
        if poll.average_w is None:
            self.sampling_j += unsampled_j(most_w, elapsed_s, sensor_share)
        elif not self.windows.averages_long:
            self.sampling_j += unsampled_j(most_w, elapsed_s, 1.0)
        elif elapsed_s > AVERAGING_S:
            self.sampling_j += unaveraged_j(most_w, elapsed_s)
        return poll.after_s - self.result.latest_s >= EVERY_S

    def examine_windows(
        self,
        polls: Sequence[MeteredPoll],
        points: Sequence[EnergyPoint],
        update_s: float,
        most_w: float,
    ) -> None:
        """Note what the latest polls show about the windows of the powers; see `PowerWindows`."""
        if self.windows.examine(polls, points, min(update_s, self.power_update.s), most_w):
            self.result.restart()

    def stuck_power_j(self, poll: Poll, most_w: float) -> float:
        """Return by how many joules the interval is wider, since the power of a device without a
        usable counter, on which work runs, does not change.
        """
        doubt = self._stuck.doubt(poll, most_w)
        return self.result.note_stuck_power(doubt) if doubt else 0.0

    def compare(self, polls: Sequence[MeteredPoll]) -> float:
        """Compare the energies at the latest poll; return by how many joules the interval is
        wider.
        """
        latest = polls[-1]
        t_s = poll_time_s(latest)
        watts = latest.poll.integrand_w
        if watts is None or latest.counted_j is None or latest.moved_s is None:
            return 0.0
        if t_s - self.result.latest_s < AT_LEAST_S:
            return 0.0
        averaging_s = self.windows.averaging_s(latest.poll)
        range_w, highest_w = self._recent_range_w(polls)
        unseen_j = self._unseen_j(polls, highest_w - range_w, highest_w)
        now = ComparedEnergy(
            t_s,
            latest.counted_j,
            latest.totals.integrated_j + watts * averaging_s / 2,
            self.sampling_j,
            self._variance_j2,
            slack_j=compared_slack_j(
                self._delays_j(polls, range_w), highest_w, self._counter_update.s, unseen_j
            ),
            power_w=watts,
            lag_s=(lag_s := averaging_s + self.power_update.s + self._counter_update.s),
            age_s=lag_s,
        )
        return self.result.add(self._averaged(polls, now, unseen_j) or now)

    def lag_error_j(self, polls: Sequence[MeteredPoll]) -> float:
        """Return the largest error of the energy where the power replaces the counter, from the
        delays of both.
        """
        if not polls:
            return 0.0
        range_w, highest_w = self._recent_range_w(polls)
        delays_j = self._delays_j(polls, range_w)
        return replaced_counter_j(delays_j, highest_w, self._counter_update.s)

    def _delays_j(self, polls: Sequence[MeteredPoll], range_w: float) -> float:
        averaging_s = self.windows.averaging_s(polls[-1].poll)
        spacing_s = poll_time_s(polls[-1]) - poll_time_s(polls[-2]) if len(polls) > 1 else 0.0
        return sensor_delays_j(
            range_w, averaging_s, self.power_update.s, self._counter_update.s, spacing_s
        )

    def _recent_range_w(self, polls: Sequence[MeteredPoll]) -> tuple[float, float]:
        """Return the range and the highest of the powers that affect the latest averaged power."""
        averaging_s = self.windows.averaging_s(polls[-1].poll)
        since_s = (
            poll_time_s(polls[-1]) - averaging_s - self.power_update.s - self._counter_update.s
        )
        lowest_w, highest_w = power_range_w([item.poll for item in _since(polls, since_s)])
        return highest_w - lowest_w, highest_w

    def _unseen_j(self, polls: Sequence[MeteredPoll], lowest_w: float, highest_w: float) -> float:
        """Return the energy by which the counter left the range of powers since the power's latest
        update.
        """
        latest = polls[-1]
        since_s = poll_time_s(latest) - self.power_update.s - self._counter_update.s
        before = polls[_first_since(polls, since_s)]
        if latest.counted_j is None or before.counted_j is None:
            return 0.0
        elapsed_s = poll_time_s(latest) - poll_time_s(before)
        counted_j = latest.counted_j - before.counted_j
        return outside_range_j(counted_j, lowest_w, highest_w, elapsed_s)

    def _averaged(
        self, polls: Sequence[MeteredPoll], now: ComparedEnergy, unseen_j: float
    ) -> ComparedEnergy | None:
        """Return the mean energies of the last seconds, which fast steps of the load affect less;
        None after a gap.

        The counter is averaged over the window of the driver's averaged power first, so that only
        the delays of both sensors' updates differ. Between means, a difference of the delays counts
        times the mean power.
        """
        items = _since(polls, now.t_s - MEAN_S)
        if len(items) < MEAN_S / SENSOR_PERIOD_S or poll_time_s(items[0]) > now.t_s - MEAN_S:
            return None
        averaging_s = self.windows.averaging_s(polls[-1].poll)
        mean_s = MEAN_S - averaging_s
        update_s = self._counter_update.s
        lag_s = max(self.power_update.s, update_s) + WINDOW_ERROR * averaging_s
        latest = [item.poll for item in items]
        lowest_w, highest_w = power_range_w(latest)
        slack_j = averaged_slack_j(
            highest_w - lowest_w,
            highest_w,
            lag_s=lag_s,
            update_s=update_s,
            outside_j=unseen_j,
            mean_s=mean_s,
        )
        if slack_j >= now.slack_j:
            return None
        counted_j = [item.counted_j for item in items if item.counted_j is not None]
        powers_w = [watts for poll in latest if (watts := poll.integrand_w) is not None]
        is_complete = len(counted_j) == len(powers_w) == len(items) and None not in [
            item.moved_s for item in items[1:]
        ]
        times_s = [poll.after_s for poll in latest]
        spacings_s = list(map(sub, times_s[1:], times_s))
        if not is_complete or max(spacings_s) > LONGEST_SPACING_S:
            return None
        # twice the weights of a trapezoid
        spans_s = list(map(add, [0.0, *spacings_s], [*spacings_s, 0.0]))
        ages_s = [now.t_s - t_s for t_s in times_s]
        first = bisect_left(ages_s, True, key=lambda age_s: age_s <= mean_s)
        means = spans_s[first:]
        if averaging_s:
            filtered = [
                span_s * (age_s if age_s < MEAN_S / 2 else max(0.0, MEAN_S - age_s))
                for span_s, age_s in zip(spans_s, ages_s, strict=True)
            ]
            averaged_j = _mean(filtered, counted_j)
        else:
            averaged_j = _mean(means, counted_j[first:])
        return now._replace(
            counted_j=averaged_j,
            integrated_j=_mean(means, [item.totals.integrated_j for item in items[first:]]),
            power_w=_mean(means, powers_w[first:]),
            slack_j=slack_j,
            lag_s=lag_s,
            age_s=lag_s + MEAN_S / 2,
        )


def _mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(map(mul, weights, values)) / math.fsum(weights)


def _since(polls: Sequence[MeteredPoll], t_s: float) -> list[MeteredPoll]:
    """Return the polls since `t_s`, and the last one before."""
    return list(islice(polls, _first_since(polls, t_s), None))


def _first_since(polls: Sequence[MeteredPoll], t_s: float) -> int:
    """Return the index of the last poll before `t_s`, 0 if there is none."""
    return max(0, bisect_left(polls, t_s, key=poll_time_s) - 1)
