"""MPS daemon for the jobs of a plan, and MPS daemons of other programs.

A CUDA program that does not find the daemon silently runs without it, and uses any daemon that it
finds. So the daemon's list of clients is checked. A watchdog stops the daemon if the runner is
killed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from wattline.client.gpus import SMI_TIMEOUT_S
from wattline.client.messages import log_message
from wattline_workloads.mps.daemon import (
    LOG_DIRECTORY,
    PIPE_DIRECTORY,
    PROGRAM,
    MpsDaemon,
    MpsError,
    stop_abandoned_daemon,
)
from wattline_workloads.runner.watchdog import Watchdog

_USUAL_PIPES = "/tmp/nvidia-mps"  # noqa: S108  # the default of NVIDIA's programs
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class OtherDaemon:
    """MPS daemon that this program has not started."""

    pid: int
    user: str
    gpus: tuple[str, ...]
    """UUIDs of its GPUs; empty if it has all, or if the environment of its process cannot be read.
    """
    pipes: str

    def serves(self, gpus: Sequence[str]) -> bool:
        """Return whether it can serve any of the GPUs (UUIDs; empty: all)."""
        return not (gpus and self.gpus and not set(gpus) & set(self.gpus))


def list_mps_daemons(proc: Path = Path("/proc")) -> Iterator[OtherDaemon]:
    for folder in sorted(proc.iterdir()):
        if folder.name.isdecimal() and _is_daemon(folder):
            environ = _environ(folder)
            gpus = environ.get("CUDA_VISIBLE_DEVICES")
            yield OtherDaemon(
                int(folder.name),
                _owner(folder),
                tuple(gpus.split(",")) if gpus else (),
                environ.get(PIPE_DIRECTORY, _USUAL_PIPES),
            )


def interception_warning(
    environ: Mapping[str, str], gpus: Sequence[str], proc: Path = Path("/proc")
) -> str | None:
    """Return a warning if jobs with this environment on these GPUs become clients of another
    daemon.
    """
    own_pipes = environ.get(PIPE_DIRECTORY, _USUAL_PIPES)
    for other in list_mps_daemons(proc):
        if other.serves(gpus) and os.path.realpath(other.pipes) == os.path.realpath(own_pipes):
            return (
                "the jobs use MPS, although the plan sets mps: false: "
                f"the daemon of user {other.user} (pid {other.pid}) serves {other.pipes}; "
                f"stop it (echo quit | {PROGRAM}, as that user), or hide it from the jobs: "
                f"{PIPE_DIRECTORY}=/nonexistent workloads plan …"
            )
    return None


def _is_daemon(folder: Path) -> bool:
    """Return whether the process is a daemon, not a client that sends commands to one."""
    try:
        program, *arguments = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:  # the process has just ended
        return False
    return Path(os.fsdecode(program)).name == PROGRAM and bool({b"-d", b"-f"} & set(arguments))


def _environ(folder: Path) -> dict[str, str]:
    with contextlib.suppress(OSError):
        entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return {}


def _owner(folder: Path) -> str:
    try:
        return pwd.getpwuid(folder.stat().st_uid).pw_name
    except (KeyError, OSError):
        return "unknown"


@dataclass(slots=True)
class MpsSession:
    """Running daemon; created by `run_mps_daemon`."""

    _daemon: MpsDaemon
    _verified: set[int] = field(default_factory=set)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a job a client of the daemon."""
        return {name: self._daemon.environ[name] for name in (PIPE_DIRECTORY, LOG_DIRECTORY)}

    def verify(self, pids: Iterable[int], within_s: float = 30.0) -> None:
        """Wait until each process or one of its descendants is a client, which it becomes by its
        first CUDA call.

        Raises MpsError if a process ends before or is no client after `within_s`.
        """
        wanted = set(pids)
        give_up_s = time.monotonic() + within_s
        while True:
            clients = self._daemon.clients()
            self._verified |= {pid for pid in wanted if _process_tree(pid) & clients}
            missing = sorted(wanted - self._verified)
            if not missing:
                return
            gone = [pid for pid in missing if not _process_tree(pid)]
            if gone:
                raise MpsError(
                    f"process {gone[0]} ended before it became a client of MPS; see its output.log"
                )
            if time.monotonic() > give_up_s:
                raise self._not_attached(missing, within_s)
            time.sleep(_POLL_S)

    def _not_attached(self, missing: Sequence[int], within_s: float) -> MpsError:
        numbers = ", ".join(map(str, missing))
        state = (
            f"process {numbers} is not an MPS client"
            if len(missing) == 1
            else f"processes {numbers} are not MPS clients"
        )
        log_line = self._daemon.last_log_line("server.log") or self._daemon.last_log_line(
            "control.log"
        )
        hint = _compute_mode_hint()
        return MpsError(
            f"{state} after {within_s:g} s: "
            "a client must use CUDA on the daemon's GPUs, as the same user and in the same "
            "container"
            f"{hint}; last log line in {self._daemon.log_folder}: {log_line or 'none'}"
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
    """Run a daemon for `gpus` (UUIDs; empty: all) and stop it at the end; keep its logs in
    `folder`.

    Raises MpsError, also if a process of the daemon remains at the end.
    """
    _reject_second_daemon(proc, gpus)
    daemon = _daemon(folder, environ, gpus)
    left: list[int] = []
    with _watched(daemon):
        try:
            _start(daemon)
            yield MpsSession(daemon)
        finally:
            left = daemon.stop(stop_within_s)
            if left:
                log_message(_remaining_text(left))
    if left:
        raise MpsError(_remaining_text(left))


def _remaining_text(pids: Sequence[int]) -> str:
    numbers = " ".join(map(str, pids))
    return f"cannot stop processes of the MPS daemon: {numbers}; kill them: kill -9 {numbers}"


def _daemon(folder: Path, environ: Mapping[str, str], gpus: Sequence[str]) -> MpsDaemon:
    """Create the folders. The pipe folder is in /tmp, since the path of a socket has at most 107
    bytes.
    """
    try:
        logs = folder.absolute() / "mps"
        logs.mkdir(parents=True, exist_ok=True)
        pipes = tempfile.mkdtemp(prefix="wattline-mps-", dir="/tmp")
    except OSError as error:
        raise MpsError(
            f"cannot create a folder for MPS: {error.filename}: {error.strerror}; set another --out"
        ) from error
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
    """Run a watchdog that stops the daemon if this process is killed."""
    watchdog = Watchdog(stop_abandoned_daemon, [daemon.mark], daemon.environ)
    try:
        yield
    finally:
        if not daemon.processes():  # a second Ctrl-C may have interrupted the stop
            watchdog.report_normal_end()
        watchdog.close()


def _reject_second_daemon(proc: Path, gpus: Sequence[str]) -> None:
    """Raise MpsError if another daemon serves these GPUs: two daemons on one GPU take turns."""
    for other in list_mps_daemons(proc):
        if other.serves(gpus):
            raise MpsError(
                f"cannot start MPS: a daemon of user {other.user} is already running (pid "
                f"{other.pid}) on these GPUs; "
                f"stop it (echo quit | {PROGRAM}, as that user), or choose other GPUs by UUID"
            )


def _process_tree(pid: int) -> set[int]:
    """Return the pids of the process and its descendants; empty after its end."""
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
            query,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if "Prohibited" in done.stdout:
        return "; a GPU is in compute mode Prohibited: sudo nvidia-smi -c DEFAULT"
    if "Exclusive_Process" in done.stdout:
        return (
            "; a GPU is in compute mode Exclusive_Process, for one process only: stop its "
            "other processes"
        )
    return ""
