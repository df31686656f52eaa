"""Energies of a run by ledger and devices, and its work with the energy per unit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from wattline.contract.run import COMPONENTS, Run
from wattline.contract.work import SHARE_POLICY, phases_of_work
from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.devices import GpuModel, ReportDevice
from wattline_analyzer.core.phases import measurable_phases
from wattline_analyzer.core.run_report import (
    Finding,
    RunEnergies,
    RunPhase,
    Work,
    sum_over_devices,
)
from wattline_analyzer.core.timeline import RunTimes


def run_energies(
    run: Run, devices: Sequence[ReportDevice], *, is_sampled: bool
) -> tuple[RunEnergies, list[Finding]]:
    """Return the energies by ledger and devices, and a finding about phases that are too short."""
    estimated = {device.component for device in devices if device.estimated}
    working = {phase.name for phase in run.phases if any(phase.work.values())}
    phases, findings = measurable_phases(tuple(_phases(run, estimated)), devices, working)
    by_component: dict[str, Figure] = {
        component: sum_over_devices(
            (_with_accuracy(device) for device in devices if device.component == component),
            is_sampled=is_sampled,
        )
        for component in COMPONENTS
        if any(device.component == component for device in devices)
    }
    gpus = [device for device in devices if device.component == "gpu"]
    sampled = [gpu.from_raw_samples for gpu in gpus if gpu.from_raw_samples]
    energies = RunEnergies(
        devices=tuple(devices),
        by_component=by_component,
        phases=phases,
        from_raw_samples=sum_of_correlated(sampled)
        if sampled and len(sampled) == len(gpus)
        else None,
        is_sampled=is_sampled,
    )
    return energies, findings


def _with_accuracy(device: ReportDevice) -> Figure:
    """Return the energy of a device with the systematic error of its sensor, which only that of
    GPUs has.
    """
    if device.component != "gpu":
        return device.energy
    return GpuModel(device.name, device.architecture).with_accuracy(device.energy)


def _phases(run: Run, estimated: Collection[str]) -> Iterator[RunPhase]:
    """Yield the phases; `estimated` components have no interval, since the error of a model is not
    a sensor's.
    """
    for phase in run.phases:
        energies = {
            component: replace(energy, half_width=None) if component in estimated else energy
            for component, energy in phase.energies_j.items()
        }
        yield RunPhase(phase.name, phase.duration_s, energies)


def done_work(run: Run, energies: RunEnergies, times: RunTimes) -> Iterator[Work]:
    """Yield the work by unit with its rate and energy per unit."""
    whole = energies.headline
    share_j = energies.shares.get(energies.headline_component, {}).get(SHARE_POLICY)
    for unit, amount in run.amounts.items():
        done_in = {phase.name: phase.work[unit] for phase in run.phases if unit in phase.work}
        work = _work_of(energies, times, unit, amount, done_in)
        if share_j is not None and whole and work.energy_per_unit:
            share = Figure(min(share_j, whole.number) / amount).with_accuracy_of(whole)
            work = replace(work, energy_per_unit=share, whole_devices=whole.scaled(1 / amount))
        yield work


def _work_of(
    energies: RunEnergies, times: RunTimes, unit: str, amount: float, done_in: Mapping[str, float]
) -> Work:
    """Return the work with its rate and energy per unit.

    During the run, the amounts by phase lag behind the total.
    """
    component = energies.headline_component
    measured = [phase for phase in energies.phases if not component or component in phase.energy]
    has_ended = times.ended_at_s is not None
    durations_s = {phase.name: phase.duration_s for phase in measured} if has_ended else {}
    names = phases_of_work(amount, done_in, durations_s, times.duration_s)
    duration_s = times.duration_s
    energy = energies.headline
    if names:
        inside = [phase for phase in measured if phase.name in names]
        duration_s = math.fsum(phase.duration_s for phase in inside)
        energy = (
            sum_of_correlated(phase.energy[component] for phase in inside) if component else None
        )
        energy = energy and energy.with_accuracy_of(energies.by_component[component])
    return Work(
        unit,
        amount,
        amount / duration_s if duration_s > 0 else None,
        energy.scaled(1 / amount) if energy and amount > 0 else None,
        names,
    )
