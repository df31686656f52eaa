"""Marks of a run on the energy meters of its devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from exporter.contract.run import NO_GPU_FOUND
from exporter.energy.marks import LastPoll, MeterTotals, mark_at_totals
from exporter.energy.meter import DeviceMeter
from exporter.energy.sensor_clock import SENSOR_PERIOD_S
from exporter.model import Device
from exporter.runs.record import Cut, Marks, RunRecord

SETTLED_S = 5.0
"""Age at which a mark is final: the polls around it have shown when the sensor updates."""
FIRST_MARK_S = 0.5
SILENT_S = 30.0
"""Longest wait for a device that is silent around a mark: its counter may still show the energy."""

Meters = Mapping[Device, DeviceMeter]

log = logging.getLogger(__name__)


def take_marks(run: RunRecord, meters: Meters, t_s: float, after: Marks, previous: Marks | None = None) -> Marks:
    """Return the marks at `t_s`, none of them below the earlier marks `after`, so that energies add up exactly.

    A `previous` mark is kept where the meter no longer has the polls around `t_s`.
    """
    marks = dict(previous or {})
    for device in run.devices:
        meter = meters.get(device)
        if meter is not None and not (device in marks and meter.has_discarded(t_s)):
            marks[device] = meter.mark(t_s)
    return raise_marks(marks, after)


def raise_marks(marks: Marks, after: Marks) -> Marks:
    """Return the marks, none of them below the earlier marks `after`."""
    return {
        device: replace(mark, joules=max(mark.joules, after[device].joules)) if device in after else mark
        for device, mark in marks.items()
    }


def start_phase(run: RunRecord, meters: Meters, cut: Cut) -> None:
    """Add a cut with its first marks, which are final if the exporter is killed before it takes better ones."""
    cut.marks = take_marks(run, meters, cut.t_s, run.cuts[-1].marks)
    run.cuts.append(cut)


def mark_end(run: RunRecord, meters: Meters) -> None:
    """Take the first marks of the run's end, which are final if the exporter is killed before better ones."""
    assert run.end_s is not None
    run.final = take_marks(run, meters, run.end_s, run.cuts[-1].marks)


def marks_of_totals(
    totals: Mapping[Device, MeterTotals], polls: Mapping[Device, LastPoll], saved_s: float
) -> Callable[[float], Marks]:
    """Return the marks at any instant, from the last totals of a previous exporter.

    Up to its limit, a device may have used any power between its last poll and the instant.
    """
    known = {device: (total, polls.get(device, LastPoll(saved_s, total.peak_w))) for device, total in totals.items()}

    def at(t_s: float) -> Marks:
        return {
            device: replace(
                mark_at_totals(total),
                half_width_j=last.most_w * (abs(t_s - last.t_s) + SENSOR_PERIOD_S),
                most_w=last.most_w,
            )
            for device, (total, last) in known.items()
        }

    return at


def settle(run: RunRecord, meters: Meters, now_s: float) -> None:
    """Take the marks of a running run again until they are final, and book the energy between final marks."""
    before: Marks = {}
    for cut in run.cuts:
        age_s = now_s - cut.t_s
        if not cut.settled and age_s >= FIRST_MARK_S:
            cut.marks = take_marks(run, meters, cut.t_s, before, previous=cut.marks)
            cut.settled = age_s >= SETTLED_S and (age_s >= SILENT_S or _all_read_after(run, meters, cut.t_s))
            if cut.t_s == run.begin_s and not run.begin_settled:
                run.begin, run.begin_settled = cut.marks, cut.settled
        else:
            cut.marks = raise_marks(cut.marks, before)
        before = cut.marks
    run.fold(now_s)


def _all_read_after(run: RunRecord, meters: Meters, t_s: float) -> bool:
    run_meters = [meters.get(device) for device in run.devices]
    return all(meter and meter.latest and meter.latest.after_s > t_s for meter in run_meters)


def finish(run: RunRecord, meters: Meters) -> None:
    """Take the final marks of a run whose end is known, and book the rest of its energy."""
    assert run.end_s is not None
    for device in run.measured():
        meter = meters.get(device)
        latest = meter.latest if meter else None
        if latest is None or latest.after_s < run.end_s:
            read = f"last read {run.end_s - latest.after_s:.1f} s before" if latest else "not read in"
            run.note(
                f"{device.kind} {device.id}: {read} the run's end; its energy after that is missing, and the "
                "uncertainty includes it"
            )
    if run.discovers and not run.seen_on and any(device.kind == "gpu" for device in run.devices):
        run.note(NO_GPU_FOUND)
    before: Marks = {}
    for cut in run.cuts:
        if not cut.settled:
            cut.marks = take_marks(run, meters, cut.t_s, before, previous=cut.marks)
            if cut.t_s == run.begin_s and not run.begin_settled:
                run.begin = cut.marks
        cut.marks = raise_marks(cut.marks, before)
        before = cut.marks
    run.final = take_marks(run, meters, run.end_s, before)
    close(run)


def close(run: RunRecord) -> None:
    """Declare all marks final and book the rest of the run's energy."""
    run.begin_settled = run.final_settled = True
    for cut in run.cuts:
        cut.settled = True
    run.fold(run.end_s or run.begin_s)
    for device in run.measured():
        begin, final = run.begin.get(device), run.final.get(device)
        if begin and final and final.resets > begin.resets:
            run.note(f"{device.kind} {device.id}: its energy counter was reset; the energy continues from before")
    log.info("run %s ended: %s", run.run_id, run.outcome)
