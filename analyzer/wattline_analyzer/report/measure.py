"""First stages of a report: a run measured by ledger and raw samples, then its shares, work and
emissions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from wattline.contract.work import SHARE_POLICY, phases_of_work
from wattline.figures import Figure, sum_of_correlated, sum_of_one_job
from wattline_analyzer.carbon.emissions import ledger_emissions
from wattline_analyzer.core.devices import GpuModel, ReportDevice, fields_of
from wattline_analyzer.core.emissions import CarbonSlot, Emission
from wattline_analyzer.core.phases import measurable_phases
from wattline_analyzer.core.run_ledger import LedgerPhase, RunLedger
from wattline_analyzer.core.run_report import (
    FORMAT_LABEL,
    AttributedRun,
    Finding,
    MeasuredRun,
    RunPhase,
    Work,
)
from wattline_analyzer.core.timeline import Window
from wattline_analyzer.report.clock import run_duration_s


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The source of a run; `untagged` says that it is a range of time without a run id."""

    source: str
    untagged: bool


COMPONENTS = ("gpu", "cpu", "dram")


def measured_run(
    ledger: RunLedger,
    origin: RunOrigin,
    windows: Mapping[str, Window],
    devices: Sequence[ReportDevice],
) -> tuple[MeasuredRun, list[Finding]]:
    """Return the run by ledger and devices, and a finding about phases that are too short."""
    estimated = {device.component for device in devices if device.estimated}
    phases, findings = measurable_phases(
        tuple(_phases(ledger.phases, estimated)), devices, ledger.working_phases
    )
    gpus = [device for device in devices if device.component == "gpu"]
    ended = all(window.ended for window in windows.values())
    is_sampled = origin.untagged or FORMAT_LABEL in ledger.labels
    run = MeasuredRun(
        run_id=ledger.run_id,
        source=origin.source,
        workload=ledger.workload,
        labels=ledger.labels,
        instances=tuple(sorted(windows)),
        simulated=any(device.simulated for device in gpus),
        untagged=origin.untagged,
        outcome=ledger.outcome,
        started_at_s=min(window.start_s for window in windows.values()),
        ended_at_s=max(window.end_s for window in windows.values()) if ended else None,
        duration_s=run_duration_s(windows),
        devices=tuple(devices),
        energy=_by_component(devices, is_sampled=is_sampled),
        from_raw_samples=sum_of_correlated(
            gpu.from_raw_samples for gpu in gpus if gpu.from_raw_samples
        )
        if gpus and all(gpu.from_raw_samples for gpu in gpus)
        else None,
        integral_j=_sum_known([gpu.integral_j for gpu in gpus]),
        net=sum_of_correlated(gpu.net for gpu in gpus if gpu.net)
        if gpus and all(gpu.net for gpu in gpus)
        else None,
        phases=phases,
        results=ledger.results,
    )
    return run, findings


def _by_component(devices: Sequence[ReportDevice], *, is_sampled: bool) -> dict[str, Figure]:
    """Return the energies by component; see `MeasuredRun.sum_of_devices`."""
    sum_of_devices = sum_of_correlated if is_sampled else sum_of_one_job
    return {
        component: sum_of_devices(
            _with_accuracy(device) for device in devices if device.component == component
        )
        for component in COMPONENTS
        if any(device.component == component for device in devices)
    }


def _with_accuracy(device: ReportDevice) -> Figure:
    """Return the energy of a device with the systematic error of its sensor, which only that of
    GPUs has.
    """
    if device.component != "gpu":
        return device.energy
    return GpuModel(device.name, device.architecture).with_accuracy(device.energy)


def _sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum; None where one value is unknown, or there is none."""
    parts = list(values)
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known and len(known) == len(parts) else None


def _phases(ledger: Sequence[LedgerPhase], estimated: AbstractSet[str]) -> Iterator[RunPhase]:
    """Yield the phases; `estimated` components have no interval, since the error of a model is not
    a sensor's.
    """
    for phase in ledger:
        yield RunPhase(
            phase.name,
            phase.duration_s,
            {
                component: sum_of_one_job(
                    Figure(j, None if component in estimated else half_j) for j, half_j in parts
                )
                for component, parts in phase.energies_j.items()
            },
        )


def attributed_run(
    run: MeasuredRun,
    ledger: RunLedger,
    slots: tuple[CarbonSlot, ...],
    given: Sequence[Emission],
) -> AttributedRun:
    """Add the work and the emissions; `given` emissions are by the user's intensity."""
    emissions = (*ledger_emissions(ledger.emissions_g, run.energy, run.estimated), *given)
    attributed = AttributedRun(**fields_of(run), work=(), emissions=emissions, carbon_slots=slots)
    return replace(attributed, work=tuple(_work(attributed, ledger)))


def _work(run: AttributedRun, ledger: RunLedger) -> Iterator[Work]:
    component = next(iter(run.energy), "")
    share_j = run.shares.get(component, {}).get(SHARE_POLICY)
    for unit, amount in ledger.work.items():
        work = _work_of(run, unit, amount, ledger.phase_work.get(unit, {}))
        if share_j is not None and work.energy_per_unit:
            whole_j = run.energy[component].number
            share = Figure(min(share_j, whole_j) / amount).with_accuracy_of(run.energy[component])
            work = replace(
                work, energy_per_unit=share, whole_devices=run.energy[component].scaled(1 / amount)
            )
        yield work


def _work_of(run: MeasuredRun, unit: str, amount: float, done_in: Mapping[str, float]) -> Work:
    """Return the work with its rate and energy per unit.

    During the run, the amounts by phase lag behind the total.
    """
    component = next(iter(run.energy), "")
    measured = [phase for phase in run.phases if not component or component in phase.energy]
    durations_s = (
        {phase.name: phase.duration_s for phase in measured} if run.ended_at_s is not None else {}
    )
    names = phases_of_work(amount, done_in, durations_s, run.duration_s)
    duration_s, energy = run.duration_s, run.headline
    if names:
        inside = [phase for phase in measured if phase.name in names]
        duration_s = math.fsum(phase.duration_s for phase in inside)
        energy = (
            sum_of_correlated(phase.energy[component] for phase in inside) if component else None
        )
        energy = energy and energy.with_accuracy_of(run.energy[component])
    return Work(
        unit,
        amount,
        amount / duration_s if duration_s > 0 else None,
        energy.scaled(1 / amount) if energy and amount > 0 else None,
        names,
    )
