"""An exporter in virtual time that discovers the jobs of a simulated node."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tests.simulation.discovery.jobs import ProcessTable
from tests.simulation.exporter import Life, World
from wattline.contract.identity import OWNER_KINDS
from wattline_exporter.attribution.cpu_time import CpuUsageReader, NodeCpuUsage, RunCpuUsage
from wattline_exporter.runs.discovery.labels import OwnerLabels
from wattline_exporter.runs.discovery.outcomes import Outcomes, ReportedEnd
from wattline_exporter.runs.discovery.owners import OwnedProcess, ProcessOwners
from wattline_exporter.runs.discovery.service import DiscoveryService
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.exits import ProcessExits
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import Service

NOWHERE = Path("/nonexistent")


class _Owners(ProcessOwners):
    def __init__(self, table: ProcessTable) -> None:
        super().__init__(OWNER_KINDS)
        self._table = table

    def _find(self, pid: int) -> OwnedProcess:
        found = self._table.find(pid)
        return OwnedProcess(pid, *found) if found else OwnedProcess(pid, unresolved="not_visible")


class _Exits(ProcessExits):
    """Exits as of pidfds, which the event loop of this life sees."""

    def __init__(self, life: DiscoveringLife) -> None:
        super().__init__(lambda: life.world.virtual.s)
        self._life = life

    def _watch(self, process: ProcessKey) -> None:
        if self._life.table.is_alive(process):
            self._pidfds[process] = -1
        else:
            self.exited_s[process] = self._clock()

    def _unwatch(self, process: ProcessKey) -> None:
        del self._pidfds[process]

    def note(self, process: ProcessKey) -> None:
        if process in self._pidfds:
            self._life.deliver(lambda: process in self._pidfds and self._note_exit(process))


class _NoOutcomes(Outcomes):
    """Node without container engine, systemd and Kubernetes."""

    def watch(self, owners: Collection[CgroupOwner]) -> None:
        """Do nothing."""

    def read(self, owner: CgroupOwner) -> None:
        """Do nothing."""

    async def find(self, owner: CgroupOwner) -> ReportedEnd:
        return ReportedEnd()


class _Discovery(DiscoveryService):
    def _has_process(self, owner: CgroupOwner) -> bool:
        return self._is_populated(owner.path)


class _GroupUsage(CpuUsageReader):
    """Processes of the discovered runs, each of which uses one CPU."""

    def __init__(self, world: World, table: ProcessTable) -> None:
        self._world, self._table = world, table

    def read(self, runs):
        now_s, used = self._world.virtual.s, {}
        for run_id, of_run in runs.items():
            alive = {process.pid for process in of_run.processes if self._table.is_alive(process)}
            pids = frozenset(alive) | self._table.pids_in(of_run.cgroup or "")
            used[run_id] = RunCpuUsage(now_s, pids, pids)
        return NodeCpuUsage(now_s, now_s * 4, used)


class DiscoveringLife(Life):
    """An exporter with discovery of all kinds of owners."""

    discovers = True

    def __init__(self, world: World, table: ProcessTable) -> None:
        self.table = table
        super().__init__(world)

    def is_alive(self, run: RunRecord) -> bool:
        return run.cgroup in self.table.groups or any(map(self.table.is_alive, run.processes))

    def make_cpu_usage(self) -> CpuUsageReader:
        return _GroupUsage(self.world, self.table)

    def further_services(self) -> list[Service]:
        exits = _Exits(self)
        self.table.on_exit = exits.note
        labels = OwnerLabels(proc=NOWHERE, slurm_conf=NOWHERE, login_name=lambda uid: f"u{uid}")
        self.discovery = _Discovery(
            _Owners(self.table),
            labels,
            self.live,
            self.runs,
            is_populated=lambda path: path in self.table.groups,
            is_alive=self.is_alive,
            exits=exits,
            outcomes=_NoOutcomes(),
        )
        self.with_metrics.append(self.discovery)
        return [self.discovery]
