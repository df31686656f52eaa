"""Barrier of files, by which the tenants of a plan start to measure together.

It imports only the standard library. The plan's runner creates the folder; the file
`ABANDONED` in it means that a tenant failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = "WATTLINE_BARRIER"
"""`FOLDER:COUNT:SECONDS`: the number of tenants, and the longest time that the first waits for the
last.
"""
ABANDONED = "abandoned"
_RUNNER = "runner"
_POLL_S = 0.005


class BarrierError(RuntimeError):
    """Barrier that the other tenants did not reach; a one-line message with the remedy."""


@contextlib.contextmanager
def hold_runner_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the plan's runner. The kernel releases it when the runner ends, even if it
    is killed.
    """
    with (folder / _RUNNER).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_runner_gone(folder: Path) -> bool:
    try:
        with (folder / _RUNNER).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (
        BlockingIOError,
        FileNotFoundError,
    ):  # no lock file: the folder was created by another program
        return False
    return True


def await_all_tenants(environ: Mapping[str, str], *, is_counted: bool = True) -> None:
    """Wait until all tenants are ready; return at once without a barrier. Raises BarrierError.

    Only one process per tenant has `is_counted` set.
    """
    text = environ.get(FOLDER)
    if not text:
        return
    name, count, seconds = text.rsplit(":", 2)
    folder = Path(name)
    give_up_s = time.monotonic() + float(seconds)
    try:
        if is_counted:
            (folder / f"ready-{os.getpid()}").touch()
        _await(folder, int(count), give_up_s, float(seconds))
    except OSError as error:
        raise BarrierError(
            f"cannot read barrier folder {folder}: {error.strerror}; start the plan again"
        ) from error


def _await(folder: Path, count: int, give_up_s: float, seconds: float) -> None:
    while True:
        present = {path.name for path in folder.iterdir()}
        if ABANDONED in present:
            raise BarrierError(
                "tenant not started: another tenant failed before all were ready; see its "
                "output.log"
            )
        if _is_runner_gone(folder):
            raise BarrierError(
                "tenant not started: the plan's runner ended before all were ready; start the plan "
                "again"
            )
        ready = sum(name.startswith("ready-") for name in present)
        if ready >= count:
            return
        if time.monotonic() > give_up_s:
            (
                folder / ABANDONED
            ).touch()  # otherwise a late tenant would find all ready and start alone
            raise BarrierError(
                f"tenants not started: {ready} of {count} were ready within {seconds:g} s; "
                "increase "
                "barrier_timeout_seconds"
            )
        time.sleep(_POLL_S)
