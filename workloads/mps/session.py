"""NVIDIA's Multi-Process Service for several jobs on one GPU: a daemon of our own, and the proof that they use it.

A CUDA program that does not find the daemon runs without it and says nothing; so the daemon is asked who its clients
are. A watcher (`workloads.mps.watcher`) ends the daemon where the runner cannot any more.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from workloads.client.messages import log_message
from workloads.mps import other_daemons as mps_others
from workloads.mps import watcher as mps_watcher
from workloads.mps.daemon import LOG_DIRECTORY, PIPE_DIRECTORY, PROGRAM, MpsDaemon, MpsError

_POLL_S = 0.2
_SMI_TIMEOUT_S = 20


@dataclass(slots=True)
class MpsSession:
    """A daemon that runs; made by `started`."""

    _daemon: MpsDaemon
    _seen: set[int] = field(default_factory=set)

    @property
    def environment(self) -> dict[str, str]:
        """What a job needs, beside its own, to be a client."""
        return {name: self._daemon.environ[name] for name in (PIPE_DIRECTORY, LOG_DIRECTORY)}

    def verify(self, pids: Iterable[int], within_s: float = 30.0) -> None:
        """Return once each process, or one that it has started, is a client; it becomes one with its first CUDA call.

        Raises MpsError where one is not, or ends before.
        """
        wanted = set(pids)
        give_up_s = time.monotonic() + within_s
        while True:
            clients = self._daemon.clients()
            self._seen |= {pid for pid in wanted if _family(pid) & clients}
            missing = sorted(wanted - self._seen)
            if not missing:
                return
            gone = [pid for pid in missing if not _family(pid)]
            if gone:
                raise MpsError(f"process {gone[0]} has ended without ever having been a client of MPS")
            if time.monotonic() > give_up_s:
                raise self._not_attached(missing, within_s)
            time.sleep(_POLL_S)

    def _not_attached(self, missing: Sequence[int], within_s: float) -> MpsError:
        numbers = ", ".join(map(str, missing))
        who = f"process {numbers} is no client" if len(missing) == 1 else f"processes {numbers} are no clients"
        said = self._daemon.last_log_line("server.log") or self._daemon.last_log_line("control.log")
        hint = _compute_mode_hint()
        return MpsError(
            f"{who} of the MPS daemon after {within_s:g} s, so this is no run under MPS; a client uses CUDA, on the "
            f"daemon's GPUs, and is of the same user and container{hint}; the log in {self._daemon.log_folder} ends "
            f"with: {said or 'nothing'}"
        )


@contextlib.contextmanager
def run_mps_daemon(
    folder: Path,
    environ: Mapping[str, str],
    gpus: Sequence[str] = (),
    *,
    stop_within_s: float = 10.0,
    proc: Path = Path("/proc"),
) -> Iterator[MpsSession]:
    """A daemon for `gpus`, gone afterwards; its logs stay in `folder`. `gpus` are UUIDs, as under MPS indices are
    counted anew; none are all.

    Raises MpsError, also where a process of the daemon's is left at the end.
    """
    _refuse_beside_another(proc, gpus)
    daemon = _daemon(folder, environ, gpus)
    left: list[int] = []
    with _watched(daemon):
        try:
            _start(daemon)
            yield MpsSession(daemon)
        finally:
            left = daemon.stop(stop_within_s)
            if left:
                log_message(f"MPS is still there: {_left(left)}")
    if left:
        raise MpsError(_left(left))


def _left(pids: Sequence[int]) -> str:
    numbers = " ".join(map(str, pids))
    return f"processes of the MPS daemon cannot be ended: {numbers}; end them: kill -9 {numbers}"


def _daemon(folder: Path, environ: Mapping[str, str], gpus: Sequence[str]) -> MpsDaemon:
    """The pipe folder is in /tmp, whatever TMPDIR says: the path of a socket is of 107 bytes at most."""
    try:
        logs = folder.absolute() / "mps"
        logs.mkdir(parents=True, exist_ok=True)
        pipes = tempfile.mkdtemp(prefix="wattline-mps-", dir="/tmp")
    except OSError as error:
        raise MpsError(f"MPS needs a folder: {error.filename}: {error.strerror}") from error
    added = {PIPE_DIRECTORY: pipes, LOG_DIRECTORY: str(logs)}
    if gpus:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return MpsDaemon({**environ, **added}, secrets.token_hex(8))


def _start(daemon: MpsDaemon) -> None:
    try:
        daemon.start()
    except MpsError as error:
        raise MpsError(f"{error}{_compute_mode_hint()}") from error


@contextlib.contextmanager
def _watched(daemon: MpsDaemon) -> Iterator[None]:
    """From before the daemon's start to after its end; in a session of its own, which no Ctrl-C reaches."""
    watcher = subprocess.Popen(
        [sys.executable, "-P", "-m", mps_watcher.__name__, daemon.mark],
        env=dict(daemon.environ),
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        word = b"" if daemon.processes() else mps_watcher.DISMISSED  # a second Ctrl-C may have cut the stop short
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            watcher.communicate(word)


def _refuse_beside_another(proc: Path, gpus: Sequence[str]) -> None:
    """Two daemons on one GPU take turns, which is no MPS; on other GPUs they may be."""
    for other in mps_others.list_mps_daemons(proc):
        if other.serves(gpus):
            raise MpsError(
                f"an MPS daemon of user {other.user} is already running (pid {other.pid}), and two cannot share "
                f"a GPU; end it (echo quit | {PROGRAM}, as that user), or give GPUs by UUID that it does not serve"
            )


def _family(pid: int) -> set[int]:
    """The process and all that it has started; empty once it has ended."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return set()
        return {pid, *(child.pid for child in process.children(recursive=True))}
    except psutil.Error:
        return set()


def _compute_mode_hint() -> str:
    query = ["nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, env=dict(os.environ), capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if "Prohibited" in done.stdout:
        return "; a GPU is in compute mode Prohibited: sudo nvidia-smi -c DEFAULT"
    if "Exclusive_Process" in done.stdout:
        return (
            "; a GPU is in compute mode Exclusive_Process, where one process alone may use it: end what else is on it"
        )
    return ""
