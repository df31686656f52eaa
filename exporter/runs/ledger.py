"""Ledger of runs with their start, phases, work and end; it survives a restart."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable

from exporter.contract import run as contract
from exporter.contract.run import BeginRequest, EndRequest, ProcessesRequest, WorkRequest
from exporter.contract.run_limits import MAX_RUNNING
from exporter.model import ClockReading, Device, Reading, RunError, read_clocks
from exporter.polling.live_state import LiveState
from exporter.processes.procfs import ProcessKey, find_process
from exporter.runs import lifecycle, marks, requests
from exporter.runs.device_holders import DeviceHolders
from exporter.runs.discovered import DiscoveredRun, discovered_record, earlier
from exporter.runs.lifecycle import ClockSteps, SlotProgress, has_living_process
from exporter.runs.lookup import RunLookup
from exporter.runs.marks import LateDoubts
from exporter.runs.record import STORED, Cut, RunArchive, RunRecord
from exporter.runs.unsaved import UnsavedRuns
from exporter.runs.view import RunSnapshot, run_view
from exporter.storage.state_file import SHOWN_S, SavedState, StateChanges, StoredRun

log = logging.getLogger(__name__)


class Ledger:
    """Runs that are running or ended in the last ten minutes. `archive` reads older runs from the state file."""

    def __init__(  # noqa: PLR0913  # collaborators that tests replace
        self,
        live: LiveState,
        attribution: DeviceHolders,
        archive: RunArchive,
        *,
        clock: Callable[[], ClockReading] = read_clocks,
        is_alive: Callable[[RunRecord], bool] = has_living_process,
        find: Callable[[int], ProcessKey | None] = find_process,
        max_open: int = MAX_RUNNING,
    ) -> None:
        self.runs: dict[str, RunRecord] = {}
        self.ended = 0
        """Number of runs that this process has ended."""
        self.attribution = attribution
        self._live = live
        self.archive = archive
        self.lookup = RunLookup(self.runs, archive)
        self._clock = clock
        self._is_alive, self._find_process, self._max_open = is_alive, find, max_open
        self._steps = ClockSteps()
        self._slots = SlotProgress()
        self._unsaved = UnsavedRuns()
        self._ended_s: dict[str, float] = {}
        self._doubts = LateDoubts()

    def restore(self, saved: SavedState, *, same_boot: bool) -> None:
        """Continue or end the runs that a previous exporter left open; keep those that ended recently."""
        last = lifecycle.last_shutdown(saved)
        ended, running = ([STORED.validate_json(run) for run in runs] for runs in (saved.ended, saved.running))
        self.runs |= {run.run_id: run for run in [*ended, *running]}
        for run in running:
            self._unsaved.add(run.run_id)
            if run.end_s is not None:
                lifecycle.end_late(run, last)
                self.ended += 1
            elif same_boot:
                lifecycle.resume(run, last, self._clock())
            else:
                lifecycle.end_by_reboot(run, last)
                self.ended += 1
        self.attribution.hold(self.open_runs)

    @property
    def needs_fast_polls(self) -> bool:
        """True while a run is open, or has just ended."""
        return self._doubts.is_watching or bool(self.open_runs)

    @property
    def open_runs(self) -> list[RunRecord]:
        """Runs whose final marks are still to be taken."""
        return [run for run in self.runs.values() if run.is_open]

    def find(self, run_id: str) -> RunRecord:
        """Return the run. Raises RunError where there is none."""
        return self.lookup.find(run_id)

    # -- requests

    def begin(self, request: BeginRequest) -> tuple[RunRecord, bool]:
        """Return the run and whether it is new.

        After a new run, the caller reads the sensors and then calls `confirm_begin`. Raises RunError.
        """
        if request.run_id is not None and (existing := self.lookup.get(request.run_id)):
            if BeginRequest.model_validate_json(existing.request) == request:
                return existing, False
            raise RunError(409, f"run_id: {request.run_id!r} is already used by another run; choose another run ID")
        self._check_limit()
        run = requests.new_run(self._live, request, self._clock(), self._find_process)
        self.runs[run.run_id] = run
        self._mark_begin(run)
        return run, True

    def begin_discovered(self, found: DiscoveredRun) -> RunRecord:
        """Begin a run for the owner of processes. Raises RunError."""
        self._check_limit()
        run = discovered_record(self._live, found, self._clock(), self._find_process)
        self.runs[run.run_id] = run
        self._mark_begin(run)
        self.confirm_begin(run)
        self._mark_first_use(run, [device for device in run.measured() if device.kind == "gpu"])
        return run

    def add_discovered_processes(self, run: RunRecord, processes: Collection[ProcessKey]) -> None:
        run.processes = requests.merge_processes(run.processes, list(processes))
        run.alive_s = self._clock().s

    def _mark_first_use(self, run: RunRecord, gpus: list[Device]) -> None:
        others = [other for other in self.runs.values() if other is not run and (other.end_s or math.inf) > run.begin_s]
        marks.mark_first_use(run, self._live.energy.meters, gpus, others, self.attribution.final_until_s)

    def _check_limit(self) -> None:
        if len(self.open_runs) >= self._max_open:
            advice = "end one (GET /api/v1/runs?state=running), or raise --runs.max"
            raise RunError(429, f"{self._max_open} runs are open, the maximum; {advice}")

    def confirm_begin(self, run: RunRecord) -> None:
        """Take the start marks from newly read sensors, and attribute energy to the run from its start on."""
        if not run.begin_settled:
            self._mark_begin(run)
        self.attribution.change_holders(self.runs.values(), run.begin_s)
        log.info("run %s (%s) began on %d devices", run.run_id, run.workload, len(run.devices))

    def _mark_begin(self, run: RunRecord) -> None:
        self._unsaved.add(run.run_id)
        run.begin = run.cuts[0].marks = marks.take_marks(run, self._live.energy.meters, run.begin_s, {})

    def add_processes(self, run_id: str, request: ProcessesRequest) -> RunRecord:
        run = self.lookup.find_running(run_id)
        cgroup = requests.find_cgroup(request.cgroup) or run.cgroup
        processes = requests.find_processes(request.pids, request.pid_namespace, self._find_process)
        run.processes, run.cgroup = requests.merge_processes(run.processes, processes), cgroup
        self._renew(run)
        return run

    def work(self, run_id: str, request: WorkRequest) -> RunRecord:
        run = self.lookup.find_running(run_id)
        requests.add_reported_work(run, request.contributor, request.amounts)
        self._renew(run)
        return run

    def phase(self, run_id: str, name: str) -> RunRecord:
        run = self.lookup.find_running(run_id)
        refusal = requests.refuse_phase(run, name)
        phase = None if refusal else name
        if run.cuts[-1].phase != phase:
            now_s = self._clock().s
            requests.check_phase_rate(run, now_s)
            marks.start_phase(run, self._live.energy.meters, Cut(now_s, phase, run.cuts[-1].slots))
        self._renew(run)
        if refusal:
            raise refusal
        return run

    def _renew(self, run: RunRecord) -> None:
        now_s = self._clock().s
        run.alive_s, run.lease_until_s = now_s, now_s + run.lease_s
        self._unsaved.add(run.run_id)

    def stop(self, run: RunRecord, request: EndRequest, end_s: float | None = None) -> None:
        """Set a run's end, now or at `end_s`.

        The caller then reads the sensors and calls `release`, and `finish` after the next poll.
        """
        self._follow_clock()
        requests.add_reported_work(run, "", request.work, in_phase=False)
        run.results.update(request.results)
        now = self._clock()
        end = now if end_s is None else earlier(now, max(end_s, run.begin_s))
        run.end_s, run.ended_at, run.outcome = end.s, end.at, request.outcome
        marks.mark_end(run, self._live.energy.meters)

    def release(self, run: RunRecord) -> None:
        """Stop the attribution of energy to the run at its end."""
        assert run.end_s is not None
        self.attribution.change_holders(self.runs.values(), run.end_s)

    def finish(self, run: RunRecord) -> None:
        """Take the final marks of a stopped run."""
        self._record_power()
        lifecycle.note_doubts(run, self._live, self._clock().s)
        marks.finish(run, self._live.energy.meters)
        run.attributed_j = self.attribution.shares_j(run)
        self._doubts.watch(run, self._clock().s)
        self.ended += 1
        self._unsaved.add(run.run_id)

    # -- time

    def tick(self) -> None:
        """Take final marks, end dead runs, remove old ones, and start a segment where the carbon intensity changes."""
        self._follow_clock()
        self._record_power()
        now_s, now_at, _ = now = self._clock()
        families, slots_at = self.attribution.families(), self._live.energy.slots_at
        slots_from_s = self._slots.advance(self.runs.values(), slots_at, now)
        for run in list(self.runs.values()):
            if not run.running:
                if self._doubts.check(run, self._live.energy.meters, now_s):
                    self._unsaved.add(run.run_id)
                self._forget(run, now_s, now_at)
                continue
            self._unsaved.add(run.run_id)
            alone = lifecycle.discover_gpus(run, self._live.gpus, families.get(run.run_id, ()))
            self._mark_first_use(run, alone)
            marks.settle(run, self._live.energy.meters, now_s)
            lifecycle.note_doubts(run, self._live)
            from_s = None if slots_from_s is None else run.known_alive_until(slots_from_s)
            if lifecycle.end_if_dead(run, now, self._is_alive):
                self.release(run)
                self.finish(run)
            elif from_s is not None:
                lifecycle.cut_at_slots(run, slots_at, from_s, now)

    def _forget(self, run: RunRecord, now_s: float, now_at: float) -> None:
        """Forget a run ten minutes after its end on CLOCK_BOOTTIME, but not before it is saved."""
        if run.is_open:  # its end is under way
            return
        age_s = min(max(0.0, now_at - (run.ended_at or now_at)), SHOWN_S)
        ended_s = self._ended_s.setdefault(run.run_id, now_s - age_s)
        if now_s - ended_s > SHOWN_S and run.run_id not in self._unsaved:
            del self.runs[run.run_id], self._ended_s[run.run_id]
            self._doubts.forget(run)

    def _follow_clock(self) -> None:
        """Adjust running runs to wall clock steps and system sleep."""
        step_s, sleep_s = self._steps.take(self._clock())
        if not step_s and not sleep_s:
            return
        for run in self.runs.values():
            if run.running:
                lifecycle.adjust_to_clock(run, step_s, sleep_s)
                self._unsaved.add(run.run_id)

    def _record_power(self) -> None:
        samples = self._live.energy.drain_power_samples()
        for run in self.open_runs:
            lifecycle.note_power(run, samples)

    # -- output

    def view(self, run: RunRecord) -> contract.RunView:
        return run_view(run, self._live.energy.meters, self._clock().s, self._live.simulation)

    def update(self) -> None:
        """Update sensor health, attribution and maximum powers before snapshots are taken."""
        self._live.update(self._clock().s)
        self.attribution.divide()
        self._record_power()

    def attribution_readings(self, readable: Collection[Device]) -> Iterable[Reading]:
        return self.attribution.energies.readings(readable)

    def ids(self) -> tuple[list[str], list[str]]:
        """Return the ids of the open and of the ended runs. An id is followed by the number of the run's revision."""
        runs = self.runs.values()
        ended_ids = [self._doubts.revision(run) for run in runs if not run.is_open]
        return [run.run_id for run in runs if run.is_open], ended_ids

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Return the metrics of a run by its id, with or without the number of its revision."""
        run_id = run_id.partition(" ")[0]
        return RunSnapshot(self.view(self.runs[run_id]), dict(self.runs[run_id].power_max_w))

    def take_changes(self) -> StateChanges:
        """Return what changed since the last call, all at one instant; the caller calls `confirm`, or `put_back`."""
        self.attribution.divide()
        runs = [self.runs[run_id] for run_id in self._unsaved.take() if run_id in self.runs]
        return StateChanges(
            {device: meter.totals for device, meter in self._live.energy.meters.items()},
            dict(self._live.energy.emissions_grams),
            [StoredRun(run.run_id, run.started_at, run.is_open, STORED.dump_json(run).decode()) for run in runs],
            self._live.counters.take_changed(),
            self.attribution.energies.take_changes(),
            self.attribution.energies.idle_w,
            self._clock().s,
            self._live.energy.last_polls(),
        )

    def confirm(self, changes: StateChanges) -> None:
        """Note that the changes are saved."""
        self._unsaved.confirm(run.run_id for run in changes.runs)

    def put_back(self, changes: StateChanges) -> None:
        """Return changes that could not be saved to the next `take_changes`."""
        self._unsaved.put_back(run.run_id for run in changes.runs)
        self._live.counters.changed |= changes.counters.keys()
        self.attribution.energies.put_back(changes.attributed)
