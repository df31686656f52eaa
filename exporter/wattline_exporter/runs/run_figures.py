"""Figures of a run, energies with their intervals, so far or at its end.

The intervals are from `meter/uncertainty.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from wattline.contract.api import NO_GPU_FOUND
from wattline.contract.run import (
    COMPONENTS,
    Emissions,
    Run,
    RunDevice,
    RunPhase,
    sensor_limits_j,
)
from wattline.contract.work import SHARE_POLICY, is_shared
from wattline.figures import Figure, sum_of_one_job, unknown
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.uncertainty import MeasuredEnergy, energy_between, energy_so_far
from wattline_exporter.runs.marks import (
    NEVER_READ,
    SETTLED_S,
    Meters,
    bounded_mark,
    lacks_gpu,
    take_marks,
)
from wattline_exporter.runs.run_record import (
    Cut,
    Marks,
    PhaseTotal,
    RunRecord,
    Segments,
    add_segment,
    shared_marks,
)
from wattline_exporter.sensors.readings import Device

NO_GPU_AFTER_S = 60.0
"""Age from which a running run is noted that has no process on a GPU."""
_ROUNDING = 1e-9
"""Share of the energy by which sums over segments differ."""
_SCANNED_WITHIN_S = 2.0
"""Longest time since the last scan of a run's processes for which they count as alive."""


def run_with_figures(
    run: RunRecord, meters: Meters, now_s: float, simulation: str | None, *, so_far: bool = False
) -> Run:
    """Return the run with its figures; `simulation` is the path of the simulated GPUs' state file.

    With `so_far`, the figures of a running run begin at its start, and later polls may correct them
    downwards within their half-widths. Without it they appear some seconds later and never fall, as
    counters must.
    """
    is_so_far = so_far and run.end_s is None
    energies = _energies_so_far(run, meters, now_s) if is_so_far else _energies(run, meters, now_s)
    segments, settled_s = _segments(run, meters, now_s)
    emitting = _segments_so_far(run, meters, now_s) if is_so_far else segments
    is_ended = run.final_settled
    return Run(
        run_id=run.run_id,
        workload=run.workload,
        state="ended" if is_ended else "running",
        started_at=run.started_at,
        duration_s=max(0.0, _until_s(run, now_s, so_far=so_far) - run.begin_s),
        outcome=run.outcome if is_ended else None,
        ended_at=run.ended_at if is_ended else None,
        labels=run.labels_with_user,
        gpus=tuple(run.gpus[device.id] for device in run.measured() if device.kind == "gpu"),
        devices=tuple(_devices(run, meters, now_s, energies, has_intervals=is_ended or is_so_far)),
        phases=tuple(_phase(run, phase) for phase in segments.phases),
        work=run.work(),
        work_unit=run.work_unit or None,
        work_reported_at=run.work_reported_at,
        results=dict(run.results),
        settled_until=None if is_ended else run.started_at + settled_s - run.begin_s,
        emissions=tuple(_emissions(run, emitting)),
        power_max_w=dict(run.power_max_w),
        notes=tuple(_notes(run, now_s)),
        simulation=simulation,
    )


def _devices(
    run: RunRecord,
    meters: Meters,
    now_s: float,
    energies: Mapping[Device, MeasuredEnergy],
    *,
    has_intervals: bool,
) -> Iterator[RunDevice]:
    """Yield the devices by component; without `has_intervals` their half-widths are unknown.

    Until the marks at the run's start are final, only those with an energy are known.
    """
    is_known = run.begin_settled or has_intervals
    shown = dict.fromkeys([*energies, *(run.measured() if is_known else ())])
    counted = [
        (COMPONENTS.index(device.component), device)
        for device in shown
        if device.component is not None
    ]
    for component, device in sorted(counted, key=lambda one: one[0]):
        if device not in energies:
            yield RunDevice(COMPONENTS[component], device.id, unknown(NEVER_READ))
            continue
        energy = energies[device]
        observed_s = _observed_s(run, meters.get(device), now_s)
        before_use_j = run.before_use_j(device)
        shares_j: dict[str, float] = {}
        if device in run.attributed_j:
            shares_j[SHARE_POLICY] = run.attributed_j[device] - before_use_j
        is_divided = device in run.attributed_j and _is_shared(run, device, energy)
        yield RunDevice(
            component=COMPONENTS[component],
            device_id=device.id,
            energy_j=Figure(
                energy.joules,
                energy.half_width_j if has_intervals else None,
                bias=sensor_limits_j(run.gpus[device.id], energy.joules)
                if device.kind == "gpu"
                else None,
                covered_ratio=_ratio(energy.covered_s, observed_s),
            ),
            attributed_j=run.attributed_j[device] if is_divided else None,
            before_use_j=before_use_j,
            integrated_j=energy.integrated_j if device.kind == "gpu" else None,
            shares_j=shares_j,
        )


def _phase(run: RunRecord, phase: PhaseTotal) -> RunPhase:
    measured = set(run.measured())
    parts: dict[str, list[Figure]] = {}
    for device in phase.joules:
        if device in measured and device.component:
            energy_j = phase.energy_j(device)
            if not run.final_settled:
                energy_j = Figure(energy_j.number)
            parts.setdefault(device.component, []).append(energy_j)
    for device in measured - phase.joules.keys() if run.final_settled else ():
        if device.component in parts:
            parts[device.component].append(unknown(NEVER_READ))
    return RunPhase(
        name=phase.name,
        started_at=phase.started_at,
        duration_s=phase.seconds,
        energies_j={component: sum_of_one_job(each) for component, each in parts.items()},
        work=dict(run.phase_work.get(phase.name, {})),
        last_started_at=phase.started_at if phase.entered_at is None else phase.entered_at,
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


def _segments_so_far(run: RunRecord, meters: Meters, now_s: float) -> Segments:
    """Return the emissions of a running run up to the same instant as its energies so far; the
    phases are those of the record.
    """
    begin, now = _marks_so_far(run, meters, now_s)
    marks = [begin if cut.t_s == run.begin_s else cut.marks for cut in run.cuts]
    sums = Segments(run.phases, run.emissions, run.segments_j)
    for cut, first, last in zip(run.cuts, marks, [*marks[1:], now], strict=True):
        energies = {
            device: energy_between(mark, last[device])
            for device, mark in first.items()
            if device in last
        }
        summed = replace(run, emissions=sums.emissions, segments_j=sums.energies_j)
        sums = add_segment(summed, cut, cut.t_s, energies)._replace(phases=run.phases)
    return sums


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


def _emissions(run: RunRecord, sums: Segments) -> Iterator[Emissions]:
    """Yield the emissions by component, basis and quality, with the share of the component's
    energy for which an intensity of the basis was known.
    """
    energies_j = _summed(run, sums.energies_j.items())
    for basis, quality in dict.fromkeys((one.basis, one.quality) for one in sums.emissions):
        of_basis = [one for one in sums.emissions if one.basis == basis]
        known_j = _summed(run, ((one.device, one.joules) for one in of_basis))
        of_kind = [one for one in of_basis if one.quality == quality]
        by_component = _summed(run, ((one.device, one.grams) for one in of_kind))
        for component, grams in by_component.items():
            whole_j = energies_j.get(component, 0.0)
            ratio = known_j[component] / whole_j if whole_j > 0 else 1.0
            covered_ratio = 1.0 if ratio > 1.0 - _ROUNDING else max(ratio, 0.0)
            yield Emissions(component, basis, quality, grams, covered_ratio)


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
            # rounded as for the final mark
            most_j = begin.joules + meter.most_w * max(0.0, until_s - run.begin_s)
            energies[device] = energy_so_far(begin, totals, most_j)
    return energies


def _segments(run: RunRecord, meters: Meters, now_s: float) -> tuple[Segments, float]:
    """Return the sums with the open segment up to a few seconds ago, and that time.

    Marks before that are final, so the totals cannot fall.
    """
    folded = Segments(run.phases, run.emissions, run.segments_j)
    if run.final_settled or not run.cuts:
        return folded, run.begin_s
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
        return folded, cut.t_s
    if cut.phase is None and not cut.slots and not run.emissions:  # no figure shows the segment
        return folded, until_s
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
    return add_segment(run, cut, until_s, energies), until_s


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
