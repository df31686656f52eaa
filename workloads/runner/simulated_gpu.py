"""Simulated GPUs under a job: their load, and the work that the model does meanwhile."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporter.simulation import Product, Simulation, StateFileError, speed


class SimulatedGpu:
    """One GPU of the state file, driven by this process; made by `driven`."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self._simulation = simulation
        self._index = index
        self._due_s: float | None = None
        """When what was asked for so far is done; None before anything was."""

    def compute(self, flop: float) -> None:
        """Return when the GPU has done it at its peak speed, under its power limit and beside its other processes."""
        self.work_for(flop / self._flop_per_s())

    def work_for(self, took_s: float) -> None:
        """Return when so much time of the GPU's has gone by; what this process was late is caught up."""
        self._due_s = (time.monotonic() if self._due_s is None else self._due_s) + took_s
        time.sleep(max(0.0, self._due_s - time.monotonic()))

    def start(self, full_speed_s: float) -> tuple[float, float]:
        """Queue what takes so long at full speed, as a stream does: the seconds it takes now, and when it is done
        (monotonic). What the GPU has idled is never caught up.
        """
        took_s = full_speed_s / self._share()
        self._due_s = max(self._due_s or 0.0, time.monotonic()) + took_s
        return took_s, self._due_s

    @property
    def peak_flop_per_s(self) -> float:
        """In 32-bit floats."""
        return self._simulation.gpus[self._index].product.peak_flop_per_s

    @property
    def product(self) -> Product:
        return self._simulation.gpus[self._index].product

    @property
    def power_w(self) -> float:
        """The true one, now."""
        return self._simulation.power_w(self._index, self._simulation.now())

    @property
    def clock_ratio(self) -> float:
        """The share of its highest clock that its lock leaves."""
        return self._simulation.gpus[self._index].clock_ratio

    def _flop_per_s(self) -> float:
        return self.peak_flop_per_s * self._share()

    def _share(self) -> float:
        """Of full speed."""
        gpu = self._simulation.gpus[self._index]
        wanted = sum(process.utilization for process in gpu.processes)
        return speed(gpu, min(1.0, wanted)) / max(1.0, wanted)


@contextlib.contextmanager
def driven(
    path: Path, visible: Sequence[str], memory_bytes: int, utilization: float = 1.0
) -> Iterator[list[SimulatedGpu]]:
    """The GPUs of `visible` (UUIDs or indices; empty: the first) at so much load (0-1), idle again afterwards.

    Raises ValueError where they cannot be driven.
    """
    with contextlib.ExitStack() as stack:
        try:
            simulation = stack.enter_context(Simulation.open(path))
            _release_dead(simulation)
            chosen = [gpu.index for gpu in simulation.gpus if {gpu.uuid, str(gpu.index)} & set(visible)] or [0]
            for index in chosen:
                simulation.drive(index, utilization, os.getpid(), memory_bytes)
                stack.callback(simulation.release, index, os.getpid())
        except StateFileError as error:
            raise ValueError(str(error)) from error
        yield [SimulatedGpu(simulation, index) for index in chosen]


def release_dead(path: Path) -> None:
    """A job that was killed could not release its GPUs; the driver of a real one would have.

    Who cannot open the file had no simulated GPU of it either.
    """
    with contextlib.suppress(StateFileError), Simulation.open(path) as simulation:
        _release_dead(simulation)


def _release_dead(simulation: Simulation) -> None:
    for gpu in simulation.gpus:
        for process in gpu.processes:
            if not Path(f"/proc/{process.pid}").exists():
                simulation.release(gpu.index, process.pid)
