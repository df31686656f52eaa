"""The run service: requests of the run API, and the tick of each second."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from wattline.contract.api import MAX_RUNS_LISTED, Outcome
from wattline.contract.json_values import json_bytes
from wattline.contract.run import Run
from wattline_exporter.attribution.device_loads import GpuLoadPeriod, GpuUse
from wattline_exporter.polling.hub import UPDATE_WITHIN_S, PollingDemand, SensorHub
from wattline_exporter.runs.admission import (
    DiscoveredRun,
    RunEnd,
    RunProcesses,
    RunStart,
    assigned_gpus,
    check_namespace,
    job_of,
)
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.runs.lifecycle import became_empty_s, watch_exits
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.exits import ProcessExits
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import Device, RunDevices, RunError, Service, boottime
from wattline_exporter.storage.saved_state import StoredRun
from wattline_exporter.storage.writer import StateWriter

TICK_S = 1.0
SHORTEST_TICK_S = 0.01
"""Shortest time between two ticks, after a late one: two samples of one millisecond would be one in
the history.
"""
IDLE_START_S = 60.0
"""Time for which --exit-when-idle waits for a first run."""
REFUSED_S = 0.5
"""The same after a request whose run cannot begin: the client may repeat it without GPUs."""
NOT_SAVED = (
    "this answer is not saved: the state cannot be written now; it is lost if the exporter is "
    "killed; "
    "check the disk that holds --state.path"
)
"""Note of an answer that was sent without being saved. It is not a part of the run."""


class RunService(Service):
    """Runs of this node.

    The event `stopping` means that the daemon is to stop. With `exit_when_idle`, this service sets
    it. `discovers`: the processes on GPUs are needed often even without a run. Without `exits`,
    only scans show the ends of processes.
    """

    def __init__(  # noqa: PLR0913  # collaborators that tests replace
        self,
        ledger: Ledger,
        sensors: SensorHub,
        storage: StateWriter,
        *,
        stopping: asyncio.Event,
        exit_when_idle: bool = False,
        discovers: bool = False,
        exits: ProcessExits | None = None,
    ) -> None:
        self._ledger = ledger
        self._sensors = sensors
        self._storage = storage
        self._stopping = stopping
        self._exit_when_idle = exit_when_idle
        self._discovers = discovers
        self._exits = exits
        self._idle_from_s = boottime() + IDLE_START_S
        self._ending: dict[str, asyncio.Event] = {}

    # -- requests

    async def begin(self, request: RunStart) -> tuple[Run, bool]:
        """Return the run and whether it is new. Raises RunError."""
        await self._sensors.wait_until_ready()  # the GPUs are unknown until then
        if self._stopping.is_set():
            raise RunError(503, "the exporter is stopping; begin the run after its restart")
        if job := job_of(request):
            if begun := next((run for run in self.discovered() if _is_of(run, job)), None):
                return await self._saved(begun), False
            gpus = assigned_gpus(self._sensors.live, request.gpus or ())
            run_id = request.run_id and self.unused_id(request.run_id)
            request = replace(request, gpus=gpus, run_id=run_id)
        try:
            run, is_new = self._ledger.begin(request)
        finally:
            self._idle_from_s = boottime() + REFUSED_S
        if is_new and isinstance(run, RunRecord):
            await self._wait_for_update()
            self._ledger.confirm_begin(run)
        return await self._saved(run), is_new

    def begin_discovered(self, found: DiscoveredRun) -> RunRecord:
        """Begin a run for the owner of processes. Raises RunError."""
        return self._ledger.begin_discovered(found)

    @property
    def has_room(self) -> bool:
        """True if a further run may begin."""
        return self._ledger.limits.has_room(len(self._ledger.open_runs))

    def fold(self, found: DiscoveredRun) -> RunRecord:
        """Attribute energy to an owner whose run cannot begin, until `end_s` of the record is set.
        Raises RunError.
        """
        return self._ledger.fold(found)

    def discovered(self) -> list[RunRecord]:
        """Return the running runs that the exporter began automatically."""
        return [run for run in self.running() if run.discovered]

    def running(self) -> list[RunRecord]:
        return [run for run in self._ledger.open_runs if run.running]

    def renew(self, run: RunRecord) -> None:
        """Extend the lease of a run that is known to be alive now, and save it."""
        self._ledger.renew(run)

    def unused_id(self, run_id: str) -> str:
        """Return the run id, with a number from 2 on if earlier runs have it."""
        return self._ledger.lookup.unused_id(run_id)

    def add_discovered_processes(self, run: RunRecord, processes: Collection[ProcessKey]) -> None:
        """Add a user's processes to the run; the kernel keeps those of other owners in their
        cgroup.
        """
        self._ledger.add_discovered_processes(run, processes)

    async def end_discovered(
        self, run_id: str, end_s: float, outcome: Outcome = "unknown", note: str = ""
    ) -> None:
        """End a run at `end_s` (CLOCK_BOOTTIME). Raises RunError."""
        if note:
            self.note(run_id, note)
        await self._end(run_id, RunEnd(outcome=outcome), end_s)

    async def add_processes(self, run_id: str, request: RunProcesses) -> Run:
        run = self._ledger.add_processes(run_id, request)
        if self.others_on_gpus(
            run_id, boottime()
        ):  # a part of the load of shared GPUs is theirs from now on
            await self._ledger.attribution.rescan(self._ledger.runs.values(), boottime())
        return await self._saved(run)

    async def work(self, run_id: str, contributor: str, totals: Mapping[str, float]) -> Run:
        return await self._saved(self._ledger.work(run_id, contributor, totals))

    async def phase(self, run_id: str, name: str) -> Run:
        run = self._ledger.phase(run_id, name)
        self._sensors.read_cpu_energy_soon()  # it is read once a second otherwise
        return await self._saved(run)

    async def _saved(self, run: RunRecord | Run) -> Run:
        """Return the run once it is saved, or with a note that it is not, while the disk fails or
        hangs.
        """
        is_saved = await self._storage.save_soon()
        measured = self._ledger.measured(run)
        return measured if is_saved else replace(measured, notes=(*measured.notes, NOT_SAVED))

    async def end(self, run_id: str, request: RunEnd) -> Run:
        """End the run, even if the client disconnects. For an ended run, return it unchanged.
        Raises RunError.
        """
        await (
            self._sensors.wait_until_ready()
        )  # after a restart of the exporter, no sensor has been read yet
        run = await asyncio.shield(self._end(run_id, request))
        return await self._saved(run)

    async def _end(
        self, run_id: str, request: RunEnd, end_s: float | None = None
    ) -> RunRecord | Run:
        if run_id in self._ending:
            await self._ending[run_id].wait()
        run = self._ledger.find(run_id)
        if isinstance(run, Run):
            return run
        if not run.running:
            self._ledger.report_outcome(run, request.outcome)
            return run
        self._ledger.stop(run, request, became_empty_s(run, boottime()) if end_s is None else end_s)
        assert run.end_s is not None
        ended = self._ending[run_id] = asyncio.Event()
        try:
            await self._wait_for_update()
            self._ledger.release(run)
            await self._sensors.wait_until_settled(run.measured(), run.end_s)
            self._ledger.finish(run)
        finally:
            del self._ending[run_id]
            ended.set()
        return run

    async def _wait_for_update(self) -> None:
        """Read all sensors and the runs' processes now; wait at most UPDATE_WITHIN_S for those that
        hang.
        """
        scan = asyncio.ensure_future(self._ledger.attribution.scan(self._ledger.open_runs))
        await asyncio.gather(
            self._sensors.wait_for_update(self._demand()),
            asyncio.wait({scan}, timeout=UPDATE_WITHIN_S),
        )
        if scan.done():
            scan.result()

    def get(self, run_id: str) -> Run:
        """Return a run; a running one with its energy up to now. Raises RunError."""
        return self._ledger.measured(self._ledger.find(run_id), so_far=True)

    def devices_of(self, run_id: str) -> RunDevices:
        """Return the devices of a run, and its times. Raises RunError."""
        run = self._ledger.find(run_id)
        if isinstance(run, Run):
            gpus = tuple(Device("gpu", gpu.uuid) for gpu in run.gpus)
            return RunDevices(gpus, run.started_at, run.ended_at)
        return RunDevices(tuple(run.measured()), run.started_at, run.ended_at)

    def note(self, run_id: str, text: str) -> None:
        """Add a note to a run in memory; that of a running one is saved within a second."""
        if run := self._ledger.runs.get(run_id):
            run.note(text)

    def others_on_gpus(self, run_id: str, since_s: float) -> list[GpuUse]:
        """Return the other runs on the GPUs of a run. Raises RunError. See `RunDirectory`."""
        attribution = self._ledger.attribution
        gpus = {device for device in self.devices_of(run_id).devices if device.kind == "gpu"}
        runs = [
            run for run in self._ledger.runs.values() if run.running or (run.end_s or 0.0) > since_s
        ]
        others = [
            run
            for run in runs
            if run.run_id != run_id and not attribution.is_same_work(run_id, run.run_id)
        ]
        return [
            GpuUse(run.run_id, run.begin_s, run.end_s)
            for run in others
            if gpus & set(run.measured())
        ]

    def idle_w(self, device: Device) -> float | None:
        """Return the idle power of a device, if it is known."""
        return self._ledger.attribution.energies.idle_w.get(device)

    def gpu_periods(
        self, device: Device, since_s: float, reporters: Collection[str]
    ) -> list[GpuLoadPeriod]:
        """Return the loads of the runs on a GPU in the latest periods. See `RunDirectory`."""
        runs = self._ledger.runs.values()
        attribution = self._ledger.attribution
        return list(attribution.gpu_periods(device, since_s, runs, reporters))

    async def list_runs(
        self,
        state: Literal["running", "ended"] | None,
        limit: int = MAX_RUNS_LISTED,
        processes: RunProcesses | None = None,
        before: str | None = None,
    ) -> list[bytes]:
        """Return the newest runs as JSON, the newest first; only those of `processes`, if given.

        With `before`, those that follow the run of that id in this order. Raises sqlite3.Error,
        and RunError for processes of another PID namespace, and for an unknown `before`.
        """
        if processes is not None:
            return await self._runs_of(processes, state)
        after = None if before is None else (self._ledger.lookup.find(before).started_at, before)
        in_memory = {
            run_id: run
            for run_id, run in self._ledger.runs.items()
            if after is None or (run.started_at, run_id) < after
        }
        most = limit + len(in_memory)  # the stored runs may be those in memory
        archived = await asyncio.to_thread(self._ledger.archive.runs, most, after)
        stored = {run.run_id: run for run in archived if run.is_final}
        runs = [*(stored | in_memory).values()]
        chosen = [run for run in runs if state in (None, "running" if run.is_open else "ended")]
        chosen.sort(key=lambda run: (run.started_at, run.run_id), reverse=True)
        bodies: list[bytes] = []
        for run in chosen[:limit]:
            if isinstance(run, StoredRun):
                bodies.append(run.body.encode())
                continue
            bodies.append(json_bytes(self._ledger.measured(run).to_json()))
            await asyncio.sleep(0)  # another task has its turn
        return bodies

    async def _runs_of(
        self, processes: RunProcesses, state: Literal["running", "ended"] | None
    ) -> list[bytes]:
        check_namespace(processes.pid_namespace)
        held = self._ledger.attribution.runs_of(processes.pids)
        if state == "ended":
            return []
        runs = [run for run in self._ledger.open_runs if run.run_id in held and run.running]
        runs.sort(key=lambda run: run.started_at, reverse=True)
        return [json_bytes(self._ledger.measured(run).to_json()) for run in runs]

    # -- time

    async def run(self) -> None:
        """Tick once a second until cancelled, or until the node is idle."""
        due_s = boottime()
        while True:
            await self._tick()
            waited = self._ledger.ended > 0 or boottime() > self._idle_from_s
            if self._exit_when_idle and waited and not self._ledger.open_runs:
                self._stopping.set()
                return
            due_s = max(due_s + TICK_S, boottime() + SHORTEST_TICK_S)
            await asyncio.sleep(due_s - boottime())

    async def _tick(self) -> None:
        self._sensors.tick()
        await self._ledger.attribution.scan(self._ledger.open_runs)
        if self._exits:
            watch_exits(self.running(), self._exits)
        self._ledger.tick()
        self._sensors.set_demand(self._demand())
        self._ledger.attribution.tick(self._ledger.runs.values(), boottime())
        await self._storage.save_each_second()

    def _demand(self) -> PollingDemand:
        runs = self._ledger.open_runs
        return PollingDemand(
            self._ledger.needs_fast_polls, self._discovers or any(run.discovers for run in runs)
        )

    async def stop(self) -> None:
        if self._exits:
            self._exits.close()


def _is_of(run: RunRecord, job: CgroupOwner) -> bool:
    return run.discovered is not None and (run.discovered.kind, run.discovered.id) == (
        job.kind,
        job.id,
    )
