"""Runs that contain processes of other runs, and the run that has each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

DISCOVERED_RANK, SERVER_RANK, CLIENT_RANK = range(3)
"""Ranks of runs: of several runs of a process, one of the highest rank has it."""


class Nesting(NamedTuple):
    """Runs inside a run of lower rank, and the processes of the outer run that are in none of them."""

    inner: frozenset[str]
    own_pids: frozenset[int]
    uses_cpu: bool


@dataclass(frozen=True, slots=True)
class RunFamilies:
    """Processes of runs at one scan, by run.

    `families` includes the processes of runs inside a run, `pids` has each process of the runs that named some once.
    """

    ranks: Mapping[str, int]
    families: Mapping[str, Collection[int]]
    pids: Mapping[str, Collection[int]]

    def inner(self, run_id: str) -> frozenset[str]:
        """Return the runs of higher rank that have processes of a run."""
        higher = [other for other, rank in self.ranks.items() if rank > self.ranks[run_id]]
        family = set(self.families[run_id]) if higher else set()
        return frozenset(other for other in higher if not family.isdisjoint(self.families[other]))

    def clients(self, run_id: str, gpu_pids: Collection[int]) -> frozenset[str]:
        """Return the clients' runs that have processes of a run that a server began, and no other ones on GPUs.

        `gpu_pids` are the processes on all GPUs.
        """
        if self.ranks[run_id] != SERVER_RANK:
            return frozenset()
        others = set(gpu_pids).difference(self.families[run_id])
        return frozenset(each for each in self.inner(run_id) if others.isdisjoint(self.pids.get(each, ())))

    def of_reporters(self, reporters: Collection[str]) -> dict[str, set[int]]:
        """Return the processes of each run, those of a server with the run that reports its requests.

        A process of a run without reports belongs to the innermost of its runs that reports requests, else to the run
        that its server began, which may report some later.
        """
        inwards = sorted(self.ranks, key=lambda each: (self.ranks[each], -len(self.families[each])))
        reporting = [each for each in inwards if each in reporters]
        servers = [each for each in inwards if self.ranks[each] == SERVER_RANK and each not in reporters]
        found: dict[str, set[int]] = {run_id: set() for run_id in self.pids}
        for owner, pids in self.pids.items():
            takers = [] if owner in reporters else [*servers, *reporting]
            found[owner] |= self._take(found, set(pids), takers)
        rest = set().union(*self.families.values()).difference(*self.pids.values())  # of runs that are not among these
        self._take(found, rest, [*inwards, *servers, *reporting])
        return found

    def _take(self, found: dict[str, set[int]], pids: set[int], takers: Sequence[str]) -> set[int]:
        """Add each process to the last of these runs that has it in its family; return those that none has."""
        for taker in reversed(takers):
            taken = pids.intersection(self.families[taker])
            if taken:
                found.setdefault(taker, set()).update(taken)
                pids = pids - taken
        return pids

    def is_within(self, run_id: str, pids: Mapping[str, Collection[int]], gpu_pids: Collection[int]) -> bool:
        """Return True for a run that uses a GPU only by processes that belong to other runs, as `pids` states.

        `gpu_pids` are the processes on the GPU.
        """
        if not set(pids.get(run_id, ())).isdisjoint(gpu_pids):
            return False
        family = set(self.families[run_id])
        return any(each != run_id and not family.isdisjoint(own) for each, own in pids.items())
