"""One simulation of a node from a seed: its clients, its faults, its kills and restarts, and its
checks.
"""

from __future__ import annotations

import hashlib
import logging
import random
import sqlite3
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.checks import Checks, Tally
from tests.simulation.clients import Acknowledged, Client
from tests.simulation.exporter import Disk, Life, World
from tests.simulation.faults import Faults
from tests.simulation.gpus import SimulatedGpu
from tests.simulation.virtual_time import ProcessEndError, VirtualTime
from wattline.contract.history import STATE_FILE
from wattline_exporter.sensors.readings import Device

BEGIN_S = 1_000.0
CALM_S = 150.0
"""Time without faults at the end, in which everything must recover."""
KEPT_EVENTS = 60
WATCHED_IDLE = 0.005
"""Probability that an idle period is simulated for up to an hour before it is skipped."""
HOURS = 24.0
_SHARED_MEMORY = Path("/dev/shm")
MEMORY = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
"""Folder in memory, where there is one."""


class _EndError(BaseException):
    """End of the simulation."""


@dataclass
class Result:
    """Outcome of one simulation. `violation` is empty if all invariants hold."""

    seed: int
    hours: float
    skipped_hours: float
    violation: str
    trace_hash: str
    events: list[str]
    faults: int
    kills: int
    polls: int
    tally: Tally


@dataclass(frozen=True)
class Plan:
    """Choices that the seed makes unless they are given; `defect` changes each exporter at its
    start, for tests.
    """

    faults: tuple[str, ...] | None = None
    mean_s: float | None = None
    calm_s: float = CALM_S
    defect: Callable[[Life], None] = lambda _life: None


class Episode(Faults):
    """A simulated node. All choices follow from the seed."""

    fault_means_s: Sequence[float] = (20.0, 90.0, 400.0)
    """Mean times between two faults of one kind."""
    counter_share = 0.8
    """Share of the GPUs that have an energy counter."""

    def __init__(self, seed: int, hours: float, folder: Path, plan: Plan) -> None:
        self._seed, self._plan = seed, plan
        self._rng = rng = random.Random(seed)
        virtual = self._virtual = VirtualTime(rng, BEGIN_S)
        state = folder / "state-0"
        state.mkdir()
        with virtual.installed():
            gpus = [
                SimulatedGpu(virtual, index, has_counter=rng.random() < self.counter_share)
                for index in range(rng.choice([1, 2]))
            ]
            self.world = World(virtual, state, gpus)
        self.life: Life | None = None
        self._runs: dict[str, Acknowledged] = {}
        self.checks = Checks(self)
        self._end_s = BEGIN_S + hours * 3_600.0
        self._calm_s = self._end_s - plan.calm_s
        self._hash, self._events = hashlib.sha256(), deque[str](maxlen=KEPT_EVENTS)
        self._violation, self._faults, self._kills, self._skipped_s = "", 0, 0, 0.0
        self._power_cut = False
        self._restart_s = 1.0
        self._scraped: Life | None = None  # it has not answered the latest scrape
        self._idle_until_s = 0.0
        self._is_calm = False
        self._next_fault_s: dict[Callable[[], None], float] = {}

    # -- record

    def trace(self, *event: object) -> None:
        line = f"{self._virtual.s:.6f} {' '.join(map(str, event))}"
        self._hash.update(line.encode())
        self._events.append(line)

    def fail(self, text: str) -> None:
        """Record the first violation and end the simulation."""
        if not self._violation:
            self.trace("VIOLATION", text)
            self._violation = text
            self._virtual.at(self._virtual.s, self._raise_end)

    def _raise_end(self) -> None:
        raise _EndError

    # -- course

    def run(self) -> Result:
        logger = logging.getLogger("exporter")
        level, state = logger.level, random.getstate()
        logger.setLevel(logging.CRITICAL)
        random.seed(self._seed)
        try:
            with self._virtual.installed():
                self._schedule()
                self._run()
        finally:
            logger.setLevel(level)
            random.setstate(state)
        hours = (self._virtual.s - BEGIN_S) / 3_600.0
        return Result(
            self._seed,
            hours,
            self._skipped_s / 3_600.0,
            self._violation,
            self._hash.hexdigest(),
            list(self._events),
            self._faults,
            self._kills,
            sum(gpu.polls for gpu in self.world.gpus),
            self.checks.tally,
        )

    def _run(self) -> None:
        try:
            while True:
                if self.life is None:
                    self._virtual.run_next()
                    continue
                try:
                    self.life.loop.run_forever()
                except ProcessEndError:
                    self._bury()
        except _EndError:
            pass
        finally:
            if self.life:
                self.life.kill()

    def _schedule(self) -> None:
        virtual, rng = self._virtual, self._rng
        self._start()
        self.clients = self._make_clients()
        for client in self.clients:
            client.start(rng.uniform(1.0, 20.0))
        kinds = self._kinds()
        chosen = (
            [name for name in kinds if rng.random() < 0.4]
            if self._plan.faults is None
            else self._plan.faults
        )
        for name in chosen:
            self._repeat(kinds[name], self._plan.mean_s or rng.choice(self.fault_means_s))
        self._scrape_every_s = rng.choice([2.0, 7.0, 15.0])
        virtual.after(3.0, self._scrape)
        virtual.after(60.0, self._skip)
        virtual.at(self._calm_s, self._calm)

    def _make_clients(self) -> Sequence[Client]:
        return [Client(self, number, self._runs) for number in range(self._rng.choice([1, 2, 3]))]

    def _repeat(self, kind: Callable[[], None], mean_s: float) -> None:
        def event() -> None:
            if self._is_calm:
                return
            is_idle = self._virtual.s < self._idle_until_s
            schedule()
            if not is_idle:
                self._faults += 1
                kind()

        def schedule() -> None:
            due_s = max(self._virtual.s, self._idle_until_s) + self._rng.expovariate(1 / mean_s)
            self._next_fault_s[kind] = due_s
            self._virtual.at(due_s, event)

        schedule()

    def _start(self) -> None:
        try:
            self.life = self.make_life()
        except Exception as error:  # noqa: BLE001  # reported as a violation
            self.fail(f"the exporter does not start: {error!r}")
            return
        self._plan.defect(self.life)
        self.life.main.add_done_callback(lambda _: self._virtual.at(0.0, self._note_stop))
        self.trace("start")
        self.checks.after_start(self.life, power_cut=self._power_cut)
        self._power_cut = False
        self.checks.all_runs(self.life, self._runs)

    def make_life(self) -> Life:
        return Life(self.world)

    def _note_stop(self) -> None:
        life = self.life
        if life and life.is_stopped:
            if life.failure:
                self.fail(f"the exporter ended: {life.failure!r}")
            raise ProcessEndError

    def _bury(self) -> None:
        """Remove the ended process, and start the next one after a while."""
        assert self.life
        life, self.life = self.life, None
        life.kill(torn=self._rng.random() if self._power_cut else None)
        for gpu in self.world.gpus:
            gpu.silent_since_s = (
                self._virtual.s if gpu.silent_since_s is None else gpu.silent_since_s
            )
        self.checks.after_kill(power_cut=self._power_cut)
        if self._power_cut:
            with closing(sqlite3.connect(self.world.folder / STATE_FILE)) as connection, connection:
                if connection.execute(
                    "SELECT 1 FROM sqlite_master WHERE name = 'meta'"
                ).fetchone():  # else all is lost
                    connection.execute(
                        "UPDATE meta SET value = ? WHERE key = 'boot_id'", (f"boot-{self._kills}",)
                    )
            for run in self._runs.values():
                run.may_be_lost = True
        self._virtual.after(self._restart_s, self._start)

    def _skip(self) -> None:
        """Stop all processes for a while without open runs: an idle period in one step."""
        delay_s = (
            self._rng.uniform(600.0, 3_600.0)
            if self._rng.random() < WATCHED_IDLE
            else self._rng.uniform(10.0, 30.0)
        )
        self._virtual.at(max(self._virtual.s, self._idle_until_s) + delay_s, self._skip)
        is_busy = any(client.run for client in self.clients) or self._is_calm
        next_s = min(client.next_s for client in self.clients)
        if is_busy or self.life is None or self._virtual.s < self.life.loop.stopped_until_s:
            return
        until_s = min(next_s - self._rng.uniform(-5.0, 10.0), self._calm_s - 10.0)
        if until_s > self._virtual.s + 30.0:
            self._skipped_s += until_s - self._virtual.s
            self._idle_until_s = until_s
            self._stop_processes(until_s, worker=True, exporter=True)

    def _scrape(self) -> None:
        delay_s = self._rng.uniform(0.5, 1.5) * self._scrape_every_s
        self._virtual.at(max(self._virtual.s, self._idle_until_s) + delay_s, self._scrape)
        life = self.life
        if (
            life is None or life.is_stopped or life is self._scraped
        ):  # as Prometheus: one scrape at a time
            return
        self._scraped = life

        def answered(page: Any, error: BaseException | None) -> None:
            self._scraped = None
            if error:
                self.fail(f"a scrape raised {error!r}")
            else:
                self.checks.page(life, page.body.decode())

        life.request(lambda: life.metrics.page("text/plain", compress=False), answered)

    def _calm(self) -> None:
        """Heal everything and let the clients finish."""
        self._is_calm = True
        self.trace("calm")
        self.world.disk = Disk()
        self.world.cpu_fails_until_s = 0.0
        for gpu in self.world.gpus:
            gpu.fault = None
        for client in self.clients:
            client.is_finishing = True
        self._virtual.at(self._end_s, self._finish)

    def _finish(self) -> None:
        if self.life is None or self.life.is_stopped:
            self.fail("the exporter does not run at the end")
            return
        self.checks.all_runs(self.life, self._runs)
        for run in self._runs.values():
            self._check_over(run, self.life)
        for gpu in self.world.gpus:
            totals = self.life.live.energy.meter(Device("gpu", gpu.uuid)).totals
            self.trace("total", f"{totals.energy_j:.6f}")
        raise _EndError

    def _check_over(self, run: Acknowledged, life: Life) -> None:
        is_dead = (
            run.begun
            and not run.may_be_lost
            and run.request.lease_seconds < 100.0
            and run.died_s is not None
        )
        if (
            is_dead
            and self._virtual.s - (run.died_s or 0.0) > 600.0
            and life.ledger.measured(life.ledger.find(run.run_id)).state == "running"
        ):
            self.fail(f"{run.run_id}: its client died, and it is open after its lease")


def simulate(seed: int, hours: float = HOURS, plan: Plan | None = None) -> Result:
    """Simulate a node for some hours, in a folder in memory where there is one."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        return Episode(seed, hours, Path(folder), plan or Plan()).run()
