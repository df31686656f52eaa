"""Parent-death watchdog: a process that acts when its parent ends, even by SIGKILL.

A parent starts it with an action: a function `action(parent, *arguments)` that returns the exit
code. Only the standard library is imported here, to keep the process small.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_NORMAL_END = "normal end"
_READY = b"ready\n"
_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>; it outlives execve


def _program() -> list[str]:
    """Return the command of this module; a job imports it before it checks that no file hides the
    package exporter.
    """
    from wattline.command_line import module_command

    return module_command("wattline_workloads.runner.watchdog")


def started_ticks(pid: int) -> int | None:
    """Return the start time in clock ticks since boot; None if the process has ended (or is a
    zombie).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of a process of this container, unique over reused pids."""

    pid: int
    started_ticks: int

    @classmethod
    def this_process(cls) -> ProcessIdentity:
        return cls(os.getpid(), started_ticks(os.getpid()) or 0)

    @property
    def is_alive(self) -> bool:
        return started_ticks(self.pid) == self.started_ticks

    def await_end(self, pipe: int | None = None) -> bytes:
        """Wait for the end of the process, or of the pipe if there is one; return the content of
        the pipe.
        """
        content = b""
        pidfd = self._open_pidfd()
        events = [descriptor for descriptor in (pipe, pidfd) if descriptor is not None]
        if pipe is not None:
            os.set_blocking(pipe, False)
        try:
            while True:
                has_ended = not self.is_alive
                select.select(
                    events, [], [], 0 if has_ended else _POLL_S if pidfd is None else None
                )
                chunk = _read_available(pipe)
                content += chunk or b""
                if chunk == b"" or (has_ended and chunk is None):
                    return content
        finally:
            if pidfd is not None:
                os.close(pidfd)

    def _open_pidfd(self) -> int | None:
        """Return None for an ended process, and for a kernel or a sandbox without pidfds."""
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            return None


def _read_available(pipe: int | None) -> bytes | None:
    """Return None if the pipe, or the absent pipe, has no content now."""
    try:
        return None if pipe is None else os.read(pipe, 4096)
    except BlockingIOError:
        return None


class Watchdog:
    """Watchdog process in a separate session, from the view of its parent.

    The action gets the messages that `send` wrote before the parent's end.
    """

    def __init__(
        self,
        action: Callable[..., int],
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        launcher: Sequence[str] = (),
        log: IO[bytes] | None = None,
    ) -> None:
        parent = ProcessIdentity.this_process()
        identity = f"{parent.pid}:{parent.started_ticks}"
        name = f"{action.__module__}:{action.__qualname__}"
        self._process = subprocess.Popen(
            [*launcher, *_program(), "watch", identity, name, *arguments],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def is_ready(self, within_s: float) -> bool:
        """Return whether the action reports that it is prepared; kill the watchdog after the
        timeout.
        """
        assert self._process.stdout is not None
        if (
            select.select([self._process.stdout], [], [], within_s)[0]
            and self._process.stdout.readline() == _READY
        ):
            return True
        self._process.kill()
        self.close()
        return False

    def send(self, message: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the watchdog was killed
            self._process.stdin.write(f"{message}\n".encode())
            self._process.stdin.flush()

    def report_normal_end(self) -> None:
        """Report that the parent has cleaned up. The action learns it from
        `WatchedParent.await_end`.
        """
        self.send(_NORMAL_END)

    def close(self, within_s: float | None = None) -> int:
        """Close the pipe, wait for the action and return its exit code; kill the watchdog after
        `within_s`.
        """
        try:
            self._process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        return self._process.returncode


class WatchedParent:
    """Parent of a watchdog, from the view of its action."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self._identity = identity

    def report_ready(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent has ended
            os.write(sys.stdout.fileno(), _READY)

    def await_end(self) -> list[str] | None:
        """Wait until the parent or its pipe ends; return its messages, or None if it reported a
        normal end.
        """
        messages = self._identity.await_end(sys.stdin.fileno()).decode().splitlines()
        return None if _NORMAL_END in messages else messages


def terminated_with_parent(command: Sequence[str]) -> list[str]:
    """Return `command` such that it gets SIGTERM when this process ends; start it in the main
    thread.
    """
    return [*_program(), "execute", str(os.getpid()), *command]


def _watch(identity: str, action: str, *arguments: str) -> int:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
    ):  # it ends only after its parent
        signal.signal(number, signal.SIG_IGN)
    pid, ticks = map(int, identity.split(":"))
    module, _, function = action.partition(":")
    act: Callable[..., int] = getattr(importlib.import_module(module), function)
    return act(WatchedParent(ProcessIdentity(pid, ticks)), *arguments)


def _execute(parent: str, *command: str) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(parent):  # else it has ended before this call
        os.execvp(command[0], command)  # noqa: S606  # no shell is wanted
    return 0


def main(arguments: Sequence[str]) -> int:
    mode, *rest = arguments
    return _watch(*rest) if mode == "watch" else _execute(*rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
