"""Clients of the run API: each begins a run, reports phases, work and processes, and ends it, or
dies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.laboratory.loads import job_load
from tests.simulation.exporter import Life, World
from tests.simulation.gpus import SimulatedGpu
from wattline.contract.run import Run
from wattline_exporter.runs.admission import RunEnd, RunProcesses, RunStart
from wattline_exporter.runs.service import NOT_SAVED
from wattline_exporter.sensors.readings import RunError
from wattline_exporter.simulation import Constant, Load

PHASES = ("load", "warmup", "measure", "save")
RETRY_S = 0.5


class Node(Protocol):
    """The exporter that runs now, if there is one, and a record of events."""

    world: World
    life: Life | None

    def trace(self, *event: object) -> None: ...

    def fail(self, text: str) -> None: ...


@dataclass
class Acknowledged:
    """Items of a run that the exporter has acknowledged as saved, and the largest that it was
    sent.
    """

    run_id: str
    request: RunStart
    gpus: list[SimulatedGpu]
    begun: bool = False
    phases: list[str] = field(default_factory=list)
    work: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    end: Run | None = None
    is_over: bool = False
    """True once its client has ended it, or has died."""
    died_s: float | None = None
    may_be_lost: bool = False
    """True after a power cut, which may lose the last seconds."""


class Client:
    """One client that runs one run after another. A request without an answer is sent again."""

    def __init__(self, node: Node, number: int, runs: dict[str, Acknowledged]) -> None:
        self._node, self._number, self._runs = node, number, runs
        self._rng = node.world.rng
        self._count = 0
        self.run: Acknowledged | None = None
        self.is_finishing = False
        self.next_s = 0.0
        """Time of the next action; it is past while a request is open."""

    def start(self, delay_s: float) -> None:
        """Begin the next run after a while."""
        self.next_s = self._node.world.virtual.s + delay_s
        self._node.world.virtual.at(self.next_s, self._begin)

    def _later(self, mean_s: float, step: Callable[[], None]) -> None:
        self.next_s = self._node.world.virtual.s + self._rng.expovariate(1 / mean_s)
        self._node.world.virtual.at(self.next_s, step)

    def _call(
        self,
        name: str,
        make: Callable[[Life], Any],
        then: Callable[[Any], None],
        refused: Callable[[], None],
    ) -> None:
        """Send a request until it is answered; `refused` runs after an error that a retry does not
        change.
        """
        node, life = self._node, self._node.life
        run = self.run
        again: Callable[[], None] = lambda: self._call(name, make, then, refused)  # noqa: E731
        if life is None or life.is_stopped:
            node.world.virtual.after(RETRY_S, again)
            return
        is_open = [True]

        def answered(result: Any, error: BaseException | None) -> None:
            if not is_open[0]:
                return
            is_open[0] = False
            node.trace(
                "answer", name, run.run_id if run else "", type(error).__name__ if error else "ok"
            )
            if isinstance(error, RunError) and error.status in {404, 409, 422}:
                node.world.virtual.after(
                    0.001, refused if error.status != 404 else lambda: self._check_lost(refused)
                )
            elif isinstance(error, RunError):
                node.world.virtual.after(RETRY_S, again)
            elif error:
                node.fail(f"{name} of {run and run.run_id} raised {error!r}")
            else:
                node.world.virtual.after(self._rng.uniform(0.0001, 0.002), lambda: None)
                then(result)

        def give_up() -> None:
            if is_open[0] and self._node.life is not life:
                is_open[0] = False
                again()
            elif is_open[0]:
                node.world.virtual.after(RETRY_S, give_up)

        life.request(lambda: make(life), answered)
        node.world.virtual.after(RETRY_S, give_up)

    def _check_lost(self, refused: Callable[[], None]) -> None:
        run = self.run
        if run and run.begun and not run.may_be_lost:
            self._node.fail(f"run {run.run_id} was acknowledged and is unknown")
        refused()

    # -- one run

    def _begin(self) -> None:
        if self.is_finishing:
            return
        world, rng = self._node.world, self._rng
        self._count += 1
        run_id = f"c{self._number}-{self._count}"
        gpus = [gpu for gpu in world.gpus if rng.random() < 0.6] or [rng.choice(world.gpus)]
        self._choose_pace()
        request = RunStart(
            workload=f"job-{self._number}",
            gpus=[gpu.uuid for gpu in gpus],
            run_id=run_id,
            lease_seconds=self._lease_s,
        )
        self.run = self._runs[run_id] = Acknowledged(run_id, request, gpus)
        for gpu in gpus:
            gpu.set_load(self._load())
        self._call("begin", lambda life: life.runs.begin(request), self._begun, self._ended)

    def _choose_pace(self) -> None:
        """Choose the run's lease, the number of its steps and the mean time between two of them."""
        self._lease_s = self._rng.choice([20.0, 120.0, 86_400.0])
        self._steps = int(self._rng.expovariate(1 / 6)) + 1
        self._pace_s = self._rng.choice([0.2, 0.2, 1.0, 4.0, 15.0])

    def _load(self) -> Load:
        return job_load(self._rng)

    def _pause_s(self, *, died: bool) -> float:
        """Return the time until the next run."""
        means_s = [300.0] if died else [0.5, 10.0, 40_000.0, 40_000.0, 200_000.0]
        return self._rng.expovariate(1 / self._rng.choice(means_s))

    def _begun(self, answer: tuple[Run, bool]) -> None:
        assert self.run
        self.run.begun |= is_saved(answer[0])
        self._later(self._pace_s, self._step)

    def _step(self) -> None:
        """Report something, end the run, or die."""
        run, rng = self.run, self._rng
        assert run
        self._steps -= 1
        if self._steps <= 0 or self.is_finishing:
            if rng.random() < 0.1 and not self.is_finishing:
                self._die()
            else:
                self._end()
            return
        kind = rng.choice(["phase", "work", "work", "processes", "empty"])
        getattr(self, f"_report_{kind}")(run)

    def _next(self) -> None:
        self._later(self._pace_s, self._step)

    def _report_phase(self, run: Acknowledged) -> None:
        name = self._rng.choice(PHASES)

        def then(view: Run) -> None:
            if is_saved(view) and name not in run.phases:
                run.phases.append(name)
            self._next()

        self._call("phase", lambda life: life.runs.phase(run.run_id, name), then, self._ended)

    def _report_work(self, run: Acknowledged) -> None:
        who = self._rng.choice(["rank-0", "rank-1"])
        run.sent[who] = total = run.sent.get(who, 0.0) + self._rng.randint(1, 1_000)

        def then(view: Run) -> None:
            if is_saved(view):
                run.work[who] = total
            self._next()

        self._call(
            "work",
            lambda life: life.runs.work(run.run_id, who, {"steps": total}),
            then,
            self._ended,
        )

    def _report_empty(self, run: Acknowledged) -> None:
        self._call(
            "renew",
            lambda life: life.runs.work(run.run_id, "", {}),
            lambda _: self._next(),
            self._ended,
        )

    def _report_processes(self, run: Acknowledged) -> None:
        pid = self._rng.randint(10_000, 4_000_000)
        self._node.world.processes[pid] = run.run_id
        for gpu in run.gpus:
            gpu.processes[pid] = self._rng.uniform(0.1, 1.0)

        def then(view: Run) -> None:
            if is_saved(view):
                run.pids.add(pid)
            self._next()

        request = RunProcesses(pids=[pid])
        self._call(
            "processes",
            lambda life: life.runs.add_processes(run.run_id, request),
            then,
            self._ended,
        )

    def _stop_job(self, run: Acknowledged) -> None:
        """End the processes of the job, and its load unless another run uses the GPU."""
        world = self._node.world
        gone = [pid for pid, run_id in world.processes.items() if run_id == run.run_id]
        for pid in gone:
            del world.processes[pid]
            for gpu in world.gpus:
                gpu.processes.pop(pid, None)
        for gpu in run.gpus:
            if not any(
                gpu in other.gpus
                for other in self._runs.values()
                if other is not run and not other.is_over
            ):
                gpu.set_load(Constant(78.0))

    def _die(self) -> None:
        assert self.run
        self.run.is_over, self.run.died_s = True, self._node.world.virtual.s
        self._node.trace("death", self.run.run_id)
        self._stop_job(self.run)
        self.run = None
        self.start(self._pause_s(died=True))

    def _end(self) -> None:
        run = self.run
        assert run
        request = RunEnd(outcome="ok", results={"loss": 0.5})

        def then(view: Run) -> None:
            if is_saved(view):
                run.end = view
            self._ended()

        def send() -> None:
            self._stop_job(run)
            run.is_over = True
            self._call("end", lambda life: life.runs.end(run.run_id, request), then, self._ended)

        send()

    def _ended(self) -> None:
        if self.run and not self.run.is_over:
            self.run.is_over = True
            self._stop_job(self.run)
        self.run = None
        self.start(self._pause_s(died=False))


def is_saved(view: Run) -> bool:
    return NOT_SAVED not in view.notes
