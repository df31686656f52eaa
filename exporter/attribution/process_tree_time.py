"""CPU time of trees of processes, by owner: what came and went counts once its parent has waited for it (pure).

A process shows its own time, and apart from it the time of the children that it has waited for, with all that those
had waited for. A child that is waited for moves from the one place to the other, in one step of the kernel. So:

- what a process's own time grows by, counts;
- what the time that it has waited for grows by, counts, less what was already counted of its descendants that have
  vanished since: the debt of the nearest ancestor that is left. The rest is of children too short-lived to be seen, and
  of the last moments of those that were;
- a parent is read before its children (Snapshot.tree), so one that is waited for between the two is missed by this look
  and found by the next, and never counted twice. A debt is therefore good for two looks and then forgotten: who was
  not waited for by then, never will be.

The totals never fall and never exceed the truth. They lack what was used by processes whose parent did not wait for
them (it ignored SIGCHLD, or was gone), between the last look and their end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from exporter.attribution.procfs import TICK_S, ProcessKey


class CpuOwner(NamedTuple):
    """To whom CPU time belongs: a run, and the run inside whose cgroup it was used, or empty."""

    run_id: str
    inside: str = ""


class TreeMember(NamedTuple):
    """A process of a tree at one look. `parent` is the member that is its parent, if one is."""

    owner: CpuOwner
    parent: ProcessKey | None
    own_s: float
    waited_s: float

    @property
    def seen_s(self) -> float:
        return self.own_s + self.waited_s


class _Debt(NamedTuple):
    owner: CpuOwner
    seconds: float


class ProcessTreeTime:
    def __init__(self) -> None:
        self.members: Mapping[ProcessKey, TreeMember] = {}
        """Those of the last look."""
        self._debts: dict[ProcessKey, list[_Debt]] = {}

    def take(self, members: Mapping[ProcessKey, TreeMember], since_s: Mapping[str, float]) -> dict[CpuOwner, float]:
        """CPU seconds used since the last look, by owner; `since_s` is when each run was first looked at.

        A new process counts whole where it descends from one that was there at the last look, and started after its
        run was first looked at. Else it came with a root that was added, and what it had used before does not count.
        """
        before, self.members = self.members, members
        fresh = self._vanished(before)
        old, self._debts = self._debts, {}
        used: dict[CpuOwner, float] = defaultdict(float)
        for process, now in members.items():
            last = before.get(process)
            if last is None:
                if process.started_s > since_s[now.owner.run_id] - TICK_S and self._descends(process, before):
                    used[now.owner] += now.seen_s
                continue
            used[now.owner] += max(0.0, now.own_s - last.own_s)
            waited_s = max(0.0, now.waited_s - last.waited_s)
            debts = [*old.get(process, ()), *fresh.get(process, ())]
            rest_s = waited_s - sum(debt.seconds for debt in debts)
            if rest_s > 0:
                used[_heir(now.owner, debts)] += rest_s
            elif process in fresh:
                self._debts[process] = _unpaid(fresh[process], -rest_s)
        return used

    def _vanished(self, before: Mapping[ProcessKey, TreeMember]) -> dict[ProcessKey, list[_Debt]]:
        """By the nearest ancestor that is left: what was counted of those that are no more, and what they owed."""
        debts: dict[ProcessKey, list[_Debt]] = defaultdict(list)
        for process, last in before.items():
            if process in self.members:
                continue
            ancestor = last.parent
            while ancestor is not None and ancestor not in self.members:
                ancestor = before[ancestor].parent if ancestor in before else None
            if ancestor is not None:
                debts[ancestor] += [_Debt(last.owner, last.seen_s), *self._debts.get(process, ())]
        return debts

    def _descends(self, process: ProcessKey, before: Mapping[ProcessKey, TreeMember]) -> bool:
        ancestor = self.members[process].parent
        while ancestor is not None and ancestor not in before:
            ancestor = self.members[ancestor].parent if ancestor in self.members else None
        return ancestor is not None


def _heir(owner: CpuOwner, debts: list[_Debt]) -> CpuOwner:
    """Whose the rest is: that of another owner's process which vanished, since it is of its last moments."""
    return next((debt.owner for debt in debts if debt.owner != owner), owner)


def _unpaid(debts: list[_Debt], seconds: float) -> list[_Debt]:
    """The debts as far as they were not paid, in the same proportion."""
    total_s = sum(debt.seconds for debt in debts)
    share = min(1.0, seconds / total_s) if total_s else 0.0
    return [_Debt(debt.owner, debt.seconds * share) for debt in debts]
