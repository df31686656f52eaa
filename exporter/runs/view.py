"""What the API and a scrape show of a run: the same figures in both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from exporter.contract import run as contract
from exporter.contract.metrics import (
    RUN_COVERED_RATIO,
    RUN_DURATION,
    RUN_EMISSIONS,
    RUN_END,
    RUN_ENERGY,
    RUN_ENERGY_UNCERTAINTY,
    RUN_GPU_INFO,
    RUN_INFO,
    RUN_INTEGRATED_ENERGY,
    RUN_OUTCOME,
    RUN_PHASE_ENERGY,
    RUN_PHASE_ENERGY_UNCERTAINTY,
    RUN_PHASE_SECONDS,
    RUN_PHASE_WORK,
    RUN_POWER_MAX,
    RUN_RESULT,
    RUN_START,
    RUN_WORK,
)
from exporter.energy.marks import MeasuredEnergy, energy_between
from exporter.energy.meter import DeviceMeter
from exporter.model import Device, Reading
from exporter.runs.marks import SETTLED_S, Lines
from exporter.runs.record import Cut, Emission, PhaseTotal, RunRecord, booked, key, shared


def view(run: RunRecord, lines: Lines, now_s: float, simulation: str | None) -> contract.Run:
    energies = _energies(run, lines)
    phases, emissions = _segments(run, lines, now_s)
    duration_s = max(0.0, (run.end_s if run.end_s is not None else now_s) - run.begin_s)
    return contract.Run(
        run_id=run.run_id,
        workload=run.workload,
        labels=run.labels,
        gpus=[run.gpus[device.id] for device in run.measured() if device.kind == "gpu"],
        state="running" if not run.final_settled else "ended",
        outcome=run.outcome if run.final_settled else None,
        started_at=run.started_at,
        ended_at=run.ended_at if run.final_settled else None,
        duration_seconds=duration_s,
        phases=[
            contract.Phase(
                name=p.name,
                started_at=p.started_at,
                duration_seconds=p.seconds,
                energy_joules=_summed(run, p.joules.items()),
                energy_uncertainty_joules=_summed(run, p.half_widths_j.items()) if run.final_settled else {},
                work=run.phase_work.get(p.name, {}),
            )
            for p in phases
        ],
        work=run.work(),
        results=run.results,
        energy_joules=_by_component({device: energy.joules for device, energy in energies.items()}),
        energy_uncertainty_joules=_by_component(
            {device: e.half_width_j for device, e in energies.items() if run.final_settled}
        ),
        integrated_energy_joules={d.id: e.integrated_j for d, e in energies.items() if d.kind == "gpu"},
        emissions_grams=_grams(run, emissions),
        covered_ratio=_by_component({d: _ratio(e.covered_s, _seen_s(run, lines.get(d))) for d, e in energies.items()}),
        notes=list(run.notes),
        simulation=simulation,
    )


def _summed(run: RunRecord, amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Amounts by device, by component: of the devices that are the run's."""
    measured = {key(device): device.component for device in run.measured()}
    summed: dict[str, float] = {}
    for text, amount in amounts:
        component = measured.get(text)
        if component:
            summed[component] = summed.get(component, 0.0) + amount
    return summed


def _grams(run: RunRecord, emissions: list[Emission]) -> list[contract.Emissions]:
    kinds = dict.fromkeys((e.basis, e.quality) for e in emissions)
    return [
        contract.Emissions(component=component, basis=basis, quality=quality, grams=grams)
        for basis, quality in kinds
        for component, grams in _summed(
            run, ((e.device, e.grams) for e in emissions if (e.basis, e.quality) == (basis, quality))
        ).items()
    ]


def readings(shown: contract.Run, run: RunRecord) -> Iterator[Reading]:
    """The run's own series; `shown` is its view."""
    identity = (shown.run_id,)
    labels = tuple((f"label_{name}", value) for name, value in shown.labels.items())
    yield Reading(RUN_INFO, (shown.run_id, shown.workload), 1.0, labels)
    yield Reading(RUN_START, identity, shown.started_at)
    yield Reading(RUN_DURATION, identity, shown.duration_seconds)
    if shown.ended_at is not None:
        yield Reading(RUN_END, identity, shown.ended_at)
        yield Reading(RUN_OUTCOME, (shown.run_id, shown.outcome or "interrupted"), 1.0)
    yield from _energy_readings(shown, run)
    for emission in shown.emissions_grams:
        whose = (shown.run_id, emission.component, emission.basis, emission.quality)
        yield Reading(RUN_EMISSIONS, whose, emission.grams)
    for unit, amount in shown.work.items():
        yield Reading(RUN_WORK, (shown.run_id, unit), amount)
    for name, value in shown.results.items():
        yield Reading(RUN_RESULT, (shown.run_id, name), value)
    for phase in shown.phases:
        yield Reading(RUN_PHASE_SECONDS, (shown.run_id, phase.name), phase.duration_seconds)
        for component, joules in phase.energy_joules.items():
            yield Reading(RUN_PHASE_ENERGY, (shown.run_id, phase.name, component), joules)
        for component, half_j in phase.energy_uncertainty_joules.items():
            yield Reading(RUN_PHASE_ENERGY_UNCERTAINTY, (shown.run_id, phase.name, component), half_j)
        for unit, amount in phase.work.items():
            yield Reading(RUN_PHASE_WORK, (shown.run_id, phase.name, unit), amount)


def _energy_readings(shown: contract.Run, run: RunRecord) -> Iterator[Reading]:
    for gpu in shown.gpus:
        labels = (shown.run_id, gpu.gpu, gpu.uuid)
        yield Reading(RUN_GPU_INFO, labels, 1.0)
        if gpu.uuid in shown.integrated_energy_joules:
            yield Reading(RUN_INTEGRATED_ENERGY, labels, shown.integrated_energy_joules[gpu.uuid])
        if gpu.uuid in run.power_max_w:
            yield Reading(RUN_POWER_MAX, labels, run.power_max_w[gpu.uuid])
    for metric, values in (
        (RUN_ENERGY, shown.energy_joules),
        (RUN_ENERGY_UNCERTAINTY, shown.energy_uncertainty_joules),
        (RUN_COVERED_RATIO, shown.covered_ratio),
    ):
        for component, devices in values.items():
            for device, value in devices.items():
                yield Reading(metric, (shown.run_id, component, device), value)


def _energies(run: RunRecord, lines: Lines) -> dict[Device, MeasuredEnergy]:
    """The final figures of a run that has ended; before that those so far, once its begin is settled.

    A begin that may yet move would let the run's counters fall.
    """
    energies = {}
    for device in run.measured():
        begin = run.begin.get(key(device))
        line = lines.get(device)
        if begin is None:
            continue
        if run.final_settled:
            final = run.final.get(key(device))
            if final is not None:
                energies[device] = energy_between(begin, final)
        elif line is not None and run.begin_settled:
            totals = line.totals_before(run.end_s or math.inf)
            energies[device] = MeasuredEnergy(
                max(0.0, totals.energy_j - begin.joules),
                begin.half_width_j,
                totals.integrated_j - begin.integrated_j,
                totals.covered_s - begin.covered_s,
                0,
            )
    return energies


def _segments(run: RunRecord, lines: Lines, now_s: float) -> tuple[list[PhaseTotal], list[Emission]]:
    """Phases and emissions with what is not booked yet, as of a few seconds ago, so that no mark takes it back."""
    if run.final_settled or not run.cuts:
        return run.phases, run.emissions
    cut: Cut = run.cuts[0]
    until_s = min([now_s - SETTLED_S - 1.0, *(later.t_s for later in run.cuts[1:])])
    if not cut.settled or until_s <= cut.t_s:
        return run.phases, run.emissions
    energies = {}
    for text, mark in shared(cut, cut.marks):
        line = next((line for device, line in lines.items() if key(device) == text), None)
        if line is not None:
            then = replace(mark, joules=max(mark.joules, line.totals_before(until_s).energy_j))
            energies[text] = energy_between(mark, then)
    return booked(run, cut, until_s, energies)


def _by_component(values: Mapping[Device, float]) -> dict[str, dict[str, float]]:
    shaped: dict[str, dict[str, float]] = {}
    for device, value in values.items():
        if device.component:
            shaped.setdefault(device.component, {})[device.id] = value
    return shaped


def _seen_s(run: RunRecord, line: DeviceMeter | None) -> float:
    """The length of the run; while it is on, up to the device's last poll."""
    if run.end_s is not None:
        return run.end_s - run.begin_s
    return line.latest.after_s - run.begin_s if line and line.latest else 0.0


def _ratio(covered_s: float, duration_s: float) -> float:
    return min(1.0, max(0.0, covered_s / duration_s)) if duration_s > 0 else 1.0
