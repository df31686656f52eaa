"""MPS daemons of other programs, found in /proc.

CUDA programs that find a daemon use it without being configured to.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads.mps.daemon import PIPE_DIRECTORY, PROGRAM

_USUAL_PIPES = "/tmp/nvidia-mps"  # noqa: S108  # the default of NVIDIA's programs


@dataclass(frozen=True, slots=True)
class OtherDaemon:
    """MPS daemon that this program has not started."""

    pid: int
    user: str
    gpus: tuple[str, ...]
    """UUIDs of its GPUs; empty if it has all, or if the environment of its process cannot be read."""
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


def interception_warning(environ: Mapping[str, str], gpus: Sequence[str], proc: Path = Path("/proc")) -> str | None:
    """Return a warning if jobs with this environment on these GPUs become clients of another daemon."""
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
