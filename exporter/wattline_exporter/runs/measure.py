"""Public view of a run, from which the API and the metrics are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from wattline.contract import run as contract
from wattline.contract.api import NO_GPU_FOUND
from wattline.contract.power_sensors import gpu_limits_j
from wattline.contract.unit_energy import energies_per_unit
from wattline.contract.work import is_shared
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.uncertainty import MeasuredEnergy, energy_between
from wattline_exporter.runs.marks import SETTLED_S, Meters, bounded_mark, lacks_gpu, take_marks
from wattline_exporter.runs.open_run import (
    Cut,
    Marks,
    PhaseTotal,
    RunEmission,
    RunRecord,
    add_segment,
    shared_marks,
)
from wattline_exporter.sensors.readings import Device

_Value = TypeVar("_Value")
_SIMULATED = "SIMULATED"
"""Start of the names of simulated GPUs."""
NO_GPU_AFTER_S = 60.0
"""Age from which a running run is noted that has no process on a GPU."""
_SCANNED_WITHIN_S = 2.0
"""Longest time since the last scan of a run's processes for which they count as alive."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run at one instant, with the maximum power by GPU, which only the metrics show."""

    run: contract.RunView
    power_max_w: Mapping[str, float]


def run_view(
    run: RunRecord, meters: Meters, now_s: float, simulation: str | None, *, so_far: bool = False
) -> contract.RunView:
    """Return the run as the API shows it; `simulation` is the path of the simulated GPUs' state
    file.

    `so_far`: a running run has energies and emissions from its start on, and half-widths, within
    which they may fall; without `so_far` they never fall, and begin a few seconds after the run.
    """
    is_so_far = so_far and run.end_s is None
    energies = _energies_so_far(run, meters, now_s) if is_so_far else _energies(run, meters, now_s)
    phases, emissions, settled_s = _segments(run, meters, now_s)
    if is_so_far:
        emissions = _emissions_so_far(run, meters, now_s)
    duration_s = max(0.0, _until_s(run, now_s, so_far=so_far) - run.begin_s)
    view = contract.RunView(
        run_id=run.run_id,
        workload=run.workload,
        labels=run.labels_with_user,
        gpus=[run.gpus[device.id] for device in run.measured() if device.kind == "gpu"],
        state="running" if not run.final_settled else "ended",
        outcome=run.outcome if run.final_settled else None,
        started_at=run.started_at,
        ended_at=run.ended_at if run.final_settled else None,
        duration_seconds=duration_s,
        phases=[
            contract.PhaseView(
                name=p.name,
                started_at=p.started_at,
                duration_seconds=p.seconds,
                energy_joules=_summed(run, p.joules.items()),
                energy_uncertainty_joules=_summed(run, p.half_widths_j.items())
                if run.final_settled
                else {},
                work=run.phase_work.get(p.name, {}),
                last_started_at=p.started_at if p.entered_at is None else p.entered_at,
            )
            for p in phases
        ],
        work=run.work(),
        work_unit=run.work_unit or None,
        work_reported_at=run.work_reported_at,
        results=run.results,
        settled_until=None if run.final_settled else run.started_at + settled_s - run.begin_s,
        energy_joules=_by_component({device: energy.joules for device, energy in energies.items()}),
        energy_uncertainty_joules=_by_component(
            {
                device: e.half_width_j
                for device, e in energies.items()
                if run.final_settled or is_so_far
            }
        ),
        energy_sensor_limits_joules=_by_component(_sensor_limits_j(run, energies)),
        integrated_energy_joules={
            d.id: e.integrated_j for d, e in energies.items() if d.kind == "gpu"
        },
        emissions_grams=_grams(run, emissions),
        covered_ratio=_by_component(
            {
                d: _ratio(e.covered_s, _observed_s(run, meters.get(d), now_s))
                for d, e in energies.items()
            }
        ),
        notes=_notes(run, now_s),
        attributed_energy_joules=_by_component(
            {
                d: run.attributed_j[d]
                for d, e in energies.items()
                if d in run.attributed_j and _is_shared(run, d, e)
            }
        ),
        energy_before_use_joules=_by_component(
            {d: joules for d in energies if (joules := run.before_use_j(d)) > 0.0}
        ),
        simulation=simulation,
    )
    return (
        view.model_copy(update={"energy_per_unit": list(energies_per_unit(view))})
        if run.final_settled
        else view
    )


def _notes(run: RunRecord, now_s: float) -> list[str]:
    """Return the notes of a run; a running one may still be found on a GPU."""
    is_late = run.end_s is None and now_s - run.begin_s > NO_GPU_AFTER_S
    return [*run.notes, NO_GPU_FOUND] if is_late and lacks_gpu(run) else list(run.notes)


def _until_s(run: RunRecord, now_s: float, *, so_far: bool) -> float:
    """Return the end of a run, or of a running one the instant up to which it is shown.

    `so_far` includes the time since the last scan of its processes, which is not known yet to
    belong to the run.
    """
    if run.end_s is not None:
        return run.end_s
    known_s = run.known_alive_until(now_s)
    return now_s if so_far and now_s - known_s < _SCANNED_WITHIN_S else known_s


def _energies_so_far(run: RunRecord, meters: Meters, now_s: float) -> dict[Device, MeasuredEnergy]:
    """Return the energies of a running run up to the latest polls, from marks that later polls may
    still correct.
    """
    begin, now = _marks_so_far(run, meters, now_s)
    return {
        device: energy_between(begin[device], now[device])
        for device in run.measured()
        if device in begin
    }


def _marks_so_far(run: RunRecord, meters: Meters, now_s: float) -> tuple[Marks, Marks]:
    begin = run.begin if run.begin_settled else take_marks(run, meters, run.begin_s, {}, run.begin)
    return begin, take_marks(run, meters, _until_s(run, now_s, so_far=True), run.begin)


def _emissions_so_far(run: RunRecord, meters: Meters, now_s: float) -> list[RunEmission]:
    """Return the emissions of a running run up to the same instant as its energies so far."""
    begin, now = _marks_so_far(run, meters, now_s)
    marks = [begin if cut.t_s == run.begin_s else cut.marks for cut in run.cuts]
    emissions = run.emissions
    for cut, first, last in zip(run.cuts, marks, [*marks[1:], now], strict=True):
        energies = {
            device: energy_between(mark, last[device])
            for device, mark in first.items()
            if device in last
        }
        _, emissions = add_segment(replace(run, emissions=emissions), cut, cut.t_s, energies)
    return emissions


def _sensor_limits_j(
    run: RunRecord, energies: Mapping[Device, MeasuredEnergy]
) -> dict[Device, tuple[float, float]]:
    """Return the limits of the systematic error of each GPU's energy; simulated sensors have
    none.
    """
    gpus = {device: run.gpus[device.id] for device in energies if device.kind == "gpu"}
    return {
        device: gpu_limits_j(energies[device].joules, gpu.name, gpu.architecture)
        for device, gpu in gpus.items()
        if not gpu.name.startswith(_SIMULATED)
    }


def _is_shared(run: RunRecord, device: Device, energy: MeasuredEnergy) -> bool:
    duration_s = (run.end_s or run.begin_s) - run.begin_s
    return is_shared(
        energy.joules,
        run.attributed_j[device],
        mean_power_w=energy.joules / duration_s if duration_s > 0 else 0.0,
        max_power_w=run.power_max_w.get(device.id, 0.0),
        half_j=energy.half_width_j,
    )


def _summed(run: RunRecord, amounts: Iterable[tuple[Device, float]]) -> dict[str, float]:
    """Return the sum of the amounts by component, over the run's measured devices."""
    measured = set(run.measured())
    summed: dict[str, float] = {}
    for device, amount in amounts:
        if device in measured and device.component:
            summed[device.component] = summed.get(device.component, 0.0) + amount
    return summed


def _grams(run: RunRecord, emissions: list[RunEmission]) -> list[contract.Emissions]:
    kinds = dict.fromkeys((e.basis, e.quality) for e in emissions)
    return [
        contract.Emissions(component=component, basis=basis, quality=quality, grams=grams)
        for basis, quality in kinds
        for component, grams in _summed(
            run,
            ((e.device, e.grams) for e in emissions if (e.basis, e.quality) == (basis, quality)),
        ).items()
    ]


def _energies(run: RunRecord, meters: Meters, now_s: float) -> dict[Device, MeasuredEnergy]:
    """Return the final energies of an ended run, else those so far, once the marks at its start are
    final.

    With marks that may still change, the run's counters could fall, as with energy after the last
    instant at which the run is known to be alive.
    """
    until_s = run.known_alive_until(now_s) if run.end_s is None else run.end_s
    energies = {}
    for device in run.measured():
        begin = run.begin.get(device)
        meter = meters.get(device)
        if begin is None:
            continue
        if run.final_settled:
            final = run.final.get(device)
            if final is not None:
                energies[device] = energy_between(begin, final)
        elif meter is not None and run.begin_settled:
            totals = meter.totals_before(until_s)
            most_j = begin.joules + meter.most_w * max(
                0.0, until_s - run.begin_s
            )  # rounded as for the final mark
            energies[device] = MeasuredEnergy(
                max(0.0, min(totals.energy_j, most_j) - begin.joules),
                begin.half_width_j,
                totals.integrated_j - begin.integrated_j,
                totals.covered_s - begin.covered_s,
                0,
            )
    return energies


def _segments(
    run: RunRecord, meters: Meters, now_s: float
) -> tuple[list[PhaseTotal], list[RunEmission], float]:
    """Return phases and emissions with the open segment up to a few seconds ago, and that time.

    Marks before that are final, so the totals cannot fall.
    """
    if run.final_settled or not run.cuts:
        return run.phases, run.emissions, run.begin_s
    cut: Cut = run.cuts[0]
    later_marks = run.cuts[1].marks if len(run.cuts) > 1 else {}
    until_s = min(
        [
            now_s - SETTLED_S - 1.0,
            run.known_alive_until(now_s),
            *(later.t_s for later in run.cuts[1:]),
        ]
    )
    if not cut.settled or until_s <= cut.t_s:
        return run.phases, run.emissions, cut.t_s
    energies = {}
    for device, mark in shared_marks(cut, cut.marks):
        meter = meters.get(device)
        if meter is not None:
            then_j = meter.totals_before(until_s).energy_j
            if (
                device in later_marks
            ):  # the polls of its time may be discarded while another device is silent
                then_j = min(then_j, later_marks[device].joules)
            then = bounded_mark(
                run, device, replace(mark, joules=then_j), meter.most_w, until_s
            )  # as the mark of an end
            then = replace(then, joules=max(mark.joules, then.joules))
            energies[device] = energy_between(mark, then)
    return *add_segment(run, cut, until_s, energies), until_s


def _by_component(values: Mapping[Device, _Value]) -> dict[str, dict[str, _Value]]:
    shaped: dict[str, dict[str, _Value]] = {}
    for device, value in values.items():
        if device.component:
            shaped.setdefault(device.component, {})[device.id] = value
    return shaped


def _observed_s(run: RunRecord, meter: DeviceMeter | None, now_s: float) -> float:
    """Return the length of the run; of a running one, up to the device's last poll while it was
    known to be alive.
    """
    if run.end_s is not None:
        return run.end_s - run.begin_s
    return (
        min(meter.latest.after_s, run.known_alive_until(now_s)) - run.begin_s
        if meter and meter.latest
        else 0.0
    )


def _ratio(covered_s: float, duration_s: float) -> float:
    return min(1.0, max(0.0, covered_s / duration_s)) if duration_s > 0 else 1.0
