"""Node of simulated GPUs under square waves, whose true energy is known."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fakes import nvml
from tests.laboratory.loads import BURSTS, HIGH_W, LOW_W
from wattline_exporter import simulation
from wattline_exporter.simulation import Fault, Product, Simulation, Square

GPUS = 8
PROCESSES = 8
"""Power levels of each GPU."""
SHORT_BURSTS = Square(LOW_W, HIGH_W, 0.31, duty=0.2)
"""Half-period of 62 ms: power steps twice between two updates of the sensor.

The exporter's interpolation assumes one step, as with the slower wave; that wave alone would give
too good figures.
"""
UNLUCKY = (
    Square(LOW_W, 380.0, 0.05, duty=0.2),
    Square(LOW_W, 380.0, 0.31),
    Square(LOW_W, 380.0, 1.73),
)
"""Load for a sensor that covers 25 of 100 ms; below the power limit of an A100."""
_TURING = 6

H200 = simulation.PRODUCTS["H200"]
A100 = simulation.PRODUCTS["A100"]
FULL_WINDOW = replace(
    H200,
    name="SIMULATED GPU whose sensor covers all of the time",
    architecture=_TURING,  # before Ampere nvmlDeviceGetPowerUsage is no 1 s average
    compute_capability=(7, 5),
    instant_window_s=H200.sensor_period_s,
)


@dataclass(frozen=True, slots=True)
class Node:
    folder: Path
    simulation: Simulation
    uuids: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        return nvml.environment(self.simulation.path)

    def true_j(self, gpu: int, begin_s: float, end_s: float) -> float:
        """Return the true energy between two instants of CLOCK_BOOTTIME, in closed form."""
        return self.simulation.energy_j(gpu, begin_s, end_s)


def make_node(
    folder: Path,
    product: Product = H200,
    faults: Fault = Fault.NONE,
    loads: Sequence[Square] = (BURSTS,),
    seed: int = 0,
    *,
    gpus: int = GPUS,
    pids: Sequence[int] = (),
) -> Node:
    """Make a node whose GPUs have the `loads` in turn with separate phases, and `pids` on each."""
    folder.mkdir()
    path = folder / simulation.FILE_NAME
    now_s = simulation.clock_s()
    simulation.create(path, simulation.make_gpus(gpus, product), now_s)
    opened = Simulation.open(path)
    phases = random.Random(seed)
    for gpu in range(gpus):
        load = loads[gpu % len(loads)]
        for pid in pids:
            opened.drive(gpu, 1 / len(pids), pid, memory_bytes=1 << 30, at=now_s)
        opened.set_load(gpu, replace(load, phase_s=phases.uniform(0.0, load.period_s)), at=now_s)
        for fault in (fault for fault in Fault if fault & faults):
            opened.set_fault(gpu, fault, on=True)
    return Node(folder, opened, tuple(gpu.uuid for gpu in opened.gpus))


def boottime_of(unix_s: float) -> float:
    """Return the CLOCK_BOOTTIME of a wall-clock time; valid while the wall clock is not set."""
    return unix_s - time.time() + simulation.clock_s()
