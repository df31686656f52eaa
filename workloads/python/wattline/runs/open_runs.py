"""Open runs of this process, which end at the latest when Python exits."""

from __future__ import annotations

import os
import sys
from typing import Protocol

from wattline.client import recorder
from wattline.client.summary import outcome_of
from wattline.runs.run_end import await_late_ends


class OpenRun(Protocol):
    """Run that has started and has not ended."""

    @property
    def gpus(self) -> str | None: ...

    def end(self, outcome: str = "ok") -> object: ...


_open: dict[int, list[OpenRun]] = {}
"""Runs by process: a forked child has none of its parent's."""


def add(run: OpenRun) -> None:
    pid = os.getpid()
    if pid not in _open:
        _open[pid] = []
        recorder.call_at_exit(_end_all)
    _open[pid].append(run)


def remove(run: OpenRun) -> None:
    runs = _open.get(os.getpid(), [])
    if run in runs:
        runs.remove(run)


def latest() -> OpenRun | None:
    """Return the run that this process started last, None if all have ended."""
    runs = _open.get(os.getpid())
    return runs[-1] if runs else None


def _end_all() -> None:
    """End the runs that the program has left open, as failed after an exception that ended it, and those ended late."""
    outcome = outcome_of(None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))
    while (run := latest()) is not None:
        run.end(outcome)
        remove(run)
    await_late_ends()
