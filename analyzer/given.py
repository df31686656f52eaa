"""What only the user can tell of a run, since no sensor knows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Given:
    """`grams_per_kwh`: an intensity for all of the run, gCO2eq/kWh."""

    grams_per_kwh: float | None = None


NOTHING = Given()
