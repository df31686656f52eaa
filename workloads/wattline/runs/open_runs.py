"""Open runs of this process, and those that enclose the present thread or asyncio task.

All end at the latest when Python exits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

from wattline.client import recorder
from wattline.client.summary import outcome_of
from wattline.runs.end_report import await_late_ends


class OpenRun(Protocol):
    """Run that has started and has not ended."""

    @property
    def gpus(self) -> str | None: ...

    def end(self, outcome: str = "ok") -> object: ...


_open: dict[int, list[OpenRun]] = {}
"""Runs by process: a forked child has none of its parent's."""
Enclosing = tuple[object, ...]
_enclosing: ContextVar[Enclosing] = ContextVar("wattline_enclosing", default=())
"""Runs and phases that were entered in this context, the innermost last; some may have ended
elsewhere.
"""


def add(run: OpenRun) -> None:
    pid = os.getpid()
    if pid not in _open:
        _open[pid] = []
        recorder.call_at_exit(_end_all)
    _open[pid].append(run)
    enter(run)


def remove(run: OpenRun) -> None:
    runs = _open.get(os.getpid(), [])
    if run in runs:
        runs.remove(run)
    leave(run)


def enclosing_run() -> OpenRun | None:
    """Return the innermost open run of this thread or task, or of the task that created it; None
    without one.
    """
    runs = _open.get(os.getpid(), [])
    return next((run for inner in reversed(_enclosing.get()) for run in runs if run is inner), None)


def enter(inner: object) -> None:
    """Note a run or a phase that encloses what follows in this context."""
    _enclosing.set((*_enclosing.get(), inner))


def leave(inner: object) -> None:
    _enclosing.set(tuple(other for other in _enclosing.get() if other is not inner))


def encloses(outer: object) -> bool:
    """Return True for a run or a phase that was entered in this context, or before it was
    created.
    """
    return any(one is outer for one in _enclosing.get())


def enclosing() -> Enclosing:
    return _enclosing.get()


def set_enclosing(outer: Enclosing) -> None:
    _enclosing.set(outer)


@contextlib.contextmanager
def within(inner: Enclosing) -> Iterator[None]:
    """Continue in the runs and phases of another context."""
    before = _enclosing.get()
    _enclosing.set(inner)
    try:
        yield
    finally:
        _enclosing.set(before)


def _end_all() -> None:
    """End the runs that the program has left open, as failed after an exception that ended it, and
    those ended late.
    """
    outcome = outcome_of(None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))
    while runs := _open.get(os.getpid()):
        run = runs[-1]
        run.end(outcome)
        remove(run)
    await_late_ends()
