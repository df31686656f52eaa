"""Software Carbon Intensity, ISO/IEC 21031:2024: SCI = (O + M) per R. Pure.

O = E · I, the grams of the run's energy at a boundary; M = TE · (TiR / EL) · (RR / ToR), its share of the grams that
making the hardware took; R is the run, or one unit of its work. Contracts and offsets do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from analyzer.carbon.emissions import totals
from analyzer.energy.checks import Finding
from analyzer.model.hardware import Hardware
from analyzer.model.interval import Interval

if TYPE_CHECKING:
    from analyzer.assess.boundaries import Boundary
    from analyzer.model.report import Report

_ORIGINS = ("restated", "ledger", "by slot", "given intensity")
"""The best first."""
_WHOLE = 0.99
"""Grams of less of the energy are no O: there are others, or none."""


@dataclass(frozen=True, slots=True)
class Sci:
    """Of one run, in grams CO2eq; `per_unit` by unit of work. M has no interval: nobody tells one."""

    boundary: str
    basis: str
    origin: str
    operational: Interval
    embodied_g: float
    amounts: tuple[tuple[str, float], ...]
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By unit, between what its amount lies, where that is not known exactly."""

    @property
    def whole(self) -> Interval:
        return Interval(self.operational.value + self.embodied_g, self.operational.half)

    @property
    def per_unit(self) -> dict[str, Interval]:
        return {unit: self.each(self.whole, unit) for unit, _ in self.amounts}

    def each(self, grams: Interval, unit: str) -> Interval:
        """Of one unit of the work; as unsure as the grams, and as the amount."""
        amount = dict(self.amounts)[unit]
        return widened(grams.scaled(1 / amount), amount, self.limits.get(unit))


def widened(each: Interval, amount: float, limits: tuple[float, float] | None) -> Interval:
    """By what the amount may be off; without an interval where either has none."""
    if limits is None:
        return each
    low, high = limits
    if each.half is None or low <= 0:
        return Interval(each.value)
    return Interval(each.value, each.half + abs(each.value) * max(amount / low - 1, 1 - amount / high))


def sci(report: Report, hardware: Hardware) -> tuple[Sci, ...]:
    """At each boundary of which all components' grams are known, for each basis; E as it is, and times PUE."""
    embodied_g = hardware.embodied_g(report.duration_s)
    return tuple(found for boundary in report.boundaries for found in _at(report, boundary, embodied_g))


def _at(report: Report, boundary: Boundary, embodied_g: float) -> Iterator[Sci]:
    amounts = tuple((work.unit, work.amount) for work in boundary.work)
    partly = {(one.past.basis, "restated") for one in report.restated if one.share_of("") > 1 - _WHOLE}
    for basis in dict.fromkeys(emission.basis for emission in report.emissions):
        for origin in _ORIGINS:
            if (basis, origin) in partly:
                continue
            parts = [one for one in report.emissions if (one.basis, one.origin) == (basis, origin)]
            mine = [one for one in parts if one.component in boundary.components]
            if {one.component for one in mine} == set(boundary.components):
                (sum_,) = totals(mine)
                operational = sum_.mass_g.scaled(boundary.pue or 1.0)
                yield Sci(boundary.name, basis, origin, operational, embodied_g, amounts)
                break


def findings(found: tuple[Sci, ...]) -> list[Finding]:
    if found:
        return []
    text = "no SCI: no carbon intensity is known for all of the run's energy; give one with --carbon G/KWH or --restate"
    return [Finding("warning", "no_sci", "", text)]
