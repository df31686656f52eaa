"""Prolog and epilog of a node: start and end of a job's run, and restoration of power limits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattline.client.api import Api, RejectedRequestError
from wattline.command_line import module_command, user_state_folder
from wattline.contract.api import MAX_LEASE_S
from wattline.contract.run import Run, RunFormatError
from wattline_workloads.slurm.job import JobDetails, Outcome, PrologJob, SlurmError, slurm_outcome

LABELS = "WATTLINE_SLURM_LABELS"
"""Variable with the labels to report, separated by spaces or commas; all if it is not set."""
_CAPS_TIMEOUT_S = 20.0
_NOT_FOUND = 404


def begin_run(job: PrologJob, api: Api, log: Callable[[str], None]) -> str:
    """Begin the run of the job and return its id. Raises ExporterError."""
    details = _details(job, log)
    allowed = job.environ.get(LABELS)
    body = {
        "workload": "slurm",
        "run_id": job.run_id(job.restarts),
        "labels": job.labels(
            details, allowed.replace(",", " ").split() if allowed is not None else None
        ),
        "gpus": job.gpus(),
        "cgroup": f"slurm:{job.id}",
        # the epilog ends the run, or the exporter when the cgroup of the job is empty
        "lease_seconds": MAX_LEASE_S,
    }
    return str(api.post("/runs", body)["run_id"])


def end_run(job: PrologJob, api: Api, log: Callable[[str], None]) -> Run | None:
    """End the run of the job with its outcome and return it; None if there is none to end. Raises
    ExporterError and SlurmError.

    A run that ended as `unknown` gets the outcome.
    """
    run = find_run(job, api)
    if run is None or run.outcome not in (None, "unknown"):
        return None
    outcome = _outcome(job, run.run_id, log)
    return parse_run(api.post(f"/runs/{run.run_id}/end", {"outcome": outcome}))


def find_run(job: PrologJob, api: Api) -> Run | None:
    """Return the run of the job that ends now, or None. Raises ExporterError and SlurmError."""
    for run_id in job.ending_run_ids():
        try:
            return parse_run(api.get(f"/runs/{run_id}"))
        except RejectedRequestError as error:
            if error.status != _NOT_FOUND:
                raise
    return None


def parse_run(answer: Mapping[str, Any]) -> Run:
    """Return the run of an exporter's response. Raises SlurmError."""
    try:
        return Run.parse(answer)
    except RunFormatError as error:
        raise SlurmError(
            f"cannot read the exporter's response: {error}; install the same version of wattline "
            "on all nodes and the controller"
        ) from error


def _outcome(job: PrologJob, run_id: str, log: Callable[[str], None]) -> Outcome:
    """Return the outcome of the job's attempt.

    The environment has the exit code of Slurm's batch script, but not that the job was cancelled.
    """
    if (
        job.attempt_of(run_id) == job.restarts
    ):  # the job was requeued: its next attempt is counted already
        return "interrupted"
    known = slurm_outcome(job.environ.get("SLURM_JOB_EXIT_CODE2", ""))
    if known in ("failed", "interrupted"):
        return known
    details = _details(job, log)
    return slurm_outcome(details.exit_code, details.reason) if details.exit_code else known


def _details(job: PrologJob, log: Callable[[str], None]) -> JobDetails:
    try:
        return job.details()
    except SlurmError as error:
        log(str(error))
        return JobDetails()


def restore_power_limits(log: Callable[[str], None]) -> None:
    """Restore the power limits and clocks that a killed sweep of root left set."""
    folder = user_state_folder(os.environ) / "caps"
    if not any(Path(folder).glob("*.json")):
        return
    try:
        done = subprocess.run(
            module_command("wattline_workloads", "caps", "restore"),
            capture_output=True,
            text=True,
            timeout=_CAPS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log(f"cannot restore power limits: {error}; run workloads caps restore as root")
        return
    for line in done.stderr.strip().splitlines():
        log(line)
