"""Profile of a job with NVIDIA Nsight Systems: its report and the tables of `nsys stats`."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from wattline.client.messages import log_message

PROGRAM = "nsys"
FOLDER = "nsys"
_REPORT = "report"
_STATS_TIMEOUT_S = 900.0


class NsysError(Exception):
    """Error with a one-line message: the cause and the remedy."""


def require_nsys() -> None:
    """Raise NsysError if Nsight Systems is not installed."""
    if shutil.which(PROGRAM) is None:
        raise NsysError(
            f"cannot profile: {PROGRAM} is not on PATH; install the CUDA toolkit or the package "
            "nsight-systems, or "
            "omit --nsys"
        )


def wrap_in_nsys(command: Sequence[str], folder: Path) -> list[str]:
    """Return `command` under nsys, which passes its exit code on. Raises NsysError."""
    require_nsys()
    (folder / FOLDER).mkdir()
    options = ["--trace=cuda,nvtx,osrt", f"--output={folder / FOLDER / _REPORT}"]
    return [PROGRAM, "profile", *options, *command]


def write_nsys_tables(folder: Path) -> list[Path]:
    """Write a JSON file per default table next to the report. Raises NsysError."""
    report = folder / FOLDER / f"{_REPORT}.nsys-rep"
    if not report.exists():
        raise NsysError(f"nsys wrote no {report}; see its messages above")
    command = [
        PROGRAM,
        "stats",
        "--format",
        "json",
        "--output",
        str(folder / FOLDER / "stats"),
        str(report),
    ]
    again = f"the report is kept, try again: {shlex.join(command)}"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_STATS_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NsysError(f"nsys stats failed: {error}; {again}") from error
    tables = sorted((folder / FOLDER).glob("stats*.json"))
    if done.returncode != 0 or not tables:
        output = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        reason = f"exit code {done.returncode}" if done.returncode else "it wrote no table"
        raise NsysError(f"nsys stats failed: {output[-1] if output else reason}; {again}")
    return tables


def write_and_log_nsys_tables(folder: Path) -> None:
    """Write the tables and log the result. Call it after the end of the run: it takes time that is
    not the job's.
    """
    try:
        tables = write_nsys_tables(folder)
    except NsysError as error:
        log_message(str(error))
    else:
        log_message(f"nsys: report and {len(tables)} tables are in {tables[0].parent}")
