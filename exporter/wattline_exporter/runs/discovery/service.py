"""Discovery of runs: the job, pod, container, service or user whose processes use a GPU becomes a
run.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from wattline.contract.metrics import DISCOVERY_SOURCE_UP, DISCOVERY_UNRESOLVED, RUNS_FOLDED
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.admission import MAX_BEGIN_AGE_S, DiscoveredRun, assigned_gpus
from wattline_exporter.runs.discovery.labels import OwnerLabels
from wattline_exporter.runs.discovery.outcomes import Outcomes
from wattline_exporter.runs.discovery.owners import (
    AssignedGpus,
    GpuProcesses,
    OwnedProcess,
    ProcessOwners,
    Unresolved,
    users_of_gpus,
)
from wattline_exporter.runs.discovery.pending_cgroups import attach_cgroup
from wattline_exporter.runs.discovery.pods import PodDirectory, PodProcesses
from wattline_exporter.runs.discovery.slurm import JobMappingFolder
from wattline_exporter.runs.lifecycle import has_living_process
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.runs.service import RunService
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.cgroups import is_cgroup_populated, pids_in_cgroup
from wattline_exporter.sensors.processes.exits import ProcessExits
from wattline_exporter.sensors.processes.procfs import ProcessKey, find_process
from wattline_exporter.sensors.readings import ClockReading, Reading, RunError, Service, read_clocks

SCAN_S = 0.5
USER_GAP_S = 8.0
"""Time without a process on a GPU after which a user's run ends; it ends at the exit of the last
one.
"""
RESTART_GAP_S = 8.0
"""Time without a process of its containers after which a pod's run ends; Kubernetes may restart one
earlier.
"""
_REMEDIES: Mapping[Unresolved, str] = {
    "not_visible": "the exporter sees no such process; the container of the exporter or of the "
    "process needs the "
    "host's PID namespace (docker run --pid=host, Kubernetes hostPID: true)",
    "no_owner": "no kind of --runs.discover fits its cgroup; add user",
}

log = logging.getLogger(__name__)


class DiscoveryService(Service):
    """Begins and ends the runs of owners of processes on the GPUs of this node."""

    def __init__(  # noqa: PLR0913  # collaborators that tests replace
        self,
        owners: ProcessOwners,
        labels: OwnerLabels,
        live: LiveState,
        runs: RunService,
        *,
        jobs: JobMappingFolder | None = None,
        pods: PodDirectory | None = None,
        outcomes: Outcomes | None = None,
        clock: Callable[[], ClockReading] = read_clocks,
        is_populated: Callable[[str], bool] = is_cgroup_populated,
        is_alive: Callable[[RunRecord], bool] = has_living_process,
        exits: ProcessExits | None = None,
    ) -> None:
        self._owners = owners
        self._labels = labels
        self._jobs = jobs
        self._pods = pods
        self._pod_processes = PodProcesses(is_populated)
        self._outcomes = outcomes or Outcomes(pods)
        self._live = live
        self._runs = runs
        self._clock = clock
        self._is_populated = is_populated
        self._is_alive = is_alive
        self._exits = exits or ProcessExits(lambda: clock().s)
        self._processes: dict[CgroupOwner, set[ProcessKey]] = defaultdict(set)
        """Living processes of each owner that were seen on a GPU since its run began."""
        self._last_exit_s: dict[CgroupOwner, float] = {}
        self._empty_s: dict[CgroupOwner, float] = {}
        """Time of the last exit in a pod whose containers have no process."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._scanned_s = -math.inf
        """Start of the last scan."""
        self._folded: dict[CgroupOwner, RunRecord] = {}
        """Owners whose runs could not begin since too many are open, with the records that hold
        their devices.
        """
        live.counters.add(RUNS_FOLDED, (), 0.0)
        self._suspects: Mapping[int, Unresolved] = {}
        self._unresolved: Mapping[int, Unresolved] = {}

    async def run(self) -> None:
        """Scan twice a second until cancelled."""
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def stop(self) -> None:
        self._exits.close()
        self._outcomes.close()

    async def scan(self) -> None:
        """Begin a run for each owner that uses a GPU and has none; end those of owners without
        processes.
        """
        started_s = self._clock().s
        pids_on = {
            uuid: {p.pid for p in gpu.processes} for uuid, gpu in self._live.gpus.items() if gpu.up
        }
        owned = await asyncio.to_thread(self._owners.read, set().union(*pids_on.values()))
        self._report_unresolved(owned)
        using = users_of_gpus(pids_on, owned)
        assigned = await asyncio.to_thread(self._jobs.read) if self._jobs else {}
        running = self._running(using.keys() | assigned.keys())
        assigned = {**assigned, **(self._pods.assigned([*using, *running]) if self._pods else {})}
        self._note_uses(using, running, started_s)
        for owner, use in using.items():
            if owner not in running:
                # an epilog may have ended the run of a job whose last processes are about to end
                is_alive = owner.kind == "user" or self._is_populated(owner.path)
                if is_alive and not (self._pods and self._pods.awaits(owner)):
                    self._begin_or_fold(owner, use, assigned.get(owner))
            elif owner.kind == "user" and (alive := use.processes - self._exits.exited_s.keys()):
                self._runs.add_discovered_processes(running[owner], alive)
        for owner in assigned.keys() - using.keys() - running.keys():
            if self._has_process(owner):
                self._begin(owner, GpuProcesses(), assigned[owner])
        self._outcomes.watch(running.keys())
        self._watch_exits()
        self._unfold(self._folded.keys() - using.keys())
        for owner, run in running.items():
            if owner not in using and run.run_id not in self._ending and not run.pending_cgroup:
                self._end_if_empty(owner, run)
        for owner in self._processes.keys() - running.keys() - using.keys():
            self._forget(owner)
        self._scanned_s = started_s

    def _note_uses(
        self,
        using: Mapping[CgroupOwner, GpuProcesses],
        running: Mapping[CgroupOwner, RunRecord],
        seen_s: float,
    ) -> None:
        for owner, use in using.items():
            self._processes[owner] |= use.processes
            if owner in running:
                running[owner].note_alive(seen_s)

    def _running(self, seen: Collection[CgroupOwner]) -> dict[CgroupOwner, RunRecord]:
        """Return the running runs by owner.

        A run that a prolog began takes the cgroup of its job that was `seen`, once it has a
        process.
        """
        jobs = {owner.id: owner for owner in seen if owner.kind == "slurm"}
        running = {}
        for run in self._runs.discovered():
            job = jobs.get(run.discovered.id) if run.discovered and run.pending_cgroup else None
            if job and self._is_populated(job.path):
                attach_cgroup(run, job.path)
            if run.discovered:
                running[run.discovered] = run
        return running

    def _watch_exits(self) -> None:
        self._exits.watch(set().union(*self._processes.values()))
        exited_s = self._exits.exited_s
        for owner in self._processes:
            times_s = [
                exited_s[process] for process in self._processes[owner] if process in exited_s
            ]
            self._last_exit_s[owner] = max([self._last_exit_s.get(owner, -math.inf), *times_s])
            self._processes[owner] -= exited_s.keys()

    def _has_process(self, owner: CgroupOwner) -> bool:
        populated = (
            self._pod_processes.lives_in if owner.kind == "kubernetes" else self._is_populated
        )
        return populated(owner.path)

    def _forget(self, owner: CgroupOwner) -> None:
        self._empty_s.pop(owner, None)
        self._pod_processes.forget(owner.path)
        self._processes.pop(owner, None)
        self._last_exit_s.pop(owner, None)

    def _begin(self, owner: CgroupOwner, use: GpuProcesses, job: AssignedGpus | None) -> None:
        now = self._clock()
        known = use.processes or filter(None, map(find_process, sorted(pids_in_cgroup(owner.path))))
        first = min(known, key=lambda process: process.started_s, default=None)
        begin_s = max(first.started_s, now.s - MAX_BEGIN_AGE_S) if first else now.s
        pid = first.pid if first else None
        started_at = now.at - (now.s - begin_s)
        described = self._labels.describe(owner, pid, started_at, tuple(use.gpus))
        found = DiscoveredRun(
            self._runs.unused_id(described.run_id),
            owner,
            begin_s,
            described.labels,
            gpus=tuple(assigned_gpus(self._live, job.gpus if job else described.gpus)),
            seen_on=tuple(
                dict.fromkeys([*use.gpus, *assigned_gpus(self._live, described.some_gpus)])
            ),
            processes=list(use.processes) if owner.kind == "user" else [],
            shared=frozenset(use.shared),
        )
        if self._runs.has_room:
            self._runs.begin_discovered(found)
            self._unfold([owner])
        elif owner not in self._folded and use.processes:
            self._folded[owner] = self._runs.fold(found)
            self._live.counters.add(RUNS_FOLDED, (), 1.0)
            log.warning(
                "%s %s: too many runs are open; only its owner has its energy; see --runs.max",
                *_named(owner),
            )

    def _begin_or_fold(
        self, owner: CgroupOwner, use: GpuProcesses, job: AssignedGpus | None
    ) -> None:
        """Begin the owner's run; while too many runs are open, add the GPUs and processes that were
        seen since.
        """
        folded = self._folded.get(owner)
        if folded is None or self._runs.has_room:
            self._begin(owner, use, job)
            return
        folded.seen_on += [uuid for uuid in use.gpus if uuid not in folded.seen_on]
        if folded.processes:
            folded.processes = list(use.processes)

    def _unfold(self, owners: Iterable[CgroupOwner]) -> None:
        for owner in owners:
            if folded := self._folded.pop(owner, None):
                folded.end_s = self._clock().s

    def _end_if_empty(self, owner: CgroupOwner, run: RunRecord) -> None:
        """End the run of an owner without processes, at the exit of the last one that was seen on a
        GPU.
        """
        now_s = self._clock().s
        last_s = self._last_exit_s.get(owner, -math.inf)
        if owner.kind == "user":
            end_s = max(last_s, run.begin_s, run.alive_s)
            if last_s >= run.alive_s and not self._processes.get(owner):
                run.note_end(end_s)
            if self._processes.get(owner) or now_s - end_s < USER_GAP_S or self._is_alive(run):
                return  # after a restart of the exporter, the GPUs may not have been read yet
            if run.unwatched:
                run.end_until_s = run.end_until_s or now_s
        else:
            if self._has_process(owner):
                self._empty_s.pop(owner, None)
                run.note_alive(now_s)
                return
            if run.unwatched:  # it became empty while no exporter ran
                run.end_until_s = run.end_until_s or now_s
                run.alive_s = last_s = run.unwatched[0]
            else:
                # the group was populated at the last scan: it became empty since, at the last exit
                # if that is as recent
                last_s = last_s if last_s > self._scanned_s - SCAN_S else now_s
            if owner not in self._empty_s:
                self._outcomes.read(owner)
            end_s = self._empty_s.setdefault(owner, max(last_s, run.alive_s))
            if not run.unwatched:
                run.note_end(end_s)
            if now_s - end_s < RESTART_GAP_S and self._is_populated(
                owner.path
            ):  # by the pod's pause process
                return
        self._forget(owner)
        self._ending[run.run_id] = asyncio.ensure_future(self._end(owner, run, end_s))

    async def _end(self, owner: CgroupOwner, run: RunRecord, end_s: float) -> None:
        try:
            ended = await self._outcomes.find(owner)
            now = self._clock()
            if run.end_until_s is not None and ended.ended_at is not None:
                reported_s = now.s - (now.at - ended.ended_at)
                if end_s - SCAN_S <= reported_s <= run.end_until_s:
                    end_s = max(end_s, reported_s)
                    run.end_until_s = min(end_s + ended.within_s, run.end_until_s)
            with suppress(RunError):  # a client has ended it
                await self._runs.end_discovered(run.run_id, end_s, ended.outcome, ended.note)
        finally:
            del self._ending[run.run_id]

    def _report_unresolved(self, owned: Mapping[int, OwnedProcess]) -> None:
        """Log each process whose owner is unknown in two scans, once: a driver also lists a process
        that just ended.
        """
        suspects = {pid: process.unresolved for pid, process in owned.items() if process.unresolved}
        unresolved = {pid: reason for pid, reason in suspects.items() if pid in self._suspects}
        for pid in unresolved.keys() - self._unresolved.keys():
            log.warning(
                "process %d uses a GPU but belongs to no run: %s", pid, _REMEDIES[unresolved[pid]]
            )
        self._suspects = suspects
        self._unresolved = unresolved

    def readings(self) -> Iterator[Reading]:
        counts = Counter(self._unresolved.values())
        for reason in _REMEDIES:
            yield Reading(DISCOVERY_UNRESOLVED, (reason,), float(counts[reason]))
        if self._pods:
            yield Reading(DISCOVERY_SOURCE_UP, ("pods",), float(self._pods.is_up))
        if self._outcomes.is_up is not None:
            yield Reading(DISCOVERY_SOURCE_UP, ("container_runtime",), float(self._outcomes.is_up))
        yield from self._live.counters.readings(RUNS_FOLDED)


def _named(owner: CgroupOwner) -> tuple[str, str]:
    return owner.kind, owner.id
