"""Intervals of waves on sensors that update in other ways: `python -m tests.laboratory.waves`.

Square waves of 72 and 640 W for 20 to 70 % of a period, and bursts of them with pauses. Both powers
are means over the time between two of their updates. The command stores the coverage and the
half-width of each class; `needed` is the 95 % quantile of the error.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tests.calibration.windows import LENGTHS_S, NOISE_W, UPDATE_S, WindowDraw, summarize_windows
from tests.exporter.meter.replay import (
    CALL_S,
    START_S,
    ReplayedGpu,
    gpu_with_load,
    measure_between,
)
from tests.laboratory.loads import paused_bursts, wave
from tests.laboratory.results import (
    Row,
    draw_parser,
    file_of,
    markdown_table,
    marked,
    stored_rows,
    write_rows,
)
from wattline_exporter.sensors.readings import Device, Poll
from wattline_exporter.simulation import Load, SimulatedGpuState
from wattline_exporter.simulation.gpu import cumulative_j

RESULTS = file_of("waves")
DRAWS = 60
LEAD_S = 100.0
"""Time from the start of the load to START_S."""
LATEST_S = 10.0
"""Time after START_S until which runs start."""


class Updates(NamedTuple):
    """Updates of the sensors of a GPU, in seconds.

    `lag_s`: time from an update of the power to the next one of the counter; None for random
    phases. `jitter_s`: largest error of an update's time. `delay_s`: age of the power at its
    update.
    """

    title: str
    counter_s: float = UPDATE_S
    power_s: float = UPDATE_S
    lag_s: float | None = 0.0
    jitter_s: float = 0.0
    delay_s: float = 0.0
    gpus: int = 1
    """GPUs of a run, which have one load at the same time."""


UPDATES = (
    Updates("together, 8 GPUs", gpus=8),
    Updates("counter 40 ms after power", lag_s=0.04),
    Updates("counter 20 ms, power 100 ms", counter_s=0.02, lag_s=None),
    Updates("counter 100 ms, power 20 ms", power_s=0.02, lag_s=None),
    Updates("scatter of 5 ms", lag_s=None, jitter_s=0.005),
    Updates("power late by 100 ms", delay_s=0.1),
)


def _paused(period_s: float) -> Callable[[random.Random, float], Load]:
    def load(rng: random.Random, seconds: float) -> Load:
        drawn_s = period_s * rng.uniform(0.98, 1.02)
        return paused_bursts(rng, drawn_s, rng.uniform(0.2, 0.7), rng.uniform(0.3, 0.7), seconds)

    return load


def _wave(period_s: float) -> Callable[[random.Random, float], Load]:
    return lambda rng, _seconds: wave(rng, period_s)


LOADS: Mapping[str, Callable[[random.Random, float], Load]] = {
    **{f"wave of {s:g} s": _wave(s) for s in (0.033, 0.05, 0.1, 0.11, 0.21, 0.5, 1.73)},
    **{
        f"bursts of {s:g} s, pauses": _paused(s)
        for s in (UPDATE_S, UPDATE_S / 2, round(UPDATE_S / 3, 4))
    },
}
"""Draws of a load by its period, for runs of a length in seconds. That of bursts scatters by 2 %.
"""


@dataclass(frozen=True)
class UpdatedGpu(ReplayedGpu):
    """GPU whose values date from updates that scatter, and whose power may be late."""

    jitter_s: float = 0.0
    delay_s: float = 0.0

    def poll(self, t: float) -> Poll:
        gpu = self.gpu
        read_s = t + CALL_S / 2
        _, counted_s = self._update(read_s, gpu.product.counter_period_s, gpu.counter_phase_s)
        number, moved_s = self._update(read_s, gpu.product.sensor_period_s, gpu.sensor_phase_s)
        counted_j = math.floor(cumulative_j(gpu, counted_s) * 1e3) / 1e3
        window_s = gpu.product.sensor_period_s
        end_s = moved_s - self.delay_s
        mean_w = (cumulative_j(gpu, end_s) - cumulative_j(gpu, end_s - window_s)) / window_s
        noise = random.Random(number)
        instant_w = mean_w + noise.uniform(-NOISE_W, NOISE_W)
        average_w = mean_w + noise.uniform(-NOISE_W, NOISE_W)
        return Poll(Device("gpu", gpu.uuid), t, t + CALL_S, counted_j, instant_w, average_w)

    def _update(self, t: float, period_s: float, phase_s: float) -> tuple[int, float]:
        """Return the number and the time of the last update at `t`."""
        number = math.floor((t - phase_s) / period_s) + 1
        while (at_s := self._update_s(number, period_s, phase_s)) > t:
            number -= 1
        return number, at_s

    def _update_s(self, number: int, period_s: float, phase_s: float) -> float:
        jitter = random.Random(f"{number} {phase_s}").uniform(-self.jitter_s, self.jitter_s)
        return phase_s + number * period_s + jitter


def updated_gpu(rng: random.Random, updates: Updates, state: SimulatedGpuState) -> UpdatedGpu:
    """Return a GPU with the load of `state` and these updates."""
    product = replace(
        state.product,
        counter_period_s=updates.counter_s,
        sensor_period_s=updates.power_s,
        instant_window_s=updates.power_s,
        average_window_s=updates.power_s,
    )
    power_s = rng.uniform(0, updates.power_s)
    counter_s = rng.uniform(0, updates.counter_s)
    if updates.lag_s is not None:
        counter_s = power_s + updates.lag_s
    phased = replace(state, product=product, sensor_phase_s=power_s, counter_phase_s=counter_s)
    return UpdatedGpu(phased, jitter_s=updates.jitter_s, delay_s=updates.delay_s)


def measure_job(
    rng: random.Random, updates: Updates, load: str, seconds: float
) -> list[WindowDraw]:
    """Return the errors and half-widths of the GPUs of one run, whose length varies by 10 %."""
    drawn = LOADS[load](rng, LEAD_S + LATEST_S + 1.1 * seconds)
    state = gpu_with_load(rng, drawn, from_s=START_S - LEAD_S).gpu
    begin_s = START_S + rng.uniform(0, LATEST_S)
    end_s = begin_s + seconds * rng.uniform(0.9, 1.1)
    draws = []
    for _ in range(updates.gpus):
        energy, true_j = measure_between(updated_gpu(rng, updates, state), begin_s, end_s, rng)
        draws.append(WindowDraw(energy.joules - true_j, energy.half_width_j))
    return draws


def measure_wave_runs(
    seed: int, updates: Updates, load: str, seconds: float, count: int
) -> list[list[WindowDraw]]:
    """Return the GPUs of each run of one class."""
    rng = random.Random(f"waves {updates.title} {load} {seconds} {seed}")
    return [measure_job(rng, updates, load, seconds) for _ in range(count)]


def summarize_jobs(jobs: list[list[WindowDraw]]) -> Row:
    """Return the summary of single GPUs, and that of their sums, whose half-widths add."""
    single = summarize_windows([draw for job in jobs for draw in job])
    sums = summarize_windows(
        [
            WindowDraw(
                math.fsum(draw.error_j for draw in job),
                math.fsum(draw.half_width_j for draw in job),
            )
            for job in jobs
        ]
    )
    return single | {"sum_coverage": sums["coverage"], "sum_times_needed": sums["times_needed"]}


def measure_waves(seed: int, count: int, updates: Updates) -> Iterator[Row]:
    """Yield the row of each class of these updates, with at least `count` GPUs."""
    jobs = math.ceil(count / updates.gpus)
    for load in LOADS:
        for seconds in LENGTHS_S:
            names = {"updates": updates.title, "load": load, "seconds": seconds}
            yield names | summarize_jobs(measure_wave_runs(seed, updates, load, seconds, jobs))


def _of_class() -> dict[tuple[str, str], list[Row]]:
    """Return the stored rows by updates and load, in the order of the lengths of their runs."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(stored_rows(RESULTS), key=lambda row: row["seconds"]):
        found.setdefault((row["updates"], row["load"]), []).append(row)
    return found


def wave_table() -> str:
    """Return the coverage and the half-width by load and length, of GPUs that update together."""
    found = _of_class()
    rows = []
    for load in LOADS:
        of_load = found[UPDATES[0].title, load]
        cells = [marked(row["coverage"]) for row in of_load]
        cells += [f"{row['half_width_j']:.1f}" for row in of_load]
        cells += [f"{row['times_needed']:.1f}" for row in of_load]
        cells.append(marked(min(row["sum_coverage"] for row in of_load)))
        rows.append([load, *cells])
    lengths = [f"{seconds:g} s" for seconds in LENGTHS_S]
    header = [
        "load",
        *(f"coverage, {length}" for length in lengths),
        *(f"± J, {length}" for length in lengths),
        *(f"of the needed, {length}" for length in lengths),
        "coverage of the sum",
    ]
    return markdown_table(header, rows)


def update_table() -> str:
    """Return the least coverage by load over all lengths, and the median width, by updates."""
    found = _of_class()
    rows = []
    for updates in UPDATES:
        of_updates = [found[updates.title, load] for load in LOADS]
        least = [min(row["coverage"] for row in of_load) for of_load in of_updates]
        times = [row["times_needed"] for of_load in of_updates for row in of_load]
        rows.append([updates.title, *map(marked, least), f"{np.median(times):.1f}"])
    return markdown_table(["updates", *LOADS, "of the needed"], rows)


def main() -> None:
    parser = draw_parser("tests.laboratory.waves", __doc__, DRAWS, "GPUs of each class.")
    parser.add_argument("--only", default="", help="Part of the titles of the updates to measure.")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of the generated sensors
    for updates in UPDATES:
        if given.only not in updates.title:
            continue
        rows = []
        for row in measure_waves(given.seed, given.draws, updates):
            rows.append(row)
            print(
                f"{row['updates']:28s} {row['load']:24s} {row['seconds']:4.0f} s"
                f" {100 * row['coverage']:6.1f} % ± {row['half_width_j']:6.2f} J,"
                f" {row['times_needed']:6.2f} times, sum {100 * row['sum_coverage']:6.1f} %",
                flush=True,
            )
        write_rows(RESULTS, rows, key=("updates", "load", "seconds"))


if __name__ == "__main__":
    main()
