"""The daemon: poll loops, one thread for the disk, start and stop. A bug in any task ends the process."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from exporter.attribution.tracker import Tenants
from exporter.contract import run as contract
from exporter.contract.metrics import STATE_UP
from exporter.exposition import readings as store_view
from exporter.exposition.render import Exposition, Page
from exporter.live_state import FAST_S, SLOW_S, Past, Store
from exporter.model import Batch, Reading, Source, SourceError, boottime
from exporter.nvml_worker.protocol import SamplingOrder, WorkerMessage
from exporter.nvml_worker.supervisor import WorkerSupervisor
from exporter.push.client import Pusher
from exporter.push.config import Target
from exporter.runs.ended import EndedRuns
from exporter.runs.ledger import Ledger
from exporter.runs.record import RunRecord
from exporter.runs.view import readings as run_readings
from exporter.runs.view import view
from exporter.sources.carbon.feed import CarbonFeed, CarbonFeeds
from exporter.sources.carbon.gauges import carbon_readings
from exporter.storage.history import History
from exporter.storage.state_file import State, boot_id
from exporter.storage.writer import Keeper

BURST_S = 0.6
TICK_S = 1.0
PROCESSES_IDLE_S = 5.0
PROCESSES_SHARED_S = 1.0
PROCESSES_DISCOVERING_S = 0.5
IDLE_START_S = 60.0
CARBON_PERIOD_S = 86_400.0
"""Forecasts reach two days ahead: an outage of a day costs nothing."""
READY_WITHIN_S = 5.0
SHOW_WITHIN_S = 0.25
"""A scrape waits no longer for a disk."""
FAILED_PERIODS = 10
"""A source that cannot be read is asked this much less often."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What the composition root has put together. `polled` are the blocking sources with their periods in seconds."""

    state: State
    history: History | None
    polled: list[tuple[Source, float]]
    nvml_arguments: list[str] | None
    carbon: CarbonFeeds
    simulation: Path | None
    exit_when_idle: bool
    version: str
    push: Target | None = None
    roles: dict[str, int] = field(default_factory=dict)


class App:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        saved = parts.state.load()
        same_boot = saved.boot_id == boot_id()
        past = Past(
            saved.totals,
            saved.emissions,
            saved.counters,
            saved.attributed,
            saved.idle_w,
            saved.saved_s if same_boot else None,
        )
        self.store = Store(past, version=parts.version, slots_at=parts.carbon.slots_at)
        self.ledger = Ledger(self.store, parts.state, sense=self.sense, changed_hands=self._changed_hands)
        self.ledger.restore(saved, same_boot=same_boot)
        self.tenants = Tenants(self.store)
        self.keeper = Keeper(parts.state, parts.history, self.store, self.ledger, self.readings_to_keep)
        self.pusher = Pusher(parts.push, self.keeper.in_history) if parts.push else None
        self.ended_runs = EndedRuns(self.view)
        self.exposition = Exposition(self.readings, boottime, self.ended_runs.families)
        self.ready = asyncio.Event()
        self.finished = asyncio.Event()
        self._worker = WorkerSupervisor(parts.nvml_arguments, self._hear) if parts.nvml_arguments else None
        self._ordered: tuple[float, float] = (0.0, 0.0)
        self._shown: asyncio.Task[Any] | None = None
        self._started_s = boottime()
        self._reading: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._hands_s = past.saved_s or self._started_s
        self.tenants.hold(self.ledger.running, self._hands_s)

    # -- what is shown

    @property
    def simulation(self) -> str | None:
        return str(self.parts.simulation) if self.parts.simulation else None

    def view(self, run: RunRecord) -> contract.Run:
        return view(run, self.store.lines, boottime(), self.simulation)

    def readings(self) -> Iterator[Reading]:
        """All but those of the runs that have ended."""
        self.store.age(boottime())
        self.store.divide()
        yield from store_view.readings(self.store)
        yield Reading(STATE_UP, (), float(not self.keeper.trouble))
        if self.pusher:
            yield from self.pusher.readings()
        yield from carbon_readings(self.parts.carbon.feeds, time.time())
        self.ended_runs.keep(self.ledger.runs.values(), boottime())
        for run in self.ledger.runs.values():
            if not run.final_settled:
                yield from run_readings(self.view(run), run)

    def readings_to_keep(self) -> Iterator[Reading]:
        yield from self.readings()
        yield from self.ended_runs.for_history(boottime(), run_open=bool(self.ledger.running))

    # -- sensing

    def _hear(self, message: WorkerMessage) -> None:
        self.store.take_worker(message)
        self._look_whether_ready()

    async def sense(self) -> None:
        """All sensors at once: the GPUs polled in a burst for a moment, RAPL read before this returns."""
        self._order(burst_s=BURST_S)
        await self.tenants.look(self.ledger.running)
        for source, period_s in self.parts.polled:
            if source.name == "rapl":
                await self._poll(source, period_s)

    def _order(self, burst_s: float = 0.0) -> None:
        """How fast the GPUs are to be polled: fast while a run is open."""
        running = self.ledger.running
        period_s = FAST_S if running else SLOW_S
        discovers = any(run.discovers for run in running)
        processes_s = PROCESSES_DISCOVERING_S if discovers else PROCESSES_SHARED_S if running else PROCESSES_IDLE_S
        if burst_s or (period_s, processes_s) != self._ordered:
            self._ordered = (period_s, processes_s)
            self.store.set_period(period_s)
            if self._worker:
                self._worker.send(SamplingOrder(period_s, burst_s, processes_s))

    async def _poll(self, source: Source, period_s: float) -> bool:
        """Whether the source could be read."""
        async with self._reading[source.name]:  # a source is read by one thread at a time
            started_s = boottime()
            try:
                batch: Batch = await asyncio.to_thread(source.read)
            except SourceError as error:
                self.store.failed(source.name, error, boottime() - started_s, period_s)
                return False
            self.store.take_batch(source.name, batch, boottime() - started_s, period_s)
            return True

    async def _poll_for_ever(self, source: Source, period_s: float) -> None:
        due_s = boottime()
        while True:
            answered = await self._poll(source, period_s)
            due_s = max(due_s + period_s * (1 if answered else FAILED_PERIODS), boottime())
            await asyncio.sleep(due_s - boottime())

    def _changed_hands(self, from_s: float) -> None:
        """From then on other runs hold the devices than before; who held them until the last look stands."""
        from_s = max(from_s, self._hands_s)
        self._hold_as_last_seen()
        self.tenants.hold([run for run in self.ledger.runs.values() if run.running], from_s)
        self.store.divide()
        self._hands_s = from_s

    def _hold_as_last_seen(self) -> None:
        """The loads that the last look found are those of the time before it."""
        since_s = self._hands_s
        runs = self.ledger.runs.values()
        self.tenants.hold([r for r in runs if r.begin_s <= since_s and (r.end_s is None or r.end_s > since_s)], since_s)

    async def _follow_carbon(self, feed: CarbonFeed) -> None:
        name = "carbon" if feed is self.parts.carbon.feeds[0] else f"carbon_{feed.basis}"
        async with aiohttp.ClientSession(trust_env=True) as session:
            while True:
                started_s = boottime()
                try:
                    await feed.refresh(session)
                except SourceError as error:
                    self.store.failed(name, error, boottime() - started_s, CARBON_PERIOD_S)
                else:
                    self.store.take_batch(name, Batch(), boottime() - started_s, CARBON_PERIOD_S)
                while time.time() < feed.due_s:  # noqa: ASYNC110  # the wall clock may be set meanwhile
                    await asyncio.sleep(min(10.0, max(0.1, feed.due_s - time.time())))

    # -- each second

    async def _tick_for_ever(self) -> None:
        due_s = boottime()
        while True:
            self.store.age(boottime())
            self.store.check_energies(boottime())
            if self._worker:
                self.store.source("nvml", SLOW_S).restarts = self._worker.restarts
                if self._worker.pid:
                    self.parts.roles["nvml_worker"] = self._worker.pid
            await self.tenants.look(self.ledger.running)
            self.ledger.take_families(self.tenants.families())
            self.ledger.tick()
            self._order()
            self.tenants.note_loads()
            self._hold_as_last_seen()
            self.store.divide()
            self._hands_s = boottime()
            self.store.attribution.keep(self.ledger.runs)
            await self.keeper.save_each_second()
            self._look_whether_ready()
            if self._idle(boottime() - self._started_s):
                self.finished.set()
                return
            due_s = max(due_s + TICK_S, boottime())
            await asyncio.sleep(due_s - boottime())

    def _look_whether_ready(self) -> None:
        """Ready is who has read every source, or has waited long enough for one that is silent."""
        read = {source.name for source, _ in self.parts.polled} <= set(self.store.sources)
        if (read and (not self._worker or self.store.has_read_gpus())) or boottime() - self._started_s > READY_WITHIN_S:
            self.ready.set()

    async def wait_until_ready(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ready.wait(), READY_WITHIN_S)

    def _idle(self, age_s: float) -> bool:
        if not self.parts.exit_when_idle or self.ledger.running:
            return False
        return self.ledger.ended > 0 or age_s > IDLE_START_S

    async def page(self, accept: str, *, compress: bool) -> Page:
        """What a scrape gets. It is kept before it is shown: else a counter could fall after a SIGKILL."""
        rendered_s = self.exposition.rendered_s
        page = self.exposition.page(accept, compress=compress)
        if self.exposition.rendered_s != rendered_s and not self.finished.is_set():
            self._shown = self.keeper.soon()
        if self._shown and not self._shown.done():
            await asyncio.wait({self._shown}, timeout=SHOW_WITHIN_S)
        return page

    # -- start and stop

    async def run(self) -> None:
        """Until `finished` is set or the task is cancelled. `close` follows."""
        self.parts.roles["exporter"] = os.getpid()
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(self._poll_for_ever(source, period)) for source, period in self.parts.polled]
            if self._worker:
                jobs.append(tasks.create_task(self._worker.run()))
            jobs += [tasks.create_task(self._follow_carbon(feed)) for feed in self.parts.carbon.feeds]
            jobs.append(tasks.create_task(self._tick_for_ever()))
            if self.pusher:
                jobs.append(tasks.create_task(self.pusher.run()))
            await self.finished.wait()
            for job in jobs:
                job.cancel()

    async def close(self) -> None:
        """To be called once nothing is served any more."""
        await self.keeper.close(self.pusher.finish if self.pusher else None)
