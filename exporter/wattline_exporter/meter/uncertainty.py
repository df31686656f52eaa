"""Energy of a device at an instant and between two, and its half-width (pure).

The interval of a device in a run is that of `energy_between` its marks at the start and the end.
`runs/run_figures.py` puts it into the record of the run, `wattline.figures.sum_of_one_job` adds
the devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from wattline.figures import NORMAL_95
from wattline_exporter.meter.sensor_clock import AVERAGING_S, SENSOR_PERIOD_S
from wattline_exporter.meter.totals import LastPoll, MeterTotals

TOLERANCE = 0.05
"""Largest relative difference between the energies of two accurate sensors."""
SHORT_WINDOW_S = 0.025
"""Window of an instantaneous power that is shorter than an update."""
UNRESOLVED_S = SHORT_WINDOW_S / 4
"""Quarter of that window. Multiplied by the mean power, it is the error for loads that switch
faster: the sensor reports only their mean, so they do not widen the range of powers.
"""
LONG_SLACK_S = 0.1
"""Error of an update's time above which the highest nearby power, instead of the slope between two
points, bounds the power during it.
"""
_PEAK_OVER_MEAN = 4.0
"""Largest assumed ratio of the power to its mean between two polls, of a device without power
readings.
"""
_NOISE = 0.02
"""Noise of power readings, and of the time of updates, as a share of the power."""
_HELD_RATIO = 2.0
"""Ratio of the means of updates that a load faster than the updates cannot hold; see
`holds_levels`.
"""
_HELD_UPDATES = 4
"""Two updates at the lowest and two at the highest power."""
_DEVIATIONS = 5.0
"""Random errors are allowed up to this many standard deviations, which one in a million exceeds."""


@dataclass(frozen=True, slots=True)
class EnergyMark:
    """State of a device's energy at one instant. Its field names are part of the state file.

    `half_width_j` is the half-width of the 95 % confidence interval of `joules`. `variance_j2`
    grows wherever the energy is uncertain: between updates of an integrated power, and where a
    counter restarted. `unseen_ratio` is the share of time that the sensor does not measure, in
    which the device may have drawn any power up to `most_w`.
    """

    joules: float
    half_width_j: float
    variance_j2: float
    integrated_j: float
    covered_s: float
    resets: int
    unseen_ratio: float = 0.0
    most_w: float = 0.0
    unseen_j: float = 0.0
    """Largest additional energy of the periods that were not measured, up to this instant."""


@dataclass(frozen=True, slots=True)
class MeasuredEnergy:
    """Energy between two marks, with the half-width of its 95 % confidence interval."""

    joules: float
    half_width_j: float
    integrated_j: float
    covered_s: float
    resets: int


def energy_between(begin: EnergyMark, end: EnergyMark) -> MeasuredEnergy:
    """Return the energy between two marks, never negative, with the sum of all contributions to its
    half-width.
    """
    return MeasuredEnergy(
        joules=max(0.0, end.joules - begin.joules),
        half_width_j=edges_j(begin, end)
        + random_j(begin, end)
        + unmeasured_share_j(begin, end)
        + unseen_j(begin, end),
        integrated_j=max(0.0, end.integrated_j - begin.integrated_j),
        covered_s=end.covered_s - begin.covered_s,
        resets=end.resets - begin.resets,
    )


def energy_so_far(begin: EnergyMark, totals: MeterTotals, most_j: float) -> MeasuredEnergy:
    """Return the energy of a running run up to the poll of `totals`, never negative.

    `most_j` is the largest energy that the device's counter may have at that time. The half-width
    is that of the start: there is no mark of the end yet.
    """
    return MeasuredEnergy(
        joules=max(0.0, min(totals.energy_j, most_j) - begin.joules),
        half_width_j=begin.half_width_j,
        integrated_j=totals.integrated_j - begin.integrated_j,
        covered_s=totals.covered_s - begin.covered_s,
        resets=0,
    )


# -- contributions to the half-width between two marks, in joules


def edges_j(begin: EnergyMark, end: EnergyMark) -> float:
    """Return the half-widths of both marks. They add up: errors of one clock may affect both."""
    return begin.half_width_j + end.half_width_j


def random_j(begin: EnergyMark, end: EnergyMark) -> float:
    """Return the half-width of independent errors, whose variances add up: 1.96 √(Δ variance)."""
    return NORMAL_95 * math.sqrt(max(0.0, end.variance_j2 - begin.variance_j2))


def unmeasured_share_j(begin: EnergyMark, end: EnergyMark) -> float:
    """Return the largest error of a sensor that measures only a share of the time.

    The error is not random. A load whose period is near a multiple of the sensor's shows it the
    same phase each time, however long the run. So the share that is not measured counts in full:
    its power is between 0 and `most_w`. Formula: share · max(E, most_w · t - E).
    """
    joules = max(0.0, end.joules - begin.joules)
    covered_s = end.covered_s - begin.covered_s
    share = max(begin.unseen_ratio, end.unseen_ratio)
    most_w = max(begin.most_w, end.most_w)
    return share * max(joules, most_w * covered_s - joules)


def unseen_j(begin: EnergyMark, end: EnergyMark) -> float:
    """Return the bounds of errors that no later reading corrects, which add up: Δ `unseen_j`."""
    return max(0.0, end.unseen_j - begin.unseen_j)


# -- contributions to the unseen energy and to the variance of one step of the meter


def step_variance_j2(risen_w: float, slack_s: float) -> float:
    """Return the variance of the integral of a power that rose by `risen_w` at a time known to
    ± `slack_s`, in J².

    The error is uniform between ± risen_w · slack_s. Formula: (risen_w · slack_s)² / 3.
    """
    return (risen_w * slack_s) ** 2 / 3


def unknown_power_j(added_j: float, most_w: float, elapsed_s: float) -> float:
    """Return the largest error of `added_j` where any power up to `most_w` may have flowed.

    Formula: max(added_j, most_w · elapsed_s - added_j).
    """
    return max(added_j, most_w * elapsed_s - added_j)


def bridge_tolerance_j(added_j: float) -> float:
    """Return the difference of accurate sensors, where power replaces a counter: 5 % of its
    energy.
    """
    return TOLERANCE * added_j


def long_interval_j(range_w: float, elapsed_s: float) -> float:
    """Return the error of the mean power over a long interval, in which the power stays in a range
    of `range_w`.

    Formula: range_w · elapsed_s / 2.
    """
    return range_w * elapsed_s / 2


def counter_delay_j(update_s: float, most_w: float) -> float:
    """Return the energy that two values of a counter leave open, each up to one update old.

    Formula: 2 · update_s · most_w.
    """
    return 2 * update_s * most_w


def stuck_power_j(power_w: float, most_w: float, elapsed_s: float) -> float:
    """Return the largest error of a power that does not change while work runs.

    The true power is between 0 and `most_w`. Formula: max(power_w, most_w - power_w) · elapsed_s.
    """
    return max(power_w, most_w - power_w) * elapsed_s


# -- contributions to the half-width of a mark


def fast_load_j(powers_w: Sequence[float], *, uses_instant_power: bool) -> float:
    """Return the error at one instant, of a load that switches faster than the sensor's window.

    The sensor reports only the mean of the window. Formula: a quarter of the window · mean power.
    Of a sensor without a counter and without averaged power, the window is its update period.
    """
    quarter_s = SENSOR_PERIOD_S / 4 if uses_instant_power else UNRESOLVED_S
    return quarter_s * sum(powers_w) / len(powers_w)


def averaging_j(powers_w: Sequence[float]) -> float:
    """Return the error at one instant, of an integral of averaged power.

    A mean over a window is off by at most an eighth of the window times the largest step.
    """
    return (max(powers_w) - min(powers_w)) * AVERAGING_S / 8


def raised_j(joules: float, total_j: float) -> float:
    """Return the error of an energy below the exported total, to which it is raised.

    Exported totals never fall. Formula: max(0, total_j - joules).
    """
    return max(0.0, total_j - joules)


def bridged_instant_j(pending_j: float, instant_j: float) -> float:
    """Return the error of an instant after the counter's latest trusted value.

    `pending_j` is the error of the bridge so far, `instant_j` that of the delayed power at one
    instant.
    """
    return pending_j + instant_j


def unplaced_j(before: MeterTotals, after: MeterTotals) -> float:
    """Return the unseen energy between two polls, which may lie on either side of an instant
    between them: Δ `unseen_j`.
    """
    return after.unseen_j - before.unseen_j


# -- contributions to the half-width between two updates of a sensor


def unread_j(seconds: float, most_w: float) -> float:
    """Return the largest energy of a time without a reading, in which up to `most_w` may flow."""
    return seconds * most_w


def update_time_j(slack_s: float, mean_w: float, most_w: float) -> float:
    """Return the energy within the error of an update's time: slack_s · mean_w.

    Where `slack_s` is above LONG_SLACK_S, the power during it may be far from the mean: it is up
    to `most_w`.
    """
    return slack_s * (mean_w if slack_s <= LONG_SLACK_S else most_w)


def between_updates_j(joules: float, least_j: float, most_j: float) -> float:
    """Return the larger distance of an energy from its bounds, the energies at the lowest and at
    the highest power.
    """
    return max(most_j - joules, joules - least_j, 0.0)


def extrapolation_j(
    reach_s: float, beyond_s: float, slack_s: float, low_w: float, high_w: float
) -> float:
    """Return the error of an energy outside of the updates.

    For `reach_s` the energy follows the latest slope, and the power is between `low_w` and
    `high_w`. For `beyond_s` after that, and for the error of the update's time, it may be `high_w`.
    Formula: reach_s · (high_w - low_w) + (beyond_s + slack_s) · high_w.
    """
    return reach_s * (high_w - low_w) + (beyond_s + slack_s) * high_w


class ShapeBounds(NamedTuple):
    """Bounds of the power inside an update; `is_known` if the load is seen at both of them."""

    low_w: float
    high_w: float
    is_known: bool


def shape_bounds(
    steps_w: Sequence[float], powers_w: Sequence[float], least_w: float, most_w: float
) -> ShapeBounds:
    """Return the bounds of the power inside an update of the counter.

    `steps_w` are the mean powers of the updates nearby, `powers_w` the readings nearby of a sensor
    whose window is shorter than an update; without such a sensor there are none.

    If the lowest reading is the lowest step, within noise, that is the lowest power of the load,
    and the same for the highest. If readings go beyond the steps at both ends, they show both
    powers. Else the load switches faster than they show, between any powers of the device: an
    end is `least_w` or `most_w`.
    """
    low_step_w = min(steps_w)
    high_step_w = max(steps_w)
    if not powers_w:
        return ShapeBounds(min(low_step_w, least_w), max(high_step_w, most_w), is_known=False)
    low_w = min(low_step_w, *powers_w)
    high_w = max(high_step_w, *powers_w)
    noise_w = 1.0 + _NOISE * high_w
    below_w = low_step_w - min(powers_w)
    above_w = max(powers_w) - high_step_w
    are_beyond = below_w > noise_w and above_w > noise_w
    is_low_known = are_beyond or abs(below_w) <= noise_w
    is_high_known = are_beyond or abs(above_w) <= noise_w
    return ShapeBounds(
        low_w if is_low_known else min(low_w, least_w),
        high_w if is_high_known else max(high_w, most_w),
        is_low_known and is_high_known,
    )


def hidden_shape_j(mean_w: float, least_w: float, most_w: float, seconds: float) -> float:
    """Return the largest deviation from a constant power within `seconds` whose mean is `mean_w`.

    With the power between L and H and the mean P, the energy up to a fraction f of U seconds is
    between max(L f, P - H (1 - f)) U and min(H f, P - L (1 - f)) U. The distance of the upper bound
    from P f U is min((H - P) f, (P - L) (1 - f)) U. One rises and the other falls with f, so it is
    largest where they are equal: at f = (P - L) / (H - L). The lower bound is the same with f and
    1 - f exchanged. Formula: (P - L) (H - P) / (H - L) · U; 0 for a mean outside of the bounds.
    """
    if not least_w < mean_w < most_w:
        return 0.0
    return (mean_w - least_w) * (most_w - mean_w) / (most_w - least_w) * seconds


def holds_levels(steps_w: Sequence[float], powers_w: Sequence[float] = ()) -> bool:
    """Return whether a load stays at a low and at a high power for several updates each.

    `steps_w` are the mean powers of successive updates. Each of them is the lowest or the highest,
    within noise, or one update in which the load changes between these. Both the lowest and the
    highest occur in two updates in a row, and the highest is more than twice the lowest. Where
    there are instantaneous powers nearby, `powers_w`, they reach from the one to the other.

    A periodic load that is faster than the updates cannot do that. An update of U seconds contains
    n whole periods of T seconds, and r seconds of another one. Where r is added, the mean rises
    from n E to at most n E + H r, with the energy E of a period and its highest power H. For two
    equal means in a row, r must fit twice into the time at H, so that H r <= E / 2: the ratio is at
    most 1.5. Where r is missing from one period, the mean falls from E to at least E - H r: the
    ratio is at most 2.
    """
    if len(steps_w) < _HELD_UPDATES:
        return False
    lowest_w = min(steps_w)
    highest_w = max(steps_w)
    noise_w = 1.0 + _NOISE * highest_w
    if highest_w <= _HELD_RATIO * (lowest_w + noise_w):
        return False
    if powers_w and (
        abs(min(powers_w) - lowest_w) > noise_w or abs(max(powers_w) - highest_w) > noise_w
    ):
        return False
    are_changes = [lowest_w + noise_w < step_w < highest_w - noise_w for step_w in steps_w]
    if any(one and next_one for one, next_one in pairwise(are_changes)):
        return False
    is_low_held = any(max(pair_w) <= lowest_w + noise_w for pair_w in pairwise(steps_w))
    is_high_held = any(min(pair_w) >= highest_w - noise_w for pair_w in pairwise(steps_w))
    return is_low_held and is_high_held


def levels_in_update_w(mean_w: float, low_w: float, high_w: float) -> list[float]:
    """Return the levels at which a load is in an update with the mean `mean_w`, if it holds them:
    `low_w`, `high_w`, or both where it changes.
    """
    noise_w = 1.0 + _NOISE * high_w
    levels_w = []
    if mean_w < high_w - noise_w:
        levels_w.append(low_w)
    if mean_w > low_w + noise_w:
        levels_w.append(high_w)
    return levels_w


def located_step_j(
    before_w: float, after_w: float, low_w: float, high_w: float, span_s: float
) -> float | None:
    """Return the error of an energy inside an update that one change of power explains.

    A load whose powers are known to be `low_w` and `high_w`, and which stays at each of them for an
    update, passes from one to the other once in an update between two such updates. Its mean then
    shows when, up to the noise of the means. Formula: (1 W + 2 % of high_w) · span_s. Return None
    where the powers before and after are not the lowest and the highest one.
    """
    noise_w = 1.0 + _NOISE * high_w
    is_from_low = min(before_w, after_w) <= low_w + noise_w
    is_to_high = max(before_w, after_w) >= high_w - noise_w
    return noise_w * span_s if is_from_low and is_to_high else None


def is_other_power(one_w: float, other_w: float) -> bool:
    """Return whether two readings of power differ by more than noise: 1 W and 2 %."""
    return abs(one_w - other_w) > 1.0 + _NOISE * max(one_w, other_w)


def peak_w(mean_w: float) -> float:
    """Return the highest power of a device without power readings: four times its mean power
    between two polls, since the load may switch faster.
    """
    return _PEAK_OVER_MEAN * mean_w


# -- contributions to the half-width within a long step of a counter


def power_shift_j(range_w: float, slack_s: float, spacing_s: float) -> float:
    """Return the error of an integral of power whose changes have unknown times.

    A change lies anywhere between two readings, and each reading's time is known to ± `slack_s`.
    Formula: range_w · max(slack_s, spacing_s / 2).
    """
    return range_w * max(slack_s, spacing_s / 2)


def unexplained_step_j(step_j: float, power_j: float, slack_s: float, most_w: float) -> float:
    """Return the energy of a counter's step that the power readings do not show, which flowed at
    an unknown time.

    It is 0 up to the accuracy of both: 5 %, and `slack_s`, the errors of both updates' times, at
    `most_w`.
    """
    difference_j = abs(step_j - power_j)
    return difference_j if difference_j > slack_s * most_w + TOLERANCE * power_j else 0.0


def scaled_step_j(
    shift_j: float, ratio: float, since_j: float, rest_j: float, most_j: float
) -> float:
    """Return the error of an energy within a step, placed as the power flowed.

    The power is scaled by `ratio` so that its energy is the step's; that error grows with the
    distance from the nearer end, `since_j` or `rest_j` away. The error is at most `most_j`, the
    distance to the farther end. Formula: min(shift_j + |ratio - 1| · min(since_j, rest_j), most_j).
    """
    return min(shift_j + abs(ratio - 1) * min(since_j, rest_j), most_j)


# -- bounds of the difference of a counter and the power


class ComparedEnergy(NamedTuple):
    """Both energies at one instant.

    `sampling_j`: largest energy so far that the power sensor has not measured. `variance_j2`:
    variance of the integral. `slack_j`: largest difference at this instant that results from update
    periods and averaging. `lag_s`: longest delay of `power_w` behind the true power. `age_s`: age
    of the energies at `t_s`.
    """

    t_s: float
    counted_j: float
    integrated_j: float
    sampling_j: float
    variance_j2: float
    slack_j: float
    power_w: float
    lag_s: float
    age_s: float


def difference_j(then: ComparedEnergy, now: ComparedEnergy) -> float:
    """Return the difference of both energies between two instants."""
    return abs((now.counted_j - then.counted_j) - (now.integrated_j - then.integrated_j))


def allowed_difference_j(then: ComparedEnergy, now: ComparedEnergy) -> float:
    """Return the largest difference of two accurate sensors.

    It is 5 % of the larger energy, the slacks of both instants, the delay of a changed power, five
    standard deviations of the integral, and the energy that was not sampled.
    """
    most_j = max(now.counted_j - then.counted_j, now.integrated_j - then.integrated_j)
    lag_j = abs(now.power_w - then.power_w) * max(now.lag_s, then.lag_s)
    deviations_j = _DEVIATIONS * math.sqrt(now.variance_j2 - then.variance_j2)
    return (
        TOLERANCE * most_j
        + then.slack_j
        + now.slack_j
        + lag_j
        + deviations_j
        + now.sampling_j
        - then.sampling_j
    )


def disagreement_j(
    base: ComparedEnergy, last: ComparedEnergy, now: ComparedEnergy, next_s: float
) -> float:
    """Return the largest error of either energy until the next comparison in `next_s`.

    The difference since `base` may grow on as it did since then, or since `last`, for the age of
    the energies and `next_s`.
    """
    since_base_j = difference_j(base, now)
    tail_s = now.age_s + next_s
    mean_w = since_base_j / max(now.t_s - base.t_s, tail_s)
    latest_w = difference_j(last, now) / (now.t_s - last.t_s) if now.t_s > last.t_s else 0.0
    return since_base_j + max(mean_w, latest_w) * tail_s + allowed_difference_j(base, now)


def sensor_delays_j(
    range_w: float,
    averaging_s: float,
    power_update_s: float,
    counter_update_s: float,
    spacing_s: float,
) -> float:
    """Return the difference of both energies at one instant that results from their delays.

    Power in a range of `range_w` is late by half of its averaging window, its update period, the
    counter's, and the time between two polls.
    """
    return range_w * (averaging_s / 2 + power_update_s + counter_update_s + spacing_s)


def replaced_counter_j(delays_j: float, highest_w: float, update_s: float) -> float:
    """Return the error where power replaces a counter: the delays of both, and the energy since
    the counter's latest update, up to `update_s` ago. Formula: delays_j + highest_w · update_s.
    """
    return delays_j + highest_w * update_s


def compared_slack_j(delays_j: float, highest_w: float, update_s: float, outside_j: float) -> float:
    """Return the largest difference of both energies at one instant.

    The counter is half an update period old on average. Formula: delays_j
    + highest_w · update_s / 2 + outside_j.
    """
    return delays_j + highest_w * update_s / 2 + outside_j


def averaged_slack_j(  # noqa: PLR0913  # both sensors' delays, and the window of the mean
    range_w: float,
    highest_w: float,
    *,
    lag_s: float,
    update_s: float,
    outside_j: float,
    mean_s: float,
) -> float:
    """Return the largest difference of both energies averaged over `mean_s`.

    A change of power shifts the energies for `lag_s`, by range_w · lag_s / 2 on average; an update
    of the counter is late for `update_s`, by highest_w · update_s / 4. Each counts for its share of
    the mean. Formula: (range_w · lag_s² / 2 + highest_w · update_s² / 4 + outside_j · lag_s)
    / mean_s.
    """
    return (range_w * lag_s**2 / 2 + highest_w * update_s**2 / 4 + outside_j * lag_s) / mean_s


def outside_range_j(counted_j: float, lowest_w: float, highest_w: float, elapsed_s: float) -> float:
    """Return the energy by which a counter left the range of the powers in `elapsed_s`."""
    return max(0.0, counted_j - highest_w * elapsed_s, lowest_w * elapsed_s - counted_j)


def unsampled_j(most_w: float, elapsed_s: float, share: float) -> float:
    """Return the energy that instantaneous power does not show: in the time above an update
    period, and in the share of the time that its window does not cover.
    """
    return most_w * (max(0.0, elapsed_s - SENSOR_PERIOD_S) + (1.0 - share) * elapsed_s)


def unaveraged_j(most_w: float, elapsed_s: float) -> float:
    """Return the energy that averaged power does not show: in the time above its window."""
    return most_w * max(0.0, elapsed_s - AVERAGING_S)


def silence_j(last: LastPoll, most_w: float, t_s: float) -> float:
    """Return the largest error at `t_s` of the energy at the last poll of an exporter that stopped.

    Since `shown_s` any power up to `most_w` may have flowed. Where the poll is later than `t_s`, it
    may include energy used after `t_s`. Formula: most_w · max(t_s - shown_s, polled_s - t_s)
    + pending_j.
    """
    return most_w * max(t_s - last.shown_s, last.t_s - t_s) + last.pending_j


def end_until_j(end: EnergyMark, latest: EnergyMark) -> float:
    """Return the largest energy between the assumed and the latest possible end of a run."""
    return latest.joules + latest.half_width_j - end.joules


def since_report_j(report: EnergyMark, end: EnergyMark) -> float:
    """Return the largest energy since the last report of a run that may have ended soon after."""
    return end.joules - report.joules + report.half_width_j


def expired_lease_j(begin: EnergyMark, end: EnergyMark, lease_s: float, most_w: float) -> float:
    """Return the largest energy since the last report of a run whose lease expired while processes
    ran, which may not be the client's.

    There is no mark at that report. Since then the run has used at most `most_w` for the length of
    the lease, and not more than since its start. A power of 0 is an unknown limit.
    """
    used_j = end.joules - begin.joules
    return min(used_j, most_w * lease_s) if most_w > 0.0 else used_j


def late_doubt_j(windows: Iterable[DoubtfulWindow], end_s: float) -> float:
    """Return the doubts about a run that were detected after its end, of windows before it."""
    return math.fsum(window.joules for window in windows if window.begin_s < end_s)


def with_uncertain_end(end: EnergyMark, errors_j: Iterable[float]) -> EnergyMark:
    """Return the last mark of a run whose end is not known exactly.

    Each of `errors_j` covers the whole time in which the run may have ended, as the mark's own
    half-width does, so that the largest one counts.
    """
    return replace(end, half_width_j=max(end.half_width_j, *errors_j, 0.0))


def with_doubt(end: EnergyMark, doubt_j: float) -> EnergyMark:
    """Return the last mark of a run with a further doubt, which adds to all other errors."""
    return replace(end, half_width_j=end.half_width_j + doubt_j)


class DoubtfulWindow(NamedTuple):
    """Period in which counter and power disagree, by how much the interval is widened, and when
    that was detected.

    `steps`: time of each comparison and the joules added to the totals then; none for a counter
    that stopped.
    """

    begin_s: float
    end_s: float
    joules: float
    detected_s: float
    steps: tuple[tuple[float, float], ...] = ()

    def doubt_j(self, t_s: float) -> tuple[float, float]:
        """Return the doubt at an instant within the window, and what to add to the totals' unseen
        energy then.

        Any part of the doubt may lie before or after the instant. With half of it on either side,
        the energies up to the instant and from it on both include the whole doubt, once.
        """
        if not self.steps:
            return self.joules, 0.0
        return self.joules / 2, self.joules / 2 - math.fsum(
            joules for at_s, joules in self.steps if at_s <= t_s
        )


def doubt_at_j(windows: Iterable[DoubtfulWindow], t_s: float) -> tuple[float, float]:
    """Return the sums of the doubts of all windows around an instant: the half-width, and what to
    add to the totals' unseen energy then.
    """
    around = [window.doubt_j(t_s) for window in windows if window.begin_s < t_s < window.end_s]
    half_width_j = math.fsum(doubt_j for doubt_j, _ in around)
    added_j = math.fsum(unseen_j for _, unseen_j in around)
    return half_width_j, added_j


def mark_at_totals(totals: MeterTotals) -> EnergyMark:
    """Return the mark of the totals as they are."""
    return EnergyMark(
        totals.energy_j,
        0.0,
        totals.variance_j2,
        totals.integrated_j,
        totals.covered_s,
        totals.resets,
        unseen_j=totals.unseen_j,
    )
