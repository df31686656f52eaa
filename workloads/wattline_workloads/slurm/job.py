"""A Slurm job, from the environment of its prolog or epilog and from `scontrol show job`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wattline.contract.api import MAX_LABEL_VALUE
from wattline.contract.identity import owner_run_id
from wattline_workloads.runner.signals import SIGNALLED

COMMAND_TIMEOUT_S = 1.5
_SIGTERM = 15
_CLUSTER = "cluster"
_STOPPED_REASONS = ("TimeLimit", "Preempted")

Outcome = Literal["ok", "failed", "interrupted", "unknown"]


class SlurmError(Exception):
    """Error with a one-line message."""


def run_slurm_command(*words: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Return the output of a Slurm command. Raises SlurmError."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"cannot run {words[0]}: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [
            f"exit code {done.returncode}"
        ]
        raise SlurmError(f"{' '.join(words[:3])} failed: {lines[-1].strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class JobDetails:
    """Fields of `scontrol show job -o` that a prolog's environment lacks. `exit_code` is
    CODE:SIGNAL.
    """

    job_name: str = ""
    array_id: str = ""
    exit_code: str = ""
    reason: str = ""

    @classmethod
    def parse(cls, line: str) -> JobDetails:
        """Parse one line. The job's name may contain spaces and `=`."""
        name = re.search(r" JobName=(.*?) UserId=\S*\(\d+\)", line)
        rest = line.replace(name[0], " ") if name else line
        fields = dict(re.findall(r"(?:^|\s)(ArrayJobId|ExitCode|Reason)=(\S*)", rest))
        return cls(
            name[1] if name else "",
            fields.get("ArrayJobId", ""),
            fields.get("ExitCode", ""),
            fields.get("Reason", ""),
        )


@dataclass(frozen=True, slots=True)
class PrologJob:
    """A job as its prolog or epilog sees it. `restarts`: the requeues so far, in an epilog with the
    one under way.
    """

    id: str
    cluster: str
    restarts: int
    environ: Mapping[str, str]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> PrologJob:
        """Return the job of this environment. Raises SlurmError."""
        job_id = environ.get("SLURM_JOB_ID", "")
        if not job_id.isdecimal():
            raise SlurmError("SLURM_JOB_ID is not set: this is no prolog or epilog of Slurm")
        restarts = environ.get("SLURM_JOB_RESTART_COUNT", "")
        cluster = environ.get("SLURM_CLUSTER_NAME") or _CLUSTER
        return cls(job_id, cluster, int(restarts) if restarts.isdecimal() else 0, environ)

    @property
    def database_id(self) -> str:
        """Id for sacct and sacctmgr: ARRAY_TASK in an array, since the job id of one task can
        select all tasks.
        """
        array = self.environ.get("SLURM_ARRAY_JOB_ID", "")
        task = self.environ.get("SLURM_ARRAY_TASK_ID", "")
        return f"{array}_{task}" if array.isdecimal() and task.isdecimal() else self.id

    def run_id(self, restarts: int) -> str:
        """Return the id of the run of the attempt after this number of restarts: slurm-CLUSTER-JOB,
        then with .2.
        """
        number = self.id if restarts == 0 else f"{self.id}.{restarts + 1}"
        return owner_run_id("slurm", self.cluster, number)

    def attempt_of(self, run_id: str) -> int:
        """Return the number of the attempt, from 1 on, that is one of `ending_run_ids`."""
        return self.restarts + 1 if run_id == self.run_id(self.restarts) else self.restarts

    def ending_run_ids(self) -> Sequence[str]:
        """Return the possible ids of the run that ends now: a requeue counts as a restart before
        its epilog.
        """
        return [
            self.run_id(restarts)
            for restarts in (self.restarts, self.restarts - 1)
            if restarts >= 0
        ]

    def details(self) -> JobDetails:
        """Return the controller's details of the job. Raises SlurmError."""
        text = run_slurm_command("scontrol", "show", "job", "-o", self.id)
        jobs = re.split(
            r"^(?=JobId=)", text, flags=re.MULTILINE
        )  # all tasks of the array that has this id, too
        return JobDetails.parse(
            next((job for job in jobs if job.startswith(f"JobId={self.id} ")), "")
        )

    def gpus(self) -> list[str]:
        """Return the indices of the GPUs that Slurm assigned on this node."""
        return [gpu for gpu in self.environ.get("SLURM_JOB_GPUS", "").split(",") if gpu]

    def labels(self, details: JobDetails, allowed: Sequence[str] | None = None) -> dict[str, str]:
        """Return the labels of the job's run; `allowed`: those to report with `discovered`, None
        for all.
        """
        values = {
            "user": self.environ.get("SLURM_JOB_USER") or self.environ.get("SLURM_JOB_UID", ""),
            "account": self.environ.get("SLURM_JOB_ACCOUNT", ""),
            "partition": self.environ.get("SLURM_JOB_PARTITION", ""),
            "job_name": details.job_name,
            "array_id": details.array_id,
        }
        valid = {
            name: "".join(filter(str.isprintable, value))[:MAX_LABEL_VALUE]
            for name, value in values.items()
        }
        kept = {
            name: value
            for name, value in valid.items()
            if value and (allowed is None or name in allowed)
        }
        return {"discovered": "slurm", **kept}


def slurm_outcome(exit_code: str, reason: str = "") -> Outcome:
    """Return the outcome of a job by its exit code, CODE:SIGNAL, and its reason.

    A job that Slurm stops (scancel, preemption, time limit) gets signal 15; a shell then exits with
    143.
    """
    match = re.fullmatch(r"(\d+):(\d+)", exit_code)
    if reason in _STOPPED_REASONS:
        return "interrupted"
    if not match:
        return "unknown"
    code = int(match[1])
    signal = int(match[2])
    if _SIGTERM in (signal, code - SIGNALLED):
        return "interrupted"
    return "failed" if code or signal else "ok"
