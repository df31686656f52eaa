"""NVIDIA's Nsight Systems around a job: its report, and the tables that `nsys stats` draws from it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from workloads.client.messages import say

PROGRAM = "nsys"
FOLDER = "nsys"
_REPORT = "report"
_STATS_TIMEOUT_S = 900.0


class NsysError(Exception):
    """One line: the cause and the next step."""


def require() -> None:
    """Raises NsysError where it is not installed."""
    if shutil.which(PROGRAM) is None:
        raise NsysError(
            f"--nsys needs Nsight Systems, and there is no {PROGRAM} on PATH; it comes with the CUDA toolkit and by "
            "itself (package nsight-systems); or leave --nsys out"
        )


def wrapped(command: Sequence[str], folder: Path) -> list[str]:
    """Raises NsysError. The exit code is the command's own."""
    require()
    (folder / FOLDER).mkdir()
    options = ["--trace=cuda,nvtx,osrt", f"--output={folder / FOLDER / _REPORT}"]
    return [PROGRAM, "profile", *options, *command]


def keep_stats(folder: Path) -> list[Path]:
    """A JSON file for each of this version's default tables, beside the report. Raises NsysError."""
    report = folder / FOLDER / f"{_REPORT}.nsys-rep"
    if not report.exists():
        raise NsysError(f"nsys has left no {report}; what it said is above")
    command = [PROGRAM, "stats", "--format", "json", "--output", str(folder / FOLDER / "stats"), str(report)]
    again = f"the report is kept; try again: {shlex.join(command)}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_STATS_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NsysError(f"nsys stats fails: {error}; {again}") from error
    tables = sorted((folder / FOLDER).glob("stats*.json"))
    if done.returncode != 0 or not tables:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NsysError(f"nsys stats fails: {said[-1] if said else f'exit code {done.returncode}'}; {again}")
    return tables


def keep_stats_and_say(folder: Path) -> None:
    """Once the run has ended, as it works for a while and is no part of it."""
    try:
        tables = keep_stats(folder)
    except NsysError as error:
        say(str(error))
    else:
        say(f"nsys: its report and {len(tables)} tables are in {tables[0].parent}")
