"""A simulated node whose jobs the exporter discovers, with kills, restarts and faults in virtual
time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.simulation.discovery.jobs import KINDS, JobStream, ProcessTable
from tests.simulation.discovery.life import DiscoveringLife
from tests.simulation.discovery.verify import END_S, SEEN_S, FoundRun, Interval, Verdict, verify
from tests.simulation.episode import BEGIN_S, Episode, Plan, Result
from tests.simulation.exporter import Life
from tests.simulation.gpus import SimulatedGpu
from tests.simulation.virtual_time import ProcessEndError
from wattline.contract.api import OTHER_RUNS
from wattline.contract.identity import OwnerKind
from wattline.contract.metrics import RUNS_FOLDED
from wattline.contract.run import Run
from wattline_exporter.attribution.device_loads import NO_RUN
from wattline_exporter.runs.limits import RunLimits
from wattline_exporter.runs.run_record import STORED, RunRecord
from wattline_exporter.sensors.readings import RunError

FAULTS = ("kill", "restart", "kill worker", "stop", "clock", "cpu")
STARTED_S = 6.0
"""Time from the start of an exporter to its first scan of all GPUs."""
TAIL_S = 120.0
"""Time for which the series of ended runs stay."""
FORGOTTEN_S = TAIL_S + 40.0
"""Time after the end of the last run after which no trace of it is left in memory and metrics."""


@dataclass(frozen=True)
class JobPlan:
    """Jobs and faults of a simulation. `mean_s`: mean time between two jobs; `fault_s`: that
    between two faults.
    """

    jobs: int
    mean_s: float = 1.2
    fault_s: float = 20.0
    gpus: int = 4
    burst: int = 0
    kinds: tuple[OwnerKind, ...] = KINDS
    max_open: int = 256
    faults: tuple[str, ...] = FAULTS
    calm_s: float = FORGOTTEN_S
    """Time without jobs at the end; runs and shares in memory are checked from FORGOTTEN_S on."""
    seen_s: float = SEEN_S
    late_s: float = END_S
    progress: Callable[[str], None] | None = None
    defect: Callable[[Life], None] = lambda _life: None


@dataclass
class JobsOutcome:
    result: Result
    verdict: Verdict
    most_series: int = 0
    most_runs: int = 0
    """Largest number of runs in memory."""
    folded: float = 0.0
    lives: int = 0
    """Number of exporters that ended."""

    @property
    def violations(self) -> list[str]:
        return [
            *([self.result.violation] if self.result.violation else []),
            *self.verdict.violations,
        ]


@dataclass
class _Sizes:
    """Numbers of series, and the largest number of runs in memory."""

    series: list[int] = field(default_factory=list)
    most_runs: int = 0
    folded: float = 0.0


class DiscoveryEpisode(Episode):
    """A node with jobs that never call the exporter."""

    def __init__(self, seed: int, folder: Path, plan: JobPlan) -> None:
        super().__init__(seed, 10_000.0, folder, Plan(faults=plan.faults, defect=plan.defect))
        self._jobs_plan = plan
        virtual = self._virtual
        with virtual.installed():
            gpus = [SimulatedGpu(virtual, index, has_counter=True) for index in range(plan.gpus)]
            for gpu in gpus:
                gpu.call_s = self._rng.choice([0.0001, 0.03])
        self.world = replace(self.world, gpus=gpus, limits=RunLimits(plan.max_open, TAIL_S))
        self.table = ProcessTable(virtual)
        self.jobs = JobStream(
            virtual,
            gpus,
            self.table,
            plan.jobs,
            mean_s=plan.mean_s,
            burst=plan.burst,
            kinds=plan.kinds,
        )
        self.disturbed: list[Interval] = []
        self.sizes = _Sizes()
        self.verdict = Verdict()

    def make_life(self) -> Life:
        down_s = self._down_s if self._kills or self.world.lives else BEGIN_S
        self._disturb_from(down_s, self._virtual.s + STARTED_S)
        return DiscoveringLife(self.world, self.table)

    _down_s = BEGIN_S

    def _run(self) -> None:
        """Run; a kill that a defect causes may come while no exporter runs."""
        while True:
            try:
                super()._run()
            except ProcessEndError:
                continue
            return

    def _bury(self) -> None:
        self._down_s = self._virtual.s
        self.table.on_exit = lambda _: None
        super()._bury()

    def _disturb_from(self, from_s: float, until_s: float) -> None:
        self.disturbed.append((from_s, until_s))

    def _stop_processes(self, until_s: float, *, worker: bool, exporter: bool) -> None:
        self._disturb_from(self._virtual.s - 1.0, until_s + 3.0)
        super()._stop_processes(until_s, worker=worker, exporter=exporter)

    def _disturb(self, seconds: float) -> None:
        self._disturb_from(self._virtual.s - 1.0, self._virtual.s + seconds + STARTED_S)
        super()._disturb(seconds)

    def _restart(self) -> None:
        self._disturb_from(self._virtual.s - 0.5, self._virtual.s + 2.0)
        super()._restart()

    def _schedule(self) -> None:
        self._start()
        self.clients = []
        self.jobs.start()
        kinds = self._kinds()
        for name in self._jobs_plan.faults:
            self._repeat(kinds[name], self._jobs_plan.fault_s * len(self._jobs_plan.faults))
        self._scrape_every_s = 15.0
        self._virtual.after(4.0, self._scrape)
        self._virtual.after(10.0, self._watch)

    def _watch(self) -> None:
        """Finish once all jobs are over; keep the sizes of the exporter's collections."""
        if self.life:
            self.sizes.most_runs = max(self.sizes.most_runs, len(self.life.ledger.runs))
            if len(self.life.ledger.open_runs) > self.world.limits.max_open:
                self.fail(
                    f"{len(self.life.ledger.open_runs)} runs are open, more than "
                    f"{self.world.limits.max_open}"
                )
        if self.jobs.is_over:
            self._is_calm = True
            self._virtual.after(self._jobs_plan.calm_s, self._finish)
            return
        if self._jobs_plan.progress and int(self._virtual.s / 10.0) % 6 == 0:
            self._jobs_plan.progress(
                f"{len(self.jobs.attempts)} jobs, {self._kills} kills, {self._virtual.s:.0f} s"
            )
        self._virtual.after(10.0, self._watch)

    def _scrape(self) -> None:
        super()._scrape()
        if isinstance(self.life, DiscoveringLife):
            self.sizes.folded = max(self.sizes.folded, folded_runs(self.life))

    def count_series(self, body: str) -> None:
        self.sizes.series.append(sum(not line.startswith("#") for line in body.splitlines()))

    def _finish(self) -> None:
        life = self.life
        if not isinstance(life, DiscoveringLife) or life.is_stopped:
            self.fail("the exporter does not run at the end")
            return
        found = [found_run(life, record) for record in stored_runs(life)]
        gpus = {gpu.uuid: gpu for gpu in self.world.gpus}
        self.verdict = verify(
            self.jobs.attempts,
            found,
            self.disturbed,
            lambda uuid, from_s, to_s: gpus[uuid].energy_j(to_s) - gpus[uuid].energy_j(from_s),
            has_folded=self.sizes.folded > 0,
            seen_s=self._jobs_plan.seen_s,
            late_s=self._jobs_plan.late_s,
        )
        for name, held in leftovers(
            life, is_forgotten=self._jobs_plan.calm_s >= FORGOTTEN_S
        ).items():
            self.fail(f"{name} holds {held} when no job is left")
        self._virtual.at(self._virtual.s, self._raise_end)


def folded_runs(life: Life) -> float:
    return next((reading.value for reading in life.live.counters.readings(RUNS_FOLDED)), 0.0)


def stored_runs(life: Life) -> list[RunRecord]:
    """Return the records of all runs of the state file, and of the archive in it."""
    connection = life.file._connection
    rows = connection.execute("SELECT run_id, is_final, body FROM run").fetchall()
    rows += connection.execute("SELECT run_id, 1, '' FROM archived_run").fetchall()
    return [
        life.world.final_records[run_id] if is_final else STORED.validate_json(body)
        for run_id, is_final, body in rows
    ]


def found_run(life: Life, record: RunRecord) -> FoundRun:
    run: RunRecord | Run = record
    with suppress(RunError):
        run = life.ledger.find(record.run_id)
    view = life.ledger.measured(run)
    devices = [device for device in view.devices if device.component == "gpu"]
    energies = {device.device_id: device.energy_j.number for device in devices}
    half_j = {device.device_id: device.energy_j.half_width for device in devices}
    assert record.discovered
    return FoundRun(
        record.run_id,
        (record.discovered.kind, record.discovered.id),
        record.begin_s,
        record.end_s,
        {uuid: (joules, half_j.get(uuid, 0.0)) for uuid, joules in energies.items()},
        bool(view.notes),
    )


def leftovers(life: DiscoveringLife, *, is_forgotten: bool) -> dict[str, Any]:
    """Return the collections that are not empty, by name, although no job is left."""
    discovery = life.discovery
    held = {
        "processes": dict(discovery._processes),
        "exits": discovery._exits.exited_s,
        "pidfds": discovery._exits._pidfds,
        "last exits": discovery._last_exit_s,
        "empty since": discovery._empty_s,
        "ends": discovery._ending,
        "folded": discovery._folded,
        "owners": discovery._owners._known,
        "unresolved": discovery._unresolved,
    }
    if is_forgotten:
        held |= {
            "runs": list(life.ledger.runs),
            "shares": {
                key for key in life.energies.microjoules if key.run_id not in (NO_RUN, OTHER_RUNS)
            },
        }
    return {name: value for name, value in held.items() if value}


def simulate_jobs(seed: int, plan: JobPlan) -> JobsOutcome:
    """Simulate a node until all jobs are over and forgotten."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        episode = DiscoveryEpisode(seed, Path(folder), plan)
        page = episode.checks.page

        def check(life: Life, body: str) -> None:
            episode.count_series(body)
            page(life, body)

        episode.checks.page = check
        result = episode.run()
        sizes = episode.sizes
        most_series = max(sizes.series, default=0)
        return JobsOutcome(
            result, episode.verdict, most_series, sizes.most_runs, sizes.folded, episode.world.lives
        )
