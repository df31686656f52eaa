"""Thread that writes and queries the local history."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from exporter.model import Reading
from exporter.storage.disk_health import DiskHealth
from exporter.storage.history import AROUND_S, SPARSE_S, History

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
    ended: Mapping[str, tuple[Reading, ...]]
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
            await self._health.write(self._thread, "history", lambda: self._write(self._queue.popleft()))

    def _write(self, second: HistorySecond) -> None:
        readings = [*second.readings, *self._ended.due(second)]
        self.history.add(second.at, readings, run_open=second.run_open, now_s=second.s)

    async def run(self, ask: Callable[[History], Value]) -> Value:
        """Call `ask` in the thread. Raises sqlite3.Error and OSError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask, self.history)

    async def drain(self) -> None:
        """Wait until all queued seconds are written."""
        if self._writing:
            await self._writing

    def close(self) -> None:
        self._thread.shutdown()
        self.history.close()


class _EndedRunSchedule:
    """Schedule of the ended runs' series: around runs they are written every 15 s only, and not each second."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._is_new = False
        self._last_end_s = self._written_s = -math.inf

    def due(self, second: HistorySecond) -> list[Reading]:
        """Return the series that are to be written with this second."""
        if second.ended.keys() - self._known:
            self._is_new, self._last_end_s = True, second.s
        self._known = frozenset(second.ended)
        is_dense = second.run_open or second.s - self._last_end_s <= AROUND_S + SPARSE_S
        if is_dense and not self._is_new and second.s - self._written_s < SPARSE_S:
            return []
        self._is_new, self._written_s = False, second.s
        return [reading for readings in second.ended.values() for reading in readings]
