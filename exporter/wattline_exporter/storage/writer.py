"""Writers of state and history, which do not wait for a disk that hangs."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from wattline.contract.metrics import STATE_FREE, STATE_UP, STATE_USED
from wattline_exporter.sensors.readings import Reading, Service
from wattline_exporter.storage.history import AROUND_S, SPARSE_S, EndedRuns, History
from wattline_exporter.storage.saved_state import StateChanges
from wattline_exporter.storage.state_file import StateFile

log = logging.getLogger(__name__)


SPACE_S = 10.0
"""Time between two measurements of the space on the disk."""


class DiskHealth:
    """Errors of the last writes to the state folder `folder`, logged once per outage, and the space
    on its disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._errors: dict[str, str] = {}
        self._space: tuple[int, int] | None = None
        """Free bytes of the disk, and bytes of the files in the folder."""
        self._measured_s = -math.inf
        self._logged: tuple[str, str] | None = None
        """File and error that were logged last, during an outage."""

    async def write(self, thread: ThreadPoolExecutor, file: str, write: Callable[[], None]) -> bool:
        """Run `write` in the thread. Return False if it failed; the daemon goes on in any case."""
        error = ""
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._write, write)
        except (sqlite3.Error, OSError) as raised:
            error = str(raised)
        self._errors[file] = error
        self._log(file)
        return not error

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        finally:
            if time.monotonic() - self._measured_s >= SPACE_S:
                self._measured_s = time.monotonic()
                with suppress(OSError):
                    used = sum(
                        entry.stat(follow_symlinks=False).st_size
                        for entry in os.scandir(self._folder)
                    )
                    self._space = shutil.disk_usage(self._folder).free, used

    @property
    def error(self) -> str:
        """Error of the last writes, empty if all succeeded."""
        return next(filter(None, self._errors.values()), "")

    def readings(self) -> Iterator[Reading]:
        yield Reading(STATE_UP, (), float(not self.error))
        if self._space:
            free, used = self._space
            yield Reading(STATE_FREE, (), float(free))
            yield Reading(STATE_USED, (), float(used))

    def _log(self, file: str) -> None:
        """Log an outage once, although a full disk affects both files."""
        error = self._errors[file]
        logged = self._logged
        if error and (logged is None or (logged[0] == file and logged[1] != error)):
            self._logged = file, error
            log.warning(
                "cannot write to %s: %s; new data is kept in memory, metrics are served",
                self._folder,
                error,
            )
        elif logged and not self.error:
            self._logged = None
            log.info("writing to %s again", self._folder)


MAX_QUEUED_SECONDS = 60
"""Seconds kept in memory while the history is busy; beyond, the oldest are dropped."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class HistorySecond:
    """Input of the history at one instant: Unix time `at`, CLOCK_BOOTTIME `s`.

    `ended` are the series of each run that has ended, by run id; they do not change.
    """

    at: float
    s: float
    readings: list[Reading]
    ended: Mapping[str, Iterable[Reading]]
    run_open: bool


class HistoryWriter:
    """The history's thread. A sweep or a long query there delays no run."""

    def __init__(self, history: History, health: DiskHealth) -> None:
        self.history = history
        self._health = health
        self._thread = ThreadPoolExecutor(1, "history")
        self._queue: deque[HistorySecond] = deque(maxlen=MAX_QUEUED_SECONDS)
        self._writing: asyncio.Task[Any] | None = None
        self._ended = _EndedRunSchedule()

    def add(self, second: HistorySecond) -> None:
        """Queue a second to be written."""
        self._queue.append(second)
        if not self._writing or self._writing.done():
            if self._writing:
                self._writing.result()  # a bug ends the process
            self._writing = asyncio.create_task(self._write_queue())

    async def _write_queue(self) -> None:
        while self._queue:
            await self._health.write(
                self._thread, "history", lambda: self._write(self._queue.popleft())
            )

    def _write(self, second: HistorySecond) -> None:
        self.history.add(
            second.at,
            second.readings,
            run_open=second.run_open,
            now_s=second.s,
            ended=EndedRuns(second.ended, self._ended.is_due(second)),
        )

    async def drain(self) -> None:
        """Wait until all queued seconds are written."""
        if self._writing:
            await self._writing

    def close(self) -> None:
        self._thread.shutdown()
        self.history.close()


class _EndedRunSchedule:
    """Schedule of the ended runs' series: around runs they have a sample every 15 s only, and not
    each second.
    """

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._last_end_s = self._written_s = -math.inf

    def is_due(self, second: HistorySecond) -> bool:
        """Return True if all ended runs have a sample in this second."""
        if second.ended.keys() - self._known:
            self._last_end_s = second.s
        self._known = frozenset(second.ended)
        is_dense = second.run_open or second.s - self._last_end_s <= AROUND_S + SPARSE_S
        if is_dense and second.s - self._written_s < SPARSE_S:
            return False
        self._written_s = second.s
        return True


WITHIN_S = 1.0
"""Longest wait for a disk."""


class StateSource(Protocol):
    """Owner of the state that is saved."""

    def take_changes(self) -> StateChanges:
        """Return what changed since the last call."""

    def confirm(self, changes: StateChanges) -> None:
        """Note that the changes are saved."""

    def put_back(self, changes: StateChanges) -> None:
        """Note that the changes could not be saved: they belong to the next ones."""


class StateWriter(Service):
    """Saves the state of `source`, and then what `second` returns to the history, if there is
    one.
    """

    def __init__(
        self,
        file: StateFile,
        source: StateSource,
        health: DiskHealth,
        history: HistoryWriter | None = None,
        second: Callable[[], HistorySecond] | None = None,
    ) -> None:
        self._file = file
        self._source = source
        self._health = health
        self._history = history
        self._second = second
        self._thread = ThreadPoolExecutor(1, "state")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._saving: asyncio.Task[Any] | None = None
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[bool] | None = None

    async def save_each_second(self) -> None:
        """Save state and history, unless the last save is still under way."""
        if not self._saving or self._saving.done():
            if self._saving:
                self._saving.result()  # a bug ends the process
            self._saving = self._start(self._save())
        await asyncio.wait({self._saving}, timeout=WITHIN_S)

    async def save_soon(self) -> bool:
        """Save the state, in one write with all who ask meanwhile. Return True if it was saved
        within WITHIN_S.
        """
        save = self.next_save()
        await asyncio.wait({save}, timeout=WITHIN_S)
        return save.done() and save.result()

    def next_save(self) -> asyncio.Task[bool]:
        """Return the next save of the state; its result is True if the state was saved."""
        if self._next is None:
            self._next = self._start(self._save_state())
        return self._next

    async def stop(self) -> None:
        """Save everything a last time."""
        await self._save()
        if self._history:
            await self._history.drain()

    async def _save_state(self) -> bool:
        async with self._turn:
            self._next = None
            return await self._write(self._source.take_changes())

    async def _save(self) -> None:
        """Save the state before the history, so that no counter falls below the history after a
        SIGKILL.
        """
        async with self._turn:
            second = self._second() if self._history and self._second else None
            await self._write(self._source.take_changes())
        if self._history and second:
            self._history.add(second)

    def _start(self, saving: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        """Start a background task; asyncio itself has only weak references to tasks."""
        task = asyncio.create_task(saving)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, changes: StateChanges) -> bool:
        is_saved = await self._health.write(self._thread, "state", lambda: self._file.save(changes))
        if is_saved:
            self._source.confirm(changes)
        else:
            self._source.put_back(changes)
        return is_saved

    def close(self) -> None:
        self._thread.shutdown()
        with suppress(sqlite3.Error):
            self._file.close()


class StorageFiles(Service):
    """The open files and threads of the storage, which close last."""

    def __init__(self, writer: StateWriter, history: HistoryWriter | None) -> None:
        self._writer = writer
        self._history = history

    async def stop(self) -> None:
        if self._history:
            self._history.close()
        self._writer.close()
