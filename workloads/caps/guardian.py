"""Guardian process that restores power limits and clocks when their holder ends.

`python -m workloads.caps.guardian JOURNAL` is started before the first change and survives a killed holder.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from workloads.caps import journal as caps_journal
from workloads.caps.gpu_set import CapsError
from workloads.caps.journal import Holder
from workloads.caps.open_gpus import open_journal_gpus
from workloads.runner import shadow_check as shadow

READY = b"ready\n"
_READY_WITHIN_S = 30.0
_ENDS_WITHIN_S = 20.0
_ATTEMPTS, _RETRY_S = 5, 2.0
_POLL_S = 0.2
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h
_BATCH_SYSTEMS = {"SLURM_JOB_ID": "Slurm", "PBS_JOBID": "PBS", "LSB_JOBID": "LSF", "SGE_TASK_ID": "Grid Engine"}


class _TerminatedError(Exception):
    pass


def start_guardian(
    journal: Path, environ: Mapping[str, str], booted_by_systemd: Path = Path("/run/systemd/system")
) -> Guardian:
    """Start a guardian in a separate session and, with systemd, in a separate cgroup. Raises CapsError."""
    plain = [sys.executable, "-P", "-m", "workloads.caps.guardian", str(journal)]
    commands = [plain]
    if booted_by_systemd.is_dir():  # sd_booted(3)
        commands.insert(0, [*_scope(journal), *plain])
    log_path = journal.with_name(caps_journal.LOG_FILE)
    for command in commands:
        with contextlib.suppress(FileNotFoundError), log_path.open("ab") as log:
            process = subprocess.Popen(
                command,
                env=dict(environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
            if _is_ready(process):
                return Guardian(process)
    raise CapsError(f"no cap set: cannot start the guardian process that restores the limits; see {log_path}")


class Guardian:
    """Guardian process, from the view of its holder."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def dismiss(self) -> None:
        """Terminate the guardian; it restores its journal first, if that still exists."""
        self._process.terminate()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def survival_warning(
    guardian_pid: int, folder: Path, environ: Mapping[str, str], proc: Path = Path("/proc")
) -> str | None:
    """Return a warning if the guardian can be killed together with its holder; `folder` has the journal."""
    restore_command = f"XDG_STATE_HOME={folder.absolute().parents[1]} workloads caps restore"
    shares_cgroup = (proc / "self" / "cgroup").read_text() == (proc / str(guardian_pid) / "cgroup").read_text()
    system = next((name for variable, name in _BATCH_SYSTEMS.items() if variable in environ), None)
    if system and shares_cgroup:
        return (
            f"{system} kills the guardian with the job, so the caps of a killed job stay set; call this in the epilog: "
            f"{restore_command}"
        )
    if (proc / "self" / "ns" / "pid").readlink() != Path(_INITIAL_PID_NAMESPACE):
        return (
            f"the guardian ends with this container, so the caps of a killed container stay set; keep "
            f"{folder.absolute()} on a volume and call where it is mounted: {restore_command}"
        )
    return None


def _scope(journal: Path) -> Sequence[str]:
    of_user = () if os.geteuid() == 0 else ("--user",)
    return ["systemd-run", "--scope", "--quiet", "--collect", *of_user, f"--unit=wattline-caps-{journal.stem}"]


def _is_ready(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the guardian is ready; kill it after the timeout."""
    assert process.stdout is not None
    with process.stdout as output:
        if select.select([output], [], [], _READY_WITHIN_S)[0] and output.read(len(READY)) == READY:
            return True
    process.kill()
    process.wait()
    return False


def _await_end(holder: Holder) -> None:
    try:
        watched = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel, or a sandbox, without pidfds
        while holder.is_alive:
            time.sleep(_POLL_S)
        return
    if holder.is_alive:
        select.select([watched], [], [])
    os.close(watched)


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}", file=sys.stderr, flush=True)


def _restore(path: Path, attempts: int) -> bool:
    for attempt in range(1, attempts + 1):
        with caps_journal.lock_journals(path.parent):
            if caps_journal.restore_journal(path, open_journal_gpus, _log):
                return True
        if attempt < attempts:
            time.sleep(_RETRY_S)
    _log(f"cannot restore {path}; try workloads caps restore")
    return False


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminatedError


def main(arguments: Sequence[str]) -> int:
    shadow.exit_if_shadowed()
    path = Path(arguments[0])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        journal = caps_journal.read_journal(path)
        with contextlib.closing(open_journal_gpus(journal)):  # keeps the driver loaded, which would reset the limits
            attempts = 1  # the process that terminates the guardian waits for it
            with contextlib.suppress(_TerminatedError):
                signal.signal(signal.SIGTERM, _terminate)
                os.write(sys.stdout.fileno(), READY)
                _await_end(journal.holder)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                attempts = _ATTEMPTS
            return 0 if _restore(path, attempts) else 1
    except (CapsError, FileNotFoundError) as error:
        _log(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
