"""Carbon intensities, emissions, restated emissions and Software Carbon Intensity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from wattline.figures import JOULES_PER_KWH, Figure, sum_of_correlated, sum_of_one_job

YEAR_S = 365 * 86_400.0
UNKNOWN = "unknown"
"""The quality of intensities from a file that does not state one: measured, forecast or a yearly
mean.
"""

_ORIGINS = {"ledger": "recorded by the exporter", "by slot": "computed by slot"}


def origin_text(origin: str) -> str:
    """Return the origin of emissions in words."""
    return _ORIGINS.get(origin, origin)


@dataclass(frozen=True, slots=True)
class Emission:
    """Emissions of one component.

    `basis` is average or marginal, `quality` the quality of the intensities, `origin` the source of
    the figure. The energy of `estimated` emissions was not measured. `grams_per_kwh` is an
    intensity that the user gave; with `covers_intensity` the interval includes the uncertainty of
    the intensity, else only that of the energy.
    """

    component: str
    basis: str
    quality: str
    origin: Literal["ledger", "given intensity", "restated", "by slot"]
    mass_g: Figure
    estimated: bool = False
    grams_per_kwh: float | None = None
    covers_intensity: bool = False


@dataclass(frozen=True, slots=True)
class EmissionTotal:
    """The sum over all components and qualities of one basis and origin; `parts` are the terms."""

    basis: str
    origin: str
    mass_g: Figure
    parts: tuple[Emission, ...]

    @property
    def components(self) -> str:
        return " + ".join(dict.fromkeys(part.component.upper() for part in self.parts))

    @property
    def estimated(self) -> str:
        """The components whose energy was not measured."""
        return " + ".join(
            dict.fromkeys(part.component.upper() for part in self.parts if part.estimated)
        )

    @property
    def energy_only(self) -> bool:
        """True if the interval covers the uncertainty of the energy, not of the intensity."""
        return self.mass_g.half_width is not None and not all(
            part.covers_intensity for part in self.parts
        )

    @property
    def intensity(self) -> str:
        """Text that states the intensity, its origin and the uncertainties in the interval."""
        given = self.parts[0].grams_per_kwh
        text = f"{self.basis} intensity, {self.qualities}, {origin_text(self.origin)}"
        text = text if given is None else f"at {given:g} g/kWh (given)"
        return f"{text}; ± covers the energy only" if self.energy_only else text

    @property
    def qualities(self) -> str:
        return ", ".join(dict.fromkeys(part.quality for part in self.parts))


def total_emissions(emissions: Sequence[Emission]) -> list[EmissionTotal]:
    """Return one total for each basis and origin.

    The qualities of a component share the error of its energy.
    """
    found = []
    for basis, origin in dict.fromkeys((emission.basis, emission.origin) for emission in emissions):
        parts = tuple(part for part in emissions if (part.basis, part.origin) == (basis, origin))
        by_component = []
        for component in dict.fromkeys(part.component for part in parts):
            # totals state random errors only
            masses = [
                replace(part.mass_g, bias=None) for part in parts if part.component == component
            ]
            by_component.append(sum_of_correlated(masses))
        found.append(EmissionTotal(basis, origin, sum_of_one_job(by_component), parts))
    return found


@dataclass(frozen=True, slots=True)
class CarbonSlot:
    """The GPUs' energy in one slot of a provider, None where none was measured, and the intensity
    of that slot.
    """

    start_s: float
    end_s: float
    instance: str
    region: str
    provider: str
    basis: str
    quality: str
    grams_per_kwh: float
    gpu_energy_j: float | None

    @property
    def year(self) -> int | None:
        """Year of the mean intensity of a country, None for other intensities."""
        # the provider's module loads pydantic, which most commands do not need
        from wattline_exporter.sensors.carbon.providers.static import (
            CUSTOM_REGION,
            TABLE_YEAR,
            StaticIntensity,
        )

        of_table = self.provider == StaticIntensity.name and self.region != CUSTOM_REGION
        return TABLE_YEAR if of_table else None

    @property
    def mass_g(self) -> float | None:
        return (
            None
            if self.gpu_energy_j is None
            else self.gpu_energy_j / JOULES_PER_KWH * self.grams_per_kwh
        )


@dataclass(frozen=True, slots=True)
class PastSlot:
    """A slot of past intensities.

    `quality` is actual, estimated or forecast; `sigma_g_per_kwh` is a standard deviation where the
    provider has one.
    """

    start_s: float
    end_s: float
    grams_per_kwh: float
    quality: str
    sigma_g_per_kwh: float | None = None


@dataclass(frozen=True, slots=True)
class PastIntensities:
    """The intensities that a provider or a file now has for the time of a run.

    `problem` explains missing slots; `dropped` counts the provider's invalid ones.
    """

    provider: str
    region: str
    basis: str
    slots: tuple[PastSlot, ...] = ()
    problem: str = ""
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class RestatedSlot:
    """The energy of all nodes in one slot, in joules by component, with its restated intensity.

    `before_g_per_kwh` is the intensity known during the run. `provider` differs from the requested
    one where another intensity is the fallback; it is "" where no intensity is known.
    """

    start_s: float
    end_s: float
    provider: str
    quality: str
    grams_per_kwh: float | None
    before_g_per_kwh: float | None
    energy: Mapping[str, Figure]
    sigma_g_per_kwh: float | None = None

    @property
    def energy_j(self) -> float:
        return math.fsum(energy.number for energy in self.energy.values())

    @property
    def mass_g(self) -> float | None:
        return (
            None
            if self.grams_per_kwh is None
            else self.energy_j / JOULES_PER_KWH * self.grams_per_kwh
        )


@dataclass(frozen=True, slots=True)
class Restatement:
    """Emissions by intensities known after the run.

    `ledger_g` is the exporters' figure for the same components; `difference_ratio` is the relative
    change.
    """

    past: PastIntensities
    slots: tuple[RestatedSlot, ...]
    emissions: tuple[Emission, ...]
    ledger_g: float | None
    difference_ratio: float | None

    @property
    def mass_g(self) -> float:
        return math.fsum(emission.mass_g.number for emission in self.emissions)

    def share_of(self, quality: str) -> float:
        """Return the share of the energy with intensities of this quality; "" means no
        intensity.
        """
        whole_j = math.fsum(slot.energy_j for slot in self.slots)
        return (
            math.fsum(slot.energy_j for slot in self.slots if slot.quality == quality) / whole_j
            if whole_j
            else 0.0
        )


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware of a run: `embodied_kg` is TE in kg CO2eq, `lifetime_years` EL, `reserved_share` RR
    / ToR.
    """

    embodied_kg: float
    lifetime_years: float
    reserved_share: float = 1.0

    def embodied_g(self, duration_s: float) -> float:
        """Return M of the SCI, the embodied emissions of a run of this duration."""
        return (
            1_000
            * self.embodied_kg
            * duration_s
            / (self.lifetime_years * YEAR_S)
            * self.reserved_share
        )


@dataclass(frozen=True, slots=True)
class SciUnit:
    """A unit of work in the SCI; `operational` is O of one unit, from the energy per unit of the
    boundary.

    `apart` is True where that energy is not the whole run's: a share of the devices, or that of
    some phases.
    """

    unit: str
    amount: float
    operational: Figure
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Sci:
    """The Software Carbon Intensity of one run in g CO2eq; embodied emissions have no interval.

    `limits` are the limits of uncertain amounts of work, by unit. With `attributed`, O is of the
    energy attributed to the run on devices that others used as well.
    """

    boundary: str
    basis: str
    origin: str
    operational: Figure
    embodied_g: float
    units: tuple[SciUnit, ...]
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    attributed: bool = False

    @property
    def whole(self) -> Figure:
        return Figure(self.operational.number + self.embodied_g, self.operational.half_width)

    @property
    def per_unit(self) -> dict[str, Figure]:
        return {one.unit: self.each(one) for one in self.units}

    def each(self, one: SciUnit) -> Figure:
        """Return the emissions of one unit of work, with the uncertainty of emissions and
        amount.
        """
        each = Figure(
            one.operational.number + self.embodied_g / one.amount, one.operational.half_width
        )
        return widened_by_amount(each, one.amount, self.limits.get(one.unit))


def widened_by_amount(each: Figure, amount: float, limits: tuple[float, float] | None) -> Figure:
    """Add the uncertainty of `amount` to a figure per unit; the result is unknown where either one
    is.
    """
    if limits is None:
        return each
    low, high = limits
    if each.half_width is None or low <= 0:
        return Figure(each.value)
    return Figure(
        each.value, each.half_width + abs(each.number) * max(amount / low - 1, 1 - amount / high)
    )
