"""The energy of a run at named boundaries, and of a unit of its work at each of them. Pure.

What is measured on only some of the run's nodes, taken from a model, or was in use by other runs, is in no boundary but
the GPUs' own. A facility's figure is that of a boundary times a PUE that the user tells: nothing measured it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.model.interval import Interval, total

if TYPE_CHECKING:
    from analyzer.model.report import Report, Work

GENERATED, PROMPT, TOTAL = "generated_tokens", "prompt_tokens", "total_tokens"
GFLOP = "gflop"
_FLOP_PER_GFLOP = 1e9
_WIDER = ("cpu", "dram")


@dataclass(frozen=True, slots=True)
class UnitEnergy:
    """`energy_per_unit` in joules is a ratio of sums, over the `phases` in which the work was done, else the whole run.

    `per_second` is by the wall clock of the whole run, whatever the phases.
    """

    unit: str
    amount: float
    per_second: float | None
    energy_per_unit: Interval
    phases: tuple[str, ...] = ()

    @property
    def units_per_joule(self) -> Interval | None:
        """The relative half-width is that of the energy."""
        joules = self.energy_per_unit
        if joules.value <= 0:
            return None
        return Interval(1 / joules.value, None if joules.half is None else joules.half / joules.value**2)


@dataclass(frozen=True, slots=True)
class Boundary:
    """`energy` in joules is that of all `components`, times `pue` where that is given."""

    components: tuple[str, ...]
    energy: Interval
    work: tuple[UnitEnergy, ...]
    pue: float | None = None

    @property
    def name(self) -> str:
        measured = "+".join(self.components)
        return measured if self.pue is None else f"{measured} × PUE {self.pue:g}"


def boundaries(report: Report, pue: float | None = None) -> tuple[Boundary, ...]:
    """The GPUs, then with CPU and DRAM as far as they are measured on all nodes, then both times `pue`."""
    found = [_boundary(report, components) for components in _components(report)]
    facility = [] if pue is None else [_times(boundary, pue) for boundary in found]
    return (*found, *facility)


def _components(report: Report) -> Iterator[tuple[str, ...]]:
    if "gpu" in report.energy:
        yield ("gpu",)
    wider = tuple(component for component in _WIDER if measured_everywhere(report, component))
    shared_gpu = any(device.shared for device in report.gpus)
    if wider and not shared_gpu:
        yield ("gpu", *wider) if "gpu" in report.energy else wider


def measured_everywhere(report: Report, component: str) -> bool:
    """On each node, by a sensor, and for no other run at the same time."""
    mine = [device for device in report.devices if device.component == component]
    sound = all(not device.estimated and not device.shared for device in mine)
    return sound and {device.instance for device in mine} == set(report.instances)


def _boundary(report: Report, components: tuple[str, ...]) -> Boundary:
    energy = total(report.energy[component] for component in components)
    found = []
    for work in _units(report.work):
        joules = _energy(report, components, work.phases)
        if joules is not None and work.amount > 0:
            pace = work.amount / report.duration_s if report.duration_s > 0 else None
            found.append(UnitEnergy(work.unit, work.amount, pace, joules.scaled(1 / work.amount), work.phases))
    return Boundary(components, energy, tuple(found))


@dataclass(frozen=True, slots=True)
class _Amount:
    unit: str
    amount: float
    phases: tuple[str, ...]


def _units(works: Iterable[Work]) -> Iterator[_Amount]:
    """As they are counted, flop as GFLOP; prompt and generated tokens also together."""
    by_unit = {work.unit: work for work in works}
    for work in by_unit.values():
        if work.unit == "flop":
            yield _Amount(GFLOP, work.amount / _FLOP_PER_GFLOP, work.phases)
        else:
            yield _Amount(work.unit, work.amount, work.phases)
    if {GENERATED, PROMPT} <= by_unit.keys() and TOTAL not in by_unit:
        both = by_unit[PROMPT], by_unit[GENERATED]
        anywhere = not all(work.phases for work in both)
        phases = () if anywhere else tuple(dict.fromkeys(name for work in both for name in work.phases))
        yield _Amount(TOTAL, math.fsum(work.amount for work in both), phases)


def _energy(report: Report, components: tuple[str, ...], phases: tuple[str, ...]) -> Interval | None:
    """None where a phase lacks a component."""
    if not phases:
        return total(report.energy[component] for component in components)
    inside = [phase.energy for phase in report.phases if phase.name in phases]
    if any(component not in energy for energy in inside for component in components):
        return None
    return total(energy[component] for energy in inside for component in components)


def _times(boundary: Boundary, pue: float) -> Boundary:
    work = tuple(
        UnitEnergy(one.unit, one.amount, one.per_second, one.energy_per_unit.scaled(pue), one.phases)
        for one in boundary.work
    )
    return Boundary(boundary.components, boundary.energy.scaled(pue), work, pue)
