"""Phases of a run, of which one is current at a time."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Self

from wattline.client.messages import log_message
from wattline.runs import open_runs

_REST = "rest"


class Phases:
    """Current phase of a run, and those of its `with` blocks that are open."""

    def __init__(self) -> None:
        self.current = _REST
        self._open: list[_OpenPhase] = []
        self._lock = threading.Lock()
        self._has_logged = False

    def start(
        self, name: str, change: Callable[[str], None], refuse: Callable[[], None]
    ) -> contextlib.ExitStack:
        """Start a phase by `change`; call `refuse` instead while a `with` block of another thread
        or task has one.
        """
        with self._lock:
            others = [other for other in self._open if not open_runs.encloses(other)]
        if others:
            self._log_overlap(name, others[-1].name)
            refuse()
            return contextlib.ExitStack()
        phase = _OpenPhase(self, name, functools.partial(self._set, self.current, change))
        self._set(name, change)
        return phase

    def enter(self, phase: _OpenPhase) -> None:
        with self._lock:
            others = [other for other in self._open if not open_runs.encloses(other)]
            self._open.append(phase)
        open_runs.enter(phase)
        if others:  # both have started at the same time
            self._log_overlap(phase.name, others[-1].name)

    def leave(self, phase: _OpenPhase) -> None:
        with self._lock:
            self._open = [other for other in self._open if other is not phase]
        open_runs.leave(phase)

    def _set(self, name: str, change: Callable[[str], None]) -> None:
        self.current = name
        change(name)

    def _log_overlap(self, name: str, other: str) -> None:
        if not self._has_logged:
            self._has_logged = True
            log_message(
                f"phase {name!r} is not recorded: phase {other!r} of another thread or task is "
                "open, and a run has one "
                "phase at a time; start a run in each thread or task instead: wattline.run()"
            )


class _OpenPhase(contextlib.ExitStack):
    """Phase of a `with` block, whose end starts the previous phase again by `restore`."""

    def __init__(self, phases: Phases, name: str, restore: Callable[[], None]) -> None:
        super().__init__()
        self.name = name
        self._phases = phases
        self.callback(restore)
        self.callback(phases.leave, self)

    def __enter__(self) -> Self:
        self._phases.enter(self)
        return super().__enter__()
