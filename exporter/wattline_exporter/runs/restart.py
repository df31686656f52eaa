"""Runs across a restart: changes to save, and the end or continuation of runs that were left
open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from wattline_exporter.runs.lifecycle import STEP_S, adjust_to_clock, has_living_process, note_alive
from wattline_exporter.runs.marks import (
    bounded_mark,
    close,
    marks_of_totals,
    raise_marks,
    time_text,
)
from wattline_exporter.runs.run_record import Marks, RunRecord
from wattline_exporter.sensors.readings import ClockReading
from wattline_exporter.storage.saved_state import SavedState


class UnsavedRuns:
    """Ids of runs that changed since the last save, and of those whose save is under way."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._saving: set[str] = set()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._changed or run_id in self._saving

    def add(self, run_id: str) -> None:
        self._changed.add(run_id)

    def take(self) -> set[str]:
        """Return the runs to save now; the caller then calls `confirm` or `put_back`."""
        taken = self._changed
        self._changed = set()
        self._saving |= taken
        return taken

    def confirm(self, run_ids: Iterable[str]) -> None:
        self._saving -= set(run_ids)

    def put_back(self, run_ids: Iterable[str]) -> None:
        """Return runs that could not be saved to the next `take`."""
        failed = set(run_ids)
        self._saving -= failed
        self._changed |= failed


class Shutdown(NamedTuple):
    """Last save of a previous exporter: its instant on CLOCK_BOOTTIME and in Unix time.

    `marks_at` returns the marks at an instant around the save, from its totals.
    """

    s: float
    at: float
    marks_at: Callable[[float], Marks]


def last_shutdown(saved: SavedState) -> Shutdown:
    marks_at = marks_of_totals(saved.totals, saved.polls)
    return Shutdown(saved.saved_s, saved.saved_at, marks_at)


def restore_run(
    run: RunRecord,
    last: Shutdown,
    now: ClockReading | None,
    is_alive: Callable[[RunRecord], bool] = has_living_process,
) -> None:
    """Continue or end a run that a previous exporter left open; `now` is None if the machine was
    restarted since.
    """
    if run.end_s is not None:
        end_late(run, last)
    elif now is not None:
        resume(run, last, now)
        if run.processes or run.cgroup:
            run.unwatched = (run.alive_s, now.s)
            run.end_until_s = now.s
            if is_alive(run):
                note_alive(run, now.s)
    else:
        end_by_reboot(run, last)


def resume(run: RunRecord, last: Shutdown, now: ClockReading) -> None:
    """Continue a run that a previous exporter of this boot left open."""
    _fix_marks(run, last)
    away_s = max(0.0, now.s - last.s)
    step_s = now.at - last.at - away_s
    if abs(step_s) > STEP_S:
        adjust_to_clock(run, step_s, 0.0)
    run.lease_until_s += away_s  # clients could not renew it
    run.note(
        f"the exporter was not running for {away_s:.1f} s from {time_text(last.at)}: power was not "
        "sampled; energy "
        "counters cover that time, and the uncertainty includes the rest"
    )


def end_by_reboot(run: RunRecord, last: Shutdown) -> None:
    """End a run that a previous boot of the machine left open."""
    _fix_marks(run, last)
    run.note(
        f"the machine was restarted; the run ended when it was last recorded, {time_text(last.at)}"
    )
    run.end_s = last.s
    run.ended_at = last.at
    run.outcome = "interrupted"
    _close_at_last_marks(run, last.marks_at(last.s))


def end_late(run: RunRecord, last: Shutdown) -> None:
    """Finish a run whose exporter was killed between its end and its final marks."""
    _fix_marks(run, last)
    run.note(
        "the exporter was killed while the run ended: its energy is less precise, as its "
        "uncertainty states"
    )
    _close_at_last_marks(
        run, run.final or last.marks_at(run.end_s if run.end_s is not None else last.s)
    )


def _close_at_last_marks(run: RunRecord, marks: Marks) -> None:
    end_s = run.begin_s if run.end_s is None else run.end_s
    bounded = {
        device: bounded_mark(run, device, mark, mark.most_w, end_s)
        for device, mark in marks.items()
    }
    run.final = raise_marks(bounded, run.cuts[-1].marks if run.cuts else run.begin)
    close(run)


def _fix_marks(run: RunRecord, last: Shutdown) -> None:
    """Declare the run's marks final, since the polls that could improve them were lost with the
    previous exporter.
    """
    run.begin = run.begin or last.marks_at(run.begin_s)
    run.begin_settled = True
    before = run.begin
    for cut in run.cuts:
        marks = cut.marks or (run.begin if cut.t_s == run.begin_s else last.marks_at(cut.t_s))
        cut.marks = raise_marks(marks, before)
        cut.settled = True
        before = cut.marks
