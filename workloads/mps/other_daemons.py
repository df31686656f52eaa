"""MPS daemons that somebody else has started, as /proc shows them: CUDA programs that find one use it, unasked."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads.mps.daemon import PIPE_DIRECTORY, PROGRAM

_USUAL_PIPES = "/tmp/nvidia-mps"  # noqa: S108  # where NVIDIA's own look


@dataclass(frozen=True, slots=True)
class OtherDaemon:
    pid: int
    user: str
    gpus: tuple[str, ...]
    """Empty where it may have all, or another user's daemon does not say."""
    pipes: str

    def serves(self, gpus: Sequence[str]) -> bool:
        """Whether any of the GPUs (UUIDs; none are all) may be one of its own."""
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
    """What is to be said where jobs with this environment, on these GPUs, become clients of a daemon by themselves."""
    ours = environ.get(PIPE_DIRECTORY, _USUAL_PIPES)
    for other in list_mps_daemons(proc):
        if other.serves(gpus) and os.path.realpath(other.pipes) == os.path.realpath(ours):
            return (
                f"not without MPS, though the plan says so: a daemon of user {other.user} (pid {other.pid}) serves "
                f"{other.pipes}, and CUDA programs that find it there use it; end it (echo quit | {PROGRAM}, as that "
                f"user), or hide it from the jobs: {PIPE_DIRECTORY}=/nonexistent workloads plan …"
            )
    return None


def _is_daemon(folder: Path) -> bool:
    """And not the program that asks one."""
    try:
        program, *arguments = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has just ended
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
