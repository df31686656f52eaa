"""A job of several processes under a launcher (RANK is set): who begins the run, and how the others find it.

All processes derive the same run id from the job's identity, and try `id`, `id-2`, `id-3` … in that order: torchrun
calls every job `none` on port 29500 unless told otherwise, so the id may be that of an earlier job.
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

from workloads.client import values
from workloads.client.api import Api, RefusedError

JOIN_TIMEOUT_S = 60.0
_OTHERS_TIMEOUT_S = 5.0
_RETRY_S = 0.2
_START_SPREAD_S = 30.0  # the ranks of one job start within this
_IDENTITY = ("SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")


def is_launched(environ: Mapping[str, str]) -> bool:
    return "RANK" in environ


def leads(environ: Mapping[str, str]) -> bool:
    """Whether this process is the node's first."""
    return (environ.get("LOCAL_RANK") or environ.get("RANK", "0")) == "0"


def candidates(environ: Mapping[str, str], workload: str, ordinal: int) -> Iterator[str]:
    """The run ids of the `ordinal`th run of this workload in the job, an earlier job's possibly first."""
    launch = environ.get("TORCHELASTIC_RUN_ID", "none")
    identity = [
        "" if launch == "none" else launch,
        *(environ.get(name, "") for name in _IDENTITY),
        workload,
        str(ordinal),
    ]
    first = values.named(workload, hashlib.sha256("\0".join(identity).encode()).hexdigest()[:12])
    yield first
    yield from (f"{first}-{n}" for n in itertools.count(2))


def process_started_at() -> float:
    """Unix seconds, from /proc."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def first_free(api: Api, ids: Iterator[str], started_at: float) -> str:
    """The id under which this job's run is to begin; ExporterError where the exporter cannot tell."""
    for candidate in ids:
        run = _find(api, candidate)
        if run is None or (run["ended_at"] is None and _is_of_this_job(run, started_at)):
            return candidate
    raise AssertionError


def await_run(
    api: Api, ids: Iterator[str], started_at: float, timeout_s: float = JOIN_TIMEOUT_S
) -> dict[str, Any] | None:
    """The run that the node's first process has begun, or will; None after the timeout."""
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
    except RefusedError as error:
        if error.status == 404:
            return None
        raise


def _is_of_this_job(run: Mapping[str, Any], started_at: float) -> bool:
    """An earlier job's run ended before this process began, or has been left open by a crash long before."""
    if run["ended_at"] is not None:
        return bool(run["ended_at"] > started_at)
    return bool(run["started_at"] > started_at - _START_SPREAD_S)


def _presence(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"wattline-{os.getuid()}-{run}.lock"


@contextlib.contextmanager
def present(run: str) -> Iterator[None]:
    """While this is open, the node's first process waits with the run's end, so that no rank's last work is lost."""
    try:
        descriptor = os.open(_presence(run), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:  # without a folder for temporary files the end does not wait
        yield
        return
    try:
        with contextlib.suppress(BlockingIOError):  # the end is under way
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would not do: forked children share the lock
        os.close(descriptor)


def await_others(run: str, timeout_s: float = _OTHERS_TIMEOUT_S) -> None:
    """Return once no other process of the node is `present`, or after the timeout."""
    path = _presence(run)
    give_up_s = time.monotonic() + timeout_s
    with contextlib.suppress(OSError):  # no file: nobody came
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
