"""The service of requests: reports, the division of energy once a second, and answers."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from wattline.contract.requests.served import ServedRequest
from wattline_exporter.config.request_options import RequestSettings
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.requests.counters import RequestCounters
from wattline_exporter.requests.intake import (
    REASONS,
    RateLimit,
    Reason,
    RunIds,
    RunSpan,
    id_hash_of,
)
from wattline_exporter.requests.servers_by_run import MAX_SERVERS, RunDirectory, Servers
from wattline_exporter.requests.store import (
    SEARCH_S,
    DividedSecond,
    DividedState,
    RequestStore,
    SavedRequests,
)
from wattline_exporter.requests.views import (
    NOT_SAVED_TEXT,
    SAVING_NOTE,
    DividedEnergyView,
    PackedRequests,
    RequestPage,
    RequestReceipt,
    RequestView,
    estimate_view,
    final_view,
    stored_view,
)
from wattline_exporter.sensors.readings import (
    ClockReading,
    NativeBuckets,
    Reading,
    RunDevices,
    RunError,
    Service,
    read_clocks,
)
from wattline_exporter.storage.state_file import StateError, storage_remedy

if TYPE_CHECKING:  # numpy is imported with the first request
    import numpy as np

    from wattline_exporter.requests.division.arrays import IntArray
    from wattline_exporter.requests.division.columns import RequestColumns
    from wattline_exporter.requests.division.spans import RequestSpans
    from wattline_exporter.requests.final import FinalEnergies, FinalEnergy
    from wattline_exporter.requests.llm_server import Server

TICK_S = 1.0
STALLED_S = 2.0
"""Time between two divisions, and the delay from which on the event loop was blocked."""
MAX_UNSAVED_SECONDS = 100_000
"""Seconds of divided energy that are kept while the disk cannot be written."""
SERVERS_A_SECOND = 16
"""Servers whose energy is divided every second; that of more is divided more rarely, since each one
has a cost.
"""
log = logging.getLogger(__name__)


class RequestService(Service):
    """Requests that servers report, by run."""

    def __init__(
        self,
        runs: RunDirectory,
        live: LiveState,
        store: RequestStore,
        settings: RequestSettings,
        clock: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        self._runs = runs
        self._store = store
        self._clock = clock
        self._settings = settings
        self._counters = RequestCounters(settings.labels)
        self._rate = RateLimit(settings.per_second)
        self._ids = RunIds(settings.window_s, self._has_ended)
        self._saving: dict[str, dict[asyncio.Task[int], IntArray]] = {}
        """Batches that are being saved with the hashes of their ids, by run."""
        self._servers = Servers(runs, live, settings.window_s, settings.lateness_s)
        self._final: FinalEnergies | None = None
        self._unsaved: list[np.ndarray] = []
        """Rows of the final requests since the last save."""
        self._divided: dict[str, int] = {}
        self._seconds: list[DividedSecond] = []
        """Divided energy since the last save."""
        self._divisions: dict[tuple[str, float], str] = {}
        """Sums of divisions by run and begin since the last save."""
        self._saving_state: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Continue the state of a previous exporter. Raises StateError."""
        try:
            saved = await asyncio.to_thread(self._store.load, self._settings.window_s)
        except (sqlite3.Error, ValueError) as error:
            remedy = (
                storage_remedy(error)
                if isinstance(error, sqlite3.Error)
                else "move it away to start afresh"
            )
            raise StateError(f"cannot use {self._store.path}: {error}; {remedy}") from error
        now = self._clock()
        self._counters.restore(saved.counters)
        for run_id, divided_at in saved.divided_at.items():
            self._servers.restore(run_id, divided_at, now)
        for uuid, part in saved.trails.items():
            self._servers.restore_trail(uuid, part, now)
        for run_id, _, requests in (*saved.recent, *saved.undivided):
            self._ids.of_run(run_id).note(requests, now)
        run_ids = list(dict.fromkeys(run_id for run_id, *_ in saved.undivided))
        for run_id in run_ids:
            with suppress(RunError):
                self._servers.rejoin(run_id, self._runs.devices_of(run_id), now)
        for run_id in run_ids:
            self._recover(run_id, saved, now)

    def _recover(self, run_id: str, saved: SavedRequests, now: ClockReading) -> None:
        """Continue the division of the requests of a run that have no energy yet."""
        undivided = [each for each in saved.undivided if each[0] == run_id]
        try:
            run = self._runs.devices_of(run_id)
        except RunError:
            self._finish_undivided(run_id, undivided)
            return
        from wattline_exporter.requests.llm_server import RecoveredBatch

        recent = [each for each in saved.recent if each[0] == run_id]
        batches = [
            RecoveredBatch(
                number, requests, requests.id_hashes, self._label_numbers(requests), is_final
            )
            for part, is_final in ((recent, True), (undivided, False))
            for _, number, requests in part
        ]
        begins_at = [float(requests.started_at.min()) for _, _, requests in undivided]
        from_at = min([now.at - self._settings.window_s, *begins_at])
        server = self._servers.recover(run_id, run, batches, from_at, now)
        if server.last_edge_s is None or now.s - server.last_edge_s > self._settings.window_s:
            self._take(run_id, *server.tick(now.s, now.s, at_once=True))
            self._take_divided(run_id, server, now)
            self._servers.remove(run_id)

    def _take_divided(self, run_id: str, server: Server, now: ClockReading) -> None:
        """Keep the energy that a server divided since the last call, for the next save."""
        if divided := server.take_divided(now.at - now.s):
            self._seconds += [(run_id, *each) for each in divided.seconds.tolist()]
            self._divisions[run_id, divided.begin_at] = divided.totals.to_json()

    def _finish_undivided(
        self, run_id: str, batches: Sequence[tuple[str, int, RequestColumns]]
    ) -> None:
        """Count the requests of a run that is no longer known, without energy."""
        from wattline_exporter.requests.final import undivided

        for _, number, requests in batches:
            self._finish(
                run_id, undivided(requests.id_hashes, self._label_numbers(requests), number)
            )
            self._divided[run_id] = number

    # -- calls

    async def report(self, run_id: str, requests: Sequence[ServedRequest]) -> RequestReceipt:
        """Accept the requests of a server, and save them. Raises RunError."""
        from wattline_exporter.requests.division.columns import RequestColumns

        return await self.report_columns(run_id, RequestColumns.of(requests))

    async def report_columns(self, run_id: str, requests: RequestColumns) -> RequestReceipt:
        """Accept the requests of a server, and save them. Raises RunError."""
        refused = await self._accept(run_id, requests)
        late = refused["late"]
        duplicate = refused["duplicate"]
        total = refused.total()
        return RequestReceipt.model_construct(
            accepted=len(requests) - total,
            duplicate=duplicate,
            late=late,
            rejected=total - late - duplicate,
            reasons={REASONS[reason]: count for reason, count in refused.items()},
        )

    async def _accept(self, run_id: str, requests: RequestColumns) -> Counter[Reason]:
        """Save requests. Return the numbers of those that do not count. Raises RunError."""
        run = self._runs.devices_of(run_id)
        now = self._clock()
        self._rate.take(len(requests), now.s)
        self._store.check_room()
        servers = self._servers.by_run
        if run_id not in servers and len(servers) >= MAX_SERVERS:
            raise RunError(
                429, f"{MAX_SERVERS} runs report requests, the maximum; send them later", 60
            )
        if sum(map(len, servers.values())) >= self._settings.max_open:
            raise RunError(
                429,
                f"{self._settings.max_open:,} requests wait for their energy, the maximum; send "
                "them later",
                5,
            )
        accepted, id_hashes, refused = self._ids.of_run(run_id).check(
            requests, RunSpan(run.begin_at, run.end_at), now
        )
        for reason, count in refused.items():
            self._reject(run_id, reason, count)
        saving = self._saving.setdefault(run_id, {})
        waiting = (
            set(saving) if refused["duplicate"] else set()
        )  # a repeated call is answered when the first is saved
        task = None
        if len(accepted):
            task = asyncio.create_task(self._save_batch(run_id, run, accepted, id_hashes, now))
            saving[task] = id_hashes
            task.add_done_callback(saving.pop)
            waiting.add(task)
        if waiting:
            await self._store.wait(waiting)
        if task and (late := task.result()):
            refused["late"] += late
        return refused

    def _reject(self, run_id: str, reason: Reason, count: int) -> None:
        self._counters.reject(reason, count)
        if reason != "duplicate":  # it counts once, as it should
            self._runs.note(run_id, f"some reported requests do not count: {REASONS[reason]}")

    async def _save_batch(
        self,
        run_id: str,
        run: RunDevices,
        requests: RequestColumns,
        id_hashes: IntArray,
        now: ClockReading,
    ) -> int:
        """Save requests and add them to their server. Return the number of those that are too late
        to have an energy. Raises sqlite3.Error and OSError.
        """
        try:
            number = await self._store.add(run_id, requests)
        except (sqlite3.Error, OSError):
            self._ids.of_run(run_id).withdraw(id_hashes)
            raise
        server = self._servers.by_run.get(run_id)
        is_new = server is None
        if server is None:
            server = self._servers.add(run_id, run, now)
        late = server.add(requests, id_hashes, self._label_numbers(requests), number, now)
        if is_new:
            self._save_soon()  # the energies before the report, for the case of a crash
        if late:
            self._reject(run_id, "late", late)
        return late

    def _label_numbers(self, requests: RequestColumns) -> IntArray:
        """Return the number of the labels of each request in the metrics, (N,)."""
        import numpy as np

        numbers = list(map(self._counters.number, requests.sets))
        of_requests: IntArray = np.array(numbers, dtype=np.intp)[requests.set_numbers]
        return of_requests

    def show(self, request_id: str, run_id: str | None = None) -> RequestView:
        """Return the energy of a request; without a run, of the one that reported the id last.

        Raises RunError where it is unknown.
        """
        id_hash = id_hash_of(request_id)
        found: list[tuple[int, str, FinalEnergy | RequestSpans]] = []
        if self._final and (final := self._final.find(id_hash, run_id)):
            found.append(final)
        for each, server in self._servers.by_run.items():
            if run_id in (None, each) and (held := server.find(id_hash)):
                found.append((held[0], each, held[1]))
        if not found and (saving := self._saving_run(id_hash, run_id)):
            return RequestView(id=request_id, run_id=saving, state="pending", notes=[SAVING_NOTE])
        if not found:
            of_run = "" if run_id is None else f" of run {run_id}"
            raise RunError(
                404,
                f"request_id: no request {request_id[:128]!r}{of_run} was reported; report it "
                "first",
            )
        _, run_id, energy = max(found, key=lambda each: each[0])
        from wattline_exporter.requests.final import FinalEnergy

        if isinstance(energy, FinalEnergy):
            return final_view(request_id, run_id, energy)
        server = self._servers.by_run[run_id]
        return estimate_view(
            request_id, run_id, server.estimate(energy), server.pending_note(self._clock().s)
        )

    def _saving_run(self, id_hash: int, run_id: str | None) -> str | None:
        """Return the run whose report of a request is being saved, None if none is."""
        for each, tasks in self._saving.items():
            if run_id in (None, each) and any(id_hash in hashes for hashes in tasks.values()):
                return each
        return None

    async def find(self, request_id: str, run_id: str | None = None) -> RequestView:
        """Return what `show` does, also for a request that was final before a restart. Raises
        RunError.
        """
        with suppress(RunError):
            return self.show(request_id, run_id)
        if run_id is not None:
            self._runs.devices_of(run_id)
        try:
            found = await asyncio.to_thread(self._store.find, request_id, run_id)
        except TimeoutError as error:
            text = (
                f"request_id: no request {request_id[:128]!r} found within {SEARCH_S:g} s; use "
                "analyzer requests"
            )
            raise RunError(404, text) from error
        except (sqlite3.Error, ValueError) as error:
            raise self._unreadable(error) from error
        if found and found.energy:
            return final_view(request_id, found.run_id, found.energy)
        try:
            return self.show(request_id, run_id)  # it may have been saved in the meantime
        except RunError as error:
            if found is None:
                raise
            text = NOT_SAVED_TEXT.format(request_id=request_id[:128], run_id=found.run_id)
            raise RunError(404, text) from error

    async def listed(
        self, run_id: str, start: float, end: float, limit: int, after: tuple[int, int]
    ) -> RequestPage:
        """Return stored requests of a run. Raises RunError."""
        self._runs.devices_of(run_id)
        try:
            return await asyncio.to_thread(self._page, run_id, start, end, limit, after)
        except ValueError as error:
            raise RunError(503, f"{error}; move {self._store.path} away to start afresh") from error

    def _page(
        self, run_id: str, start: float, end: float, limit: int, after: tuple[int, int]
    ) -> RequestPage:
        page = self._store.page(run_id, start, end, limit, after)
        return RequestPage.model_construct(
            requests=[stored_view(each) for each in page.requests], next=page.next
        )

    async def packed(self, run_id: str, start: float, end: float, after: int) -> PackedRequests:
        """Return stored requests of a run with their energies. Raises RunError."""
        self._runs.devices_of(run_id)
        try:
            found, following = await asyncio.to_thread(
                self._store.batches, run_id, start, end, after
            )
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        batches = [
            (_base64(body), None if energies is None else _base64(energies))
            for body, energies in found
        ]
        return PackedRequests.model_construct(batches=batches, next=following)

    async def divided_energy(self, run_id: str, after: float) -> DividedEnergyView:
        """Return the divided energy of a run. Raises RunError."""
        self._runs.devices_of(run_id)
        try:
            seconds, totals = await asyncio.to_thread(self._store.divided_energy, run_id, after)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        return DividedEnergyView.model_construct(seconds=seconds, totals=totals)

    def _unreadable(self, error: Exception) -> RunError:
        text = f"cannot read {self._store.path}: {error}; move it away to start afresh"
        return RunError(503, text)

    def readings(self) -> Iterator[Reading]:
        yield from self._counters.readings(self._clock().s)
        yield from self._servers.readings(self._clock())

    def native_buckets(self) -> Iterator[NativeBuckets]:
        return self._counters.native_buckets(self._clock().s)

    # -- time

    async def run(self) -> None:
        """Divide energy once a second until cancelled. The state is saved meanwhile: a disk may be
        slow.
        """
        while True:
            last_s = self._clock().s
            await asyncio.sleep(TICK_S)
            if self._clock().s - last_s > TICK_S + STALLED_S:
                continue  # the polls of that time have not been read yet either
            await self.divide()
            self._save_soon()

    async def tick(self, *, at_once: bool = False) -> None:
        """Divide the slots that are due, and save the state."""
        await self.divide(at_once=at_once)
        if self._saving_state:
            await self._saving_state
        await self._save(is_last=at_once)

    async def divide(self, *, at_once: bool = False) -> None:
        """Divide the slots that are due, with `at_once` all. Other tasks can run between two
        servers.
        """
        now = self._clock()
        self._servers.update_gpus(now)
        every_s = len(self._servers.by_run) // SERVERS_A_SECOND * TICK_S
        for run_id, server in list(self._servers.by_run.items()):
            known_s = self._servers.known_s(run_id, now.s)
            self._take(run_id, *server.tick(now.s, known_s, every_s=every_s, at_once=at_once))
            self._take_divided(run_id, server, now)
            if not server.is_busy and self._has_ended(run_id):
                self._servers.remove(run_id)
                self._saving.pop(run_id, None)
            await asyncio.sleep(0)

    def _take(self, run_id: str, found: np.ndarray, last_batch: int | None) -> None:
        """Take the final requests of whole batches, and the number of the last one."""
        if len(found):
            self._finish(run_id, found)
        if last_batch is not None:
            self._divided[run_id] = last_batch

    def _has_ended(self, run_id: str) -> bool:
        try:
            return self._runs.devices_of(run_id).end_at is not None
        except RunError:
            return True

    def _save_soon(self) -> None:
        """Begin to save the state, unless it is being saved."""
        if self._saving_state is None or self._saving_state.done():
            if self._saving_state:
                self._saving_state.result()  # an error ends the process
            self._saving_state = asyncio.create_task(self._save())

    async def _save(self, *, is_last: bool = False) -> None:
        changes = self._counters.take_changes()
        now = self._clock()
        state = DividedState(
            changes,
            self._divided,
            self._servers.divided_at(now),
            self._unsaved,
            self._seconds,
            self._divisions,
            self._servers.unsaved_trails(now),
        )
        self._divided = {}
        self._unsaved = []
        self._seconds = []
        self._divisions = {}
        has_news = changes or state.divided or state.seconds or state.trails.parts
        if not has_news and not is_last:
            return
        if await self._store.save(state):
            self._servers.note_saved(state.trails, now)
            self._counters.publish(changes, self._clock().s)
            return
        from wattline_exporter.requests.final import latest_rows

        self._counters.put_back(changes)
        self._divided = state.divided | self._divided
        self._unsaved = latest_rows([*state.final, *self._unsaved])
        self._seconds = [*state.seconds, *self._seconds][-MAX_UNSAVED_SECONDS:]
        self._divisions = state.divisions | self._divisions

    async def stop(self) -> None:
        """Divide all energy that is known, and save it."""
        await self.tick(at_once=True)
        self._store.close()

    # -- state

    def _finish(self, run_id: str, rows: np.ndarray) -> None:
        from wattline_exporter.requests.division.energy_rows import totals_j
        from wattline_exporter.requests.final import FinalEnergies

        if self._final is None:
            self._final = FinalEnergies()
        self._counters.add(rows["labels"], totals_j(rows), rows["loss"] == 0)
        self._final.add(run_id, rows)
        self._unsaved.append(rows)


def _base64(body: bytes) -> str:
    return b64encode(body).decode()
