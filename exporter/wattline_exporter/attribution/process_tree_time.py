"""CPU time of process trees by owner, including processes that ended between two scans (pure).

The kernel shows a process's own time, and separately the time of the children that it has waited
for, with all that those had waited for. When a child is waited for, its time moves from the first
to the second place in one step. Therefore:

- The growth of a process's own time counts.
- The growth of its waited time counts, less the time that was already counted for its descendants
  that have vanished since: the debt of the nearest remaining ancestor. The rest belongs to children
  too short-lived to be scanned, and to the last moments of the others.
- A parent is read before its children (ProcessSnapshot.tree). A child that is waited for between
  the two reads is missed by this scan and found by the next, and never counted twice. A debt is
  therefore valid for two scans.

The totals never fall and never exceed the actual CPU time. They lack the time between the last scan
and the end of processes whose parent did not wait for them (it ignored SIGCHLD, or had ended).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from wattline_exporter.sensors.processes.procfs import TICK_S, ProcessKey


class CpuOwner(NamedTuple):
    """Owner of CPU time: a run, and the run in whose cgroup the time was used, or empty."""

    run_id: str
    inside: str = ""


class TreeMember(NamedTuple):
    """Process of a tree at one scan. `parent` is its parent, if that is in the tree."""

    owner: CpuOwner
    parent: ProcessKey | None
    own_s: float
    waited_s: float

    @property
    def counted_s(self) -> float:
        return self.own_s + self.waited_s


class _Debt(NamedTuple):
    owner: CpuOwner
    seconds: float


class ProcessTreeTime:
    def __init__(self) -> None:
        self.members: Mapping[ProcessKey, TreeMember] = {}
        """Members at the last scan."""
        self._debts: dict[ProcessKey, list[_Debt]] = {}

    def take(
        self, members: Mapping[ProcessKey, TreeMember], since_s: Mapping[str, float]
    ) -> dict[CpuOwner, float]:
        """Return the CPU seconds since the last scan by owner; `since_s` is the first scan of each
        run.

        All time of a new process counts if it descends from a process of the last scan and started
        after the first scan of its run. Otherwise it belongs to an added root, and its earlier time
        does not count.
        """
        before = self.members
        self.members = members
        fresh = self._vanished(before)
        old = self._debts
        self._debts = {}
        used: dict[CpuOwner, float] = defaultdict(float)
        for process, now in members.items():
            last = before.get(process)
            if last is None:
                if process.started_s > since_s[now.owner.run_id] - TICK_S and self._descends(
                    process, before
                ):
                    used[now.owner] += now.counted_s
                continue
            used[now.owner] += max(0.0, now.own_s - last.own_s)
            waited_s = max(0.0, now.waited_s - last.waited_s)
            debts = [*old.get(process, ()), *fresh.get(process, ())]
            rest_s = waited_s - sum(debt.seconds for debt in debts)
            if rest_s > 0:
                used[_owner_of_rest(now.owner, debts)] += rest_s
            elif process in fresh:
                self._debts[process] = _unpaid(fresh[process], -rest_s)
        return used

    def _vanished(self, before: Mapping[ProcessKey, TreeMember]) -> dict[ProcessKey, list[_Debt]]:
        """Return the counted time and the debts of vanished processes, by their nearest remaining
        ancestor.
        """
        debts: dict[ProcessKey, list[_Debt]] = defaultdict(list)
        for process, last in before.items():
            if process in self.members:
                continue
            ancestor = last.parent
            while ancestor is not None and ancestor not in self.members:
                ancestor = before[ancestor].parent if ancestor in before else None
            if ancestor is not None:
                debts[ancestor] += [
                    _Debt(last.owner, last.counted_s),
                    *self._debts.get(process, ()),
                ]
        return debts

    def _descends(self, process: ProcessKey, before: Mapping[ProcessKey, TreeMember]) -> bool:
        ancestor = self.members[process].parent
        while ancestor is not None and ancestor not in before:
            ancestor = self.members[ancestor].parent if ancestor in self.members else None
        return ancestor is not None


def _owner_of_rest(owner: CpuOwner, debts: list[_Debt]) -> CpuOwner:
    """Return the owner of the rest: the owner of a vanished process, whose last moments it
    covers.
    """
    return next((debt.owner for debt in debts if debt.owner != owner), owner)


def _unpaid(debts: list[_Debt], seconds: float) -> list[_Debt]:
    """Return the unpaid part of the debts, in the same proportion."""
    total_s = sum(debt.seconds for debt in debts)
    share = min(1.0, seconds / total_s) if total_s else 0.0
    return [_Debt(debt.owner, debt.seconds * share) for debt in debts]
