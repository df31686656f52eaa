"""Rules for the half-width of a run on several GPUs: `python -m tests.calibration.devices`.

Nodes of 1, 2 and 8 simulated GPUs of one product have one run at the same time. Each rule joins the
half-widths of the GPUs; a good one contains the true sum in 95 % of the runs, and is narrow.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np

from tests.calibration.sensors import (
    SENSORS,
    Sensor,
    driver_calls,
    generated_load,
    generated_product,
    log_uniform,
)
from tests.calibration.table import draw_parser
from tests.exporter.faults.faulty_gpu import START_S, FaultyGpu
from tests.exporter.faults.virtual_node import LEAD_S, VirtualGpu, make_gpu
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.readings import ClockReading, GpuCount
from wattline_exporter.simulation import SimulatedGpuState
from wattline_exporter.simulation.gpu import energy_j

SECONDS = (1.0, 10.0)
WATCHED_S = 1.0
"""Time after the end for which the GPUs are polled; the final marks are taken by then."""
COUNTS = (1, 2, 8)
LOADS = {
    "independent": "independent loads",
    "job": "one job on all",
    "job in phase": "one job, sensors in phase",
}
"""Loads of a node: its own on each GPU; the same at the same time on all of them; and the same
while all sensors update at the same instants.
"""


class DeviceDraw(NamedTuple):
    """Error of the energy of one GPU, and the terms of its half-width, in joules."""

    truth_j: float
    error_j: float
    edges_j: float
    """By the instants of start and end between two updates."""
    random_j: float
    """By power between updates, which is a random walk."""
    unseen_j: float
    """By time that the sensor does not measure."""

    @property
    def half_width_j(self) -> float:
        return self.edges_j + self.random_j + self.unseen_j


def linear(devices: Sequence[DeviceDraw]) -> float:
    """Return the sum of the half-widths."""
    return math.fsum(one.half_width_j for one in devices)


def squares(devices: Sequence[DeviceDraw]) -> float:
    """Return the root of the sum of the squared half-widths."""
    return math.hypot(*(one.half_width_j for one in devices))


def mix(devices: Sequence[DeviceDraw]) -> float:
    """Return the sum of edges and of unmeasured time, with random terms joined by squares."""
    limits_j = math.fsum(one.edges_j + one.unseen_j for one in devices)
    return limits_j + math.hypot(*(one.random_j for one in devices))


RULES: dict[str, Callable[[Sequence[DeviceDraw]], float]] = {
    "linear": linear,
    "squares": squares,
    "mix": mix,
}


class _MeasuredGpu(VirtualGpu):
    """Run on one GPU, and the terms of its half-width."""

    def __init__(self, faulty: FaultyGpu, live: LiveState, begin_s: float, seconds: float) -> None:
        super().__init__(faulty, live, begin_s, seconds)
        self.info = msgspec.structs.replace(self.info, architecture="")  # the name has it
        faulty.watched_s = WATCHED_S

    def draw(self) -> DeviceDraw:
        self.outcome()
        begin = self._run.begin[self.device]
        end = self._run.final[self.device]
        energy = energy_between(begin, end)
        edges_j = begin.half_width_j + end.half_width_j
        random_j = 1.96 * math.sqrt(max(0.0, end.variance_j2 - begin.variance_j2))
        truth_j = energy_j(self.faulty.gpu, self.begin_s, self.end_s)
        unseen_j = energy.half_width_j - edges_j - random_j
        return DeviceDraw(truth_j, energy.joules - truth_j, edges_j, random_j, unseen_j)


def _measure(faulty: FaultyGpu, begin_s: float, seconds: float) -> DeviceDraw:
    now = [START_S]
    live = LiveState(clock=lambda: ClockReading(now[0], 1.79e9 + now[0], now[0]))
    run = _MeasuredGpu(faulty, live, begin_s, seconds)
    live.take_worker([GpuCount(1), run.info])
    while not run.is_done:
        now[0] = faulty.clock_s
        run.step()
    return run.draw()


def _gpus(
    rng: random.Random, sensor: Sensor, load: str, seconds: float, count: int
) -> Iterator[SimulatedGpuState]:
    """Yield GPUs of one product, with the loads that LOADS describes."""
    product = generated_product(rng, sensor)
    of_job = generated_load(rng, seconds)
    seed = rng.random()
    for index in range(count):
        if load == "independent":
            yield make_gpu(rng, generated_load(rng, seconds), index, **product)
            continue
        gpu = make_gpu(random.Random(seed), of_job, index, **product)
        if load == "job":
            sensor_phase_s = rng.uniform(0, product["sensor_period_s"])
            counter_phase_s = rng.uniform(0, product["counter_period_s"])
            gpu = replace(gpu, sensor_phase_s=sensor_phase_s, counter_phase_s=counter_phase_s)
        yield gpu


def measure_node(
    rng: random.Random, sensor: Sensor, load: str, count: int = max(COUNTS)
) -> list[DeviceDraw]:
    """Return the GPUs of one run; its first GPUs are a run on fewer GPUs."""
    seconds = log_uniform(rng, *SECONDS)
    begin_s = START_S + LEAD_S + rng.random()
    return [
        _measure(driver_calls(gpu, rng, sensor), begin_s, seconds)
        for gpu in _gpus(rng, sensor, load, seconds, count)
    ]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Coverage of a rule, and its mean half-width over the true energy."""

    rule: str
    coverage: float
    width: float


def results(nodes: Sequence[Sequence[DeviceDraw]], count: int) -> list[RuleResult]:
    """Return the result of each rule for runs on the first `count` GPUs of each node."""
    found = []
    for name, rule in RULES.items():
        covered = []
        widths = []
        for node in nodes:
            devices = node[:count]
            half_width_j = rule(devices)
            error_j = math.fsum(one.error_j for one in devices)
            truth_j = math.fsum(one.truth_j for one in devices)
            covered.append(abs(error_j) <= half_width_j + 1e-9 * truth_j)
            widths.append(half_width_j / truth_j)
        found.append(RuleResult(name, float(np.mean(covered)), float(np.mean(widths))))
    return found


def main() -> None:
    parser = draw_parser("tests.calibration.devices", __doc__, 300, "Runs of each kind.")
    parser.add_argument("--sensor", choices=SENSORS, default="counter")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of the generated sensors
    print(f"{SENSORS[given.sensor]}, {given.draws} runs each: coverage, mean half-width")
    for load, title in LOADS.items():
        rng = random.Random(f"devices {given.sensor} {load} {given.seed}")
        nodes = [measure_node(rng, given.sensor, load) for _ in range(given.draws)]
        for count in COUNTS:
            cells = "".join(
                f"  {one.rule} {100 * one.coverage:5.1f} %, {100 * one.width:.3g} %"
                for one in results(nodes, count)
            )
            print(f"{title:26s} {count} GPUs {cells}", flush=True)


if __name__ == "__main__":
    main()
