"""What only the user can tell of a run, since no sensor knows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.carbon.intensity import Past
from analyzer.energy.calibration import Calibration
from analyzer.model.cost import Price
from analyzer.model.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Given:
    """`grams_per_kwh`: an intensity for all of the run, gCO2eq/kWh. `pue`: a facility's power usage effectiveness."""

    grams_per_kwh: float | None = None
    pue: float | None = None
    price: Price | None = None
    past: tuple[Past, ...] = ()
    """Intensities that are known now of the run's time, at most one a basis."""
    hardware: Hardware | None = None
    calibrations: tuple[Calibration, ...] = ()


NOTHING = Given()
