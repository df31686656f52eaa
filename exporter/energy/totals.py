"""What has been added up of a device's energy, and what the polls were at which it stood so (pure)."""

from __future__ import annotations

from typing import NamedTuple

from exporter.energy.marks import Mark
from exporter.model import Poll


class Totals(NamedTuple):
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


FRESH = Totals()


class Seen(NamedTuple):
    """A poll with the totals as they stood after it."""

    poll: Poll
    totals: Totals
    moved_s: float | None
    """When the power that is integrated moved since the poll before, as far as that is known."""


def at(totals: Totals) -> Mark:
    """The mark where the totals stand."""
    return Mark(
        totals.energy_j,
        0.0,
        totals.variance_j2,
        totals.integrated_j,
        totals.covered_s,
        totals.resets,
        unseen_j=totals.unseen_j,
    )
