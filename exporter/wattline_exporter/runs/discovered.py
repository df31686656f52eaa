"""Runs that the exporter begins automatically, for a job, a pod, a container, a service or a
user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from wattline.contract.requests.served import SERVER_LABEL, SERVER_WORKLOAD
from wattline_exporter.attribution.cpu_time import NodeCpuUsage
from wattline_exporter.attribution.nesting import (
    CLIENT_RANK,
    DISCOVERED_RANK,
    SERVER_RANK,
    RunFamilies,
)
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.admission import RunStart, new_run
from wattline_exporter.runs.lifecycle import find_login
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.cgroups import pids_in_cgroup
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import ClockReading

MAX_BEGIN_AGE_S = 10.0
"""Longest time by which the start of a run may lie in the past: the meters keep the polls of 12 s.
"""
_LEASE_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class DiscoveredRun:
    """A run to begin at `begin_s` (CLOCK_BOOTTIME).

    `gpus`: UUIDs of the GPUs that were assigned to the owner; empty for those that its processes
    use, at first `seen_on`. `processes`: the processes of a user; other owners have a cgroup.
    `shared`: UUIDs of the GPUs that other owners use, too.
    """

    run_id: str
    owner: CgroupOwner
    begin_s: float
    labels: Mapping[str, str]
    gpus: tuple[str, ...] = ()
    seen_on: tuple[str, ...] = ()
    processes: list[ProcessKey] = field(default_factory=list)
    shared: frozenset[str] = frozenset()


def earlier(now: ClockReading, s: float) -> ClockReading:
    """Return the reading of all clocks at the earlier time `s` (CLOCK_BOOTTIME)."""
    age_s = max(0.0, now.s - s)
    return ClockReading(now.s - age_s, now.at - age_s, now.awake_s - age_s)


def nesting_rank(run: RunRecord) -> int:
    """Return the rank of a run: of several runs of a process, one of the highest rank has it.

    Runs of clients have a higher one than those that servers begin for their reports, and these
    than discovered ones.
    """
    if run.discovered:
        return DISCOVERED_RANK
    return (
        SERVER_RANK
        if run.workload == SERVER_WORKLOAD and SERVER_LABEL in run.labels
        else CLIENT_RANK
    )


def run_families(
    runs: Collection[RunRecord], usage: NodeCpuUsage | None, pids: Mapping[str, Collection[int]]
) -> RunFamilies:
    """Return the processes of runs at the scan `usage`; `pids` has those of each run that named
    some.
    """
    scanned = usage.runs if usage else {}
    families = {
        run.run_id: scanned[run.run_id].family if run.run_id in scanned else _named_pids(run)
        for run in runs
    }
    ranks = {run.run_id: nesting_rank(run) for run in runs}
    jobs = {
        run.run_id
        for run in runs
        if run.workload == SERVER_WORKLOAD and ranks[run.run_id] == CLIENT_RANK
    }
    return RunFamilies(ranks, families, pids, jobs)


def _named_pids(run: RunRecord) -> frozenset[int]:
    """Return the pids of a run that has not been scanned yet."""
    in_cgroup = pids_in_cgroup(run.cgroup) if run.cgroup else ()
    return frozenset({process.pid for process in run.processes}.union(in_cgroup))


def discovered_record(
    live: LiveState,
    found: DiscoveredRun,
    now: ClockReading,
    find: Callable[[int], ProcessKey | None],
) -> RunRecord:
    """Return the record of a discovered run. Raises RunError where the node lacks one of its
    GPUs.
    """
    request = RunStart(
        workload=found.owner.kind,
        labels=dict(found.labels),
        gpus=list(found.gpus),
        run_id=found.run_id,
        lease_seconds=_LEASE_S,
    )
    run = new_run(live, request, earlier(now, max(found.begin_s, now.s - MAX_BEGIN_AGE_S)), find)
    run.discovered = found.owner
    run.cgroup = found.owner.path or None
    run.processes, run.seen_on = list(found.processes), list(found.seen_on)
    run.alive_s = now.s
    find_login(run)
    return run
