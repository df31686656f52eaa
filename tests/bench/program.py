"""Program under test in its own process group: resources, and proof that no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

STOPS_WITHIN_S = 8.0


class ProgramError(Exception):
    """The program ended or did not respond; the text has its last line."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of all processes: proportional (shared pages divided among their users) and
    resident.
    """

    pss_bytes: int
    rss_bytes: int


class Program:
    """Program that starts immediately; its context stops it and all processes that it started."""

    def __init__(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def terminate(self) -> None:
        """Send SIGTERM without waiting."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def __exit__(self, *_: object) -> None:
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOPS_WITHIN_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def lines(self) -> list[str]:
        """Return the output so far."""
        return self._out.read_text(errors="replace").splitlines()

    def trouble(self) -> str:
        """Return its exit status and last line."""
        last_line = [
            line for line in self._err.read_text(errors="replace").splitlines() if line.strip()
        ]
        return (
            f"{self.name} ended with {self.code}: "
            f"{last_line[-1].strip() if last_line else 'no output'}"
        )

    def until(self, is_done: Callable[[], bool], within_s: float) -> None:
        """Wait for `done`; raise ProgramError if the program ends first or the wait takes too
        long.
        """
        end_s = time.monotonic() + within_s
        while not is_done():
            if self.code is not None:
                raise ProgramError(self.trouble())
            if time.monotonic() > end_s:
                raise ProgramError(f"{self.name} was not ready after {within_s:.0f} s")
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        try:
            leader = psutil.Process(self._process.pid)
            return [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess as error:
            raise ProgramError(self.trouble()) from error

    def cpu_s(self) -> dict[int, float]:
        """Return user and system time of each process so far, by PID."""
        times = {process.pid: process.cpu_times() for process in self.processes()}
        return {pid: spent.user + spent.system for pid, spent in times.items()}

    def cpu_precise_s(self) -> float:
        """Return the CPU time of the first process alone, in nanoseconds' resolution instead of 10
        ms.
        """
        try:
            return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1e9
        except OSError:  # a kernel without these statistics
            return self.cpu_s()[self._process.pid]

    def cpu_of_threads_s(self) -> float:
        """Return the CPU time of all living threads of all its processes, in nanoseconds'
        resolution.

        Raises OSError where a thread ends meanwhile, and on a kernel without these statistics.
        """
        files = (
            file
            for each in self.processes()
            for file in Path(f"/proc/{each.pid}/task").glob("*/schedstat")
        )
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9

    def memory(self) -> Memory:
        full = [process.memory_full_info() for process in self.processes()]
        return Memory(sum(info.pss for info in full), sum(info.rss for info in full))


def cpu_spent_s(program: Program, before: Mapping[int, float]) -> float:
    """Return the CPU time since `before`. Raise ProgramError if a process was replaced, because its
    time is lost.
    """
    now = program.cpu_s()
    if now.keys() != before.keys():
        raise ProgramError(f"{program.name} replaced a process while its CPU time was measured")
    return sum(now.values()) - sum(before.values())
