"""Intervals of the exporter over generated sensors, loads and runs: energy of runs and phases, and
emissions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from tests.calibration.coverage import Draw, Kind, from_half_width
from tests.exporter.faults.faulty_gpu import START_S, FaultyGpu
from tests.exporter.faults.virtual_node import LEAD_S, VirtualGpu, make_gpu
from tests.laboratory.loads import generated_load, log_uniform
from wattline.contract.run import Emissions
from wattline.figures import Figure
from wattline_analyzer.carbon.emissions import ledger_emissions
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs import marks as run_marks
from wattline_exporter.runs.run_record import Cut
from wattline_exporter.sensors.readings import ClockReading, GpuCount, Slot
from wattline_exporter.simulation import Load, SimulatedGpuState
from wattline_exporter.simulation.gpu import energy_j

Sensor = Literal["counter", "whole window", "part of the window", "averaged"]
Quantity = Literal["run", "phase", "emissions"]
SECONDS = (1.0, 120.0)
SHORTEST_PHASE_S = 1.0
"""The report has no energy of shorter phases."""
_JOULES_PER_KWH = 3.6e6


def generated_product(rng: random.Random, sensor: Sensor) -> dict[str, Any]:
    """Return properties of a product: update periods of 20 ms to 1 s, and windows of 10 to 100 %
    of them.
    """
    update_s = log_uniform(rng, 0.02, 1)
    return {
        "counter_period_s": log_uniform(rng, 0.02, 1),
        "sensor_period_s": update_s,
        "instant_window_s": update_s * (1.0 if sensor == "whole window" else rng.uniform(0.1, 1)),
        "noise_w": rng.uniform(0, 2),
        # the exporter knows the sensor of a Turing, and assumes that one that it does not know
        # covers a quarter
        "name": "SIMULATED TURING" if sensor == "whole window" else "SIMULATED GPU",
    }


def driver_calls(gpu: SimulatedGpuState, rng: random.Random, sensor: Sensor) -> FaultyGpu:
    """Return the driver calls of a GPU that has this sensor."""
    has_counter = sensor == "counter"
    has_average = sensor in ("counter", "averaged")
    return FaultyGpu(gpu, rng, has_counter=has_counter, has_average=has_average)


class _PhasedGpu(VirtualGpu):
    """Run with phases, and another carbon intensity from one of their starts on."""

    def __init__(
        self, rng: random.Random, faulty: FaultyGpu, live: LiveState, begin_s: float, seconds: float
    ) -> None:
        super().__init__(faulty, live, begin_s, seconds)
        self.info = msgspec.structs.replace(
            self.info, architecture=""
        )  # the name has it, where the exporter knows the sensor
        starts_s = sorted(begin_s + rng.uniform(0, seconds) for _ in range(rng.randrange(1, 4)))
        intensities = [rng.uniform(20, 900) for _ in range(2)]
        changed = rng.randrange(len(starts_s))
        self.intensities = [intensities[number > changed] for number in range(len(starts_s) + 1)]
        self.edges_s = [begin_s, *starts_s, begin_s + seconds]
        first, *self._due = [
            Cut(
                t_s,
                f"phase-{number}",
                (Slot(0.0, math.inf, grams, "DE", "generated", "average", "actual"),),
            )
            for number, (t_s, grams) in enumerate(zip(self.edges_s, self.intensities, strict=False))
        ]
        self._run.cuts = [first]

    def step(self) -> None:
        while self._due and self.faulty.clock_s >= self._due[0].t_s:
            run_marks.start_phase(self._run, self._live.energy.meters, self._due.pop(0))
        super().step()

    def draws(self, rng: random.Random) -> dict[Quantity, Draw]:
        self.outcome()
        run, gpu = self._run, self.faulty.gpu
        energy = energy_between(run.begin[self.device], run.final[self.device])
        truths_j = [
            energy_j(gpu, a, b) for a, b in zip(self.edges_s, self.edges_s[1:], strict=False)
        ]
        found: dict[Quantity, Draw] = {
            "run": from_half_width(math.fsum(truths_j), energy.joules, energy.half_width_j)
        }
        measurable = [
            number
            for number, (a, b) in enumerate(zip(self.edges_s, self.edges_s[1:], strict=False))
            if b - a >= SHORTEST_PHASE_S
        ]
        if measurable:
            number = rng.choice(measurable)
            phase = next(phase for phase in run.phases if phase.name == f"phase-{number}")
            found["phase"] = from_half_width(
                truths_j[number], phase.joules[self.device], phase.half_widths_j[self.device]
            )
        mass_g = math.fsum(emission.grams for emission in run.emissions)
        truth_g = math.fsum(
            joules / _JOULES_PER_KWH * grams
            for joules, grams in zip(truths_j, self.intensities, strict=True)
        )
        (emission,) = ledger_emissions(
            [Emissions("gpu", "average", "actual", mass_g)],
            {"gpu": Figure(energy.joules, energy.half_width_j)},
            (),
        )
        found["emissions"] = from_half_width(
            truth_g, emission.mass_g.number, emission.mass_g.half_width
        )
        return found


class Conditions(NamedTuple):
    """Load and duration of a run, and the update period of the sensor that gives its energy."""

    load: Load
    seconds: float
    update_s: float


def measure_run(rng: random.Random, sensor: Sensor) -> tuple[Conditions, dict[Quantity, Draw]]:
    """Return one run and its intervals."""
    seconds = log_uniform(rng, *SECONDS)
    product = generated_product(rng, sensor)
    gpu = make_gpu(rng, generated_load(rng, seconds), **product)
    update_s = product["counter_period_s" if sensor == "counter" else "sensor_period_s"]
    conditions = Conditions(gpu.segments[-1].load, seconds, update_s)
    return conditions, measure_phased(rng, driver_calls(gpu, rng, sensor), seconds)


def measure_phased(rng: random.Random, faulty: FaultyGpu, seconds: float) -> dict[Quantity, Draw]:
    """Return the intervals of one run with phases."""
    now = [START_S]
    live = LiveState(clock=lambda: ClockReading(now[0], 1.79e9 + now[0], now[0]))
    run = _PhasedGpu(rng, faulty, live, START_S + LEAD_S + rng.random(), seconds)
    live.take_worker([GpuCount(1), run.info])
    while not run.is_done:
        now[0] = faulty.clock_s
        run.step()
    return run.draws(rng)


@cache
def _runs(sensor: Sensor, seed: int, count: int) -> list[dict[Quantity, Draw]]:
    rng = random.Random(f"{sensor} {seed}")
    return [measure_run(rng, sensor)[1] for _ in range(count)]


def _draws(
    sensor: Sensor, figure: Quantity, rng: np.random.Generator, count: int
) -> Iterable[Draw]:
    runs = _runs(sensor, int(rng.integers(2**32)), count)
    return [run[figure] for run in runs if figure in run]


SENSORS: dict[Sensor, str] = {
    "counter": "energy counter",
    "whole window": "power only, known window",
    "part of the window": "power only, unknown window",
    "averaged": "power averaged over 1 s only",
}
FIGURES: dict[Quantity, str] = {"run": "run", "phase": "phase", "emissions": "emissions of a run"}
COST = 10.0
KINDS = tuple(
    Kind(
        f"{title}: {SENSORS[sensor]}",
        "conservative",
        partial(_draws, sensor, figure),
        cost=COST,
        stream=sensor,
    )
    for figure, title in FIGURES.items()
    for sensor in SENSORS
    if figure != "emissions" or sensor == "counter"
)
