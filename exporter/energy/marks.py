"""The state of an energy line at an instant, and the energy between two such instants (pure)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from exporter.model import Poll


@dataclass(frozen=True, slots=True)
class EnergyMark:
    """The state of an energy line at one instant; two of them make an `Energy`.

    `half_width_j` is half of the interval that holds `joules` with 95 %; `variance_j2` grows along the line wherever
    energy is not known: between the updates of an integrated power, and where a counter began anew. `unseen_ratio` is
    the share of the time that the sensor does not see, in which the device may have drawn anything up to `most_w`.
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
    """What may have been drawn on top, up to here, in times that were not seen."""


@dataclass(frozen=True, slots=True)
class MeasuredEnergy:
    joules: float
    half_width_j: float
    integrated_j: float
    covered_s: float
    resets: int


def energy_between(begin: EnergyMark, end: EnergyMark) -> MeasuredEnergy:
    """Never negative; half-widths of the two edges add up, since one clock's error may be in both.

    What a sensor does not see is no matter of chance: a load whose period is near a multiple of the sensor's shows it
    the same moment each time, however long the run. So the unseen share counts with all that it can have been, from
    nothing to the most that the device draws.
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


class MeterTotals(NamedTuple):
    """What must outlive the process, for the counters never to fall."""

    energy_j: float = 0.0
    integrated_j: float = 0.0
    raw_j: float | None = None
    variance_j2: float = 0.0
    covered_s: float = 0.0
    resets: int = 0
    unseen_j: float = 0.0
    """What may have been drawn on top in times that were not seen: bounds to one side, which add up."""
    peak_w: float = 0.0
    """The greatest power that was seen."""


ZERO_TOTALS = MeterTotals()


class MeteredPoll(NamedTuple):
    """A poll with the totals as they stood after it."""

    poll: Poll
    totals: MeterTotals
    moved_s: float | None
    """When the power that is integrated moved since the poll before, as far as that is known."""


def mark_at_totals(totals: MeterTotals) -> EnergyMark:
    """The mark where the totals stand."""
    return EnergyMark(
        totals.energy_j,
        0.0,
        totals.variance_j2,
        totals.integrated_j,
        totals.covered_s,
        totals.resets,
        unseen_j=totals.unseen_j,
    )
