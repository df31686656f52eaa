"""The marks of a run on the energy lines of its devices: taken, made better as polls come in, and booked at its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from exporter.energy.marks import MeterTotals, mark_at_totals
from exporter.energy.meter import DeviceMeter
from exporter.model import Device
from exporter.runs.record import Marks, RunRecord, device_of, key

SETTLED_S = 5.0
"""After so long a mark is as good as it gets: the polls around it tell when the sensor updates."""
FIRST_MARK_S = 0.5
SILENT_S = 30.0
"""For how long a device that is silent around a mark is waited for: its counter may yet tell."""

Lines = Mapping[Device, DeviceMeter]

log = logging.getLogger(__name__)


def take(run: RunRecord, lines: Lines, t_s: float, after: Marks, known: Marks | None = None) -> Marks:
    """The marks at `t_s`, none below those `after` which they come: so the energies between them add up exactly.

    A mark that is `known` stays where its line has let go of the polls around it.
    """
    marks = dict(known or {})
    for device, line in lines.items():
        name = key(device)
        if name in run.devices and not (name in marks and line.has_discarded(t_s)):
            mark, before = line.mark(t_s), after.get(name)
            marks[name] = replace(mark, joules=before.joules) if before and before.joules > mark.joules else mark
    return marks


def at_totals(totals: Mapping[Device, MeterTotals]) -> Marks:
    """The marks of an exporter that is gone: its last totals."""
    return {key(device): mark_at_totals(reached) for device, reached in totals.items()}


def settle(run: RunRecord, lines: Lines, now_s: float) -> None:
    """Takes the marks of a running run anew until they are as good as they get, and books what lies between them."""
    before: Marks = {}
    for cut in run.cuts:
        age_s = now_s - cut.t_s
        if not cut.settled and age_s >= FIRST_MARK_S:
            cut.marks = take(run, lines, cut.t_s, before, known=cut.marks)
            cut.settled = age_s >= SETTLED_S and (age_s >= SILENT_S or _heard(run, lines, cut.t_s))
            if cut.t_s == run.begin_s:
                run.begin, run.begin_settled = cut.marks, cut.settled
        before = cut.marks
    run.fold(now_s)


def _heard(run: RunRecord, lines: Lines, since_s: float) -> bool:
    """Whether every device of the run was read after `since_s`."""
    found = [lines.get(device_of(name)) for name in run.devices]
    return all(line and line.latest and line.latest.after_s > since_s for line in found)


def finish(run: RunRecord, lines: Lines) -> None:
    """The run's end is known: takes its last marks and books what is left."""
    assert run.end_s is not None
    for device in run.measured():
        line = lines.get(device)
        latest = line.latest if line else None
        if latest is None or latest.after_s < run.end_s:
            read = f"was last read {run.end_s - latest.after_s:.1f} s before" if latest else "was not read in"
            run.note(f"{device.kind} {device.id} {read} the run's end: its energy after that is missing")
    if run.discovers and not run.seen_on and any(text.startswith("gpu:") for text in run.devices):
        run.note("no process of the run was seen on a GPU, so no GPU is counted; name them with --gpus")
    before: Marks = {}
    for cut in run.cuts:
        if not cut.settled:
            cut.marks = take(run, lines, cut.t_s, before, known=cut.marks)
            if cut.t_s == run.begin_s:
                run.begin = cut.marks
        before = cut.marks
    run.final = take(run, lines, run.end_s, before)
    close(run)


def close(run: RunRecord) -> None:
    """All marks stand."""
    run.begin_settled = run.final_settled = True
    for cut in run.cuts:
        cut.settled = True
    run.fold(run.end_s or run.begin_s)
    for device in run.measured():
        begin, final = run.begin.get(key(device)), run.final.get(key(device))
        if begin and final and final.resets > begin.resets:
            run.note(f"{device.kind} {device.id}: its counter fell and started anew; energy goes on from where it was")
    log.info("run %s ended: %s", run.run_id, run.outcome)
