"""Marks of a run on the energy meters of its devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from wattline.contract.api import NO_GPU_FOUND
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.plausibility import REASON_TEXTS
from wattline_exporter.meter.totals import LastPoll, MeterTotals
from wattline_exporter.meter.uncertainty import (
    EnergyMark,
    end_until_j,
    energy_between,
    expired_lease_j,
    late_doubt_j,
    mark_at_totals,
    silence_j,
    since_report_j,
    with_doubt,
    with_uncertain_end,
)
from wattline_exporter.runs.run_record import Cut, Marks, RunRecord
from wattline_exporter.sensors.readings import Device

SETTLED_S = 5.0
"""Age at which a mark is final: the polls around it have shown when the sensor updates."""
FIRST_MARK_S = 0.5
"""Age at which a mark is taken again: the polls around it are there. It is the one that a restart
finds if the exporter is killed before the mark is final.
"""
DOUBTED_S = 8.0
"""Time after a run's end for which its counter is still compared with the power: it includes the
load's end.
"""
NEVER_READ = "not read during the run"
SILENT_S = 30.0
"""Longest wait for a device that is silent around a mark: its counter may still show the energy."""

Meters = Mapping[Device, DeviceMeter]

log = logging.getLogger(__name__)


def take_marks(
    run: RunRecord, meters: Meters, t_s: float, after: Marks, previous: Marks | None = None
) -> Marks:
    """Return the marks at `t_s`, none of them below the earlier marks `after`, so that energies add
    up exactly.

    A `previous` mark is kept where the meter no longer has the polls around `t_s`. A device without
    a poll has no mark: its energy is unknown.
    """
    marks = dict(previous or {})
    for device in run.devices:
        meter = meters.get(device)
        if meter is None or (device in marks and meter.polls.has_discarded(t_s)):
            continue
        mark = meter.mark(t_s)
        if mark is not None:
            marks[device] = bounded_mark(run, device, mark, meter.most_w, t_s)
    return raise_marks(marks, after)


def bounded_mark(
    run: RunRecord, device: Device, mark: EnergyMark, most_w: float, t_s: float
) -> EnergyMark:
    """Return the mark with at most the energy that the device can have used since the run's start.

    A mark at an instant of which no polls are kept may have energy from after it. `most_w`: 0 if it
    is unknown.
    """
    begin = run.begin.get(device)
    if begin is None or t_s <= run.begin_s or most_w <= 0.0:
        return mark
    most_j = begin.joules + most_w * (t_s - run.begin_s)
    return replace(mark, joules=most_j) if mark.joules > most_j else mark


def raise_marks(marks: Marks, after: Marks) -> Marks:
    """Return the marks, none of them below the earlier marks `after`."""
    return {
        device: replace(mark, joules=after[device].joules)
        if device in after and mark.joules < after[device].joules
        else mark
        for device, mark in marks.items()
    }


def start_phase(run: RunRecord, meters: Meters, cut: Cut) -> None:
    """Add a cut with its first marks, which are final if the exporter is killed before it takes
    better ones.
    """
    cut.marks = take_marks(run, meters, cut.t_s, run.cuts[-1].marks)
    run.cuts.append(cut)


def mark_first_use(
    run: RunRecord, meters: Meters, gpus: Iterable[Device], others: Iterable[RunRecord], t_s: float
) -> None:
    """Take the marks of GPUs that the run uses from `t_s` on, except those that other runs hold."""
    held = {device for other in others for device in other.measured()}
    for gpu in gpus:
        mark = meters[gpu].mark(t_s) if gpu in meters and gpu not in held else None
        if mark is not None:
            run.first_use[gpu] = mark


def bound_first_use(run: RunRecord, device: Device, share_j: float) -> None:
    """Lower the energy of an ended run before its first use of a device to what its share
    leaves.
    """
    begin = run.begin.get(device)
    first = run.first_use.get(device)
    final = run.final.get(device)
    if begin and first and final:
        most_j = max(0.0, energy_between(begin, final).joules - share_j)
        run.first_use[device] = replace(first, joules=min(first.joules, begin.joules + most_j))


def marks_of_totals(
    totals: Mapping[Device, MeterTotals], polls: Mapping[Device, LastPoll]
) -> Callable[[float], Marks]:
    """Return the marks at any instant, from the last totals of a previous exporter.

    Up to its limit, a device may have used any power between its last poll and the instant. A
    device that was not polled has no mark: its energy is unknown.
    """

    def at(t_s: float) -> Marks:
        marks = {}
        for device, total in totals.items():
            last = polls.get(device)
            if last is None:
                continue
            most_w = max(last.most_w, total.peak_w)
            marks[device] = replace(
                mark_at_totals(total), half_width_j=silence_j(last, most_w, t_s), most_w=most_w
            )
        return marks

    return at


def settle(run: RunRecord, meters: Meters, now_s: float) -> None:
    """Take the marks of a running run again when they become better and when they become final;
    book the energy between final marks.
    """
    before: Marks = {}
    _mark_last_report(run, meters)
    for cut in run.cuts:
        age_s = now_s - cut.t_s
        is_first = age_s >= FIRST_MARK_S and not cut.marked_after
        if not cut.settled and (is_first or age_s >= SETTLED_S):
            cut.marks = take_marks(run, meters, cut.t_s, before, previous=cut.marks)
            cut.marked_after = True
            cut.settled = age_s >= SETTLED_S and (
                age_s >= SILENT_S or _all_read_after(run, meters, cut.t_s)
            )
            if cut.t_s == run.begin_s and not run.begin_settled:
                run.begin = cut.marks
                run.begin_settled = cut.settled
        else:
            cut.marks = raise_marks(cut.marks, before)
        before = cut.marks
    run.fold(now_s)


def _mark_last_report(run: RunRecord, meters: Meters) -> None:
    """Take the marks at the last report since the start of a run without processes, while the
    meters have the polls around it.
    """
    known_s = run.last_report.t_s if run.last_report else run.begin_s
    if not (run.processes or run.cgroup) and run.alive_s > known_s:
        run.last_report = Cut(
            run.alive_s, None, marks=take_marks(run, meters, run.alive_s, run.begin)
        )


def _all_read_after(run: RunRecord, meters: Meters, t_s: float) -> bool:
    run_meters = [meters.get(device) for device in run.devices]
    return all(meter and meter.latest and meter.latest.after_s > t_s for meter in run_meters)


def finish(run: RunRecord, meters: Meters) -> None:
    """Take the final marks of a run whose end is known, and book the rest of its energy."""
    assert run.end_s is not None
    for device in run.measured():
        meter = meters.get(device)
        latest = meter.latest if meter else None
        if latest is None:
            run.note(f"{device.kind} {device.id}: {NEVER_READ}; its energy is unknown")
        elif latest.after_s < run.end_s:
            run.note(
                f"{device.kind} {device.id}: last read {run.end_s - latest.after_s:.1f} s before "
                "the run's end; its energy after that is missing, and the uncertainty includes it"
            )
    if lacks_gpu(run):
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
    latest_end: Marks = {}
    if run.end_until_s is not None and run.end_until_s > run.end_s:
        latest_end = take_marks(run, meters, run.end_until_s, run.final)
        _note_uncertain_end(run)
    run.final = {
        device: with_uncertain_end(mark, _end_errors_j(run, meters, device, mark, latest_end))
        for device, mark in run.final.items()
    }
    close(run)


def lacks_gpu(run: RunRecord) -> bool:
    """Return True if none of the node's GPUs has had a process of a run that counts those of its
    processes.
    """
    return run.discovers and not run.seen_on and any(device.kind == "gpu" for device in run.devices)


def _end_errors_j(
    run: RunRecord, meters: Meters, device: Device, final: EnergyMark, latest: Marks
) -> Iterator[float]:
    """Yield the largest errors of a device's energy that result from an end that is not known
    exactly. `latest`: the marks at the latest possible end, where that is later.
    """
    if device in latest:
        yield end_until_j(final, latest[device])
    if run.end_s != run.lease_until_s:
        return
    if run.processes or run.cgroup:
        if device in run.begin:
            meter = meters.get(device)
            most_w = meter.most_w if meter else 0.0
            yield expired_lease_j(run.begin[device], final, run.lease_s, most_w)
        return
    reported = run.last_report.marks if run.last_report else run.begin
    if device in reported:
        yield since_report_j(reported[device], final)


def _note_uncertain_end(run: RunRecord) -> None:
    """Note between which times a run ended whose end is not known exactly."""
    assert run.end_s is not None
    assert run.ended_at is not None
    assert run.end_until_s is not None
    until_at = run.ended_at + run.end_until_s - run.end_s
    cause = ", while the exporter was not running" if run.unwatched else ""
    run.note(
        f"it ended between {time_text(run.ended_at)} and {time_text(until_at)}{cause}: "
        "the energy is that until the first of these times, and the uncertainty includes the rest"
    )


def time_text(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def close(run: RunRecord) -> None:
    """Declare all marks final and book the rest of the run's energy."""
    run.begin_settled = run.final_settled = True
    for cut in run.cuts:
        cut.settled = True
    run.fold(run.end_s or run.begin_s)
    for device in run.measured():
        begin = run.begin.get(device)
        final = run.final.get(device)
        if begin and final and final.resets > begin.resets:
            run.note(
                f"{device.kind} {device.id}: its energy counter was reset; the energy continues "
                "from before"
            )
    log.info("run %s ended: %s", run.run_id, run.outcome)


class LateDoubts:
    """Doubts about runs that have just ended.

    A counter and the power often show a difference only when the load has ended. Such a doubt
    widens the interval of an ended run, which makes a revision of it.
    """

    def __init__(self) -> None:
        self._checked_s: dict[str, float] = {}
        self._revisions: dict[str, int] = {}

    @property
    def is_watching(self) -> bool:
        return bool(self._checked_s)

    def watch(self, run: RunRecord, now_s: float) -> None:
        """Check a run, whose energy was finished now, for DOUBTED_S after its end."""
        self._checked_s[run.run_id] = now_s

    def forget(self, run: RunRecord) -> None:
        self._revisions.pop(run.run_id, None)
        self._checked_s.pop(run.run_id, None)

    def revision(self, run: RunRecord) -> str:
        """Return the run's id, followed by the number of its revision if it has one."""
        number = self._revisions.get(run.run_id)
        return f"{run.run_id} {number}" if number else run.run_id

    def check(self, run: RunRecord, meters: Meters, now_s: float) -> bool:
        """Widen the run's interval by new doubts; return whether there are any."""
        checked_s = self._checked_s.get(run.run_id)
        if checked_s is None or run.end_s is None:
            return False
        self._checked_s[run.run_id] = now_s
        if now_s - run.end_s > DOUBTED_S:
            del self._checked_s[run.run_id]
        doubts = [
            _add_doubt(run, device, meters[device], checked_s, now_s)
            for device in run.measured()
            if device in meters
        ]
        if any(doubts):
            self.revise(run)
        return any(doubts)

    def revise(self, run: RunRecord) -> None:
        """Count a change of an ended run, whose metrics are then read again."""
        self._revisions[run.run_id] = self._revisions.get(run.run_id, 0) + 1


def _add_doubt(
    run: RunRecord, device: Device, meter: DeviceMeter, after_s: float, until_s: float
) -> bool:
    doubt_j = late_doubt_j(meter.comparison.detected(after_s, until_s), run.end_s or 0.0)
    final = run.final.get(device)
    if not final or not doubt_j:
        return False
    run.final[device] = with_doubt(final, doubt_j)
    run.note(f"gpu {device.id}: {REASON_TEXTS['disagrees' if meter.has_counter else 'stuck']}")
    return True
