"""Energy of a device at an instant and between two, and its half-width (pure)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from wattline_exporter.meter.totals import MeterTotals


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
    """Return the energy between two marks, never negative. The half-widths of both edges add up:
    errors of one clock may affect both.

    The error of a sensor that measures only a part of the time is not random. A load whose period
    is near a multiple of the sensor's shows it the same phase each time, however long the run. So
    the share that is not measured counts in full, from zero power to the maximum power of the
    device.
    """
    variance_j2 = max(0.0, end.variance_j2 - begin.variance_j2)
    joules, covered_s = max(0.0, end.joules - begin.joules), end.covered_s - begin.covered_s
    unseen_ratio, most_w = max(begin.unseen_ratio, end.unseen_ratio), max(begin.most_w, end.most_w)
    unseen_j = unseen_ratio * max(joules, most_w * covered_s - joules)
    return MeasuredEnergy(
        joules=joules,
        half_width_j=begin.half_width_j
        + end.half_width_j
        + 1.96 * math.sqrt(variance_j2)
        + unseen_j
        + max(0.0, end.unseen_j - begin.unseen_j),
        integrated_j=max(0.0, end.integrated_j - begin.integrated_j),
        covered_s=covered_s,
        resets=end.resets - begin.resets,
    )


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
