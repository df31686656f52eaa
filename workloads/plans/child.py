"""A run of a plan as a child process: `workloads job` or `workloads run`, its output kept in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.contract.run import Outcome
from workloads.client import values
from workloads.plans import overlap, tied
from workloads.plans.results import LOG_FILE
from workloads.plans.steps import PlannedRun

_ENDS_WITHIN_S = 30.0
_SIGNALLED = 128
_MOST_SHOWN = 64 * 1024


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What all runs of a plan have in common."""

    folder: Path
    exporter: str | None
    """As the user named it."""
    label: str
    """The label `plan` of its runs."""
    barrier_timeout_s: float


class ChildRun:
    """From its making on it runs, in a process group of its own: signals reach it through `stop` alone."""

    def __init__(self, run: PlannedRun, place: PlanContext, environ: Mapping[str, str]) -> None:
        self.run = run
        self.run_id = values.new_run_id(run.title)
        self.labels = {**run.labels, "plan": place.label}
        self.folder = place.folder / self.run_id
        self.started_at = time.time()
        self.ended_at: float | None = None
        self.note: str | None = None
        self.is_stopped = False
        self._log = place.folder / f"{self.run_id}.log"
        self._shown = 0
        with self._log.open("xb") as log:
            self._process = subprocess.Popen(
                [*_tied(), *_command(run, self.run_id, self.labels, place)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environ, **_visible(run)},
                process_group=0,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n where signal n ended it."""
        code = self._process.poll()
        if code is not None and self.ended_at is None:
            self.ended_at = time.time()
        return code if code is None or code >= 0 else _SIGNALLED - code

    @property
    def outcome(self) -> Outcome:
        """As the run's own end says it; where it has none, by the exit code."""
        code, end = self.exit_code, overlap.read_end_event(self.folder)
        if end is not None:
            return end.outcome
        if code == 0:
            return "ok"
        return "interrupted" if code is None or _SIGNALLED < code < _SIGNALLED + signal.NSIG else "failed"

    def request_stop(self, note: str | None = None) -> None:
        """`workloads job` passes it on, and reports the run as interrupted."""
        if self.exit_code is None and not self.is_stopped:
            self.is_stopped = True
            self.note = self.note or note
            self._process.send_signal(signal.SIGTERM)

    def await_exit(self) -> None:
        """Until it has ended by itself, or after half a minute in any case; its log is then in its folder."""
        try:
            self._process.wait(_ENDS_WITHIN_S if self.is_stopped else None)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.returncode < 0:  # then nobody has ended the job, which is to load no GPU of the next run
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        _ = self.exit_code
        self.folder.mkdir(exist_ok=True)
        if self._log.exists():
            self._log.rename(self.folder / LOG_FILE)

    def new_output(self) -> bytes:
        """What it has written since the last call."""
        path = self._log if self._log.exists() else self.folder / LOG_FILE
        with path.open("rb") as log:
            log.seek(self._shown)
            new = log.read(_MOST_SHOWN)
        self._shown += len(new)
        return new

    def last_line(self) -> str:
        path = self._log if self._log.exists() else self.folder / LOG_FILE
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line.strip().removeprefix("wattline: ") for line in lines if line.strip()]
        own = [line for line in said if not line.startswith(f"run {self.run_id} ")]
        return (own or said or ["it said nothing"])[-1]


def _tied() -> list[str]:
    return [sys.executable, "-P", "-m", tied.__name__, str(os.getpid())]


def _visible(run: PlannedRun) -> dict[str, str]:
    """`workloads job` says it to a job of ours; a command is to see no other GPUs than those of its run, either."""
    if run.job is not None or run.gpus is None or "all" in run.gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(run.gpus)}


def _command(run: PlannedRun, chosen_id: str, labels: Mapping[str, str], place: PlanContext) -> list[str]:
    """-P: a file of the user's beside the plan must not be imported in place of ours."""
    options = ["--out", str(place.folder), "--run-id", chosen_id]
    for name, value in labels.items():
        options += ["-l", f"{name}={value}"]
    if run.gpus is not None:
        options += ["--gpus", ",".join(run.gpus)]
    if place.exporter is not None:
        options += ["--exporter", place.exporter]
    if run.nsys:
        options.append("--nsys")
    program = [sys.executable, "-P", "-m", "workloads"]
    if run.job is None:
        return [*program, "run", *options, "--", *run.arguments]
    return [*program, "job", run.job, *options, *run.arguments]
