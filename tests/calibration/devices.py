"""Rules for the half-width of a run on several GPUs: `python -m tests.calibration.devices`.

Nodes of 1, 2 and 8 simulated GPUs of one product have one run at the same time. Each rule joins the
half-widths of the GPUs; a good one contains the true sum in 95 % of the runs, and is narrow.

With `--sensor wave`, the load is a square wave that the sensors hide, as in
`tests.calibration.windows`, and the results are stored. Else loads and sensors are generated.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tests.calibration.sensors import (
    SENSORS,
    Sensor,
    driver_calls,
    generated_product,
)
from tests.calibration.windows import LEVEL, PERIODS, UPDATE_S, Condition, WindowGpu
from tests.calibration.windows import SENSORS as WINDOWS
from tests.calibration.windows import make_gpu as make_wave_gpu
from tests.exporter.faults.faulty_gpu import START_S, FaultyGpu
from tests.exporter.faults.virtual_node import LEAD_S, VirtualGpu, make_gpu
from tests.exporter.meter.replay import measure_between
from tests.laboratory.loads import generated_load, log_uniform
from tests.laboratory.results import draw_parser, file_of, stored_rows, write_rows
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.readings import ClockReading, GpuCount
from wattline_exporter.simulation import SimulatedGpuState
from wattline_exporter.simulation.gpu import energy_j

RESULTS = file_of("devices")
SECONDS = (1.0, 10.0)
WAVE_S = 3.0
"""Length of the runs with waves, which varies by 10 %."""
HIDING = next(sensor for sensor in WINDOWS if sensor.title == "instant 100 ms, average 1 s")
"""Sensor that hides the load inside an update."""
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
    """True energy of one GPU, the error of the measured one, and its half-width, in joules."""

    truth_j: float
    error_j: float
    half_width_j: float


def linear(devices: Sequence[DeviceDraw]) -> float:
    """Return the sum of the half-widths."""
    return math.fsum(one.half_width_j for one in devices)


def squares(devices: Sequence[DeviceDraw]) -> float:
    """Return the root of the sum of the squared half-widths."""
    return math.hypot(*(one.half_width_j for one in devices))


RULES: dict[str, Callable[[Sequence[DeviceDraw]], float]] = {"linear": linear, "squares": squares}


class _MeasuredGpu(VirtualGpu):
    """Run on one GPU."""

    def __init__(self, faulty: FaultyGpu, live: LiveState, begin_s: float, seconds: float) -> None:
        super().__init__(faulty, live, begin_s, seconds)
        self.info = msgspec.structs.replace(self.info, architecture="")  # the name has it
        faulty.watched_s = WATCHED_S

    def draw(self) -> DeviceDraw:
        self.outcome()
        energy = energy_between(self._run.begin[self.device], self._run.final[self.device])
        truth_j = energy_j(self.faulty.gpu, self.begin_s, self.end_s)
        return DeviceDraw(truth_j, energy.joules - truth_j, energy.half_width_j)


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


class WaveNode(NamedTuple):
    """Class of nodes whose GPUs have a square wave, or a flat load.

    `updates`: period of the load in updates; None for a flat load. `is_one_job`: all GPUs have the
    same load at the same time, else waves with other duties and phases. `is_in_phase`: all sensors
    update at the same instants.
    """

    updates: float | None
    is_one_job: bool
    is_in_phase: bool

    @property
    def key(self) -> dict[str, Any]:
        return {"period": self.updates, "one_job": self.is_one_job, "in_phase": self.is_in_phase}


def wave_nodes() -> Iterator[WaveNode]:
    """Yield all classes of nodes with waves."""
    for updates in (None, *PERIODS):
        for is_one_job in (True, False):
            for is_in_phase in (True, False):
                yield WaveNode(updates, is_one_job, is_in_phase)


def measure_wave_node(
    rng: random.Random, node: WaveNode, count: int = max(COUNTS)
) -> list[DeviceDraw]:
    """Return the GPUs of one run of 3 s on a node of this class."""
    condition = Condition(HIDING, node.updates, WAVE_S)
    first = make_wave_gpu(rng, condition)
    begin_s = START_S + rng.uniform(0, 10)
    end_s = begin_s + WAVE_S * rng.uniform(0.9, 1.1)
    draws = []
    for _ in range(count):
        loaded = first if node.is_one_job else make_wave_gpu(rng, condition)
        phase_s = first.gpu.counter_phase_s if node.is_in_phase else rng.uniform(0, UPDATE_S)
        state = replace(loaded.gpu, counter_phase_s=phase_s, sensor_phase_s=phase_s)
        energy, truth_j = measure_between(WindowGpu(state), begin_s, end_s, rng)
        draws.append(DeviceDraw(truth_j, energy.joules - truth_j, energy.half_width_j))
    return draws


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Coverage of a rule, and its mean half-width over the true energy and over the 95 % quantile
    of the error.
    """

    rule: str
    coverage: float
    width: float
    times_needed: float


def results(nodes: Sequence[Sequence[DeviceDraw]], count: int) -> list[RuleResult]:
    """Return the result of each rule for runs on the first `count` GPUs of each node."""
    errors_j = np.array([math.fsum(one.error_j for one in node[:count]) for node in nodes])
    truths_j = np.array([math.fsum(one.truth_j for one in node[:count]) for node in nodes])
    needed_j = float(np.quantile(np.abs(errors_j), LEVEL))
    found = []
    for name, rule in RULES.items():
        halves_j = np.array([rule(node[:count]) for node in nodes])
        found.append(
            RuleResult(
                name,
                coverage=float(np.mean(np.abs(errors_j) <= halves_j + 1e-9 * truths_j)),
                width=float(np.mean(halves_j / truths_j)),
                times_needed=float(np.mean(halves_j)) / needed_j,
            )
        )
    return found


def measure_wave_class(node: WaveNode, seed: int, count: int) -> dict[str, Any]:
    """Return the coverage and the times of the needed width of each rule, by number of GPUs."""
    rng = random.Random(f"devices {node.key} {seed}")
    nodes = [measure_wave_node(rng, node) for _ in range(count)]
    row: dict[str, Any] = {**node.key, "runs": count}
    for gpus in COUNTS:
        for one in results(nodes, gpus):
            row[f"{one.rule}_{gpus}"] = [round(one.coverage, 4), round(one.times_needed, 2)]
    return row


def device_table() -> str:
    """Return the table of the stored coverages of 8 GPUs, and their half-widths over the needed
    ones.
    """
    most = max(COUNTS)
    titles = ["1 GPU", f"{most} GPUs, added", f"{most} GPUs, squares", "added", "squares"]
    lines = [
        "| period | loads | sensors | " + " | ".join(titles) + " |",
        "|--:|---|---|" + "--:|" * len(titles),
    ]
    for row in stored_rows(RESULTS):
        added = row[f"linear_{most}"]
        joined = row[f"squares_{most}"]
        cells = [
            "flat" if row["period"] is None else f"{row['period']:g}",
            "one job" if row["one_job"] else "independent",
            "in phase" if row["in_phase"] else "free",
            *(f"{100 * each[0]:.1f} %" for each in (row["linear_1"], added, joined)),
            *(f"{each[1]:.1f}" for each in (added, joined)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = draw_parser("tests.calibration.devices", __doc__, 300, "Runs of each kind.")
    parser.add_argument("--sensor", choices=[*SENSORS, "wave"], default="counter")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of the generated sensors
    if given.sensor == "wave":
        rows = []
        for node in wave_nodes():
            rows.append(measure_wave_class(node, given.seed, given.draws))
            print(rows[-1], flush=True)
        write_rows(RESULTS, rows)
        return
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
