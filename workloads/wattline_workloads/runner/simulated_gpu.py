"""Load of simulated GPUs, and the speed at which they compute."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from wattline_exporter.simulation import Product, Simulation, StateFileError, speed


class GpuLoad:
    """One GPU of the state file, driven by this process; created by `drive_simulated_gpus`."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self._simulation = simulation
        self._index = index
        self._due_s: float | None = None
        """Time at which all requested work is done; None before the first request."""

    def compute(self, flop: float) -> None:
        """Sleep for as long as the GPU takes, by its peak speed, its power limit and its other
        processes.
        """
        self.work_for(flop / self._flop_per_s())

    def work_for(self, took_s: float) -> None:
        """Sleep until `took_s` of GPU time have passed since the previous request; catch up
        delays.
        """
        self._due_s = (time.monotonic() if self._due_s is None else self._due_s) + took_s
        time.sleep(max(0.0, self._due_s - time.monotonic()))

    def start(self, full_speed_s: float) -> tuple[float, float]:
        """Queue work, as a stream does; return the seconds that it takes now and its end
        (monotonic).

        Idle time of the GPU is not caught up.
        """
        took_s = full_speed_s / self._share()
        self._due_s = max(self._due_s or 0.0, time.monotonic()) + took_s
        return took_s, self._due_s

    @property
    def peak_flop_per_s(self) -> float:
        """Peak speed with 32-bit floats."""
        return self._simulation.gpus[self._index].product.peak_flop_per_s

    @property
    def product(self) -> Product:
        return self._simulation.gpus[self._index].product

    @property
    def power_w(self) -> float:
        """Current true power, not the sensor's."""
        return self._simulation.power_w(self._index, self._simulation.now())

    @property
    def clock_ratio(self) -> float:
        """Ratio of the locked clock to the highest clock."""
        return self._simulation.gpus[self._index].clock_ratio

    def _flop_per_s(self) -> float:
        return self.peak_flop_per_s * self._share()

    def _share(self) -> float:
        """Return the share of full speed that this process gets."""
        gpu = self._simulation.gpus[self._index]
        wanted = sum(process.utilization for process in gpu.processes)
        return speed(gpu, min(1.0, wanted)) / max(1.0, wanted)


@contextlib.contextmanager
def drive_simulated_gpus(
    path: Path, visible: Sequence[str], memory_bytes: int, utilization: float = 1.0
) -> Iterator[list[GpuLoad]]:
    """Put the GPUs `visible` (UUIDs or indices; empty: the first) under load (0-1) until the
    context ends.

    Raises ValueError if the state file cannot be used.
    """
    with contextlib.ExitStack() as stack:
        try:
            simulation = stack.enter_context(Simulation.open(path))
            _release_dead(simulation)
            chosen = [
                gpu.index for gpu in simulation.gpus if {gpu.uuid, str(gpu.index)} & set(visible)
            ] or [0]
            for index in chosen:
                simulation.drive(index, utilization, os.getpid(), memory_bytes)
                stack.callback(simulation.release, index, os.getpid())
        except StateFileError as error:
            raise ValueError(str(error)) from error
        yield [GpuLoad(simulation, index) for index in chosen]


def release_dead_processes(path: Path) -> None:
    """Remove the load of processes that have ended without releasing their GPUs, as a real driver
    does.

    A file that cannot be opened is ignored: without it the job had no simulated GPU.
    """
    with contextlib.suppress(StateFileError), Simulation.open(path) as simulation:
        _release_dead(simulation)


def _release_dead(simulation: Simulation) -> None:
    for gpu in simulation.gpus:
        for process in gpu.processes:
            if not Path(f"/proc/{process.pid}").exists():
                simulation.release(gpu.index, process.pid)
