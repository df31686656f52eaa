"""Makes one step of a plan: its runs are started together, and one tenant's failure ends the others."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads.client import barrier
from workloads.mps import other_daemons as mps_others
from workloads.mps import session as mps
from workloads.mps.daemon import MpsError
from workloads.plans.child import ChildRun, Place
from workloads.plans.steps import Step


@dataclass(frozen=True, slots=True)
class Meeting:
    folder: Path
    count: int
    """Without the runner."""
    timeout_s: float

    @property
    def environment(self) -> dict[str, str]:
        return {barrier.FOLDER: f"{self.folder}:{self.count + 1}:{self.timeout_s:g}"}

    def pids(self) -> list[int]:
        """Of those who have come, the runner apart."""
        pids = (int(path.name.removeprefix("ready-")) for path in self.folder.glob("ready-*"))
        return sorted(pid for pid in pids if pid != os.getpid())

    def release(self) -> float:
        """Unix seconds."""
        (self.folder / f"ready-{os.getpid()}").touch()
        return time.time()

    def abandon(self) -> None:
        (self.folder / barrier.ABANDONED).touch()


@contextlib.contextmanager
def meeting(count: int, timeout_s: float) -> Iterator[Meeting | None]:
    """None where nobody has to wait."""
    if not count:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="wattline-barrier-") as folder, barrier.hold_runner_lock(Path(folder)):
        yield Meeting(Path(folder), count, timeout_s)


_POLL_S = 0.05


class StepFailedError(Exception):
    """The step as a whole cannot be a result; one line."""


@dataclass(frozen=True, slots=True)
class Watching:
    """What is called while a step is made."""

    tick: Callable[[Sequence[ChildRun]], None]
    before_release: Callable[[Sequence[int]], None] | None = None
    """With the processes that have come to the barrier. Raises StepFailedError, and then none of them measures."""


class SideBySide:
    """One step's runs; `children` can be read at any time, also after `make` has raised."""

    def __init__(self, step: Step, place: Place, environ: Mapping[str, str], watching: Watching) -> None:
        self._step = step
        self._place = place
        self._environ = environ
        self._watching = watching
        self._judged: set[str] = set()
        self.children: list[ChildRun] = []
        self.has_barrier = False
        self.released_at: float | None = None
        """Unix seconds: when the tenants left the barrier."""

    def make(self) -> None:
        """Return, or raise what interrupts it, once all have ended. Raises StepFailedError."""
        meet = len(self._step.runs) > 1 or self._watching.before_release is not None
        waiting = sum(run.waits for run in self._step.runs) if meet else 0
        self.has_barrier = waiting > 0
        with meeting(waiting, self._place.barrier_timeout_s) as met:
            try:
                self._start(met)
                self._watch(met)
            except StepFailedError:
                raise
            except BaseException:
                self._end_all("the plan was interrupted")
                raise
            finally:
                for child in self.children:
                    child.await_end()
                self._watching.tick(self.children)

    def _start(self, met: Meeting | None) -> None:
        for run in self._step.runs:
            environ = {**self._environ, **(met.environment if met and run.waits else {})}
            self.children.append(ChildRun(run, self._place, environ))

    def _watch(self, met: Meeting | None) -> None:
        while any(child.exit_code is None for child in self.children):
            for child in self.children:
                if child.exit_code is not None and child.run_id not in self._judged:
                    self._judged.add(child.run_id)
                    self._judge(child, met)
            if met is not None and self.released_at is None and len(met.pids()) >= met.count:
                self._release(met)
            self._watching.tick(self.children)
            time.sleep(_POLL_S)

    def _judge(self, child: ChildRun, met: Meeting | None) -> None:
        came_early = met is not None and self.released_at is None and child.run.waits
        if not child.is_stopped and (child.exit_code or came_early):
            if met is not None:
                met.abandon()
            what = "ended" if child.exit_code == 0 else "failed"
            if came_early and child.exit_code == 0:
                child.note = "ended before all tenants were ready, so it was not measured beside them"
            self._end_all(f"ended, as {child.run.title} {what} ({child.run_id})")
        elif all(each.exit_code is not None for each in self.children if not each.run.background):
            self._end_all("background, ended with the others")

    def _release(self, met: Meeting) -> None:
        if self._watching.before_release is not None:
            try:
                self._watching.before_release(met.pids())
            except StepFailedError:
                met.abandon()  # each then fails by itself, and is no run that was interrupted
                raise
        self.released_at = met.release()

    def _end_all(self, note: str) -> None:
        for child in self.children:
            child.ask_to_end(note)


_ATTACHED_WITHIN_S = 5.0  # whoever is at the barrier has warmed up, so it is a client by now


@dataclass(frozen=True, slots=True)
class Shared:
    """How the jobs of a step are started."""

    environ: Mapping[str, str]
    verify: Callable[[Sequence[int]], None] | None = None
    """None where the step is not under MPS; raises StepFailedError."""
    doubt: str | None = None
    """Why the jobs of a step without MPS are not without it."""


@contextlib.contextmanager
def shared(
    folder: Path, environ: Mapping[str, str], gpus: Sequence[str], *, wanted: bool, proc: Path = Path("/proc")
) -> Iterator[Shared]:
    """`gpus` are UUIDs. Raises MpsError where the daemon cannot be had."""
    if not wanted:
        yield Shared(environ, doubt=mps_others.interception_warning(environ, gpus, proc))
        return
    with mps.run_mps_daemon(folder, environ, gpus) as session:

        def verify(pids: Sequence[int]) -> None:
            try:
                session.verify(pids, _ATTACHED_WITHIN_S)
            except MpsError as error:
                raise StepFailedError(str(error)) from error

        yield Shared({**environ, **session.environment}, verify)
