"""Exact times of the exits of processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from contextlib import suppress

from exporter.model import boottime
from exporter.processes.procfs import ProcessKey, is_process_alive


class ProcessExits:
    """Processes to watch, each by a pidfd, which becomes readable when its process exits.

    `exited_s` is the time of each exit (CLOCK_BOOTTIME). A process whose exit cannot be watched, on Linux before 5.3 or
    for want of file descriptors, has none.
    """

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self.exited_s: dict[ProcessKey, float] = {}
        self._clock = clock
        self._watched: dict[ProcessKey, int] = {}

    def watch(self, processes: Collection[ProcessKey]) -> None:
        """Watch these processes, and no others."""
        for process in self._watched.keys() - processes:
            self._unwatch(process)
        self.exited_s = {process: s for process, s in self.exited_s.items() if process in processes}
        for process in set(processes) - self._watched.keys() - self.exited_s.keys():
            self._watch(process)

    def _watch(self, process: ProcessKey) -> None:
        with suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            if not is_process_alive(process):  # another process has the pid now
                os.close(descriptor)
                return
            self._watched[process] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._note_exit, process)

    def _note_exit(self, process: ProcessKey) -> None:
        self.exited_s[process] = self._clock()
        self._unwatch(process)

    def _unwatch(self, process: ProcessKey) -> None:
        descriptor = self._watched.pop(process)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        for process in list(self._watched):
            self._unwatch(process)
