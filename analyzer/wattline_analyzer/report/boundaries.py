"""Energy of a run at named boundaries, and of a unit of its work at each of them.

A component that is measured on only some of the nodes, estimated, or used by other runs is in no
boundary, except for the GPUs in their own. A facility's figure is a boundary's energy times the
user's PUE, not a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from wattline.contract.work import FLOP_PER_GFLOP, GFLOP
from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.run_report import AttributedRun, Boundary, MeasuredRun, UnitEnergy, Work

GENERATED, PROMPT, TOTAL = "generated_tokens", "prompt_tokens", "total_tokens"
_WIDER = ("cpu", "dram")


def energy_boundaries(run: AttributedRun, pue: float | None = None) -> tuple[Boundary, ...]:
    """Return the GPUs, then with CPU and DRAM as far as they are measured on all nodes, then both
    times `pue`.
    """
    found = [_boundary(run, components) for components in _components(run)]
    facility = [] if pue is None else [_times(boundary, pue) for boundary in found]
    return (*found, *facility)


def _components(run: MeasuredRun) -> Iterator[tuple[str, ...]]:
    if "gpu" in run.energy:
        yield ("gpu",)
    wider = tuple(component for component in _WIDER if measured_everywhere(run, component))
    shared_gpu = any(device.shared for device in run.devices if device.component == "gpu")
    if wider and not shared_gpu:
        yield ("gpu", *wider) if "gpu" in run.energy else wider


def measured_everywhere(run: MeasuredRun, component: str) -> bool:
    """Return True for a component with a sensor on each node that no other run used at the same
    time.
    """
    mine = [device for device in run.devices if device.component == component]
    usable = all(not device.estimated and not device.shared for device in mine)
    return usable and {device.instance for device in mine} == set(run.instances)


def _boundary(run: AttributedRun, components: tuple[str, ...]) -> Boundary:
    energy = run.sum_of_devices(run.energy[component] for component in components)
    shared = bool(run.share_ratios.keys() & set(components))
    found = []
    for work in _amounts(run.work):
        joules = _attributed_energy(run, components, work.phases)
        if joules is not None and work.amount > 0:
            rate = work.amount / run.duration_s if run.duration_s > 0 else None
            found.append(
                UnitEnergy(
                    work.unit,
                    work.amount,
                    rate,
                    joules.scaled(1 / work.amount),
                    work.phases,
                    shared,
                )
            )
    attributed = _attributed_energy(run, components, ()) if shared else None
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
    run: AttributedRun, components: tuple[str, ...], phases: tuple[str, ...]
) -> Figure | None:
    """Return the energy of the run's work: of a shared component the run's share, without
    interval.
    """
    ratios = run.share_ratios
    if not ratios.keys() & set(components):
        return _energy(run, components, phases)
    parts = [(component, _energy(run, (component,), phases)) for component in components]
    known = [
        (ratios.get(component, 1.0), joules) for component, joules in parts if joules is not None
    ]
    return (
        Figure(math.fsum(ratio * joules.number for ratio, joules in known))
        if len(known) == len(parts)
        else None
    )


def _energy(
    run: AttributedRun, components: tuple[str, ...], phases: tuple[str, ...]
) -> Figure | None:
    """Return the energy of the components in the phases, or in the run; None where a phase lacks a
    component.
    """
    if not phases:
        return run.sum_of_devices(run.energy[component] for component in components)
    inside = [phase.energy for phase in run.phases if phase.name in phases]
    if any(component not in energy for energy in inside for component in components):
        return None
    return run.sum_of_devices(
        sum_of_correlated(energy[component] for energy in inside) for component in components
    )


def _times(boundary: Boundary, pue: float) -> Boundary:
    work = tuple(
        replace(one, energy_per_unit=one.energy_per_unit.scaled(pue)) for one in boundary.work
    )
    attributed_j = None if boundary.attributed_j is None else boundary.attributed_j * pue
    return Boundary(boundary.components, boundary.energy.scaled(pue), work, pue, attributed_j)
