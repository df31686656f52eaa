"""Execution of a plan's steps, which continues where an earlier attempt stopped."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wattline.client.api import Api, ExporterError, UnreachableError
from wattline.contract.api import Gpus
from wattline_workloads.caps.apply import CapSetter, check_caps, restoring_caps
from wattline_workloads.caps.gpu_set import CapsError, open_gpu_set
from wattline_workloads.mps import daemon as mps_daemon
from wattline_workloads.plans import gpus, progress, steps
from wattline_workloads.plans.child import ChildRun, PlanContext
from wattline_workloads.plans.model import SM_CLOCK, CoolDown, OnFailure, PlanError, WorkloadPlan
from wattline_workloads.plans.progress import PlanStatus, ProgressDisplay
from wattline_workloads.plans.results import ResultsFolder
from wattline_workloads.plans.step_runner import (
    StepFailedError,
    StepHooks,
    StepRunner,
    journal_entries,
    open_job_environment,
)
from wattline_workloads.plans.steps import PlannedRun, PlanStep
from wattline_workloads.runner import nsys

_COOL_DOWN_POLL_S = 1.0
_POLL_S = 0.1
_EXPORTER_WITHIN_S = 5.0  # enough for a restart
_CONFIRM_EVERY_S = 1.0


def wait_for_cool_down(
    wanted: CoolDown,
    first_celsius: float | None,
    hottest: Callable[[], float | None],
    show: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Wait until the GPUs are cool; return None, or the reason why the wait ended early.

    `first_celsius` is the temperature before the plan.
    """
    until = wanted.to_celsius if wanted.to_celsius is not None else first_celsius
    if until is None:
        return (
            "no cool-down: the exporter has no temperature from before the plan; see exporter check"
        )
    begin_s = time.monotonic()
    waited_s = 0.0
    while True:
        celsius = hottest()
        if celsius is None:
            return "no cool-down: the exporter has no temperature now; see exporter check"
        if celsius <= until + wanted.tolerance_celsius:
            return None
        if waited_s >= wanted.at_most_seconds:
            return (
                f"still {celsius:.0f} °C after {waited_s:.0f} s of cool-down, not {until:.0f} °C; "
                "increase at_most_seconds"
            )
        show(f"cooling down, {celsius:.0f} °C until {until + wanted.tolerance_celsius:.0f} °C")
        sleep(min(_COOL_DOWN_POLL_S, wanted.at_most_seconds - waited_s))
        waited_s = time.monotonic() - begin_s


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """Collaborators of a plan's runner."""

    api: Api
    is_persistent: bool
    """True if the exporter also runs between the runs."""
    progress: ProgressDisplay
    environ: Mapping[str, str]
    plan_context: PlanContext
    on_failure: OnFailure = "stop-at-first"


class PlanRunner:
    """Runner of a plan's steps."""

    def __init__(
        self,
        plan: WorkloadPlan,
        all_steps: Sequence[PlanStep],
        results: ResultsFolder,
        context: RunnerContext,
    ) -> None:
        self._plan = plan
        self._steps = all_steps
        self._results = results
        self._context = context
        self._took_s: list[float] = []
        self._first_celsius: float | None = None
        self._setter: CapSetter | None = None
        self._confirmed_s = 0.0
        self._here = Gpus(())
        self._resolved: dict[tuple[str, ...], list[str]] = {}
        self._mps_warnings: set[str] = set()

    def run_all(self) -> None:
        """Run all remaining steps.

        Raises errors of plan, exporter, caps, MPS and nsys, before the first run if they are known
        by then.
        """
        self._here = Gpus.parse(self._context.api.get("/gpus"))
        if any(run.nsys for step in self._steps for run in step.runs):
            nsys.require_nsys()
        if any(step.mps for step in self._steps):
            mps_daemon.require_mps(self._context.environ)
        self._reject_active_runs()
        for step in self._steps:
            self._uuids(steps.step_gpus(step))
        left = self._left()
        with self._capped([step for _, step in left]):
            self._first_celsius = self._hottest(None)
            for position, (number, step) in enumerate(left):
                self._run_step(number, step, [each.title for _, each in left[position + 1 :]])
                if position + 1 < len(left):
                    self._stop_after_failure(number)

    def _stop_after_failure(self, number: int) -> None:
        """Raise PlanError if the step failed and the others are not to be run."""
        stops_at = {"continue": (), "stop-at-first": (1,), "stop": (number,)}[
            self._context.on_failure
        ]
        if number in stops_at and any(
            entry.is_bad for entry in self._results.entries if entry.step == number
        ):
            which = "the first run" if number == 1 else f"step {number}"
            raise PlanError(
                f"stopped, since {which} failed; fix the job, or give --on-failure continue"
            )

    def _left(self) -> list[tuple[int, PlanStep]]:
        """Return the remaining steps; warm-ups are repeated if any measurement remains."""
        done = self._results.steps_done()
        numbered = list(enumerate(self._steps, 1))
        measures = any(number not in done and step.phase == "measure" for number, step in numbered)
        return [
            (number, step)
            for number, step in numbered
            if number not in done or (measures and step.phase == "warm-up")
        ]

    def _reject_active_runs(self) -> None:
        for run_id in self._results.run_ids_without_entry():
            with contextlib.suppress(ExporterError):
                if self._context.api.get(f"/runs/{run_id}")["state"] == "running":
                    raise PlanError(
                        f"run {run_id} of an earlier attempt is still running; stop it, or wait "
                        "for its end"
                    )

    @contextlib.contextmanager
    def _capped(self, left: Sequence[PlanStep]) -> Iterator[None]:
        """Check all caps first, and restore the earlier limits on exit."""
        caps = gpus.caps_of(left)
        if not caps:
            yield
            return
        uuids = gpus.capped_uuids(left, self._here, self._context.environ)
        with contextlib.closing(open_gpu_set(uuids, self._here.simulation)) as chosen:
            check_caps(chosen, caps)
            with restoring_caps(chosen, log=self._context.progress.say) as self._setter:
                yield

    def _uuids(self, named: Sequence[str] | None) -> list[str]:
        key = tuple(named or ("all",))
        if key not in self._resolved:
            self._resolved[key] = gpus.resolve_gpus(key, self._here, self._context.environ)
        return self._resolved[key]

    def _by_uuid(self, run: PlannedRun) -> PlannedRun:
        if run.gpus is None or "all" in run.gpus:
            return run
        return replace(run, gpus=tuple(self._uuids(run.gpus)))

    def _run_step(self, number: int, step: PlanStep, left: Sequence[str]) -> None:
        begin_s = time.monotonic()
        now = PlanStatus(
            number, len(self._steps), step.title, "pausing", left, self._left_s(len(left) + 1)
        )
        progress = self._context.progress
        if self._context.is_persistent:
            self._await_exporter(now)
        self._pause(now)
        if self._plan.cool_down is not None and step.phase == "measure":
            reason = wait_for_cool_down(
                self._plan.cool_down,
                self._first_celsius,
                lambda: self._hottest(steps.step_gpus(step)),
                lambda activity: progress.show(replace(now, activity=activity)),
            )
            if reason:
                progress.say(f"{step.title}: {reason}")
        cap = gpus.cap_of(step)
        if self._setter is not None:
            self._setter.apply(cap)
        progress.show(replace(now, activity="running"))
        self._execute(number, step)
        self._took_s.append(time.monotonic() - begin_s)

    def _await_exporter(self, now: PlanStatus) -> None:
        """Wait for an exporter that may be restarting, since every run needs it."""
        give_up_s = time.monotonic() + _EXPORTER_WITHIN_S
        while True:
            try:
                self._context.api.readiness()
            except UnreachableError:
                if time.monotonic() > give_up_s:
                    raise
                self._context.progress.show(replace(now, activity="waiting for the exporter"))
                time.sleep(_POLL_S)
            else:
                return

    def _pause(self, now: PlanStatus) -> None:
        until_s = time.monotonic() + self._plan.pause_seconds
        while time.monotonic() < until_s:
            self._context.progress.show(now)
            time.sleep(min(_POLL_S, max(0.0, until_s - time.monotonic())))

    def _execute(self, number: int, step: PlanStep) -> None:
        step = replace(step, runs=tuple(self._by_uuid(run) for run in step.runs))
        attempt = self._results.attempts(number) + 1
        logs = self._results.folder / f"step-{number}-{attempt}"
        with open_job_environment(
            logs, self._context.environ, self._uuids(steps.step_gpus(step)), wanted=step.mps
        ) as shared:
            tick = (
                self._confirm_caps if SM_CLOCK in step.settings else self._context.progress.follow
            )
            hooks = StepHooks(tick, shared.verify)
            step_runner = StepRunner(step, self._context.plan_context, shared.environ, hooks)
            if shared.mps_warning is not None and shared.mps_warning not in self._mps_warnings:
                self._mps_warnings.add(shared.mps_warning)
                self._context.progress.say(f"{step.title}: {shared.mps_warning}")
            try:
                self._record(number, attempt, step, step_runner, shared.mps_warning)
            finally:
                self._report_failures(step, step_runner)

    def _confirm_caps(self, children: Sequence[ChildRun]) -> None:
        """Check that a clock lock is effective, which is visible only under load. Raises
        CapsError.
        """
        self._context.progress.follow(children)
        if self._setter is not None and time.monotonic() - self._confirmed_s > _CONFIRM_EVERY_S:
            self._confirmed_s = time.monotonic()
            self._setter.confirm()

    def _record(
        self, number: int, attempt: int, step: PlanStep, step_runner: StepRunner, note: str | None
    ) -> None:
        """Run the step and write an entry per run, also after an interruption."""
        interrupted = False
        try:
            step_runner.run()
            if self._setter is not None:
                self._setter.confirm()
        except StepFailedError as error:
            note = str(error)
        except BaseException as error:
            interrupted = True
            note = str(error) if isinstance(error, CapsError) else note
            raise
        finally:
            for child in step_runner.children:
                child.note = child.note or note
            self._results.append(
                journal_entries(number, attempt, step, step_runner, interrupted=interrupted)
            )

    def _report_failures(self, step: PlanStep, step_runner: StepRunner) -> None:
        last = {entry.run_id: entry for entry in self._results.entries}
        for child in step_runner.children:
            entry = last[child.run_id]
            if entry.is_bad or entry.cut_off:
                reason = entry.note or child.last_line()
                self._context.progress.say(
                    f"{step.title}: {child.run.title} {entry.outcome} ({entry.run_id}): {reason}"
                )
                if not self._context.progress.shows_output:
                    for line in child.summary():
                        self._context.progress.say(line)

    def _left_s(self, count: int) -> float | None:
        return statistics.fmean(self._took_s) * count if self._took_s else None

    def _hottest(self, gpus: Sequence[str] | None) -> float | None:
        return progress.hottest_celsius(progress.read_gpus(self._context.api), self._uuids(gpus))
