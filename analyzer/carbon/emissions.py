"""Grams of CO2 equivalent: as the ledger counted them, or from the energy afterwards. Pure.

Average and marginal intensities answer different questions and are never added up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from analyzer.model.interval import JOULES_PER_KWH, Interval, total
from analyzer.model.samples import RunFrames, last
from exporter.contract.metrics import RUN_EMISSIONS


@dataclass(frozen=True, slots=True)
class Emission:
    """`basis` is average or marginal; `quality` where the intensities came from; `origin` who multiplied.

    `estimated` says that the energy was not measured.
    """

    component: str
    basis: str
    quality: str
    origin: Literal["ledger", "given intensity", "restated", "by slot"]
    mass_g: Interval
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class EmissionTotal:
    """All components and qualities of one basis and origin; `parts` is what was added."""

    basis: str
    origin: str
    mass_g: Interval
    parts: tuple[Emission, ...]

    @property
    def components(self) -> str:
        return " + ".join(dict.fromkeys(part.component.upper() for part in self.parts))

    @property
    def estimated(self) -> str:
        """The components whose energy was not measured."""
        return " + ".join(dict.fromkeys(part.component.upper() for part in self.parts if part.estimated))

    @property
    def qualities(self) -> str:
        return ", ".join(dict.fromkeys(part.quality for part in self.parts))


def counted(
    frames: RunFrames, energy: Mapping[str, Interval], estimated: Collection[str] = frozenset()
) -> list[Emission]:
    """What the exporters counted while the run was on, added over instances; relative uncertainty is the energy's.

    `estimated` are the components whose energy was not measured.
    """
    masses_g: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in last(frames.ledger, RUN_EMISSIONS, run_id=frames.run_id):
        masses_g[row.labels["component"], row.labels["basis"], row.labels["quality"]].append(row.value)
    return [
        Emission(
            component,
            basis,
            quality,
            "ledger",
            _with_interval(math.fsum(parts), energy.get(component)),
            component in estimated,
        )
        for (component, basis, quality), parts in sorted(masses_g.items())
    ]


def totals(emissions: Sequence[Emission]) -> list[EmissionTotal]:
    """One for each basis and origin. Qualities of a component share its error, so their halves add linearly."""
    found = []
    for basis, origin in dict.fromkeys((emission.basis, emission.origin) for emission in emissions):
        parts = tuple(part for part in emissions if (part.basis, part.origin) == (basis, origin))
        by_component = []
        for component in dict.fromkeys(part.component for part in parts):
            masses = [part.mass_g for part in parts if part.component == component]
            halves = [mass.half for mass in masses if mass.half is not None]
            half = math.fsum(halves) if len(halves) == len(masses) else None
            by_component.append(Interval(math.fsum(mass.value for mass in masses), half))
        found.append(EmissionTotal(basis, origin, total(by_component), parts))
    return found


def _with_interval(mass_g: float, energy: Interval | None) -> Interval:
    if energy is None or energy.half is None or energy.value <= 0:
        return Interval(mass_g)
    return Interval(mass_g, mass_g * energy.half / energy.value)


def from_energy(
    energy: Mapping[str, Interval], grams_per_kwh: float, estimated: Collection[str] = frozenset()
) -> list[Emission]:
    """Each component's energy at one intensity, given by the user."""
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
