"""Watchdog that restores power limits and clocks when their holder ends, even by SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from wattline_workloads.caps import journal as caps_journal
from wattline_workloads.caps.gpu_set import CapsError
from wattline_workloads.caps.journal import open_journal_gpus
from wattline_workloads.runner.watchdog import Watchdog, WatchedParent

ENDS_WITHIN_S = 20.0
_READY_WITHIN_S = 30.0
_ATTEMPTS = 5
_RETRY_S = 2.0
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h
_BATCH_SYSTEMS = {
    "SLURM_JOB_ID": "Slurm",
    "PBS_JOBID": "PBS",
    "LSB_JOBID": "LSF",
    "SGE_TASK_ID": "Grid Engine",
}


class _TerminatedError(Exception):
    pass


def start_caps_watchdog(
    journal: Path, environ: Mapping[str, str], booted_by_systemd: Path = Path("/run/systemd/system")
) -> Watchdog:
    """Start the watchdog before the first change; with systemd, in a separate cgroup. Raises
    CapsError.
    """
    launchers: list[Sequence[str]] = [()]
    if booted_by_systemd.is_dir():  # sd_booted(3)
        launchers.insert(0, _scope(journal))
    log_path = journal.with_name(caps_journal.LOG_FILE)
    for launcher in launchers:
        with contextlib.suppress(FileNotFoundError), log_path.open("ab") as log:
            watchdog = Watchdog(
                restore_abandoned_caps, [str(journal)], environ, launcher=launcher, log=log
            )
            if watchdog.is_ready(_READY_WITHIN_S):
                return watchdog
    raise CapsError(
        f"no cap set: cannot start the watchdog process that restores the limits; see {log_path}"
    )


def survival_warning(
    watchdog_pid: int, folder: Path, environ: Mapping[str, str], proc: Path = Path("/proc")
) -> str | None:
    """Return a warning if the watchdog can be killed together with its holder; `folder` has the
    journal.
    """
    restore_command = f"XDG_STATE_HOME={folder.absolute().parents[1]} workloads caps restore"
    shares_cgroup = (proc / "self" / "cgroup").read_text() == (
        proc / str(watchdog_pid) / "cgroup"
    ).read_text()
    system = next((name for variable, name in _BATCH_SYSTEMS.items() if variable in environ), None)
    if system and shares_cgroup:
        return (
            f"{system} kills the watchdog with the job, so the caps of a killed job stay set; call "
            "this in the epilog: "
            f"{restore_command}"
        )
    if (proc / "self" / "ns" / "pid").readlink() != Path(_INITIAL_PID_NAMESPACE):
        return (
            "the watchdog ends with this container, so the caps of a killed container stay set; "
            "keep "
            f"{folder.absolute()} on a volume and call where it is mounted: {restore_command}"
        )
    return None


def _scope(journal: Path) -> Sequence[str]:
    of_user = () if os.geteuid() == 0 else ("--user",)
    return [
        "systemd-run",
        "--scope",
        "--quiet",
        "--collect",
        *of_user,
        f"--unit=wattline-caps-{journal.stem}",
    ]


def restore_abandoned_caps(parent: WatchedParent, journal: str) -> int:
    """Restore the limits of `journal` if it exists at the end of the parent, or when terminated."""
    path = Path(journal).absolute()
    os.chdir("/")  # keeps no file system busy
    try:
        gpus = open_journal_gpus(caps_journal.read_journal(path))
        with contextlib.closing(gpus):  # keeps the driver loaded, which would reset the limits
            attempts = 1  # after a normal end or SIGTERM, a process waits for this one
            with contextlib.suppress(_TerminatedError):
                signal.signal(signal.SIGTERM, _terminate)
                parent.report_ready()
                is_normal_end = parent.await_end() is None
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                attempts = 1 if is_normal_end else _ATTEMPTS
            return 0 if _restore(path, attempts) else 1
    except (CapsError, FileNotFoundError) as error:
        _log(str(error))
        return 1


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminatedError


def _restore(path: Path, attempts: int) -> bool:
    for attempt in range(1, attempts + 1):
        with caps_journal.lock_journals(path.parent):
            if caps_journal.restore_journal(path, open_journal_gpus, _log):
                return True
        if attempt < attempts:
            time.sleep(_RETRY_S)
    _log(f"cannot restore {path}; try workloads caps restore")
    return False


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}", file=sys.stderr, flush=True)
