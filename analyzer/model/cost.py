"""What energy costs at a price that the user tells. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.model.interval import JOULES_PER_KWH, Interval


@dataclass(frozen=True, slots=True)
class Price:
    """Of a kWh, in `currency`: a word of the user's own, empty where none was given."""

    per_kwh: float
    currency: str = ""

    def of(self, energy: Interval) -> Interval:
        """`energy` in joules."""
        return energy.scaled(self.per_kwh / JOULES_PER_KWH)
