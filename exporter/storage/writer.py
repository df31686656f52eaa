"""Saving of the state each second and on request, without waiting for a disk that hangs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from exporter.model import Service
from exporter.storage.disk_health import DiskHealth
from exporter.storage.history_writer import HistorySecond, HistoryWriter
from exporter.storage.state_file import StateChanges, StateFile

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
    """Saves the state of `source`, and then what `second` returns to the history, if there is one."""

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
        self._next: asyncio.Task[Any] | None = None

    async def save_each_second(self) -> None:
        """Save state and history, unless the last save is still under way."""
        if not self._saving or self._saving.done():
            if self._saving:
                self._saving.result()  # a bug ends the process
            self._saving = self._start(self._save())
        await asyncio.wait({self._saving}, timeout=WITHIN_S)

    async def save_soon(self) -> None:
        """Save the state, in one write with all who ask meanwhile."""
        await asyncio.wait({self.next_save()}, timeout=WITHIN_S)

    def next_save(self) -> asyncio.Task[Any]:
        """Return the next save of the state."""
        if self._next is None:
            self._next = self._start(self._save_state())
        return self._next

    async def stop(self) -> None:
        """Save everything a last time."""
        await self._save()
        if self._history:
            await self._history.drain()

    async def _save_state(self) -> None:
        async with self._turn:
            self._next = None
            await self._write(self._source.take_changes())

    async def _save(self) -> None:
        """Save the state before the history, so that no counter falls below the history after a SIGKILL."""
        async with self._turn:
            second = self._second() if self._history and self._second else None
            await self._write(self._source.take_changes())
        if self._history and second:
            self._history.add(second)

    def _start(self, saving: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a background task; asyncio itself has only weak references to tasks."""
        task = asyncio.create_task(saving)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, changes: StateChanges) -> None:
        if await self._health.write(self._thread, "state", lambda: self._file.save(changes)):
            self._source.confirm(changes)
        else:
            self._source.put_back(changes)

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
