"""Who loads what: the processes of the runs, asked once a second, and what follows for the division of energy."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping

from exporter.attribution import device_shares as tenancy
from exporter.attribution.cpu_usage import CpuUsage, RunProcesses, Usage
from exporter.attribution.policy import Tenancy
from exporter.contract.metrics import HOST_CPU_UTILIZATION
from exporter.live_state import Store
from exporter.runs.record import RunRecord

IDLE_RATIO = 0.05
"""CPUs that are less busy than this are idle, as far as a node ever is."""
LINGER_S = 2.0
"""For so long the driver may still name a process that has ended: what it drew was its run's."""


class Tenants:
    """Holds what the last looks at the runs' processes and CPU time gave."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cpu = CpuUsage()
        self._looking = asyncio.Lock()
        self._usage: Usage | None = None
        self._spent_s: Mapping[str, float] = {}
        self._busy_s = 0.0
        self._alive_s: dict[str, float] = {}
        """When a look last found a process of a run."""
        self._gone_s: dict[str, float] = {}
        """When the first look after that found none; where looks are far apart, soon after it was seen."""
        self._last_seen: dict[int, tuple[str, float]] = {}
        """Of which run a process was, and when."""

    async def look(self, running: Iterable[RunRecord]) -> None:
        """Reads the CPU time of the runs that named processes or a cgroup; nothing where there are none."""
        async with self._looking:  # the counting remembers; one look at a time
            await self._look(running)

    async def _look(self, running: Iterable[RunRecord]) -> None:
        asked = {run.run_id: RunProcesses(tuple(run.processes), run.cgroup) for run in running if names(run)}
        if not asked:
            self._usage, self._spent_s, self._busy_s, self._gone_s = None, {}, 0.0, {}
            return
        before, self._usage = self._usage, await asyncio.to_thread(self._cpu.read, asked)
        self._remember(self._usage)
        if before is None:
            return
        self._spent_s = {
            run_id: now.cpu_s - before.runs[run_id].cpu_s
            for run_id, now in self._usage.runs.items()
            if run_id in before.runs
        }
        self._busy_s = self._usage.busy_s - before.busy_s

    def _remember(self, usage: Usage) -> None:
        there = {run_id: usage.at_s for run_id, used in usage.runs.items() if used.family}
        self._alive_s = {run_id: s for run_id, s in self._alive_s.items() if run_id in usage.runs} | there
        self._gone_s = {
            run_id: self._gone_s.get(run_id, min(usage.at_s, self._alive_s.get(run_id, -math.inf) + LINGER_S))
            for run_id in usage.runs.keys() - there.keys()
        }
        kept = {pid: seen for pid, seen in self._last_seen.items() if usage.at_s - seen[1] < LINGER_S}
        self._last_seen = kept | {pid: (run_id, usage.at_s) for run_id, used in usage.runs.items() for pid in used.pids}

    def families(self) -> dict[str, frozenset[int]]:
        """The processes of each run, also those of runs within it."""
        return {run_id: usage.family for run_id, usage in self._usage.runs.items()} if self._usage else {}

    def hold(self, running: Iterable[RunRecord], from_s: float) -> None:
        """Tells the attribution who holds each device from then on."""
        runs = [run for run in running if not self._is_gone(run, from_s)]
        pids: dict[str, set[int]] = {run.run_id: set() for run in runs if names(run)}
        for pid, (run_id, _) in self._last_seen.items():
            if run_id in pids:
                pids[run_id].add(pid)
        for device in self._store.lines:
            if not runs:
                held = Tenancy()
            elif device.kind == "gpu":
                gpu = self._store.gpus.get(device.id)
                held = tenancy.of_gpu(device, runs, gpu.processes if gpu else (), pids)
            elif device.component:
                held = tenancy.of_cpu(device, runs, self._spent_s, self._busy_s, pids)
            else:
                continue
            self._store.attribution.hold(device, held, from_s)

    def _is_gone(self, run: RunRecord, at_s: float) -> bool:
        """Whether no process of the run was there then. A launcher may start the next; till then it holds nothing."""
        return not run.cgroup and self._gone_s.get(run.run_id, at_s) < at_s

    def note_loads(self) -> None:
        """Which devices are at work now, so that their power is not taken for idle."""
        host = self._store.sources.get("host")
        used = [r.value for r in host.batch.readings if r.metric is HOST_CPU_UTILIZATION] if host else []
        cpus_work = not used or used[0] > IDLE_RATIO
        for device in self._store.lines:
            gpu = self._store.gpus.get(device.id)
            if (gpu.is_at_work() if gpu else cpus_work) and device.component:
                self._store.attribution.load(device)


def names(run: RunRecord) -> bool:
    """Whether the run said which processes are its own."""
    return bool(run.processes or run.cgroup)
