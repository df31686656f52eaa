"""Results folder of a plan: copy of the plan, journal, run folders, overlap of tenants.

Existing files are never overwritten; a repeated run gets a new run id.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wattline.client.values import run_id_for
from wattline.contract.api import Outcome
from wattline.contract.run_files import (
    EVENTS_FILE,
    EndEvent,
    IterationEvent,
    RecordEvent,
    StartEvent,
    parse_event,
)

PLAN_FILE = "plan.yaml"
JOURNAL_FILE = "runs.jsonl"
LOG_FILE = "output.log"
DEFAULT_FOLDER = Path("wattline-results")
_LONGEST_END_BYTES = 64 * 1024


class ResultsError(Exception):
    """Unusable results folder; one line with cause and remedy."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Line of the journal; times are Unix seconds."""

    step: int
    """Number of the step in execution order, from 1."""
    attempt: int
    """Number of the attempt, from 1."""
    run_id: str
    case: str
    phase: str
    repeat: int
    tenant: str | None
    outcome: Outcome
    exit_code: int
    started_at: float
    ended_at: float
    cut_off: bool
    """True if the run was interrupted; a resumed plan repeats its step."""
    folder: str
    background: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    """Reason why the run was stopped, or another remark."""
    overlap: Mapping[str, Any] | None = None
    """Tenants only: the time in which all of them ran, and this tenant's work in it."""

    @property
    def is_bad(self) -> bool:
        """True if the run failed; a stopped background job or a run that will be repeated did
        not.
        """
        return self.outcome == "failed" or (
            self.outcome == "interrupted" and not (self.background or self.cut_off)
        )


class ResultsFolder:
    """Journal and folder of a plan, locked by one process within `with`. Methods raise
    ResultsError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[JournalEntry] = []
        self._incomplete: set[tuple[int, int]] = set()

    @classmethod
    def create(cls, out: Path | None, name: str, content: bytes, now: dt.datetime) -> ResultsFolder:
        stamp = now.astimezone(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
        folder = (out or DEFAULT_FOLDER / run_id_for(name, stamp)).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                plan = folder / PLAN_FILE
                resume = shlex.join(["workloads", "plan", str(plan), "--resume", str(folder)])
                remedy = f", or continue it with: {resume}" if plan.exists() else ""
                raise ResultsError(f"{folder} is not empty; give another --out{remedy}")
            (folder / PLAN_FILE).write_bytes(content)
            (folder / JOURNAL_FILE).touch()
        except OSError as error:
            raise ResultsError(
                f"cannot write {folder}: {error.strerror}; give another --out"
            ) from error
        return cls(folder)

    @classmethod
    def resume(cls, folder: Path, content: bytes) -> ResultsFolder:
        folder = folder.absolute()
        try:
            copy = (folder / PLAN_FILE).read_bytes()
        except OSError as error:
            raise ResultsError(
                f"{folder} is not a results folder: {PLAN_FILE}: {error.strerror}; give the folder "
                "of an earlier run"
            ) from error
        if copy != content:
            raise ResultsError(
                f"the plan differs from the one that {folder} was started with; give "
                f"{folder / PLAN_FILE}, or "
                "omit --resume to start again"
            )
        return cls(folder)

    def __enter__(self) -> Self:
        try:
            self._journal = (self.folder / JOURNAL_FILE).open("a+", encoding="utf-8")
        except OSError as error:
            raise ResultsError(
                f"cannot open {self.folder / JOURNAL_FILE}: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._journal.close()
            raise ResultsError(
                f"another workloads plan uses {self.folder}; wait for its end"
            ) from error
        self._journal.seek(0)
        lines = self._journal.readlines()
        if lines and not lines[-1].endswith("\n"):  # or the next line would be appended to it
            self._journal.write("\n")
        self._take(lines)
        return self

    def _take(self, lines: Sequence[str]) -> None:
        """Parse the journal; a truncated line leaves the step of the tenants before it
        incomplete.
        """
        for line in lines:
            entry = _read(line)
            if entry is not None:
                self.entries.append(entry)
            elif self.entries and self.entries[-1].tenant is not None:
                self._incomplete.add((self.entries[-1].step, self.entries[-1].attempt))

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._journal.close()

    def remove_if_empty(self) -> bool:
        """Remove the folder if no run has started in it; return whether it was removed."""
        if self.entries or {path.name for path in self.folder.iterdir()} - {
            PLAN_FILE,
            JOURNAL_FILE,
        }:
            return False
        for name in (PLAN_FILE, JOURNAL_FILE):
            (self.folder / name).unlink(missing_ok=True)
        self.folder.rmdir()
        return True

    def append(self, lines: Sequence[JournalEntry]) -> None:
        self.entries += lines
        self._journal.writelines(json.dumps(asdict(entry)) + "\n" for entry in lines)
        self._journal.flush()

    def steps_done(self) -> set[int]:
        """Return the steps with a complete attempt."""
        cut_off: dict[tuple[int, int], bool] = {}
        for entry in self.entries:
            attempt = entry.step, entry.attempt
            cut_off[attempt] = cut_off.get(attempt, attempt in self._incomplete) or entry.cut_off
        return {step for (step, _), is_cut in cut_off.items() if not is_cut}

    def counts(self) -> str:
        """Return the number of runs by outcome: `1 failed, 2 ok`."""
        outcomes = Counter(
            "background" if entry.background and not entry.is_bad else entry.outcome
            for entry in self.entries
        )
        return (
            ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
            or "none"
        )

    def attempts(self, step: int) -> int:
        return len({entry.attempt for entry in self.entries if entry.step == step})

    def run_ids_without_entry(self) -> list[str]:
        """Return run ids with a folder but no journal entry, left by a killed runner."""
        known = {entry.run_id for entry in self.entries}
        return sorted(
            path.parent.name
            for path in self.folder.glob(f"*/{EVENTS_FILE}")
            if path.parent.name not in known
        )


def _read(line: str) -> JournalEntry | None:
    """Parse a line; None if it is truncated."""
    try:
        return JournalEntry(**json.loads(line))
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Overlap:
    """Interval in Unix seconds from the last tenant's start (or the barrier's release) to the first
    tenant's end.
    """

    begin: float
    end: float


def read_events(folder: Path) -> list[RecordEvent]:
    """Return the valid events of the run's `events.jsonl`."""
    try:
        lines = (folder / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    events: list[RecordEvent] = []
    for line in lines:
        try:
            events.append(parse_event(line))
        except ValueError:  # a truncated line
            continue
    return events


def read_end_event(folder: Path) -> EndEvent | None:
    """Return the run's end event, which comes last; None if it is missing."""
    try:
        with (folder / EVENTS_FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_END_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # a partly read line
            event = parse_event(line)
            if isinstance(event, EndEvent):
                return event
    return None


def find_overlap(
    tenants: Sequence[Sequence[RecordEvent]], released_at: float | None
) -> Overlap | None:
    """Return the overlap, None if the tenants never ran together."""
    begins = [event.t for events in tenants for event in events if isinstance(event, StartEvent)]
    ends = [_end(events) for events in tenants]
    if len(begins) < len(tenants) or any(end is None for end in ends):
        return None
    begin = max(*begins, released_at or 0.0)
    end = min(end for end in ends if end is not None)
    return Overlap(begin, end) if end > begin else None


def overlap_share(overlap: Overlap, tenant: Sequence[RecordEvent]) -> dict[str, Any]:
    """Return a tenant's journal fields; iterations count if they end within the overlap."""
    within = [
        event
        for event in tenant
        if isinstance(event, IterationEvent) and overlap.begin < event.t <= overlap.end
    ]
    seconds = overlap.end - overlap.begin
    share: dict[str, Any] = {
        "begin": overlap.begin,
        "end": overlap.end,
        "seconds": seconds,
        "iterations": len(within),
    }
    if within:
        share["latency_seconds_mean"] = statistics.fmean(event.latency_seconds for event in within)
        share["work"] = _work(within)
    return share


def _work(within: Sequence[IterationEvent]) -> Mapping[str, float]:
    units = {unit for event in within for unit in event.work}
    return {unit: sum(event.work.get(unit, 0.0) for event in within) for unit in sorted(units)}


def _end(events: Sequence[RecordEvent]) -> float | None:
    """Return the end of the last iteration, since a job's clean-up may be slow; else the run's
    end.
    """
    iterations = [event.t for event in events if isinstance(event, IterationEvent)]
    ends = [event.t for event in events if isinstance(event, EndEvent)]
    return max(iterations, default=None) or max(ends, default=None)
