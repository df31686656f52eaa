"""Emissions in g CO2eq, from the ledger or from the energy, and the Software Carbon Intensity.

Average and marginal intensities answer different questions and are never added up.

Software Carbon Intensity, ISO/IEC 21031:2024: SCI = (O + M) per R. O = E · I, the emissions of the
run's energy at a boundary; M = TE · (TiR / EL) · (RR / ToR), its share of the embodied emissions of
the hardware; R is the run, or one unit of its work. Contracts and offsets do not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from wattline.contract.run import Emissions, component_emissions_g
from wattline.figures import JOULES_PER_KWH, Figure, sum_of_independent
from wattline_analyzer.core.emissions import (
    Emission,
    Restatement,
    Sci,
    SciUnit,
    total_emissions,
)
from wattline_analyzer.core.run_report import Boundary, BoundaryUnitEnergy, Finding, RunEnergies

_ORIGINS = ("restated", "ledger", "by slot", "given intensity")
"""The best first."""
_NO_ENERGY = Figure(0.0)
"""Energy of a component without series: its emissions have no half-width."""
_LEAST_G_PER_KWH = 5.0
_COMPLETE = 0.99
"""Emissions of a smaller share of the energy are not used for O."""


def ledger_emissions(
    emissions: Iterable[Emissions],
    energy: Mapping[str, Figure],
    estimated: Collection[str],
) -> list[Emission]:
    """Return the emissions that the exporters counted during the run, by component, basis and
    quality.

    They have the random errors of the energy, and are partial where the intensity was known for a
    part of it. `estimated` are the components whose energy
    was not measured.
    """
    return [
        Emission(
            one.component,
            one.basis,
            one.quality,
            "ledger",
            component_emissions_g([one], energy.get(one.component, _NO_ENERGY)),
            one.component in estimated,
        )
        for one in sorted(emissions, key=lambda one: (one.component, one.basis, one.quality))
    ]


def emissions_at(
    energy: Mapping[str, Figure], grams_per_kwh: float, estimated: Collection[str] = frozenset()
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
            grams_per_kwh,
        )
        for component, joules in energy.items()
    ]


def software_carbon_intensity(
    energies: RunEnergies,
    boundaries: Sequence[Boundary],
    emissions: Sequence[Emission],
    restated: Sequence[Restatement],
    embodied_g: float,
) -> tuple[Sci, ...]:
    """Return the SCI for each basis at each boundary of which all components' emissions are known.

    O is of the run's part of the components that it shares; `embodied_g` is M.
    """
    partial = {(one.past.basis, "restated") for one in restated if one.share_of("") > 1 - _COMPLETE}
    usable = [
        one
        for one in emissions
        if (one.basis, one.origin) not in partial and one.mass_g.state == "known"
    ]
    bases = list(dict.fromkeys(emission.basis for emission in emissions))
    return tuple(
        found
        for boundary in boundaries
        for basis in bases
        for found in _at_boundary(energies, boundary, basis, usable, embodied_g)
    )


def _at_boundary(
    energies: RunEnergies,
    boundary: Boundary,
    basis: str,
    emissions: Sequence[Emission],
    embodied_g: float,
) -> Iterator[Sci]:
    for origin in _ORIGINS:
        parts = [one for one in emissions if (one.basis, one.origin) == (basis, origin)]
        mine = [one for one in parts if one.component in boundary.components]
        if {one.component for one in mine} == set(boundary.components):
            (sum_,) = total_emissions(mine)
            operational = sum_.mass_g.scaled(boundary.pue or 1.0)
            energy = boundary.energy
            is_shared = boundary.attributed_j is not None
            if boundary.attributed_j is not None:  # a share has no interval
                mine_g = math.fsum(
                    one.mass_g.number * energies.share_ratios.get(one.component, 1.0)
                    for one in mine
                )
                operational = Figure(mine_g * (boundary.pue or 1.0))
                energy = Figure(boundary.attributed_j)
            works = tuple(_sci_unit(work, energy, operational) for work in boundary.work)
            yield Sci(
                boundary.name, basis, origin, operational, embodied_g, works, attributed=is_shared
            )
            return


def _sci_unit(work: BoundaryUnitEnergy, whole: Figure, operational: Figure) -> SciUnit:
    """Return O of one unit: its energy at the mean intensity of the run.

    The interval covers the uncertainty of this energy, and of the intensity if the emissions of the
    run include it. It is unknown where that of one of the three figures is.
    """
    energy = work.energy_per_unit
    if whole.number <= 0:
        return SciUnit(work.unit, work.amount, operational.scaled(1 / work.amount))
    grams = operational.number * energy.number / whole.number
    relative = sum_of_independent(
        Figure(0.0, half)
        for half in (energy.relative_half_width, _of_intensity(operational, whole))
    )
    apart = not math.isclose(energy.number * work.amount, whole.number, rel_tol=1e-9)
    each = Figure(grams, relative.scaled(grams).half_width)
    return SciUnit(work.unit, work.amount, each, apart)


def _of_intensity(operational: Figure, whole: Figure) -> float | None:
    """Return the relative half-width of the mean intensity, which the emissions of an energy have
    beside that of the energy; None where it is unknown.
    """
    of_both = operational.relative_half_width
    of_energy = whole.relative_half_width
    if of_both is None or of_energy is None:
        return None
    return math.sqrt(max(of_both**2 - of_energy**2, 0.0))


def given_intensity_findings(grams_per_kwh: float | None) -> list[Finding]:
    """Return a finding about an intensity below that of any grid, probably in kg."""
    if not grams_per_kwh or grams_per_kwh >= _LEAST_G_PER_KWH:
        return []
    text = (
        f"--carbon {grams_per_kwh:g} is below the intensity of any grid; it is in g/kWh: for "
        f"{grams_per_kwh:g} kg/kWh "
        f"write --carbon {1_000 * grams_per_kwh:g}"
    )
    return [Finding("warning", "carbon_low", "", text)]


def sci_findings(scis: Sequence[Sci]) -> list[Finding]:
    if scis:
        return []
    text = (
        "no SCI: the intensity is not known for all of the run's energy; add one with --carbon "
        "G/KWH or --restate"
    )
    return [Finding("warning", "no_sci", "", text)]
