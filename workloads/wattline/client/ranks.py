"""Shared run of the ranks of a launched job (RANK is set).

All ranks derive the same run id from the job's identity, and try `id`, `id-2`, `id-3` … in that
order. By default torchrun names every job `none` on port 29500, so that an earlier job can have the
same id.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wattline.client import values
from wattline.client.api import Api, RejectedRequestError

JOIN_TIMEOUT_S = 60.0
_OTHERS_TIMEOUT_S = 5.0
_RETRY_S = 0.2
_START_SPREAD_S = 30.0  # longest time between the starts of a job's ranks
_IDENTITY = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
)


def is_launched(environ: Mapping[str, str]) -> bool:
    return "RANK" in environ


def is_node_leader(environ: Mapping[str, str]) -> bool:
    """Return whether this process is the first rank of its node."""
    return (environ.get("LOCAL_RANK") or environ.get("RANK", "0")) == "0"


def candidate_run_ids(environ: Mapping[str, str], workload: str, ordinal: int) -> Iterator[str]:
    """Yield the possible ids of the `ordinal`th run of this workload in the job; an earlier job may
    have the first.
    """
    launch = environ.get("TORCHELASTIC_RUN_ID", "none")
    identity = [
        "" if launch == "none" else launch,
        *(environ.get(name, "") for name in _IDENTITY),
        workload,
        str(ordinal),
    ]
    first = values.run_id_for(
        workload, hashlib.sha256("\0".join(identity).encode()).hexdigest()[:12]
    )
    yield first
    yield from (f"{first}-{n}" for n in itertools.count(2))


def process_started_at() -> float:
    """Return the start time of this process (Unix seconds), from /proc: psutil is not in the
    standard library.
    """
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def first_free_run_id(api: Api, ids: Iterator[str], started_at: float) -> str:
    """Return the run id to start this job's run with. Raises ExporterError."""
    for candidate in ids:
        run = _find(api, candidate)
        if run is None or (run["ended_at"] is None and _is_of_this_job(run, started_at)):
            return candidate
    raise AssertionError


def await_run_of_leader(
    api: Api, ids: Iterator[str], started_at: float, timeout_s: float = JOIN_TIMEOUT_S
) -> dict[str, Any] | None:
    """Wait for the run that the node's first rank starts; None after the timeout. Raises
    ExporterError.
    """
    give_up_s = time.monotonic() + timeout_s
    for candidate in ids:
        while (run := _find(api, candidate)) is None:
            if time.monotonic() > give_up_s:
                return None
            time.sleep(_RETRY_S)
        if _is_of_this_job(run, started_at):
            return run
    raise AssertionError


def _find(api: Api, candidate: str) -> dict[str, Any] | None:
    try:
        return api.get(f"/runs/{candidate}")
    except RejectedRequestError as error:
        if error.status == 404:
            return None
        raise


def _is_of_this_job(run: Mapping[str, Any], started_at: float) -> bool:
    """Return False for a run that ended before this process started, or that an earlier crash left
    open.
    """
    if run["ended_at"] is not None:
        return bool(run["ended_at"] > started_at)
    return bool(run["started_at"] > started_at - _START_SPREAD_S)


def _presence_lock(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"wattline-{os.getuid()}-{run}.lock"


@contextlib.contextmanager
def hold_presence(run: str) -> Iterator[None]:
    """Delay the end of the run by the node's first rank while this is open, so that no work is
    lost.
    """
    try:
        descriptor = os.open(
            _presence_lock(run), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except OSError:  # without a temporary folder the end is not delayed
        yield
        return
    try:
        with contextlib.suppress(BlockingIOError):  # the run is about to end
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        fcntl.flock(
            descriptor, fcntl.LOCK_UN
        )  # closing is not enough: forked children share the lock
        os.close(descriptor)


def await_other_ranks(run: str, timeout_s: float = _OTHERS_TIMEOUT_S) -> None:
    """Wait until no other rank of the node has `hold_presence` open, or until the timeout."""
    path = _presence_lock(run)
    give_up_s = time.monotonic() + timeout_s
    with contextlib.suppress(OSError):  # no file: there are no other ranks
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while time.monotonic() < give_up_s:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(_RETRY_S / 4)
            path.unlink()
        finally:
            os.close(descriptor)
