"""Energy of a run at named boundaries, and of a unit of its work at each of them.

A component that is measured on only some of the nodes, estimated, or used by other runs is in no
boundary, except for the GPUs in their own. A facility's figure is a boundary's energy times the
user's PUE, not a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from wattline.contract.work import FLOP_PER_GFLOP, GFLOP, energy_of_one
from wattline.figures import Figure, sum_of_correlated, sum_of_one_job
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.run_report import Boundary, BoundaryUnitEnergy, RunEnergies, Work
from wattline_analyzer.core.timeline import RunTimes

GENERATED = "generated_tokens"
PROMPT = "prompt_tokens"
TOTAL = "total_tokens"
_WIDER = ("cpu", "dram")


def energy_boundaries(
    energies: RunEnergies, works: Sequence[Work], times: RunTimes, pue: float | None = None
) -> tuple[Boundary, ...]:
    """Return the GPUs, then with CPU and DRAM as far as they are measured on all nodes, then both
    times `pue`.
    """
    found = [
        _boundary(energies, components, works, times.duration_s)
        for components in _components(energies, times)
    ]
    facility = [] if pue is None else [_times(boundary, pue) for boundary in found]
    return (*found, *facility)


def _components(energies: RunEnergies, times: RunTimes) -> Iterator[tuple[str, ...]]:
    has_gpus = "gpu" in energies.by_component
    if has_gpus:
        yield ("gpu",)
    wider = tuple(
        component
        for component in _WIDER
        if measured_everywhere(energies.devices, component, times.instances)
    )
    if wider and not any(gpu.shared for gpu in energies.gpus):
        yield ("gpu", *wider) if has_gpus else wider


def measured_everywhere(
    devices: Iterable[ReportDevice], component: str, instances: Collection[str]
) -> bool:
    """Return True for a component with a sensor on each node that no other run used at the same
    time.
    """
    mine = [device for device in devices if device.component == component]
    usable = all(not device.estimated and not device.shared for device in mine)
    return usable and {device.instance for device in mine} == set(instances)


def _boundary(
    energies: RunEnergies, components: tuple[str, ...], works: Sequence[Work], duration_s: float
) -> Boundary:
    energy = sum_of_one_job(energies.by_component[component] for component in components)
    shared = bool(energies.share_ratios.keys() & set(components))
    found = []
    for work in _amounts(works):
        joules = _attributed_energy(energies, components, work.phases)
        each = None if joules is None else energy_of_one(joules, work.amount)
        if each is not None:
            rate = work.amount / duration_s if duration_s > 0 else None
            found.append(
                BoundaryUnitEnergy(work.unit, work.amount, rate, each, work.phases, shared)
            )
    attributed = _attributed_energy(energies, components, ()) if shared else None
    return Boundary(
        components, energy, tuple(found), attributed_j=attributed.value if attributed else None
    )


@dataclass(frozen=True, slots=True)
class _Amount:
    unit: str
    amount: float
    phases: tuple[str, ...]


def _amounts(works: Iterable[Work]) -> Iterator[_Amount]:
    """Yield the amounts as counted, flop as GFLOP, and the sum of prompt and generated tokens."""
    by_unit = {work.unit: work for work in works}
    for work in by_unit.values():
        if work.unit == "flop":
            yield _Amount(GFLOP, work.amount / FLOP_PER_GFLOP, work.energy_phases)
        else:
            yield _Amount(work.unit, work.amount, work.energy_phases)
    if {GENERATED, PROMPT} <= by_unit.keys() and TOTAL not in by_unit:
        both = by_unit[PROMPT], by_unit[GENERATED]
        in_whole_run = not all(work.energy_phases for work in both)
        phases = (
            ()
            if in_whole_run
            else tuple(dict.fromkeys(name for work in both for name in work.energy_phases))
        )
        yield _Amount(TOTAL, math.fsum(work.amount for work in both), phases)


def _attributed_energy(
    energies: RunEnergies, components: tuple[str, ...], phases: tuple[str, ...]
) -> Figure | None:
    """Return the energy of the run's work: of a shared component the run's share, without
    interval.
    """
    ratios = energies.share_ratios
    if not ratios.keys() & set(components):
        return _energy(energies, components, phases)
    parts = []
    for component in components:
        joules = _energy(energies, (component,), phases)
        if joules is None:
            return None
        parts.append(joules.scaled(ratios.get(component, 1.0)))
    return replace(sum_of_one_job(parts), half_width=None, skewed=None)


def _energy(
    energies: RunEnergies, components: tuple[str, ...], phases: tuple[str, ...]
) -> Figure | None:
    """Return the energy of the components in the phases, or in the run; None where a phase lacks a
    component.
    """
    if not phases:
        return sum_of_one_job(energies.by_component[component] for component in components)
    inside = [phase.energy for phase in energies.phases if phase.name in phases]
    if any(component not in energy for energy in inside for component in components):
        return None
    return sum_of_one_job(
        sum_of_correlated(energy[component] for energy in inside) for component in components
    )


def _times(boundary: Boundary, pue: float) -> Boundary:
    work = tuple(
        replace(one, energy_per_unit=one.energy_per_unit.scaled(pue)) for one in boundary.work
    )
    attributed_j = None if boundary.attributed_j is None else boundary.attributed_j * pue
    return Boundary(boundary.components, boundary.energy.scaled(pue), work, pue, attributed_j)
