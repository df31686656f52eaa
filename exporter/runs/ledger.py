"""The runs: begin, work done, phases, end; their joules and grams. It survives a restart of the exporter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from exporter.contract.run import (
    MAX_PHASES,
    MAX_RUNNING,
    BeginRequest,
    EndRequest,
    ProcessesRequest,
    WorkRequest,
)
from exporter.live_state import Store
from exporter.model import Poll
from exporter.runs import lifecycle as run_watch
from exporter.runs import marks as run_marks
from exporter.runs import requests as run_request
from exporter.runs.clock_steps import Moment, Wall, now
from exporter.runs.record import Cut, RunRecord, key
from exporter.runs.requests import LedgerError
from exporter.runs.sensor_wait import Senses
from exporter.storage.state_file import SHOWN_S, Saved, State

log = logging.getLogger(__name__)


class Ledger:
    """`sense` asks all sensors for a reading at once and returns when RAPL's is in.

    `changed_hands` is called with the instant from which on other runs are on.
    """

    def __init__(
        self,
        store: Store,
        state: State,
        *,
        sense: Callable[[], Awaitable[None]],
        changed_hands: Callable[[float], None] = lambda _: None,
        clock: Callable[[], Moment] = now,
    ) -> None:
        self.runs: dict[str, RunRecord] = {}
        """Those that run, and those that ended in the last ten minutes."""
        self.changed: set[str] = set()
        self.ended = 0
        self.disk_is_well = True
        """Whether what was last to be saved is saved."""
        self._ended_s: dict[str, float] = {}
        self._store = store
        self._state = state
        self._senses = Senses(store, sense, lambda: clock().s)
        self._changed_hands = changed_hands
        self._clock = clock
        self._wall = Wall()
        self._families: Mapping[str, Collection[int]] = {}
        self._ending: dict[str, asyncio.Event] = {}
        store.on_poll = self._watch_power

    def restore(self, saved: Saved, *, same_boot: bool) -> None:
        """Takes up the runs that an exporter before this one left open, and shows those that ended a while ago."""
        left = run_marks.at_totals(saved.totals)
        self.runs |= {run.run_id: run for run in [*saved.ended, *saved.running]}
        for run in saved.running:
            self.changed.add(run.run_id)
            if run.end_s is not None:
                run_watch.end_late(run, left)
                self.ended += 1
            elif same_boot:
                run_watch.take_up(run, saved, left, self._clock())
            else:
                run_watch.cut_off(run, saved, left)
                self.ended += 1

    @property
    def running(self) -> list[RunRecord]:
        """Those that are open: their last marks are still to be taken."""
        return [run for run in self.runs.values() if run.is_open]

    def find(self, run_id: str) -> RunRecord:
        run = self.runs.get(run_id) or self._state.run(run_id)
        if run is None:
            known = ", ".join(list(self.runs)[-5:]) or "none"
            raise LedgerError(404, f"run_id: there is no run {run_id!r}; the latest are: {known}. See GET /api/v1/runs")
        return run

    def _find_running(self, run_id: str) -> RunRecord:
        run = self.find(run_id)
        if not run.running:
            raise LedgerError(409, f"run_id: run {run_id!r} has ended ({run.outcome}); begin another run")
        return run

    async def begin(self, request: BeginRequest) -> tuple[RunRecord, bool]:
        """The run, and whether it is new."""
        body = request.model_dump_json()
        if request.run_id is not None and (known := self.runs.get(request.run_id) or self._state.run(request.run_id)):
            if BeginRequest.model_validate_json(known.request) == request:
                return known, False
            raise LedgerError(409, f"run_id: run {request.run_id!r} was begun with another body; choose another run_id")
        if len(self.running) >= MAX_RUNNING:
            raise LedgerError(429, f"{MAX_RUNNING} runs are open already; end one (GET /api/v1/runs?state=running)")
        gpus = run_request.gpus(self._store, request.gpus or None)
        cgroup = run_request.cgroup(request.cgroup)
        own = run_request.processes(request.pids)
        now_s, now_at, _ = self._clock()
        run = RunRecord(
            run_id=request.run_id or run_request.new_run_id(),
            workload=request.workload,
            labels=dict(request.labels),
            request=body,
            devices=[key(device) for device in [*gpus, *run_request.cpus(self._store)]],
            gpus={gpu.id: run_request.introduced(self._store, gpu.id) for gpu in gpus},
            discovers=request.gpus == [],
            whole_node=request.gpus is None,
            begin_s=now_s,
            started_at=now_at,
            lease_s=request.lease_seconds,
            lease_until_s=now_s + request.lease_seconds,
            alive_s=now_s,
            cgroup=cgroup,
            processes=own,
            cuts=[Cut(now_s, None, self._store.slots_at(now_at))],
        )
        self.runs[run.run_id] = run
        self.changed.add(run.run_id)
        run.begin = run.cuts[0].marks = run_marks.take(run, self._store.lines, now_s, {})
        await self._senses.feel()
        if not run.begin_settled:
            run.begin = run.cuts[0].marks = run_marks.take(run, self._store.lines, now_s, {})
        self._changed_hands(now_s)
        log.info("run %s (%s) began on %d devices", run.run_id, run.workload, len(run.devices))
        return run, True

    def add_processes(self, run_id: str, request: ProcessesRequest) -> RunRecord:
        run = self._find_running(run_id)
        cgroup = run_request.cgroup(request.cgroup)
        own = run_request.processes(request.pids, request.pid_namespace)
        run.processes = run_request.joined(run.processes, own)
        run.cgroup = cgroup or run.cgroup
        self._renew(run)
        return run

    def work(self, run_id: str, request: WorkRequest) -> RunRecord:
        run = self._find_running(run_id)
        run_request.add_work(run, request.contributor, request.amounts)
        self._renew(run)
        return run

    def phase(self, run_id: str, name: str) -> RunRecord:
        run = self._find_running(run_id)
        names = {p.name for p in run.phases} | {cut.phase for cut in run.cuts if cut.phase}
        if name not in names and len(names) >= MAX_PHASES:
            raise LedgerError(422, f"name: a run has at most {MAX_PHASES} phases; it has {', '.join(sorted(names))}")
        if run.cuts[-1].phase != name:
            now_s = self._clock().s
            run_request.refuse_hasty_phase(run, now_s)
            run.cuts.append(Cut(now_s, name, run.cuts[-1].slots))
        self._renew(run)
        return run

    def _renew(self, run: RunRecord) -> None:
        now_s = self._clock().s
        run.alive_s, run.lease_until_s = now_s, now_s + run.lease_s
        self.changed.add(run.run_id)

    async def end(self, run_id: str, request: EndRequest) -> RunRecord:
        """Ending twice gives the same answer; so does a second call while the first still waits for the sensors."""
        if run_id in self._ending:
            await self._ending[run_id].wait()
        run = self.find(run_id)
        if not run.running:
            return run
        self._follow_wall()
        run_request.add_work(run, "", request.work, in_phase=False)
        run.results.update(request.results)
        (run.end_s, run.ended_at, _), run.outcome = self._clock(), request.outcome
        done = self._ending[run_id] = asyncio.Event()
        try:
            await self._senses.feel()
            self._changed_hands(run.end_s)
            await self._senses.settle(run, run.end_s)
            self._end(run)
        finally:
            del self._ending[run_id]
            done.set()
        return run

    def _end(self, run: RunRecord) -> None:
        run_watch.note_doubts(run, self._store)
        run_marks.finish(run, self._store.lines)
        self.ended += 1
        self.changed.add(run.run_id)

    def take_families(self, families: Mapping[str, Collection[int]]) -> None:
        """The processes of each run, with all that descend from them, as they are now."""
        self._families = families

    def tick(self) -> None:
        """Once a second: marks that have settled, runs that have died, runs to forget, a new slot of intensity."""
        ticked_s = self._wall.looked_s
        self._follow_wall()
        now_s, now_at, _ = self._clock()
        for run in list(self.runs.values()):
            if run.run_id in self._ending:
                continue
            if not run.running:
                self._forget(run, now_s, now_at)
                continue
            self.changed.add(run.run_id)
            run_watch.discover(run, self._store.gpus, self._families.get(run.run_id, ()))
            run_marks.settle(run, self._store.lines, now_s)
            run_watch.note_doubts(run, self._store)
            from_s = run_watch.known_until(run, ticked_s)
            self._bury(run, now_s, now_at)
            if run.running:
                until_s = run_watch.known_until(run, now_s)
                run_watch.cut_at_slots(run, self._store.slots_at, from_s, until_s, now_at - (now_s - until_s))

    def _forget(self, run: RunRecord, now_s: float, now_at: float) -> None:
        """Ten minutes after its end, by a clock that no one sets, and not before it is on the disk."""
        age_s = min(max(0.0, now_at - (run.ended_at or now_at)), SHOWN_S)
        ended_s = self._ended_s.setdefault(run.run_id, now_s - age_s)
        if now_s - ended_s > SHOWN_S and run.run_id not in self.changed and self.disk_is_well:
            del self.runs[run.run_id], self._ended_s[run.run_id]

    def _follow_wall(self) -> None:
        """Where the wall clock was set, or the machine slept: a run lies on the clock that is in force at its end."""
        stepped_s, slept_s = self._wall.look(self._clock())
        if not stepped_s and not slept_s:
            return
        for run in self.runs.values():
            if run.running:
                run_watch.follow_wall(run, stepped_s, slept_s)
                self.changed.add(run.run_id)

    def _bury(self, run: RunRecord, now_s: float, now_at: float) -> None:
        """Ends a run whose processes are gone or whose lease is over, at the last moment it was known to live."""
        death = run_watch.death(run, now_s)
        if death:
            run.end_s, why = death
            run.ended_at, run.outcome = now_at - (now_s - run.end_s), "interrupted"
            run.note(why)
            self._end(run)
            self._changed_hands(run.end_s)

    def _watch_power(self, poll: Poll) -> None:
        for run in self.runs.values():
            if run.is_open:
                run_watch.note_power(run, poll)
