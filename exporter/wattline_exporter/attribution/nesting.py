"""Runs that contain processes of other runs, and the run that has each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

DISCOVERED_RANK, SERVER_RANK, CLIENT_RANK = range(3)
"""Ranks of runs: of several runs of a process, one of the highest rank has it."""


class Nesting(NamedTuple):
    """Runs inside a run, and the processes of the outer run that are in none of them."""

    inner: frozenset[str]
    own_pids: frozenset[int]
    uses_cpu: bool


@dataclass(frozen=True, slots=True)
class RunFamilies:
    """Processes of runs at one scan, by run.

    `families` includes the processes of runs inside a run, `pids` has each process of the runs that
    named some once. `jobs` are clients' runs that load a server: their processes are those of the
    server.
    """

    ranks: Mapping[str, int]
    families: Mapping[str, Collection[int]]
    pids: Mapping[str, Collection[int]]
    jobs: Collection[str] = ()

    def inner(self, run_id: str) -> frozenset[str]:
        """Return the runs of higher rank, and the jobs, that have processes of a run."""
        rank = self.ranks[run_id]
        is_job = run_id in self.jobs
        higher = [
            each
            for each, other in self.ranks.items()
            if other > rank or (each in self.jobs and not is_job)
        ]
        family = set(self.families[run_id]) if higher else set()
        return frozenset(each for each in higher if not family.isdisjoint(self.families[each]))

    def in_common(self, gpu_pids: Collection[int]) -> Iterator[tuple[str, str, bool]]:
        """Yield each run, each other one with a common process on GPUs, and whether that one does
        no other work there.

        `gpu_pids` are the processes on all GPUs. Other runs in a discovered or a client's run may
        do other work.
        """
        on_gpus = {
            each: found
            for each, pids in self.families.items()
            if (found := set(pids).intersection(gpu_pids))
        }
        for run_id, other in permutations(on_gpus, 2):
            if not on_gpus[run_id].isdisjoint(on_gpus[other]):
                own = set(self.pids.get(other, ())).intersection(gpu_pids)
                may_be_in = self._is_of_server(other) or self.ranks[run_id] == SERVER_RANK
                yield run_id, other, not own or (may_be_in and own <= on_gpus[run_id])

    def _is_of_server(self, run_id: str) -> bool:
        return run_id in self.jobs or self.ranks[run_id] != CLIENT_RANK

    def of_reporters(self, reporters: Collection[str]) -> dict[str, set[int]]:
        """Return the processes of each run, those of a server with the run that reports its
        requests.

        A process of a run without reports belongs to the innermost of its runs that reports
        requests, else to the run that its server began, which may report some later. One of a
        client's run that is no job belongs to another run only if its server began that one: other
        clients' and discovered runs may contain other work.
        """
        inwards = sorted(self.ranks, key=lambda each: (self.ranks[each], -len(self.families[each])))
        reporting = [each for each in inwards if each in reporters]
        servers = [
            each for each in inwards if self.ranks[each] == SERVER_RANK and each not in reporters
        ]
        found: dict[str, set[int]] = {run_id: set() for run_id in self.pids}
        for owner, pids in self.pids.items():
            takers = [*servers, *reporting]
            if not self._is_of_server(owner):
                takers = [each for each in takers if self.ranks[each] == SERVER_RANK]
            found[owner] |= self._take(found, set(pids), [] if owner in reporters else takers)
        rest = (
            set().union(*self.families.values()).difference(*self.pids.values())
        )  # of runs that are not among these
        self._take(found, rest, [*inwards, *servers, *reporting])
        return found

    def _take(self, found: dict[str, set[int]], pids: set[int], takers: Sequence[str]) -> set[int]:
        """Add each process to the last of these runs that has it in its family; return those that
        none has.
        """
        for taker in reversed(takers):
            taken = pids.intersection(self.families[taker])
            if taken:
                found.setdefault(taker, set()).update(taken)
                pids = pids - taken
        return pids

    def is_within(
        self, run_id: str, pids: Mapping[str, Collection[int]], gpu_pids: Collection[int]
    ) -> bool:
        """Return True for a run that uses a GPU only by processes that belong to other runs, as
        `pids` states.

        `gpu_pids` are the processes on the GPU.
        """
        if not set(pids.get(run_id, ())).isdisjoint(gpu_pids):
            return False
        family = set(self.families[run_id])
        return any(each != run_id and not family.isdisjoint(own) for each, own in pids.items())
