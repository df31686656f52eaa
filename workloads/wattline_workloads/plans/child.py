"""Run of a plan as a child process with its output in a file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattline.client import values
from wattline.client.messages import message_line
from wattline.command_line import module_command
from wattline.contract.api import Outcome
from wattline_workloads.plans import results
from wattline_workloads.plans.results import LOG_FILE
from wattline_workloads.plans.steps import PlannedRun
from wattline_workloads.runner.signals import SIGNALLED
from wattline_workloads.runner.watchdog import terminated_with_parent

_ENDS_WITHIN_S = 30.0
_MOST_SHOWN = 64 * 1024


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Settings that all runs of a plan share."""

    folder: Path
    exporter: str | None
    """Address given by the user."""
    label: str
    """Value of the label `plan`."""
    barrier_timeout_s: float


class ChildRun:
    """Running child process in a separate process group, which only `request_stop` signals.

    It gets SIGTERM when the plan's runner is killed: no run may go on without the cap in its
    labels.
    """

    def __init__(self, run: PlannedRun, context: PlanContext, environ: Mapping[str, str]) -> None:
        self.run = run
        self.run_id = values.unique_run_id(run.title)
        self.labels = {**run.labels, "plan": context.label}
        self.folder = context.folder / self.run_id
        self.started_at = time.time()
        self.ended_at: float | None = None
        self.note: str | None = None
        self.is_stopped = False
        self._log = context.folder / f"{self.run_id}.log"
        self._shown = 0
        with self._log.open("xb") as log:
            self._process = subprocess.Popen(
                terminated_with_parent(_command(run, self.run_id, self.labels, context)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environ, **_visible_gpus(run)},
                process_group=0,
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code, None while the process runs; 128 + n after signal n."""
        code = self._process.poll()
        if code is not None and self.ended_at is None:
            self.ended_at = time.time()
        return code if code is None or code >= 0 else SIGNALLED - code

    @property
    def outcome(self) -> Outcome:
        """Outcome of the run's end event, else derived from the exit code."""
        code = self.exit_code
        end = results.read_end_event(self.folder)
        if end is not None:
            return end.outcome
        if code == 0:
            return "ok"
        return (
            "interrupted"
            if code is None or SIGNALLED < code < SIGNALLED + signal.NSIG
            else "failed"
        )

    def request_stop(self, note: str | None = None) -> None:
        """Send SIGTERM, which `workloads job` forwards; the run is reported as interrupted."""
        if self.exit_code is None and not self.is_stopped:
            self.is_stopped = True
            self.note = self.note or note
            self._process.send_signal(signal.SIGTERM)

    def await_exit(self) -> None:
        """Wait for the exit, after a stop request at most 30 s, and move the log to the run's
        folder.
        """
        try:
            self._process.wait(_ENDS_WITHIN_S if self.is_stopped else None)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.returncode < 0:  # the job may still run and load the GPU of the next run
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        _ = self.exit_code
        self.folder.mkdir(exist_ok=True)
        if self._log.exists():
            self._log.rename(self.folder / LOG_FILE)

    def new_output(self) -> bytes:
        """Return the output since the last call."""
        path = self._log if self._log.exists() else self.folder / LOG_FILE
        with path.open("rb") as log:
            log.seek(self._shown)
            new = log.read(_MOST_SHOWN)
        self._shown += len(new)
        return new

    def last_line(self) -> str:
        """Return the last line before the run's summary; the exit code if there is none."""
        lines, _ = self._output_and_summary()
        return lines[-1] if lines else f"exit code {self.exit_code}, without output"

    def summary(self) -> list[str]:
        """Return the lines of the run's summary: its energy and the command of its report."""
        return self._output_and_summary()[1]

    def _output_and_summary(self) -> tuple[list[str], list[str]]:
        path = self._log if self._log.exists() else self.folder / LOG_FILE
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip().removeprefix(message_line("")) for line in text.splitlines()]
        lines = [line for line in lines if line]
        first = re.compile(rf"run {re.escape(self.run_id)} \w+ in [\d.]+ s: ")
        starts = [at for at, line in enumerate(lines) if first.match(line)]
        at = starts[-1] if starts else len(lines)
        return lines[:at], lines[at:]


def _visible_gpus(run: PlannedRun) -> dict[str, str]:
    """Limit a command to the GPUs of its run; `workloads job` does so for built-in jobs."""
    if run.job is not None or run.gpus is None or "all" in run.gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(run.gpus)}


def _command(
    run: PlannedRun, chosen_id: str, labels: Mapping[str, str], context: PlanContext
) -> list[str]:
    """Return the command; `-P` keeps a user's file from shadowing a module of this package."""
    options = ["--out", str(context.folder), "--run-id", chosen_id]
    for name, value in labels.items():
        options += ["-l", f"{name}={value}"]
    if run.gpus is not None:
        options += ["--gpus", ",".join(run.gpus)]
    if context.exporter is not None:
        options += ["--exporter", context.exporter]
    if run.nsys:
        options.append("--nsys")
    program = module_command("wattline_workloads")
    if run.job is None:
        return [*program, "run", *options, "--", *run.arguments]
    return [*program, "job", run.job, *options, *run.arguments]
