"""Execution of one step: concurrent runs, their barrier, MPS and journal entries."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattline.client import barrier
from wattline.contract.run_files import METRICS_FILE
from wattline_workloads.mps import session as mps
from wattline_workloads.mps.daemon import MpsError
from wattline_workloads.plans import results
from wattline_workloads.plans.child import ChildRun, PlanContext
from wattline_workloads.plans.results import JournalEntry
from wattline_workloads.plans.steps import PlanStep

_POLL_S = 0.05
_ATTACHED_WITHIN_S = 5.0  # a job at the barrier has warmed up and is an MPS client
_NOT_MEASURED = "energy unknown: the end of the run did not reach the exporter"


@dataclass(frozen=True, slots=True)
class TenantBarrier:
    """Folder in which the jobs of a step report that they are ready."""

    folder: Path
    count: int
    """Number of waiting jobs, the runner not included."""
    timeout_s: float

    @property
    def environment(self) -> dict[str, str]:
        return {barrier.FOLDER: f"{self.folder}:{self.count + 1}:{self.timeout_s:g}"}

    def pids(self) -> list[int]:
        """Return the processes at the barrier, the runner not included."""
        pids = (int(path.name.removeprefix("ready-")) for path in self.folder.glob("ready-*"))
        return sorted(pid for pid in pids if pid != os.getpid())

    def release(self) -> float:
        """Release the barrier and return the time in Unix seconds."""
        (self.folder / f"ready-{os.getpid()}").touch()
        return time.time()

    def abandon(self) -> None:
        (self.folder / barrier.ABANDONED).touch()


@contextlib.contextmanager
def open_tenant_barrier(count: int, timeout_s: float) -> Iterator[TenantBarrier | None]:
    """Create the barrier, None if no job waits."""
    if not count:
        yield None
        return
    with (
        tempfile.TemporaryDirectory(prefix="wattline-barrier-") as folder,
        barrier.hold_runner_lock(Path(folder)),
    ):
        yield TenantBarrier(Path(folder), count, timeout_s)


class StepFailedError(Exception):
    """Step without a valid result; one line."""


@dataclass(frozen=True, slots=True)
class StepHooks:
    """Callbacks during a step."""

    tick: Callable[[Sequence[ChildRun]], None]
    before_release: Callable[[Sequence[int]], None] | None = None
    """Called with the processes at the barrier. If it raises StepFailedError, none of them starts
    to measure.
    """


class StepRunner:
    """Runs of one step; `children` stays valid after `run` has raised."""

    def __init__(
        self, step: PlanStep, context: PlanContext, environ: Mapping[str, str], hooks: StepHooks
    ) -> None:
        self._step = step
        self._context = context
        self._environ = environ
        self._hooks = hooks
        self._checked: set[str] = set()
        self.children: list[ChildRun] = []
        self.has_barrier = False
        self.released_at: float | None = None
        """Time at which the tenants left the barrier, in Unix seconds."""

    def run(self) -> None:
        """Run all jobs to their end. Raises StepFailedError, and re-raises what interrupts it."""
        needs_barrier = len(self._step.runs) > 1 or self._hooks.before_release is not None
        waiting = sum(run.waits for run in self._step.runs) if needs_barrier else 0
        self.has_barrier = waiting > 0
        with open_tenant_barrier(waiting, self._context.barrier_timeout_s) as tenant_barrier:
            try:
                self._start(tenant_barrier)
                self._watch(tenant_barrier)
            except StepFailedError:
                raise
            except BaseException:
                self._end_all("the plan was interrupted")
                raise
            finally:
                for child in self.children:
                    child.await_exit()
                self._hooks.tick(self.children)

    def _start(self, tenant_barrier: TenantBarrier | None) -> None:
        for run in self._step.runs:
            environ = {
                **self._environ,
                **(tenant_barrier.environment if tenant_barrier and run.waits else {}),
            }
            self.children.append(ChildRun(run, self._context, environ))

    def _watch(self, tenant_barrier: TenantBarrier | None) -> None:
        while any(child.exit_code is None for child in self.children):
            for child in self.children:
                if child.exit_code is not None and child.run_id not in self._checked:
                    self._checked.add(child.run_id)
                    self._check_ended(child, tenant_barrier)
            if (
                tenant_barrier is not None
                and self.released_at is None
                and len(tenant_barrier.pids()) >= tenant_barrier.count
            ):
                self._release(tenant_barrier)
            self._hooks.tick(self.children)
            time.sleep(_POLL_S)

    def _check_ended(self, child: ChildRun, tenant_barrier: TenantBarrier | None) -> None:
        ended_early = tenant_barrier is not None and self.released_at is None and child.run.waits
        if not child.is_stopped and (child.exit_code or ended_early):
            if tenant_barrier is not None:
                tenant_barrier.abandon()
            event = "ended" if child.exit_code == 0 else "failed"
            if ended_early and child.exit_code == 0:
                child.note = "not measured: it ended before all tenants were ready"
            self._end_all(f"stopped: {child.run.title} {event} ({child.run_id})")
        elif all(each.exit_code is not None for each in self.children if not each.run.background):
            self._end_all("background job, stopped with the others")

    def _release(self, tenant_barrier: TenantBarrier) -> None:
        if self._hooks.before_release is not None:
            try:
                self._hooks.before_release(tenant_barrier.pids())
            except StepFailedError:
                tenant_barrier.abandon()  # the jobs then fail, which differs from an interruption
                raise
        self.released_at = tenant_barrier.release()

    def _end_all(self, note: str) -> None:
        for child in self.children:
            child.request_stop(note)


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """Environment of a step's jobs, with or without MPS."""

    environ: Mapping[str, str]
    verify: Callable[[Sequence[int]], None] | None = None
    """Function that checks that processes use MPS, and raises StepFailedError; None without MPS."""
    mps_warning: str | None = None
    """Reason why jobs of a step without MPS may still use it."""


@contextlib.contextmanager
def open_job_environment(
    folder: Path,
    environ: Mapping[str, str],
    gpus: Sequence[str],
    *,
    wanted: bool,
    proc: Path = Path("/proc"),
) -> Iterator[JobEnvironment]:
    """Start MPS if wanted; `gpus` are UUIDs. Raises MpsError if the daemon does not start."""
    if not wanted:
        yield JobEnvironment(environ, mps_warning=mps.interception_warning(environ, gpus, proc))
        return
    with mps.run_mps_daemon(folder, environ, gpus) as session:

        def verify(pids: Sequence[int]) -> None:
            try:
                session.verify(pids, _ATTACHED_WITHIN_S)
            except MpsError as error:
                raise StepFailedError(str(error)) from error

        yield JobEnvironment({**environ, **session.environment}, verify)


def journal_entries(
    number: int, attempt: int, step: PlanStep, step_runner: StepRunner, *, interrupted: bool
) -> list[JournalEntry]:
    """Return the entries of a step's runs; `interrupted` is True if a signal or an error outside
    the jobs ended it.
    """
    shares = _shares(step_runner)
    return [
        JournalEntry(
            step=number,
            attempt=attempt,
            run_id=child.run_id,
            case=step.case,
            phase=step.phase,
            repeat=step.repeat,
            tenant=child.run.tenant,
            outcome=child.outcome,
            exit_code=child.exit_code or 0,
            started_at=child.started_at,
            ended_at=child.ended_at or time.time(),
            cut_off=interrupted or _is_cut_off(child),
            folder=child.folder.name,
            background=child.run.background,
            settings=step.settings,
            labels=child.labels,
            note=child.note or (_NOT_MEASURED if _is_not_measured(child) else None),
            overlap=share,
        )
        for child, share in zip(step_runner.children, shares, strict=True)
    ]


def _shares(step_runner: StepRunner) -> list[Mapping[str, object] | None]:
    """Return the work of each tenant while all of them ran."""
    if len(step_runner.children) < 2 or (
        step_runner.has_barrier and step_runner.released_at is None
    ):
        return [None] * len(step_runner.children)
    events = [results.read_events(child.folder) for child in step_runner.children]
    common = results.find_overlap(events, step_runner.released_at)
    return [results.overlap_share(common, each) if common else None for each in events]


def _is_cut_off(child: ChildRun) -> bool:
    return _is_not_measured(child) or (child.outcome == "interrupted" and not child.is_stopped)


def _is_not_measured(child: ChildRun) -> bool:
    return child.outcome == "ok" and not (child.folder / METRICS_FILE).exists()
