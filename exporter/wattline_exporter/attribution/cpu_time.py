"""CPU time and processes of each run, and CPU time of the node.

Runs may be nested, and each process belongs to the innermost run, so that nothing is counted twice:

- Among process trees, the one with the root nearest above the process, and those of discovered runs
  only without any other; among cgroups, the deepest.
- Between a tree and a cgroup that both contain the process, the inner one: the tree if its root is
  in the cgroup (`workloads run` in a Slurm job), else the cgroup (a container that a run's job
  started).
- Otherwise the run that began last.
- A process whose parent has ended stays with its run.

A cgroup's CPU time is its cpu.stat, which includes processes that no scan found, less the time of
the runs inside it. Module `process_tree_time` has the CPU time of trees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wattline_exporter.attribution.process_tree_time import CpuOwner, ProcessTreeTime, TreeMember
from wattline_exporter.sensors.processes.cgroups import CGROUPS, cgroup_cpu_seconds, pids_in_cgroup
from wattline_exporter.sensors.processes.procfs import (
    PROC,
    ProcessKey,
    ProcessSnapshot,
    ProcessStat,
    node_busy_s,
)
from wattline_exporter.sensors.readings import boottime


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """Processes of a run, which include their descendants, and the path of its cgroup."""

    processes: tuple[ProcessKey, ...] = ()
    cgroup: str | None = None
    rank: int = 0
    """A process of several runs belongs to one of the highest rank."""


@dataclass(frozen=True, slots=True)
class RunCpuUsage:
    """CPU usage of a run. `cpu_s` counts from its first scan and never falls."""

    cpu_s: float
    pids: frozenset[int]
    """Processes of this run; each process belongs to one run only."""
    family: frozenset[int]
    """Processes of this run and of the runs inside it."""


@dataclass(frozen=True, slots=True)
class NodeCpuUsage:
    """CPU usage of the node at `at_s` (CLOCK_BOOTTIME). `busy_s`: CPU seconds of all CPUs since
    boot.
    """

    at_s: float
    busy_s: float
    runs: Mapping[str, RunCpuUsage]


class _Claim(NamedTuple):
    """Membership of a process in the tree of a run, below this root."""

    run_id: str
    root: ProcessKey


class _ScannedProcess(NamedTuple):
    """A process at one scan. `is_orphan`: its parent has ended, so that its new parent says nothing
    about its run.
    """

    stat: ProcessStat
    parent: ProcessKey | None
    claims: tuple[_Claim, ...]
    is_orphan: bool


class CpuUsageReader:
    """CPU usage of runs. `read` blocks for some milliseconds: call it in a thread, about once a
    second.
    """

    def __init__(
        self, proc: Path = PROC, cgroups: Path = CGROUPS, clock: Callable[[], float] = boottime
    ) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._clock = clock
        self._tree = ProcessTreeTime()
        self._scanned: dict[ProcessKey, _ScannedProcess] = {}
        self._since_s: dict[str, float] = {}
        self._total_s: dict[str, float] = {}
        self._counter_s: dict[tuple[str, str], float] = {}
        """Counter of each run's cgroup at the last scan, by run and path."""
        self._ahead_s: dict[str, float] = {}
        """Lead of the runs inside a cgroup over its counter, which has finer resolution than the
        kernel's ticks.
        """

    def read(self, runs: Mapping[str, ScannedRun]) -> NodeCpuUsage:
        """Return the CPU usage of these runs. Raises OSError if /proc/stat cannot be read."""
        at_s = self._clock()
        self._since_s = {run_id: self._since_s.get(run_id, at_s) for run_id in runs}
        groups = _Groups(runs, self._cgroups)
        self._scanned = self._scan(runs)
        members = {
            process: TreeMember(
                _owner(scanned, groups), scanned.parent, scanned.stat.own_s, scanned.stat.waited_s
            )
            for process, scanned in self._scanned.items()
        }
        used = self._tree.take(members, self._since_s)
        grown = self._growth(runs, groups, used)
        self._total_s = {
            run_id: self._total_s.get(run_id, 0.0) + grown.get(run_id, 0.0) for run_id in runs
        }
        living = {
            scanned.stat.process.pid: scanned
            for scanned in self._scanned.values()
            if not scanned.stat.is_over
        }
        owners = {process.pid: member.owner.run_id for process, member in members.items()}
        return NodeCpuUsage(
            at_s, node_busy_s(self._proc), self._by_run(runs, groups, living, owners)
        )

    def _scan(self, runs: Mapping[str, ScannedRun]) -> dict[ProcessKey, _ScannedProcess]:
        """Return the processes of all trees, each after its parent: ancestors have earlier start
        times.
        """
        roots: dict[ProcessKey, list[str]] = defaultdict(list)
        for run_id, run in runs.items():
            for process in run.processes:
                roots[process].append(run_id)
        snapshot = ProcessSnapshot(self._proc)
        processes: dict[ProcessKey, _ScannedProcess] = {}
        by_pid: dict[int, ProcessKey] = {}
        for start in sorted(
            {*roots, *self._scanned}, key=lambda process: (process.started_s, process.pid)
        ):
            for stat in () if start in processes else snapshot.tree(start):
                parent = by_pid.get(stat.parent)
                above = processes[parent].claims if parent else ()
                scanned = self._with_claims(
                    stat, parent, above, self._open_claims(runs, stat.process)
                )
                own = tuple(_Claim(run_id, stat.process) for run_id in roots.get(stat.process, ()))
                above = tuple(
                    claim
                    for claim in scanned.claims
                    if claim.run_id not in roots.get(stat.process, ())
                )
                # the roots of a discovered run are the processes on its GPUs, also within a run
                # that a client began
                claims = tuple(sorted((*above, *own), key=lambda claim: runs[claim.run_id].rank))
                if claims:
                    processes[stat.process] = scanned._replace(claims=claims)
                    by_pid[stat.process.pid] = stat.process
        return processes

    def _open_claims(
        self, runs: Mapping[str, ScannedRun], process: ProcessKey
    ) -> tuple[_Claim, ...]:
        """Return the process's trees at the last scan, of the runs that are still open."""
        last = self._scanned.get(process)
        return tuple(claim for claim in last.claims if claim.run_id in runs) if last else ()

    def _with_claims(
        self,
        stat: ProcessStat,
        parent: ProcessKey | None,
        above: tuple[_Claim, ...],
        before: tuple[_Claim, ...],
    ) -> _ScannedProcess:
        """Return the process with its trees, outermost first: its parent's; of an orphan, its
        earlier ones.
        """
        last = self._scanned.get(stat.process)
        is_orphan = last is not None and (last.is_orphan or last.stat.parent != stat.parent)
        claims = before or above if is_orphan else above or before
        return _ScannedProcess(stat, parent, claims, is_orphan)

    def _growth(
        self, runs: Mapping[str, ScannedRun], groups: _Groups, used: Mapping[CpuOwner, float]
    ) -> dict[str, float]:
        """Return the CPU seconds of each run since the last scan."""
        grown: dict[str, float] = defaultdict(float)
        of_cgroup = self._cgroups_growth(runs)
        exclusive = dict(of_cgroup)
        for run_id, seconds in of_cgroup.items():
            if outer := groups.outer.get(run_id):
                exclusive[outer] -= seconds
        for part, seconds in used.items():
            grown[part.run_id] += seconds
            if part.inside:
                exclusive[part.inside] -= seconds
        for run_id, seconds in exclusive.items():
            rest_s = seconds - self._ahead_s.get(run_id, 0.0)
            grown[run_id] += max(0.0, rest_s)
            exclusive[run_id] = max(0.0, -rest_s)
        self._ahead_s = exclusive
        return grown

    def _cgroups_growth(self, runs: Mapping[str, ScannedRun]) -> dict[str, float]:
        """Return the growth of each cgroup's counter, which includes the cgroups below it."""
        before = self._counter_s
        self._counter_s = {}
        growth: dict[str, float] = {}
        for run_id, run in runs.items():
            if not run.cgroup:
                continue
            growth[run_id] = 0.0
            last_s = before.get((run_id, run.cgroup))
            now_s = cgroup_cpu_seconds(run.cgroup, self._cgroups)
            if now_s is None:
                now_s = last_s
            elif last_s is not None:
                growth[run_id] = (
                    now_s - last_s if now_s >= last_s else now_s
                )  # a new cgroup of the same name
            if now_s is not None:
                self._counter_s[run_id, run.cgroup] = now_s
        return growth

    def _by_run(
        self,
        runs: Mapping[str, ScannedRun],
        groups: _Groups,
        living: Mapping[int, _ScannedProcess],
        owners: Mapping[int, str],
    ) -> dict[str, RunCpuUsage]:
        pids: dict[str, set[int]] = defaultdict(set)
        family: dict[str, set[int]] = defaultdict(set)
        for pid, scanned in living.items():
            pids[owners[pid]].add(pid)
            for claim in scanned.claims:
                family[claim.run_id].add(pid)
        for run_id, held in groups.pids.items():
            family[run_id] |= held
            pids[run_id] |= {
                pid for pid in held if pid not in owners and groups.innermost(pid) == run_id
            }
        return {
            run_id: RunCpuUsage(
                self._total_s[run_id],
                frozenset(pids[run_id]),
                frozenset(family[run_id] | pids[run_id]),
            )
            for run_id in runs
        }


class _Groups:
    """Runs that have a cgroup: `pids` of each, and `outer`, the run whose cgroup directly contains
    its own.
    """

    def __init__(self, runs: Mapping[str, ScannedRun], root: Path) -> None:
        paths = {run_id: run.cgroup.rstrip("/") for run_id, run in runs.items() if run.cgroup}
        inwards = sorted(
            paths, key=lambda run_id: paths[run_id].count("/")
        )  # runs with the same depth stay in the order of their start
        self._outwards = inwards[::-1]
        self.pids = {run_id: pids_in_cgroup(paths[run_id] or "/", root) for run_id in inwards}
        self.outer: dict[str, str] = {}
        for place, run_id in enumerate(inwards):
            holders = [
                other
                for other in inwards[:place]
                if f"{paths[run_id]}/".startswith(f"{paths[other]}/")
            ]
            if holders:
                self.outer[run_id] = holders[-1]

    def innermost(self, pid: int) -> str:
        """Return the run in whose cgroup the process is, or an empty text."""
        return next((run_id for run_id in self._outwards if pid in self.pids[run_id]), "")


def _owner(scanned: _ScannedProcess, groups: _Groups) -> CpuOwner:
    inside = groups.innermost(scanned.stat.process.pid)
    claim = scanned.claims[-1]
    if inside and claim.root.pid not in groups.pids[inside]:
        return CpuOwner(inside, inside)
    return CpuOwner(claim.run_id, inside)
