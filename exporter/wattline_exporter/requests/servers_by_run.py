"""Servers by run, with their GPUs, of which several may use the same ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from wattline.contract.metrics import RUN_REQUESTS_START
from wattline_exporter.attribution.device_loads import GpuLoadPeriod, GpuUse
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.requests.energy_trail import STEP_S, EnergyTrail, TrailPart
from wattline_exporter.requests.shares import GpuShares
from wattline_exporter.requests.store import SavedTrails
from wattline_exporter.requests.views import SHARED_NOTE
from wattline_exporter.sensors.readings import ClockReading, Device, Reading, RunDevices, RunError

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.arrays import FloatArray
    from wattline_exporter.requests.llm_server import RecoveredBatch, Server, Trails

MAX_SERVERS = 64
BEGIN_WITHIN_S = 5.0
"""Time after its start in which a job finds the server that it loads: then it is known not to be
another run.
"""
READ_S = 8.0
"""Time between two readings of the meter of a GPU without requests, which keeps the polls of 12 s.
"""

log = logging.getLogger(__name__)


class RunDirectory(Protocol):
    """Runs with their devices. See `wattline_exporter.runs.service`."""

    def devices_of(self, run_id: str) -> RunDevices:
        """Raise RunError for an unknown run."""

    def note(self, run_id: str, text: str) -> None: ...

    def others_on_gpus(self, run_id: str, since_s: float) -> Sequence[GpuUse]:
        """Return the other runs on the GPUs of a run that ran at `since_s` or later. Raises
        RunError.

        Runs that use GPUs only by processes of the run are not other ones, such as a job that loads
        its server.
        """

    def idle_w(self, device: Device) -> float | None: ...

    def gpu_periods(
        self, device: Device, since_s: float, reporters: Collection[str]
    ) -> Sequence[GpuLoadPeriod]:
        """Return the loads of the runs on a GPU in the latest periods that end after `since_s`.

        Processes of servers count for the run of `reporters` that reports their requests.
        """


class Servers:
    """Servers of the runs that report requests. Times are CLOCK_BOOTTIME."""

    def __init__(
        self, runs: RunDirectory, live: LiveState, window_s: float, lateness_s: float
    ) -> None:
        self._runs = runs
        self._live = live
        self._window_s = window_s
        self._lateness_s = lateness_s
        self._kept_s = 2 * window_s
        """Time for which energies are kept: for a request as long as the window that is reported
        at its end.
        """
        self.trails: dict[Device, EnergyTrail] = {}
        """Energies of all GPUs, also before a run reports requests."""
        self.by_run: dict[str, Server] = {}
        self._shares = GpuShares(self._gpu_periods, runs.idle_w)
        self._divided_s: dict[str, float] = {}
        """Times up to which the energy of runs was divided by servers that were removed."""

    def add(self, run_id: str, run: RunDevices, now: ClockReading) -> Server:
        """Return a new server."""
        server = self._new_server(run_id, run, now)
        from_s = max(
            self._known_from_s(server.trails, now.s),
            _at_s(run.begin_at, now),
            now.s - self._kept_s,  # the trail may be of an exporter that ended long ago
        )
        divided_s = self._divided_s.get(run_id, -math.inf)
        server.begin(max(from_s, divided_s), now.s, is_continued=divided_s >= from_s)
        return server

    def rejoin(self, run_id: str, run: RunDevices, now: ClockReading) -> None:
        """Divide the energy of GPUs also with a run that is recovered later: before the first one
        is, since its time is divided with all of them.
        """
        self._read_gpus(now.s, 0.0)
        for device, trail in self._trails_of(run).items():
            from_s = self._known_from_s({device: trail}, now.s)
            self._shares.join(run_id, device, from_s, _at_s(run.begin_at, now))

    def recover(
        self,
        run_id: str,
        run: RunDevices,
        batches: Sequence[RecoveredBatch],
        from_at: float,
        now: ClockReading,
    ) -> Server:
        """Return a server whose division continues that of a previous exporter; `batches` have all
        requests that ended after the Unix time `from_at`.
        """
        server = self._new_server(run_id, run, now)
        from_s = max(
            self._known_from_s(server.trails, now.s),
            _at_s(run.begin_at, now),
            _at_s(from_at, now),
        )
        divided_s = self._divided_s.get(run_id, from_s)
        slots = max(0, math.floor((divided_s - from_s) / STEP_S))
        server.begin(divided_s - slots * STEP_S, now.s, is_continued=True)
        server.recover(batches, divided_s, now)
        return server

    def _new_server(self, run_id: str, run: RunDevices, now: ClockReading) -> Server:
        from wattline_exporter.requests.llm_server import Server
        from wattline_exporter.requests.watermark import Watermark

        self._read_gpus(now.s, 0.0)
        trails = self._trails_of(run)
        server = Server(
            Watermark(self._window_s, self._lateness_s),
            trails,
            partial(self._idle_w, run_id),
            partial(self._shares.energy_at, run_id),
            partial(self._others_on_gpus, run_id),
        )
        self._join(run_id, trails, now, run)
        self.by_run[run_id] = server
        log.info(
            "run %s reports requests; the energy of %d GPUs is divided among them",
            run_id,
            len(trails),
        )
        return server

    def restore(self, run_id: str, divided_at: float, now: ClockReading) -> None:
        """Note up to when a previous exporter divided the energy of a run."""
        self._divided_s[run_id] = min(_at_s(divided_at, now), now.s)

    def restore_trail(self, uuid: str, part: TrailPart, now: ClockReading) -> None:
        """Continue the energies of a GPU, at Unix times, that a previous exporter saved."""
        device = Device("gpu", uuid)
        if meter := self._live.energy.meters.get(device):
            self.trails[device] = EnergyTrail(meter, part.moved(now.s - now.at))

    def unsaved_trails(self, now: ClockReading) -> SavedTrails:
        """Return the energies that a later exporter needs for the requests that are not final."""
        offset_s = now.at - now.s
        devices = {each for one in self.by_run.values() if one.is_busy for each in one.trails}
        parts = {each.id: self.trails[each].after(self.trails[each].saved_s) for each in devices}
        return SavedTrails(
            {uuid: part.moved(offset_s) for uuid, part in parts.items() if part.times_s},
            self._keep_from_s(now.s) + offset_s,
        )

    def note_saved(self, trails: SavedTrails, now: ClockReading) -> None:
        """Note that these energies are saved."""
        for uuid, part in trails.parts.items():
            saved = part.moved(now.s - now.at)
            self.trails[Device("gpu", uuid)].saved_s = saved.times_s[-1]

    def remove(self, run_id: str) -> None:
        self._divided_s[run_id] = self.by_run.pop(run_id).divided_s
        self._shares.leave(run_id)

    def readings(self, now: ClockReading) -> Iterator[Reading]:
        """Yield the instants from which runs have a part of the energy of their GPUs."""
        for run_id, device, from_s in self._shares.starts_s():
            if device.component:
                labels = run_id, device.component, device.id
                yield Reading(RUN_REQUESTS_START, labels, round(from_s + now.at - now.s, 3))

    def update_gpus(self, now: ClockReading) -> None:
        """Use also GPUs on which processes of the runs were found later; declare other runs on
        them.
        """
        self._read_gpus(now.s, READ_S)
        for trail in self.trails.values():
            trail.forget(self._keep_from_s(now.s))
        for run_id, server in self.by_run.items():
            with suppress(RunError):
                run = self._runs.devices_of(run_id)
                trails = self._trails_of(run)
                self._join(run_id, trails, now, run)
                server.use(trails)
                end_s = math.inf if run.end_at is None else _at_s(run.end_at, now)
                self._end(run_id, end_s)
                server.end(end_s)
                known_s = now.s - BEGIN_WITHIN_S
                others = self._runs.others_on_gpus(run_id, max(known_s, _at_s(run.begin_at, now)))
                if any(
                    each.begin_s < (min(known_s, end_s) if each.end_s is None else end_s)
                    for each in others
                ):
                    self._runs.note(run_id, SHARED_NOTE)
        if self.by_run:
            self._shares.note_loads(now.s)
        self._divided_s = {
            run_id: each for run_id, each in self._divided_s.items() if each > now.s - self._kept_s
        }

    def _gpu_periods(self, device: Device, since_s: float) -> Sequence[GpuLoadPeriod]:
        return self._runs.gpu_periods(device, since_s, {*self.by_run, *self._divided_s})

    def divided_at(self, now: ClockReading) -> dict[str, float]:
        """Return the Unix times up to which the energy of runs is divided."""
        divided_s = self._divided_s | {
            run_id: server.divided_s for run_id, server in self.by_run.items()
        }
        return {run_id: each + now.at - now.s for run_id, each in divided_s.items()}

    def known_s(self, run_id: str, now_s: float) -> float:
        """Return the time up to which the energy of a run is known."""
        return self._shares.known_s(self.by_run[run_id].trails, now_s)

    def _others_on_gpus(self, run_id: str, since_s: float) -> Sequence[GpuUse]:
        try:
            return self._runs.others_on_gpus(run_id, since_s)
        except RunError:  # the run is forgotten
            return ()

    def _end(self, run_id: str, end_s: float) -> None:
        """End the parts of a run at its end, which may be known late."""
        for device in self._shares.end(run_id, end_s) if end_s < math.inf else ():
            for server in self.by_run.values():
                if device in server.trails:
                    server.measure_again(end_s)

    def _join(self, run_id: str, trails: Trails, now: ClockReading, run: RunDevices) -> None:
        """Divide the energy of GPUs also with a run, as far as it is known and not divided yet."""
        for device, trail in trails.items():
            others = [
                server
                for each, server in self.by_run.items()
                if each != run_id and device in server.trails
            ]
            since_s = max(
                [
                    self._known_from_s({device: trail}, now.s),
                    *(server.divided_s for server in others),
                ]
            )
            if self._shares.join(run_id, device, since_s, _at_s(run.begin_at, now)):
                for server in others:
                    server.measure_again(since_s)

    def _known_from_s(self, trails: Trails, now_s: float) -> float:
        """Return the time from which the energy of some of the GPUs is known; where none is, that
        for which it would be kept.
        """
        begin_s = min((each.begin_s for each in trails.values()), default=math.inf)
        return begin_s if begin_s < math.inf else now_s - self._kept_s

    def _read_gpus(self, now_s: float, every_s: float) -> None:
        """Read the energies of the GPUs that were not read for a time."""
        for device, meter in self._live.energy.meters.items():
            if device.kind == "gpu":
                trail = self.trails.setdefault(device, EnergyTrail(meter))
                if now_s - trail.last_s >= every_s:
                    trail.read(now_s)

    def _keep_from_s(self, now_s: float) -> float:
        """Return the time from which energies are kept."""
        divided_s = [server.divided_s for server in self.by_run.values()]
        return min([now_s - self._kept_s - READ_S, *divided_s])

    def _trails_of(self, run: RunDevices) -> Trails:
        return {device: self.trails[device] for device in run.devices if device in self.trails}

    def _idle_w(self, run_id: str, device: Device, edges_s: FloatArray) -> FloatArray | None:
        """Return the part of a run in the idle power of a GPU, of which attribution gives all its
        runs equal parts.
        """
        watts = self._runs.idle_w(device)
        return None if watts is None else watts * self._shares.idle_shares(run_id, device, edges_s)


def _at_s(unix_s: float, now: ClockReading) -> float:
    """Return the CLOCK_BOOTTIME of a Unix time."""
    return unix_s - (now.at - now.s)
