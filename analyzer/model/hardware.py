"""What the user tells of the hardware that a run used. Pure."""

from __future__ import annotations

from dataclasses import dataclass

YEAR_S = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """`embodied_kg` is TE of all that the run used, in kg CO2eq; EL in years; `reserved_share` is RR / ToR, 0 to 1."""

    embodied_kg: float
    lifetime_years: float
    reserved_share: float = 1.0

    def embodied_g(self, duration_s: float) -> float:
        """The share of a run of that duration: M of the SCI."""
        return 1_000 * self.embodied_kg * duration_s / (self.lifetime_years * YEAR_S) * self.reserved_share
