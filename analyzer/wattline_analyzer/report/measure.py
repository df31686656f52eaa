"""Energies of a run by ledger and devices, and its work with the energy per unit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from wattline.contract.run import COMPONENTS, Run, RunDevice
from wattline.contract.work import SHARE_POLICY
from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.devices import GpuModel, ReportDevice
from wattline_analyzer.core.phases import measurable_phases
from wattline_analyzer.core.run_report import (
    Finding,
    ReportPhase,
    RunEnergies,
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
    unknown = tuple(device for device in run.devices if device.energy_j.value is None)
    by_component: dict[str, Figure] = {
        component: sum_over_devices(
            [
                *(_with_accuracy(device) for device in devices if device.component == component),
                *(device.energy_j for device in unknown if device.component == component),
            ],
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
        if sampled and len(sampled) == len(gpus) and not unknown
        else None,
        is_sampled=is_sampled,
        unknown=unknown,
    )
    return energies, findings


def _with_accuracy(device: ReportDevice) -> Figure:
    """Return the energy of a device with the systematic error of its sensor, which only that of
    GPUs has.
    """
    if device.component != "gpu":
        return device.energy
    return GpuModel(device.name, device.architecture).with_accuracy(device.energy)


def _phases(run: Run, estimated: Collection[str]) -> Iterator[ReportPhase]:
    """Yield the phases; `estimated` components have no interval, since the error of a model is not
    a sensor's.
    """
    for phase in run.phases:
        energies = {
            component: replace(energy, half_width=None) if component in estimated else energy
            for component, energy in phase.energies_j.items()
        }
        yield ReportPhase(phase.name, phase.duration_s, energies)


def done_work(run: Run, energies: RunEnergies, times: RunTimes) -> Iterator[Work]:
    """Yield the work by unit with its rate and energy per unit.

    During the run, the amounts by phase lag behind the total.
    """
    measured = _measured_run(run, energies, times)
    durations_s = {phase.name: phase.duration_s for phase in measured.phases}
    for unit, amount in run.amounts.items():
        phases = measured.phases_of_unit(unit, shortest_phase_s=0.0)
        each = measured.unit_energy(unit, shortest_phase_s=0.0)
        duration_s = times.duration_s
        if phases:
            duration_s = math.fsum(durations_s[name] for name in phases)
        yield Work(
            unit,
            amount,
            amount / duration_s if duration_s > 0 else None,
            each.energy if each else None,
            phases,
            each.whole_device if each else None,
        )


def _measured_run(run: Run, energies: RunEnergies, times: RunTimes) -> Run:
    """Return the run with the energies of the report.

    Each component is one device, since the sum of its devices depends on how they were measured.
    Phases that are too short for a sensor have no energy already.
    """
    in_phases = {phase.name: phase.energy for phase in energies.phases}
    return replace(
        run,
        state="running" if times.ended_at_s is None else "ended",
        duration_s=times.duration_s,
        devices=tuple(
            RunDevice(
                component,
                "",
                energies.by_component[component],
                attributed_j=energies.shares.get(component, {}).get(SHARE_POLICY),
            )
            for component in COMPONENTS
            if component in energies.by_component
        ),
        phases=tuple(
            replace(phase, energies_j=in_phases.get(phase.name, {})) for phase in run.phases
        ),
    )
