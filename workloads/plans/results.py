"""The folder of a plan's results: the plan's copy, a journal of the runs, and a folder for each run. Nothing in it is
overwritten, and a repeated run gets a new run id.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from exporter.contract.record import EVENTS_FILE
from exporter.contract.run import Outcome
from workloads.client.values import run_id_for

PLAN_FILE = "plan.yaml"
JOURNAL_FILE = "runs.jsonl"
LOG_FILE = "output.log"
DEFAULT_FOLDER = Path("wattline-results")


class ResultsError(Exception):
    """One line: the cause and the next step."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A line of the journal; times are Unix seconds."""

    step: int
    """From 1 on, in execution order."""
    attempt: int
    """From 1 on."""
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
    """Interrupted, so that the plan makes its step again when it is resumed."""
    folder: str
    background: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    """What else there is to say, as why it was ended."""
    overlap: Mapping[str, Any] | None = None
    """Of tenants: the time in which all of them ran, and what this one did in it."""

    @property
    def is_bad(self) -> bool:
        """Noise is meant to be interrupted, and a run that was cut off is repeated."""
        return self.outcome == "failed" or (self.outcome == "interrupted" and not (self.background or self.cut_off))


class ResultsFolder:
    """Held by one process at a time, from `with` on; all raise ResultsError."""

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
                raise ResultsError(
                    f"{folder} is not empty and is left as it is; give another --out, or go on there with --resume"
                )
            (folder / PLAN_FILE).write_bytes(content)
            (folder / JOURNAL_FILE).touch()
        except OSError as error:
            raise ResultsError(f"{folder} cannot be written: {error.strerror}; give another --out") from error
        return cls(folder)

    @classmethod
    def resume(cls, folder: Path, content: bytes) -> ResultsFolder:
        folder = folder.absolute()
        try:
            copy = (folder / PLAN_FILE).read_bytes()
        except OSError as error:
            raise ResultsError(f"{folder} holds no results of a plan: {PLAN_FILE}: {error.strerror}") from error
        if copy != content:
            raise ResultsError(
                f"the plan is not the one that {folder} was begun with; go on with {folder / PLAN_FILE}, or leave "
                "--resume out to begin anew"
            )
        return cls(folder)

    def __enter__(self) -> Self:
        try:
            self._journal = (self.folder / JOURNAL_FILE).open("a+", encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"{self.folder / JOURNAL_FILE} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._journal.close()
            raise ResultsError(f"another workloads plan is at work in {self.folder}; let it end first") from error
        self._journal.seek(0)
        lines = self._journal.readlines()
        if lines and not lines[-1].endswith("\n"):  # else the next line would be lost with it
            self._journal.write("\n")
        self._take(lines)
        return self

    def _take(self, lines: Sequence[str]) -> None:
        """After a line that was cut off it is not known whether the tenants before it were all of their step."""
        for line in lines:
            entry = _read(line)
            if entry is not None:
                self.entries.append(entry)
            elif self.entries and self.entries[-1].tenant is not None:
                self._incomplete.add((self.entries[-1].step, self.entries[-1].attempt))

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._journal.close()

    def remove_if_empty(self) -> bool:
        """Whether no run was begun in a folder of our own making, which then goes: there is nothing to go on with."""
        if self.entries or {path.name for path in self.folder.iterdir()} - {PLAN_FILE, JOURNAL_FILE}:
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
        """Those of which an attempt was neither cut off nor written in part."""
        cut_off: dict[tuple[int, int], bool] = {}
        for entry in self.entries:
            attempt = entry.step, entry.attempt
            cut_off[attempt] = cut_off.get(attempt, attempt in self._incomplete) or entry.cut_off
        return {step for (step, _), is_cut in cut_off.items() if not is_cut}

    def attempts(self, step: int) -> int:
        return len({entry.attempt for entry in self.entries if entry.step == step})

    def run_ids_without_entry(self) -> list[str]:
        """Run ids that have a folder and no line: the runner was killed while they ran."""
        known = {entry.run_id for entry in self.entries}
        return sorted(
            path.parent.name for path in self.folder.glob(f"*/{EVENTS_FILE}") if path.parent.name not in known
        )


def _read(line: str) -> JournalEntry | None:
    """None for a line that was cut off in the middle."""
    try:
        return JournalEntry(**json.loads(line))
    except (ValueError, TypeError):
        return None
