"""Search for cgroups that appear after their run began, as for a Slurm job whose prolog begins the
run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.runs.service import RunService
from wattline_exporter.sensors.processes.cgroups import is_cgroup_populated, resolve_cgroup
from wattline_exporter.sensors.readings import Service, boottime

SEARCH_S = 0.5
SLOW_SEARCH_S = 5.0
"""Time between two searches for the cgroup of a run that began more than SLOW_AFTER_S ago: each
reads all cgroups.
"""
SLOW_AFTER_S = 60.0
GIVE_UP_S = 600.0
"""Age of a run at which its cgroup is no longer searched for."""

log = logging.getLogger(__name__)


def attach_cgroup(run: RunRecord, path: str) -> None:
    """Give the run its cgroup, which has a process now."""
    run.cgroup = path
    run.pending_cgroup = None
    if run.discovered:
        run.discovered = replace(run.discovered, path=path)


class PendingCgroups(Service):
    """Completes the runs whose cgroup had no process at their start, and notes those whose cgroup
    never appears.

    A cgroup is used from its first process on. Slurm creates it earlier, and an empty cgroup ends
    the run.
    """

    def __init__(
        self,
        runs: RunService,
        resolve: Callable[[str], str] = resolve_cgroup,
        clock: Callable[[], float] = boottime,
        is_populated: Callable[[str], bool] = is_cgroup_populated,
    ) -> None:
        self._runs = runs
        self._resolve = resolve
        self._clock = clock
        self._is_populated = is_populated
        self._next_s: dict[str, float] = {}

    async def run(self) -> None:
        """Search twice a second until cancelled."""
        while True:
            await self.search()
            await asyncio.sleep(SEARCH_S)

    async def search(self) -> None:
        """Search for each cgroup that is due."""
        now_s = self._clock()
        pending = [run for run in self._runs.running() if run.pending_cgroup]
        self._next_s = {run.run_id: self._next_s.get(run.run_id, now_s) for run in pending}
        for run in pending:
            if now_s >= self._next_s[run.run_id]:
                is_slow = now_s - run.begin_s > SLOW_AFTER_S
                self._next_s[run.run_id] = now_s + (SLOW_SEARCH_S if is_slow else SEARCH_S)
                await self._search_for(run, gives_up=now_s - run.begin_s > GIVE_UP_S)

    async def _search_for(self, run: RunRecord, *, gives_up: bool) -> None:
        name = run.pending_cgroup
        if name is None:
            return
        try:
            path = await asyncio.to_thread(self._resolve, name)
            if not self._is_populated(path):
                raise ValueError(f"{path} has no process")  # noqa: TRY301  # handled as a cgroup that is missing
        except ValueError as error:
            if gives_up:
                run.pending_cgroup = None
                run.note(
                    f"cgroup {name} did not appear within {GIVE_UP_S:g} s: {error}; all energy of "
                    "the run's devices "
                    "that belongs to no other run is attributed to it"
                )
                log.warning(
                    "run %s: cgroup %s did not appear within %g s", run.run_id, name, GIVE_UP_S
                )
            return
        if run.running and run.pending_cgroup == name:
            attach_cgroup(run, path)
            self._runs.renew(run)
            log.info("run %s has cgroup %s", run.run_id, path)
