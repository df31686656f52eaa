"""CPU time of each run, of the node, and the processes of each run.

Whose a process is: runs may lie within each other, and the innermost has it, so that nothing is counted twice.

- Of trees, the one whose root is nearest above the process; of cgroups, the deepest.
- Between a tree and a cgroup that both hold it, the one that begins within the other: where the tree's root itself is
  in the cgroup the tree (`workloads run` within a Slurm job), else the cgroup (a container that a run's job started).
- Between equals the run that began last.
- A process whose parent has died stays with the run that it was seen in.

A cgroup's time is its cpu.stat, which holds also what no look ever saw, less that of the runs within it. A tree's is
that of `tree_time`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from exporter.attribution.cgroups import CGROUPS, cgroup_cpu_seconds, pids_in_cgroup
from exporter.attribution.process_tree_time import CpuOwner, ProcessTreeTime, TreeMember
from exporter.attribution.procfs import PROC, ProcessKey, ProcessSnapshot, ProcessStat, node_busy_s
from exporter.model import boottime


@dataclass(frozen=True, slots=True)
class RunProcesses:
    """What a run was given as its own: processes, with all that descend from them, and a cgroup's path."""

    processes: tuple[ProcessKey, ...] = ()
    cgroup: str | None = None


@dataclass(frozen=True, slots=True)
class RunCpuUsage:
    """`cpu_s` is since the run was first looked at, and never falls."""

    cpu_s: float
    pids: frozenset[int]
    """The processes that are this run's: a process is of one run only."""
    family: frozenset[int]
    """Also those of the runs within it."""


@dataclass(frozen=True, slots=True)
class NodeCpuUsage:
    """`at_s` is CLOCK_BOOTTIME; `busy_s` the CPU time that all CPUs of the node spent on work since boot."""

    at_s: float
    busy_s: float
    runs: Mapping[str, RunCpuUsage]


class _Claim(NamedTuple):
    """A process lies in the tree of this run, below this root."""

    run_id: str
    root: ProcessKey


class _Seen(NamedTuple):
    """`is_orphan`: its parent has died; the one that it has now tells nothing of whose it is."""

    stat: ProcessStat
    parent: ProcessKey | None
    claims: tuple[_Claim, ...]
    is_orphan: bool


class CpuUsageReader:
    """`read` blocks for some milliseconds: call it in a thread, about once a second, with the runs that are open."""

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS, clock: Callable[[], float] = boottime) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._clock = clock
        self._tree = ProcessTreeTime()
        self._seen: dict[ProcessKey, _Seen] = {}
        self._since_s: dict[str, float] = {}
        self._total_s: dict[str, float] = {}
        self._shown_s: dict[tuple[str, str], float] = {}
        """The cgroup's own counter at the last look, by run and path."""
        self._ahead_s: dict[str, float] = {}
        """By how much the runs within a cgroup are ahead of its own counter, which is finer than the kernel's ticks."""

    def read(self, runs: Mapping[str, RunProcesses]) -> NodeCpuUsage:
        """Raises OSError where /proc/stat cannot be read."""
        at_s = self._clock()
        self._since_s = {run_id: self._since_s.get(run_id, at_s) for run_id in runs}
        groups = _Groups(runs, self._cgroups)
        self._seen = self._look(runs)
        members = {
            process: TreeMember(_owner(seen, groups), seen.parent, seen.stat.own_s, seen.stat.waited_s)
            for process, seen in self._seen.items()
        }
        used = self._tree.take(members, self._since_s)
        grown = self._grown(runs, groups, used)
        self._total_s = {run_id: self._total_s.get(run_id, 0.0) + grown.get(run_id, 0.0) for run_id in runs}
        living = {seen.stat.process.pid: seen for seen in self._seen.values() if not seen.stat.is_over}
        owners = {process.pid: member.owner.run_id for process, member in members.items()}
        return NodeCpuUsage(at_s, node_busy_s(self._proc), self._by_run(runs, groups, living, owners))

    def _look(self, runs: Mapping[str, RunProcesses]) -> dict[ProcessKey, _Seen]:
        """All processes of all trees, each after its parent: an ancestor has always started before."""
        roots: dict[ProcessKey, list[str]] = defaultdict(list)
        for run_id, run in runs.items():
            for process in run.processes:
                roots[process].append(run_id)
        snapshot = ProcessSnapshot(self._proc)
        found: dict[ProcessKey, _Seen] = {}
        by_pid: dict[int, ProcessKey] = {}
        for start in sorted({*roots, *self._seen}, key=lambda process: (process.started_s, process.pid)):
            for stat in () if start in found else snapshot.tree(start):
                parent = by_pid.get(stat.parent)
                above = found[parent].claims if parent else ()
                seen = self._claimed(stat, parent, above, self._running(runs, stat.process))
                own = tuple(_Claim(run_id, stat.process) for run_id in roots.get(stat.process, ()))
                kept = tuple(claim for claim in seen.claims if claim.run_id not in roots.get(stat.process, ()))
                if kept or own:
                    found[stat.process], by_pid[stat.process.pid] = seen._replace(claims=(*kept, *own)), stat.process
        return found

    def _running(self, runs: Mapping[str, RunProcesses], process: ProcessKey) -> tuple[_Claim, ...]:
        """In whose trees the process was at the last look, of the runs that are still open."""
        last = self._seen.get(process)
        return tuple(claim for claim in last.claims if claim.run_id in runs) if last else ()

    def _claimed(
        self, stat: ProcessStat, parent: ProcessKey | None, above: tuple[_Claim, ...], before: tuple[_Claim, ...]
    ) -> _Seen:
        """In whose trees the process lies, outermost first: in its parent's, or, of an orphan, where it was before."""
        last = self._seen.get(stat.process)
        is_orphan = last is not None and (last.is_orphan or last.stat.parent != stat.parent)
        claims = before or above if is_orphan else above or before
        return _Seen(stat, parent, claims, is_orphan)

    def _grown(
        self, runs: Mapping[str, RunProcesses], groups: _Groups, used: Mapping[CpuOwner, float]
    ) -> dict[str, float]:
        """CPU seconds of each run since the last look."""
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

    def _cgroups_growth(self, runs: Mapping[str, RunProcesses]) -> dict[str, float]:
        """What each cgroup's counter has grown by, with all that is below it."""
        before, self._shown_s = self._shown_s, {}
        growth: dict[str, float] = {}
        for run_id, run in runs.items():
            if not run.cgroup:
                continue
            growth[run_id] = 0.0
            last_s, now_s = before.get((run_id, run.cgroup)), cgroup_cpu_seconds(run.cgroup, self._cgroups)
            if now_s is None:
                now_s = last_s
            elif last_s is not None:
                growth[run_id] = now_s - last_s if now_s >= last_s else now_s  # of that name, but another cgroup
            if now_s is not None:
                self._shown_s[run_id, run.cgroup] = now_s
        return growth

    def _by_run(
        self,
        runs: Mapping[str, RunProcesses],
        groups: _Groups,
        living: Mapping[int, _Seen],
        owners: Mapping[int, str],
    ) -> dict[str, RunCpuUsage]:
        pids: dict[str, set[int]] = defaultdict(set)
        family: dict[str, set[int]] = defaultdict(set)
        for pid, seen in living.items():
            pids[owners[pid]].add(pid)
            for claim in seen.claims:
                family[claim.run_id].add(pid)
        for run_id, held in groups.pids.items():
            family[run_id] |= held
            pids[run_id] |= {pid for pid in held if pid not in owners and groups.innermost(pid) == run_id}
        return {
            run_id: RunCpuUsage(
                self._total_s[run_id], frozenset(pids[run_id]), frozenset(family[run_id] | pids[run_id])
            )
            for run_id in runs
        }


class _Groups:
    """The runs that have a cgroup: `pids` of each, and `outer`, the run in whose cgroup its own lies directly."""

    def __init__(self, runs: Mapping[str, RunProcesses], root: Path) -> None:
        paths = {run_id: run.cgroup.rstrip("/") for run_id, run in runs.items() if run.cgroup}
        inwards = sorted(paths, key=lambda run_id: paths[run_id].count("/"))  # and, of equals, as they began
        self._outwards = inwards[::-1]
        self.pids = {run_id: pids_in_cgroup(paths[run_id] or "/", root) for run_id in inwards}
        self.outer: dict[str, str] = {}
        for place, run_id in enumerate(inwards):
            holders = [other for other in inwards[:place] if f"{paths[run_id]}/".startswith(f"{paths[other]}/")]
            if holders:
                self.outer[run_id] = holders[-1]

    def innermost(self, pid: int) -> str:
        """The run in whose cgroup the process is, or empty."""
        return next((run_id for run_id in self._outwards if pid in self.pids[run_id]), "")


def _owner(seen: _Seen, groups: _Groups) -> CpuOwner:
    inside = groups.innermost(seen.stat.process.pid)
    claim = seen.claims[-1]
    if inside and claim.root.pid not in groups.pids[inside]:
        return CpuOwner(inside, inside)
    return CpuOwner(claim.run_id, inside)
