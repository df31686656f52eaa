"""Simulation of a node as most are: faults every day or two, runs of hours to days; steady
stretches are skipped.

A stretch without any event is one stop of all processes, of exporter and clients, as by SIGSTOP,
from SETTLED_S after the last event until some seconds before the next. This changes no energy: all
GPUs have an energy counter, the CPU's does not wrap, and the value of a counter does not depend on
the number of its reads. Polls come every quarter of a second and stops last whole seconds, so that
the polls around an event are the same ones with and without a skip.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.laboratory.loads import JOB_PERIODS_S, job_load
from tests.simulation.clients import Client, is_saved
from tests.simulation.episode import MEMORY, Episode, Plan, Result
from tests.simulation.exporter import Life
from tests.simulation.gpus import Worker
from wattline.contract.run import Run
from wattline_exporter.sensors.nvml.polling_threads import PolledGpu
from wattline_exporter.simulation import Load

HOUR_S, DAY_S = 3_600.0, 86_400.0
QUIET_HOURS = 30 * 24.0
SETTLED_S = 11.0
"""Shortest time from an event to a skip. Marks are final after 5 s; doubts and runs without a
process end after 8 s.
"""
POLL_S = 0.25
_SHORTEST_S = 30.0


class QuietClient(Client):
    """Client whose actions come close together at the start and the end of a run, and between its
    long phases.
    """

    phase_means_s: Sequence[float] = (3 * HOUR_S, 12 * HOUR_S, 48 * HOUR_S)
    pause_means_s: Sequence[float] = (10.0, 12 * HOUR_S, 48 * HOUR_S)
    busy_s = 0.0
    """Time of the latest action."""
    last_s: float
    """Time after which it begins no further action but the end of its run."""

    def _later(self, mean_s: float, step: Callable[[], None]) -> None:
        self.busy_s = now_s = self._node.world.virtual.s
        last_s = max(now_s, self.last_s) + self._rng.uniform(1.0, 20.0)
        self.next_s = min(now_s + self._rng.expovariate(1 / mean_s), last_s)
        self._node.world.virtual.at(self.next_s, step)

    def start(self, delay_s: float) -> None:
        self.busy_s = self._node.world.virtual.s
        super().start(delay_s)

    def _choose_pace(self) -> None:
        rng = self._rng
        self._lease_s, self._pace_s, self._steps = 60 * DAY_S, 2.0, 1
        mean_s = rng.choice(self.phase_means_s)
        self._todo = deque([("processes", 1.0), ("phase", 2.0)])
        for _ in range(rng.choice([1, 1, 2])):
            self._todo += [("phase", mean_s), ("work", 2.0)]

    def _begun(self, answer: tuple[Run, bool]) -> None:
        assert self.run
        self.run.begun |= is_saved(answer[0])
        self._next()

    def _load(self) -> Load:
        return job_load(self._rng, (*JOB_PERIODS_S, 900.0))

    def _pause_s(self, *, died: bool) -> float:
        del died
        return self._rng.expovariate(1 / self._rng.choice(self.pause_means_s))

    def _next(self) -> None:
        kind, mean_s = self._todo.popleft() if self._todo else ("end", 2.0)
        self._later(mean_s, partial(self._act, kind))

    def _act(self, kind: str) -> None:
        assert self.run
        self.busy_s = self._node.world.virtual.s
        if kind == "end":
            self._step()
        else:
            getattr(self, f"_report_{kind}")(self.run)


class _QuietWorker(Worker):
    """NVML worker that polls at multiples of POLL_S, also after a stop."""

    def _next_s(self, now_s: float, polled: PolledGpu) -> float:
        del polled
        return (math.floor(now_s / POLL_S) + 1) * POLL_S


class _QuietLife(Life):
    worker_type = _QuietWorker


class QuietEpisode(Episode):
    """A simulated node with rare faults."""

    fault_means_s: Sequence[float] = (4 * DAY_S, 15 * DAY_S, 60 * DAY_S)
    counter_share = 1.0
    client_type = QuietClient
    skips = True

    def _schedule(self) -> None:
        self.world.cpu_range_j = 2.0**40
        for gpu in self.world.gpus:
            gpu.call_s = 0.0001
        super()._schedule()

    def make_life(self) -> Life:
        return _QuietLife(self.world)

    def _make_clients(self) -> Sequence[Client]:
        clients = [
            self.client_type(self, number, self._runs) for number in range(self._rng.choice([1, 2]))
        ]
        for client in clients:
            client.last_s = self._calm_s
        return clients

    def _skip(self) -> None:
        """Skip the time until shortly before the next event, once everything is settled."""
        virtual, rng = self._virtual, self._rng
        virtual.after(rng.uniform(1.0, 4.0), self._skip_if_settled)

    def _skip_if_settled(self) -> None:
        virtual, rng, now_s = self._virtual, self._rng, self._virtual.s
        next_s = min(
            [
                self._calm_s,
                *self._next_fault_s.values(),
                *(client.next_s for client in self.clients),
            ]
        )
        until_s = math.floor(next_s - rng.uniform(3.0, 8.0))
        if self.skips and until_s - now_s > _SHORTEST_S and self._is_settled(now_s):
            self._skipped_s += until_s - now_s
            self._idle_until_s = until_s
            self._stop_processes(until_s, worker=True, exporter=True)
            virtual.at(until_s + SETTLED_S, self._skip_if_settled)
        else:
            virtual.after(rng.uniform(1.0, 4.0), self._skip_if_settled)

    def _is_settled(self, now_s: float) -> bool:
        """Return whether no fault is under way, and the last event is long enough ago."""
        life, world = self.life, self.world
        if life is None or life.is_stopped or now_s < life.loop.stopped_until_s or self._is_calm:
            return False
        fault_s = max(
            self.checks.calm_since_s, world.disk.until_s, world.cpu_fails_until_s, life.started_s
        )
        busy_s = max(
            fault_s,
            *(getattr(client, "busy_s", 0.0) for client in self.clients),
        )
        return now_s - busy_s > SETTLED_S and not any(
            gpu.fault or gpu.silent_since_s for gpu in world.gpus
        )


def simulate_quiet(seed: int, hours: float = QUIET_HOURS, plan: Plan | None = None) -> Result:
    """Simulate a node with rare faults for some hours."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        return QuietEpisode(seed, hours, Path(folder), plan or Plan()).run()
