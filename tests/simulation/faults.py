"""Faults of driver, process, disk and clock, each of which is one event of a
simulation.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.laboratory.faults import VIRTUAL_FAULTS, VIRTUAL_POWER_FAULTS
from tests.simulation.checks import Checks
from tests.simulation.exporter import Disk, Life, World
from tests.simulation.virtual_time import ProcessEndError, VirtualTime


class Faults:
    """Faults of a node. Each method is one fault, with what follows from the seed."""

    world: World
    life: Life | None
    checks: Checks
    _rng: random.Random
    _virtual: VirtualTime
    _kills: int
    _restart_s: float
    _power_cut: bool
    _calm_s: float
    """Time from which there are no more faults."""

    def trace(self, *event: object) -> None:
        """Record an event."""

    def _kinds(self) -> dict[str, Callable[[], None]]:
        return {
            "driver": self._driver_fault,
            "kill": self._kill,
            "kill worker": self._kill_worker,
            "stop": self._stop,
            "disk": self._disk_fault,
            "clock": self._step_clock,
            "cpu": self._cpu_fault,
            "restart": self._restart,
            "sleep": self._sleep,
            "power cut": self._cut_power,
        }

    def _stop_processes(self, until_s: float, *, worker: bool, exporter: bool) -> None:
        self.trace("stop", f"{until_s:.3f}", worker, exporter)
        life = self.life
        if life is None:
            return
        if exporter:
            life.stop_until(until_s)
            self.checks.awake_since_s = max(self.checks.awake_since_s, until_s)
        if worker and life.worker:
            life.worker.stopped_until_s = until_s
            for gpu in self.world.gpus:
                gpu.silent_since_s = (
                    self._virtual.s if gpu.silent_since_s is None else gpu.silent_since_s
                )
        self.checks.calm_since_s = max(self.checks.calm_since_s, until_s)

    def _driver_fault(self) -> None:
        rng = self._rng
        gpu = rng.choice(self.world.gpus)
        table = VIRTUAL_FAULTS if gpu.has_counter else VIRTUAL_POWER_FAULTS
        name, seconds = (
            rng.choice(sorted(table)),
            rng.choice([0.1, 1.0, 8.0, 60.0]) * rng.uniform(0.5, 1.5),
        )
        self.trace("driver", gpu.info.index, name, f"{seconds:.3f}")
        gpu.start_fault(table[name], seconds)
        self._disturb(seconds + 25.0)

    def _disturb(self, seconds: float) -> None:
        self.checks.calm_since_s = max(self.checks.calm_since_s, self._virtual.s + seconds)

    def _kill(self) -> None:
        if self.life:
            self._kills += 1
            self._restart_s = self._rng.choice([0.05, 1.0, 20.0]) * self._rng.uniform(0.5, 1.5)
            self.trace("kill")
            raise ProcessEndError

    def _cut_power(self) -> None:
        if self.life and self._rng.random() < 0.2:
            self._power_cut = True
            self.trace("power cut")
            self._kill()

    def _restart(self) -> None:
        if self.life:
            self._restart_s = self._rng.uniform(0.1, 3.0)
            self.trace("SIGTERM")
            self.life.loop.call_soon(self.life.stopping.set)

    def _kill_worker(self) -> None:
        if self.life and self.life.worker:
            self.trace("kill worker")
            self.life.worker.end(-9, part=self._rng.random())
            for gpu in self.world.gpus:
                gpu.silent_since_s = (
                    self._virtual.s if gpu.silent_since_s is None else gpu.silent_since_s
                )
            self._disturb(5.0)

    def _stop(self) -> None:
        until_s = self._virtual.s + self._rng.choice([0.3, 2.0, 10.0]) * self._rng.uniform(0.5, 1.5)
        exporter = self._rng.random() < 0.7
        self._stop_processes(
            until_s, exporter=exporter, worker=not exporter or self._rng.random() < 0.5
        )

    def _sleep(self) -> None:
        seconds = min(self._rng.uniform(5.0, 600.0), self._calm_s - self._virtual.s - 1.0)
        if self._rng.random() < 0.8 or seconds < 1.0:
            return
        self.trace("sleep", f"{seconds:.3f}")
        self._virtual.s += seconds
        self._virtual.slept_s += seconds
        self.checks.awake_since_s = max(
            self.checks.awake_since_s, self._virtual.s
        )  # stopped processes sleep on
        self._disturb(0.0)

    def _disk_fault(self) -> None:
        rng = self._rng
        seconds = rng.choice([0.5, 5.0, 40.0]) * rng.uniform(0.5, 1.5)
        error = rng.choice(["", "database or disk is full", "disk I/O error"])
        delay_s = 0.0 if error and rng.random() < 0.5 else rng.choice([0.2, 2.0, 10.0])
        self.world.disk = Disk(
            self._virtual.s + seconds, error, delay_s, history_only=rng.random() < 0.3
        )
        self.trace("disk", error, f"{delay_s:g} {seconds:.3f}")

    def _step_clock(self) -> None:
        step_s = self._rng.choice([-1, 1]) * self._rng.choice(
            [0.3, 5.0, 60.0, 3_600.0, 40 * 86_400.0]
        )
        self.trace("clock", step_s)
        self._virtual.wall_offset_s += step_s

    def _cpu_fault(self) -> None:
        self.world.cpu_fails_until_s = self._virtual.s + self._rng.uniform(0.5, 30.0)
        self.checks.cpu_failed_s = self._virtual.s
        self.trace("cpu", f"{self.world.cpu_fails_until_s:.3f}")
