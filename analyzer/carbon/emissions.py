"""Emissions in g CO2eq: as the ledger counted them, or from the energy afterwards.

Average and marginal intensities answer different questions and are never added up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from analyzer.model.emissions import Emission
from analyzer.model.interval import JOULES_PER_KWH, Interval


def ledger_emissions(
    masses_g: Mapping[tuple[str, str, str], list[float]], energy: Mapping[str, Interval], estimated: Collection[str]
) -> list[Emission]:
    """Return what the exporters counted during the run, added over instances.

    `masses_g` are by component, basis and quality. The relative uncertainty is that of the energy. `estimated` are the
    components whose energy was not measured.
    """
    return [
        Emission(
            component,
            basis,
            quality,
            "ledger",
            _with_uncertainty(math.fsum(parts), energy.get(component)),
            component in estimated,
        )
        for (component, basis, quality), parts in masses_g.items()
    ]


def _with_uncertainty(mass_g: float, energy: Interval | None) -> Interval:
    if energy is None or energy.half is None or energy.value <= 0:
        return Interval(mass_g)
    return Interval(mass_g, mass_g * energy.half / energy.value)


def emissions_at(
    energy: Mapping[str, Interval], grams_per_kwh: float, estimated: Collection[str] = frozenset()
) -> list[Emission]:
    """Return each component's emissions at one intensity, given by the user."""
    return [
        Emission(
            component,
            "average",
            "static",
            "given intensity",
            joules.scaled(grams_per_kwh / JOULES_PER_KWH),
            component in estimated,
        )
        for component, joules in energy.items()
    ]
