"""Energy of a device at an instant and between two, and its half-width (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from wattline.figures import NORMAL_95
from wattline_exporter.meter.sensor_clock import AVERAGING_S, SENSOR_PERIOD_S
from wattline_exporter.meter.totals import MeterTotals

TOLERANCE = 0.05
"""Largest relative difference between the energies of two accurate sensors."""
UNRESOLVED_S = 0.025 / 4
"""Quarter of the power sensor's window of 25 ms. Multiplied by the mean power, it is the error for
loads that switch faster: the sensor reports only their mean, so they do not widen the range of
powers.
"""


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


def silence_j(most_w: float, silent_s: float) -> float:
    """Return the largest energy since the last poll of an exporter that stopped `silent_s` ago.

    The poll's values may be one update of the sensor old.
    """
    return most_w * (silent_s + SENSOR_PERIOD_S)


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
