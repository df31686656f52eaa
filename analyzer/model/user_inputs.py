"""Inputs of the user that no sensor provides."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.model.devices import Calibration
from analyzer.model.emissions import Past
from analyzer.model.interval import JOULES_PER_KWH, Interval

YEAR_S = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of a run: `embodied_kg` is TE in kg CO2eq, `lifetime_years` EL, `reserved_share` RR / ToR."""

    embodied_kg: float
    lifetime_years: float
    reserved_share: float = 1.0

    def embodied_g(self, duration_s: float) -> float:
        """Return M of the SCI, the embodied emissions of a run of this duration."""
        return 1_000 * self.embodied_kg * duration_s / (self.lifetime_years * YEAR_S) * self.reserved_share


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a kWh; `currency` is the user's name for it, empty where none was given."""

    per_kwh: float
    currency: str = ""

    def of(self, energy: Interval) -> Interval:
        """Return the price of `energy` in joules."""
        return energy.scaled(self.per_kwh / JOULES_PER_KWH)


@dataclass(frozen=True, slots=True)
class Given:
    """`grams_per_kwh` is one intensity for the whole run, `pue` the facility's power usage effectiveness.

    `past` are intensities known now for the time of the run, at most one a basis.
    """

    grams_per_kwh: float | None = None
    pue: float | None = None
    price: Price | None = None
    past: tuple[Past, ...] = ()
    hardware: Hardware | None = None
    calibrations: tuple[Calibration, ...] = ()


NOTHING = Given()
