"""State and history to the disk, in one thread; where the disk takes nothing, what is new is kept in memory."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from exporter.history import History
from exporter.ledger import Ledger
from exporter.reading import Reading, boottime
from exporter.run_record import STORED
from exporter.state import Snapshot, State
from exporter.store import Store

WITHIN_S = 1.0
"""Nobody waits longer for a disk."""

log = logging.getLogger(__name__)


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
        self.disk = ThreadPoolExecutor(1, "disk")
        self.trouble = ""
        """Why the last write failed."""
        self._state = state
        self._history = history
        self._store = store
        self._ledger = ledger
        self._readings = readings
        self._tasks: set[asyncio.Task[Any]] = set()
        self._saving: asyncio.Task[Any] | None = None
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Task[Any] | None = None

    async def save_each_second(self) -> None:
        """Called each second. One save at a time; waits for the disk, but not for one that hangs."""
        if not self._saving or self._saving.done():
            if self._saving:
                self._saving.result()  # a bug ends the process
            self._saving = self._keep(self.save())
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
            changed, self._ledger.changed = self._ledger.changed, set()
            await self._write(self._snapshot(changed), None)

    async def save(self) -> None:
        async with self._turn:
            changed, self._ledger.changed = self._ledger.changed, set()
            shown = list(self._readings()) if self._history else None
            await self._write(self._snapshot(changed), shown)

    def _keep(self, writing: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Lets it go on in the background; asyncio itself holds its tasks only weakly."""
        task = asyncio.create_task(writing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _snapshot(self, changed: set[str]) -> Snapshot:
        """Taken in one piece: the parts of a device's energy add up to it also after a SIGKILL."""
        store, runs = self._store, self._ledger.runs
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

    async def _write(self, snapshot: Snapshot, shown: list[Reading] | None) -> None:
        """Trouble is said once, and the serving goes on."""
        now_at, now_s, run_open = time.time(), boottime(), bool(self._ledger.running)

        def write() -> None:
            try:
                self._state.save(snapshot)
            finally:
                if self._history and shown is not None:
                    self._history.add(now_at, shown, run_open=run_open, now_s=now_s)

        trouble = ""
        try:
            await asyncio.get_running_loop().run_in_executor(self.disk, write)
        except (sqlite3.Error, OSError) as error:
            trouble = str(error)
            self._give_back(snapshot)
        if trouble and trouble != self.trouble:
            folder = self._state.folder
            log.warning("cannot write to %s: %s; serving goes on, what is new is kept in memory", folder, trouble)
        elif self.trouble and not trouble:
            log.info("writing to %s again", self._state.folder)
        self.trouble = trouble
        self._ledger.disk_is_well = not trouble

    def _give_back(self, snapshot: Snapshot) -> None:
        """To be written the next time."""
        self._ledger.changed |= {run_id for run_id, *_ in snapshot.runs}
        self._store.counters.changed |= snapshot.counters.keys()
        self._store.attribution.give_back(snapshot.attributed)

    async def close(self) -> None:
        """To be called once nothing is served any more."""
        await self.save()
        self.disk.shutdown()
        if self._history:
            self._history.close()
        with suppress(sqlite3.Error):
            self._state.close()
