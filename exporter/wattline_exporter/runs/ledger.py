"""Ledger of runs with their start, phases, work and end; it survives a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from wattline.contract.api import Outcome
from wattline.contract.json_values import json_bytes
from wattline.contract.run import Run
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs import admission, lifecycle, marks, restart
from wattline_exporter.runs.admission import DiscoveredRun, RunEnd, RunProcesses, RunStart
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.lifecycle import ClockSteps, SlotProgress, has_living_process
from wattline_exporter.runs.limits import RunLimits
from wattline_exporter.runs.lookup import RunLookup
from wattline_exporter.runs.marks import LateDoubts
from wattline_exporter.runs.run_figures import run_with_figures
from wattline_exporter.runs.run_record import STORED, Cut, RunArchive, RunRecord
from wattline_exporter.sensors.processes.procfs import ProcessKey, find_process
from wattline_exporter.sensors.readings import ClockReading, Device, Reading, read_clocks
from wattline_exporter.storage.saved_state import SavedState, StateChanges, StoredRun

log = logging.getLogger(__name__)


class Ledger:
    """Runs that are running or have just ended, as `limits` says. `archive` reads older runs from
    the state file.
    """

    def __init__(  # noqa: PLR0913  # collaborators that tests replace
        self,
        live: LiveState,
        attribution: DeviceHolders,
        archive: RunArchive,
        *,
        clock: Callable[[], ClockReading] = read_clocks,
        is_alive: Callable[[RunRecord], bool] = has_living_process,
        find: Callable[[int], ProcessKey | None] = find_process,
        limits: RunLimits | None = None,
    ) -> None:
        self.runs: dict[str, RunRecord] = {}
        self.ended = 0
        """Number of runs that this process has ended."""
        self.attribution = attribution
        self._live = live
        self.archive = archive
        self.lookup = RunLookup(self.runs, archive)
        self._clock = clock
        self._is_alive = is_alive
        self._find_process = find
        self.limits = limits or RunLimits()
        self._steps, self._slots = ClockSteps(), SlotProgress()
        self._unsaved, self._doubts = restart.UnsavedRuns(), LateDoubts()
        self._ended_s: dict[str, float] = {}
        self._final: set[str] = set()
        """Ids of runs whose figures are saved, or will be, as they are."""

    def restore(self, saved: SavedState, *, same_boot: bool) -> None:
        """Continue or end the runs that a previous exporter left open; keep those that ended
        recently.
        """
        last = restart.last_shutdown(saved)
        now = self._clock()
        for run in map(STORED.validate_json, saved.runs):
            self.runs[run.run_id] = run
            if run.is_open:
                self._unsaved.add(run.run_id)
                restart.restore_run(run, last, now if same_boot else None, self._is_alive)
                self.ended += not run.running
            elif now.at - (run.ended_at or now.at) > self.limits.tail_s:
                self._make_final(run)
        self.attribution.hold(self.open_runs)

    @property
    def needs_fast_polls(self) -> bool:
        """True while a run is open, or has just ended."""
        return self._doubts.is_watching or bool(self.open_runs)

    @property
    def open_runs(self) -> list[RunRecord]:
        """Runs whose final marks are still to be taken."""
        return [run for run in self.runs.values() if run.is_open]

    def find(self, run_id: str) -> RunRecord | Run:
        """Return the record of a run, or a final run. Raises RunError where there is none."""
        return self.lookup.find(run_id)

    # -- requests

    def begin(self, request: RunStart) -> tuple[RunRecord | Run, bool]:
        """Return the run and whether it is new; then read the sensors and call `confirm_begin`.
        Raises RunError.
        """
        if existing := self.lookup.begun_by(request):
            return existing, False
        self.limits.check(len(self.open_runs))
        run = admission.new_run(self._live, request, self._clock(), self._find_process)
        self.runs[run.run_id] = run
        self._unsaved.add(run.run_id)
        return run, True

    def begin_discovered(self, found: DiscoveredRun) -> RunRecord:
        """Begin a run for the owner of processes. Raises RunError."""
        self.limits.check(len(self.open_runs))
        for client in [
            run for run in self.runs.values() if run.running
        ]:  # the process may be in one of them
            self._find_gpus(client)
        run = admission.discovered_record(self._live, found, self._clock(), self._find_process)
        self.runs[run.run_id] = run
        self.confirm_begin(run)
        gpus = [
            device
            for device in run.measured()
            if device.kind == "gpu" and device.id not in found.shared
        ]
        self.attribution.mark_first_use(run, self.runs.values(), gpus)
        return run

    def fold(self, found: DiscoveredRun) -> RunRecord:
        """Attribute energy to an owner whose run cannot begin; the record is no run. Raises
        RunError.
        """
        return self.attribution.fold(
            admission.discovered_record(self._live, found, self._clock(), self._find_process)
        )

    def add_discovered_processes(self, run: RunRecord, processes: Collection[ProcessKey]) -> None:
        run.processes = admission.merge_processes(run.processes, list(processes))
        run.alive_s = self._clock().s

    def confirm_begin(self, run: RunRecord) -> None:
        """Take the start marks from newly read sensors, and attribute energy to the run from its
        start on.
        """
        if not run.begin_settled:
            self._mark_begin(run)
        self.attribution.change_holders(self.runs.values(), run.begin_s)
        log.info(
            "run %s (%s) began on %s", run.run_id, run.workload, run.gpu_names() or "no GPU yet"
        )

    def _find_gpus(self, run: RunRecord) -> None:
        alone = lifecycle.discover_gpus(run, self._live.gpus, self.attribution.family(run.run_id))
        self.attribution.mark_first_use(run, self.runs.values(), alone)

    def _mark_begin(self, run: RunRecord) -> None:
        self._unsaved.add(run.run_id)
        lifecycle.find_login(run)
        run.begin = run.cuts[0].marks = marks.take_marks(
            run, self._live.energy.meters, run.begin_s, {}
        )

    def add_processes(self, run_id: str, request: RunProcesses) -> RunRecord:
        run = self.lookup.find_running(run_id)
        cgroup, pending = admission.find_cgroup(request.cgroup)
        processes = admission.find_processes(
            request.pids, request.pid_namespace, self._find_process
        )
        run.processes = admission.merge_processes(run.processes, processes)
        run.cgroup = cgroup or run.cgroup
        run.pending_cgroup = None if cgroup else pending or run.pending_cgroup
        lifecycle.find_login(run)
        self.renew(run)
        return run

    def work(self, run_id: str, contributor: str, totals: Mapping[str, float]) -> RunRecord:
        """Set the totals of a contributor's work so far, by unit. Raises RunError."""
        run = self.lookup.find_running(run_id)
        admission.add_reported_work(run, contributor, totals, self._clock().s)
        self.renew(run)
        return run

    def phase(self, run_id: str, name: str) -> RunRecord:
        run = self.lookup.find_running(run_id)
        refusal = admission.refuse_phase(run, name)
        phase = None if refusal else name
        if run.cuts[-1].phase != phase:
            now_s = self._clock().s
            admission.check_phase_rate(run, now_s)
            marks.start_phase(run, self._live.energy.meters, Cut(now_s, phase, run.cuts[-1].slots))
        self.renew(run)
        if refusal:
            raise refusal
        return run

    def renew(self, run: RunRecord) -> None:
        """Extend the lease of a run that is known to be alive now, and save it."""
        now_s = self._clock().s
        run.alive_s = now_s
        run.lease_until_s = now_s + run.lease_s
        run.end_until_s = run.end_until_s if run.unwatched else None
        self._unsaved.add(run.run_id)

    def stop(self, run: RunRecord, request: RunEnd, end_s: float | None = None) -> None:
        """Set a run's end: now, at `end_s` or as requested; then read the sensors, `release` and
        `finish` it.
        """
        self._follow_clock()
        admission.add_reported_work(run, "", request.work, self._clock().s, in_phase=False)
        run.results.update(request.results)
        now = self._clock()
        meters = self._live.energy.meters
        if request.ended_at is not None:
            end_s = admission.discard_after_end(run, meters, now, request.ended_at)
        end = now if end_s is None else now.earlier(max(end_s, run.begin_s))
        run.end_s = end.s
        run.ended_at = end.at
        run.outcome = request.outcome

    def report_outcome(self, run: RunRecord, outcome: Outcome) -> None:
        """Set the outcome of a run that ended with an unknown one, as an epilog does."""
        if run.outcome == "unknown" and run.run_id in self.runs:
            run.outcome = outcome
            self._doubts.revise(run)
            self._unsaved.add(run.run_id)

    def release(self, run: RunRecord) -> None:
        """Stop the attribution of energy to the run at its end."""
        assert run.end_s is not None
        self.attribution.change_holders(self.runs.values(), run.end_s)

    def finish(self, run: RunRecord) -> None:
        """Take the final marks of a stopped run."""
        self._record_power()
        lifecycle.note_doubts(run, self._live, self._clock().s)
        marks.finish(run, self._live.energy.meters)
        self.attribution.take_shares(run)
        self._doubts.watch(run, self._clock().s)
        self.ended += 1
        self._unsaved.add(run.run_id)

    # -- time

    def tick(self) -> None:
        """Take final marks, end dead runs, remove old ones, and start a segment where the carbon
        intensity changes.
        """
        self._follow_clock()
        self._record_power()
        now_s, now_at, _ = now = self._clock()
        slots_at = self._live.energy.slots_at
        slots_from_s = self._slots.advance(self.runs.values(), slots_at, now)
        for run in list(self.runs.values()):
            if not run.running:
                if self._doubts.check(run, self._live.energy.meters, now_s):
                    self._unsaved.add(run.run_id)
                self._forget(run, now_s, now_at)
                continue
            self._unsaved.add(run.run_id)
            lifecycle.find_login(run)
            self._find_gpus(run)
            marks.settle(run, self._live.energy.meters, now_s)
            lifecycle.note_doubts(run, self._live)
            from_s = None if slots_from_s is None else run.known_alive_until(slots_from_s)
            if lifecycle.end_if_dead(run, now, self._is_alive):
                self.release(run)
                self.finish(run)
            elif from_s is not None:
                lifecycle.cut_at_slots(run, slots_at, from_s, now)

    def _forget(self, run: RunRecord, now_s: float, now_at: float) -> None:
        """Forget a run some minutes after its end on CLOCK_BOOTTIME, once its figures are saved."""
        if run.is_open:  # its end is under way
            return
        age_s = min(max(0.0, now_at - (run.ended_at or now_at)), self.limits.tail_s)
        ended_s = self._ended_s.setdefault(run.run_id, now_s - age_s)
        if now_s - ended_s <= self.limits.tail_s:
            return
        if run.run_id not in self._final:
            self._make_final(run)
        elif run.run_id not in self._unsaved:
            del self.runs[run.run_id], self._ended_s[run.run_id]
            self._final.discard(run.run_id)
            self._doubts.forget(run)

    def _make_final(self, run: RunRecord) -> None:
        """Have the figures of an ended run saved as they are now; it then has no series."""
        self._final.add(run.run_id)
        self._unsaved.add(run.run_id)

    def _follow_clock(self) -> None:
        """Adjust running runs to wall clock steps and system sleep."""
        step_s, sleep_s = self._steps.take(self._clock())
        for run in [run for run in self.runs.values() if run.running and (step_s or sleep_s)]:
            lifecycle.adjust_to_clock(run, step_s, sleep_s)
            self._unsaved.add(run.run_id)

    def _record_power(self) -> None:
        samples = self._live.energy.drain_power_samples()
        for run in self.open_runs:
            lifecycle.note_power(run, samples)

    # -- output

    def measured(self, run: RunRecord | Run, *, so_far: bool = False) -> Run:
        """Return the run with its figures up to now, see `measure`."""
        if isinstance(run, Run):
            return run
        return run_with_figures(
            run, self._live.energy.meters, self._clock().s, self._live.simulation, so_far=so_far
        )

    def update(self) -> None:
        """Update sensor health, attribution and maximum powers before snapshots are taken."""
        self._live.update(self._clock().s)
        self.attribution.divide()
        self._record_power()

    def attribution_readings(
        self, readable: Collection[Device], *, recorded: bool = False
    ) -> Iterable[Reading]:
        """Return the attributed energies that may still change; see `ended_attribution`."""
        settled = {run.run_id for run in self._settled_runs()}
        return self.attribution.readings(readable, settled, recorded=recorded)

    def ended_attribution(self, run_id: str) -> Iterable[Reading]:
        """Return the energies attributed to an ended run, which no longer change, by its id with or
        without the number of its revision.
        """
        return self.attribution.energies.readings_of_run(_plain_id(run_id))

    def ids(self) -> tuple[list[str], list[str]]:
        """Return the ids of the runs whose series may still change, and of those that have ended.
        An id of these is followed by the number of the run's revision.
        """
        settled = self._settled_runs()
        settled_ids = {run.run_id for run in settled}
        changing_ids = [
            run_id
            for run_id in self.runs
            if run_id not in settled_ids and run_id not in self._final
        ]
        ended_ids = [self._doubts.revision(run) for run in settled if run.run_id not in self._final]
        return changing_ids, ended_ids

    def _settled_runs(self) -> list[RunRecord]:
        """Return the runs that have their final marks and shares of all devices."""
        undivided = self.attribution.energies.undivided_runs()
        return [
            run for run in self.runs.values() if not run.is_open and run.run_id not in undivided
        ]

    def hidden(self, *, recorded: bool) -> frozenset[str]:
        """Return the ids of the runs that have no series; `recorded`: in the local history."""
        return self.limits.hidden(
            self.runs.values(), self.attribution.held_j, self._clock().s, recorded=recorded
        )

    def snapshot(self, run_id: str) -> Run:
        """Return a run for the metrics by its id, with or without the number of its revision."""
        return self.measured(self.runs[_plain_id(run_id)])

    def take_changes(self) -> StateChanges:
        """Return what changed since the last call, all at one instant; the caller calls `confirm`,
        or `put_back`.
        """
        self.attribution.divide()
        runs = [self.runs[run_id] for run_id in self._unsaved.take() if run_id in self.runs]
        return StateChanges(
            {device: meter.totals for device, meter in self._live.energy.meters.items()},
            dict(self._live.energy.emissions_grams),
            [self._stored(run) for run in runs],
            self._live.counters.take_changed(),
            self.attribution.energies.take_changes(),
            self.attribution.energies.idle_w,
            self._clock(),
            self._live.energy.last_polls(),
            self._live.energy.short_windows(),
        )

    def _stored(self, run: RunRecord) -> StoredRun:
        is_final = run.run_id in self._final
        body = json_bytes(self.measured(run).to_json()) if is_final else STORED.dump_json(run)
        return StoredRun(
            run.run_id, run.started_at, run.is_open, is_final, run.request, body.decode()
        )

    def confirm(self, changes: StateChanges) -> None:
        """Note that the changes are saved."""
        self._unsaved.confirm(run.run_id for run in changes.runs)

    def put_back(self, changes: StateChanges) -> None:
        """Return changes that could not be saved to the next `take_changes`."""
        self._unsaved.put_back(run.run_id for run in changes.runs)
        self._live.counters.changed |= changes.counters.keys()
        self.attribution.energies.put_back(changes.attributed)


def _plain_id(run_id: str) -> str:
    """Return the id of a run without the number of its revision."""
    return run_id.partition(" ")[0]
