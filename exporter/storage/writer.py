"""State and history to the disk, in a thread each; where the disk takes nothing, what is new is kept in memory.

A history that is swept, or queried from outside, may be slow: no run's begin or end waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from exporter.live_state import Store
from exporter.model import Reading, boottime
from exporter.runs.ledger import Ledger
from exporter.runs.record import STORED
from exporter.storage.history import History
from exporter.storage.state_file import Snapshot, State

WITHIN_S = 1.0
"""Nobody waits longer for a disk."""
KEEP_UNWRITTEN = 60
"""So many seconds wait in memory while the history is busy; of more the oldest go."""

Value = TypeVar("Value")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Second:
    """What the history is to take in."""

    at: float
    s: float
    readings: list[Reading]
    run_open: bool


class Keeper:
    """`readings` gives what the history is to keep."""

    def __init__(
        self,
        state: State,
        history: History | None,
        store: Store,
        ledger: Ledger,
        readings: Callable[[], Iterator[Reading]],
    ) -> None:
        self._disk = ThreadPoolExecutor(1, "state")
        self._history_disk = ThreadPoolExecutor(1, "history")
        self._troubles = {"state": "", "history": ""}
        self._said: tuple[str, str] | None = None
        """The trouble that was said last, while there is any."""
        self._unwritten: deque[_Second] = deque(maxlen=KEEP_UNWRITTEN)
        self._remembering: asyncio.Task[Any] | None = None
        self._state = state
        self._history = history
        self._store = store
        self._ledger = ledger
        self._readings = readings
        self._tasks: set[asyncio.Task[Any]] = set()
        self._saving: asyncio.Task[Any] | None = None
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Task[Any] | None = None

    @property
    def trouble(self) -> str:
        """Why what was written last failed; empty where nothing did."""
        return self._troubles["state"] or self._troubles["history"]

    async def save_each_second(self) -> None:
        """Called each second. One save at a time; waits for the disk, but not for one that hangs."""
        if not self._saving or self._saving.done():
            if self._saving:
                self._saving.result()  # a bug ends the process
            self._saving = self._keep(self._save())
        await asyncio.wait({self._saving}, timeout=WITHIN_S)

    async def save_soon(self) -> None:
        """The state only. All who ask before it is its turn share one write."""
        await asyncio.wait({self.soon()}, timeout=WITHIN_S)

    def soon(self) -> asyncio.Task[Any]:
        """The save of the state that comes next."""
        if self._waiting is None:
            self._waiting = self._keep(self._save_state())
        return self._waiting

    async def _save_state(self) -> None:
        async with self._turn:
            self._waiting = None
            await self._write(self._snapshot())

    async def _save(self) -> None:
        """The state, and then the history: what that holds no counter falls below, also after a SIGKILL."""
        async with self._turn:
            shown = list(self._readings()) if self._history else []
            second = _Second(time.time(), boottime(), shown, bool(self._ledger.running))
            await self._write(self._snapshot())
        if self._history is None:
            return
        self._unwritten.append(second)
        if not self._remembering or self._remembering.done():
            if self._remembering:
                self._remembering.result()  # likewise
            self._remembering = self._keep(self._remember(self._history))

    async def _remember(self, history: History) -> None:
        """Gives the history all that waits for it."""
        while self._unwritten:
            await self._in_thread(self._history_disk, "history", lambda: _add(history, self._unwritten.popleft()))

    def _keep(self, writing: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Lets it go on in the background; asyncio itself holds its tasks only weakly."""
        task = asyncio.create_task(writing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _snapshot(self) -> Snapshot:
        """Taken in one piece: the parts of a device's energy add up to it also after a SIGKILL."""
        store, runs = self._store, self._ledger.runs
        changed, self._ledger.changed = self._ledger.changed, set()
        store.divide()
        return Snapshot(
            {device: line.totals for device, line in store.lines.items()},
            dict(store.emissions),
            [
                (run.run_id, run.started_at, run.is_open, STORED.dump_json(run).decode())
                for run_id in changed
                if (run := runs.get(run_id))
            ],
            store.counters.take_changed(),
            store.attribution.take_changes(),
            store.attribution.idle_w,
            boottime(),
        )

    async def _write(self, snapshot: Snapshot) -> None:
        if not await self._in_thread(self._disk, "state", lambda: self._state.save(snapshot)):
            self._give_back(snapshot)
        self._ledger.disk_is_well = not self._troubles["state"]

    async def _in_thread(self, thread: ThreadPoolExecutor, what: str, write: Callable[[], None]) -> bool:
        """Whether it was written. The serving goes on in any case."""
        trouble = ""
        try:
            await asyncio.get_running_loop().run_in_executor(thread, write)
        except (sqlite3.Error, OSError) as error:
            trouble = str(error)
        self._troubles[what] = trouble
        self._say(what)
        return not trouble

    async def in_history(self, ask: Callable[[History], Value]) -> Value:
        """Asks the history, in its thread. Raises sqlite3.Error and OSError."""
        assert self._history is not None
        return await asyncio.get_running_loop().run_in_executor(self._history_disk, ask, self._history)

    def _say(self, what: str) -> None:
        """Trouble is said once, though a full disk is that of both files."""
        trouble, said = self._troubles[what], self._said
        if trouble and (said is None or (said[0] == what and said[1] != trouble)):
            self._said = what, trouble
            log.warning(
                "cannot write to %s: %s; serving goes on, what is new is kept in memory", self._state.folder, trouble
            )
        elif said and not self.trouble:
            self._said = None
            log.info("writing to %s again", self._state.folder)

    def _give_back(self, snapshot: Snapshot) -> None:
        """To be written the next time."""
        self._ledger.changed |= {run_id for run_id, *_ in snapshot.runs}
        self._store.counters.changed |= snapshot.counters.keys()
        self._store.attribution.give_back(snapshot.attributed)

    async def close(self, finish: Callable[[], Awaitable[None]] | None = None) -> None:
        """To be called once nothing is served any more; `finish` then has all of the history."""
        await self._save()
        if self._remembering:
            await self._remembering
        if finish:
            await finish()
        self._disk.shutdown()
        self._history_disk.shutdown()
        if self._history:
            self._history.close()
        with suppress(sqlite3.Error):
            self._state.close()


def _add(history: History, second: _Second) -> None:
    history.add(second.at, second.readings, run_open=second.run_open, now_s=second.s)
