"""The service of requests: reports, the division of energy once a second, and answers."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, Protocol, cast

from exporter.config.request_options import RequestSettings
from exporter.contract.request_views import RequestPage, RequestReceipt, RequestView, StoredRequest
from exporter.contract.requests import ServedRequest
from exporter.energy.meter import DeviceMeter
from exporter.model import ClockReading, Device, Reading, RunDevices, RunError, Service, read_clocks
from exporter.polling.live_state import LiveState
from exporter.requests.counters import RequestCounters
from exporter.requests.intake import REASONS, RateLimit, RequestIds, RunTimes
from exporter.requests.server import MISSING_S, STOPPED_NOTE, RequestEnergy, Server, gpu_meters, lost_energy
from exporter.requests.store import RequestStore
from exporter.storage.state_file import StateError, storage_remedy

TICK_S = 1.0
MAX_FINAL = 50_000
"""Final requests whose energies can be asked for."""
MAX_SERVERS = 64
PENDING_NOTE = "no energy yet: the first energies of a server come about half a minute after its first request"
ESTIMATE_NOTE = "an estimate: requests that overlap with this one may still be reported"
COMBINED_NOTE = "prefill and decode cannot be separated"

log = logging.getLogger(__name__)


class RunDirectory(Protocol):
    """Runs with their devices. See `exporter.runs.service`."""

    def devices_of(self, run_id: str) -> RunDevices:
        """Raise RunError for an unknown run."""

    def note(self, run_id: str, text: str) -> None: ...

    def idle_w(self, device: Device) -> float | None: ...


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
        self._runs, self._live, self._store, self._clock = runs, live, store, clock
        self._settings = settings
        self._counters = RequestCounters(settings.labels)
        self._rate = RateLimit(settings.per_second)
        self._ids: dict[str, RequestIds] = {}
        self._servers: dict[str, Server] = {}
        self._open: dict[tuple[str, str], ServedRequest] = {}
        """Requests that are not final, by run and id."""
        self._final: OrderedDict[tuple[str, str], RequestEnergy] = OrderedDict()
        self._run_of: dict[str, str] = {}
        """Run that has reported an id last."""
        self._divided: dict[str, int] = {}

    async def start(self) -> None:
        """Continue what a previous exporter left. Raises StateError."""
        try:
            saved = await asyncio.to_thread(self._store.load, self._settings.window_s)
        except (sqlite3.Error, ValueError) as error:
            remedy = storage_remedy(error) if isinstance(error, sqlite3.Error) else "move it away to start afresh"
            raise StateError(f"cannot use {self._store.path}: {error}; {remedy}") from error
        self._counters.restore(saved.counters)
        for run_id, number, requests in saved.undivided:
            self._ids_of(run_id).note(requests)
            for each in requests:
                self._finish(run_id, lost_energy(each, STOPPED_NOTE))
            self._divided[run_id] = number
        for run_id, requests in saved.recent:
            self._ids_of(run_id).note(requests)

    # -- calls

    async def report(self, run_id: str, requests: Sequence[ServedRequest]) -> RequestReceipt:
        """Accept the requests of a server, and save them. Raises RunError."""
        refused = await self.accept(run_id, requests)
        late, duplicate = (refused.get(REASONS[reason], 0) for reason in ("late", "duplicate"))
        return RequestReceipt(
            accepted=len(requests) - sum(refused.values()),
            duplicate=duplicate,
            late=late,
            rejected=sum(refused.values()) - late - duplicate,
            reasons=refused,
        )

    async def accept(self, run_id: str, requests: Sequence[ServedRequest]) -> dict[str, int]:
        """Save requests. Return the numbers of those that do not count, by reason. Raises RunError."""
        run, now = self._runs.devices_of(run_id), self._clock()
        self._rate.take(len(requests), now.s)
        self._store.check_room()
        if run_id not in self._servers and len(self._servers) >= MAX_SERVERS:
            raise RunError(429, f"{MAX_SERVERS} runs report requests, the maximum; send them later", 60)
        checked = self._ids_of(run_id).check(requests, RunTimes(run.begin_at, run.end_at), now.at)
        for reason, count in checked.refused.items():
            self._counters.reject(reason, count)
            self._runs.note(run_id, f"some reported requests do not count: {REASONS[reason]}")
        if checked.accepted:
            try:
                number = await self._store.add(run_id, checked.accepted)
            except RunError:
                self._ids_of(run_id).withdraw(checked.accepted)
                raise
            server = self._servers.get(run_id) or self._new_server(run_id, run)
            server.add(checked.accepted, number, now)
            self._open.update(((run_id, each.request_id), each) for each in checked.accepted)
            self._run_of.update((each.request_id, run_id) for each in checked.accepted)
        return {REASONS[reason]: count for reason, count in checked.refused.items()}

    def show(self, request_id: str, run_id: str | None = None) -> RequestView:
        """Return the energy of a request; without a run, of the one that reported the id last.

        Raises RunError where it is unknown.
        """
        run_id = run_id or self._run_of.get(request_id, "")
        request = self._open.get((run_id, request_id))
        if request is None and (final := self._final.get((run_id, request_id))):
            return _final_view(run_id, final)
        if request is None:
            raise RunError(
                404,
                f"request_id: no request {request_id[:128]!r} among the latest {MAX_FINAL:,}; report it first, or use "
                "analyzer requests",
            )
        found = self._servers[run_id].estimate(request) if run_id in self._servers else None
        if found is None:
            return RequestView(id=request_id, run_id=run_id, state="pending", notes=[PENDING_NOTE])
        return RequestView(
            id=request_id,
            run_id=run_id,
            state="provisional",
            energy_joules=found[0],
            energy_uncertainty_joules=found[1],
            notes=[ESTIMATE_NOTE],
        )

    async def listed(self, run_id: str, start: float, end: float, limit: int, after: tuple[int, int]) -> RequestPage:
        """Return stored requests of a run. Raises RunError."""
        self._runs.devices_of(run_id)
        try:
            return await asyncio.to_thread(self._page, run_id, start, end, limit, after)
        except ValueError as error:
            raise RunError(503, f"{error}; move {self._store.path} away to start afresh") from error

    def _page(self, run_id: str, start: float, end: float, limit: int, after: tuple[int, int]) -> RequestPage:
        page = self._store.page(run_id, start, end, limit, after)
        return RequestPage.model_construct(requests=[_stored(each) for each in page.requests], next=page.next)

    def readings(self) -> Iterator[Reading]:
        return self._counters.readings()

    # -- time

    async def run(self) -> None:
        """Divide energy once a second until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()

    async def tick(self, *, at_once: bool = False) -> None:
        """Divide what is due, and save the counters."""
        now = self._clock()
        for run_id, server in list(self._servers.items()):
            self._update_gpus(run_id, server)
            found, number = server.tick(now.s, at_once=at_once)
            for each in found:
                self._finish(run_id, each)
            if number is not None:
                self._divided[run_id] = number
            if not server.is_busy and self._has_ended(run_id):
                del self._servers[run_id]
        await self._save()

    def _has_ended(self, run_id: str) -> bool:
        try:
            return self._runs.devices_of(run_id).end_at is not None
        except RunError:
            return True

    async def _save(self) -> None:
        changes = self._counters.take_changes()
        divided, self._divided = self._divided, {}
        if not changes and not divided:
            return
        if await self._store.save(changes, divided):
            self._counters.publish(changes)
        else:
            self._counters.put_back(changes)
            self._divided = divided | self._divided

    async def stop(self) -> None:
        """Divide all energy that is known, and save it."""
        await self.tick(at_once=True)
        self._store.close()

    # -- state

    def _ids_of(self, run_id: str) -> RequestIds:
        if run_id not in self._ids:
            self._ids[run_id] = RequestIds(self._settings.window_s)
            while len(self._ids) > 2 * MAX_SERVERS:
                del self._ids[next(iter(self._ids))]
        return self._ids[run_id]

    def _new_server(self, run_id: str, run: RunDevices) -> Server:
        meters, idle_w = self._gpus_of(run)
        server = self._servers[run_id] = Server(self._settings.window_s, meters, idle_w)
        log.info("run %s reports requests; the energy of %d GPUs is divided among them", run_id, len(meters))
        return server

    def _update_gpus(self, run_id: str, server: Server) -> None:
        """Use also GPUs on which the run's processes were found later."""
        with suppress(RunError):
            server.use(*self._gpus_of(self._runs.devices_of(run_id)))

    def _gpus_of(self, run: RunDevices) -> tuple[list[DeviceMeter], Callable[[], float | None]]:
        """Return the meters of the run's GPUs, and a function that returns the idle power of all of them."""
        meters = gpu_meters(self._live.energy.meters, run.devices)

        def idle_w() -> float | None:
            watts = [self._runs.idle_w(device) for device in meters]
            return None if None in watts else math.fsum(each for each in watts if each is not None)

        return list(meters.values()), idle_w

    def _finish(self, run_id: str, energy: RequestEnergy) -> None:
        self._counters.add(energy.request, energy.total_j)
        key = run_id, energy.request.request_id
        self._open.pop(key, None)
        self._final[key] = energy
        self._run_of.setdefault(energy.request.request_id, run_id)
        if len(self._final) > MAX_FINAL:
            (old_run_id, request_id), _ = self._final.popitem(last=False)
            if self._run_of.get(request_id) == old_run_id and (old_run_id, request_id) not in self._open:
                del self._run_of[request_id]


def _final_view(run_id: str, energy: RequestEnergy) -> RequestView:
    if energy.lost:
        return RequestView(id=energy.request.request_id, run_id=run_id, state="final", notes=[energy.lost])
    notes = [] if energy.separable else [COMBINED_NOTE]
    if energy.missing_s > MISSING_S:
        notes.append(f"the energy of its first {energy.missing_s:.0f} s is missing: it was divided before the report")
    return RequestView(
        id=energy.request.request_id,
        run_id=run_id,
        state="final",
        energy_joules=energy.total_j,
        energy_uncertainty_joules=energy.half_j,
        idle_energy_joules=energy.idle_j,
        prefill_energy_joules=energy.prefill_j if energy.separable else None,
        decode_energy_joules=energy.decode_j if energy.separable else None,
        notes=notes,
    )


def _stored(request: ServedRequest) -> StoredRequest:
    return StoredRequest.model_construct(
        id=request.request_id,
        started_at=request.started_at,
        first_token_at=request.first_token_at,
        ended_at=request.ended_at,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        generated_tokens=request.generated_tokens,
        labels=request.labels,
        role=cast('Literal["prefill", "decode"] | None', request.role),
    )
