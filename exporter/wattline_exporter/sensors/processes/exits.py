"""Exact times of the exits of processes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from wattline_exporter.sensors.processes.procfs import ProcessKey, is_process_alive


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProcessExits:
    """Processes to watch, each by a pidfd, which becomes readable when its process exits.

    `exited_s` is the time of each exit (CLOCK_BOOTTIME). Except for the processes in `exact`, it is
    the time of the call of `watch` that found that the process was gone: on Linux before 5.3, for
    want of file descriptors, or if it ended before the first call.
    """

    def __init__(
        self,
        clock: Callable[[], float] = _boottime,
        open_pidfd: Callable[[int], int] = os.pidfd_open,
    ) -> None:
        self.exited_s: dict[ProcessKey, float] = {}
        self.exact: set[ProcessKey] = set()
        self._clock = clock
        self._open_pidfd = open_pidfd
        self._pidfds: dict[ProcessKey, int] = {}

    @property
    def exact_s(self) -> dict[ProcessKey, float]:
        """Times of the exits that were seen as they happened."""
        return {process: self.exited_s[process] for process in self.exact}

    def watch(self, processes: AbstractSet[ProcessKey]) -> None:
        """Watch these processes, and no others."""
        for process in self._pidfds.keys() - processes:
            self._unwatch(process)
        self.exited_s = {process: s for process, s in self.exited_s.items() if process in processes}
        self.exact &= processes
        for process in processes - self._pidfds.keys() - self.exited_s.keys():
            self._watch(process)

    def _watch(self, process: ProcessKey) -> None:
        try:
            pidfd = self._open_pidfd(process.pid)
        except OSError:
            pidfd = None
        if not is_process_alive(
            process
        ):  # since before the call; another process may have the pid now
            self.exited_s[process] = self._clock()
            if pidfd is not None:
                os.close(pidfd)
        elif pidfd is not None:
            self._pidfds[process] = pidfd
            asyncio.get_running_loop().add_reader(pidfd, self._note_exit, process)

    def _note_exit(self, process: ProcessKey) -> None:
        self.exited_s[process] = self._clock()
        self.exact.add(process)
        self._unwatch(process)

    def _unwatch(self, process: ProcessKey) -> None:
        pidfd = self._pidfds.pop(process)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)

    def close(self) -> None:
        for process in list(self._pidfds):
            self._unwatch(process)
