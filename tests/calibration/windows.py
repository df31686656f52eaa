"""Intervals of runs by the windows of the powers, the period of the load and the length of the run.

`python -m tests.calibration.windows` prints and stores the coverage and the half-widths of each
class. Each load is a square wave of 72 and 640 W, or flat. The counter and the powers update
together every 0.1 s. Half-widths are compared with the 95 % quantile of the error.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.exporter.meter.replay import ReplayedGpu, gpu_with_load, measure, square_wave
from tests.laboratory.loads import HIGH_W, LOW_W
from tests.laboratory.results import draw_parser, stored_rows, write_rows
from wattline_exporter.simulation import Constant

RESULTS = Path(__file__).with_name("windows.json")
UPDATE_S = 0.1
DUTIES = (0.2, 0.7)
LENGTHS_S = (1.0, 3.0, 10.0)
NOISE_W = 1.0
LEVEL = 0.95


class Sensor(NamedTuple):
    """Windows in seconds of the powers that a GPU reports; None for a power that it does not.

    `was_short`: an earlier run has shown that the instantaneous power has a short window.
    """

    title: str
    instant_s: float | None
    average_s: float | None
    was_short: bool = False


SENSORS = (
    Sensor("instant 25 ms", 0.025, None),
    Sensor("instant 100 ms", UPDATE_S, None),
    Sensor("average 100 ms", None, UPDATE_S),
    Sensor("average 1 s", None, 1.0),
    Sensor("instant 25 ms, average 1 s", 0.025, 1.0),
    Sensor("instant 100 ms, average 1 s", UPDATE_S, 1.0),
    Sensor("instant 100 ms, average 100 ms", UPDATE_S, UPDATE_S),
    Sensor("instant 25 ms, seen before", 0.025, None, was_short=True),
    Sensor("instant 25 ms, seen before, average 1 s", 0.025, 1.0, was_short=True),
)
PERIODS = (0.33, 0.5, 1.0, 1.1, 2.0, 2.1, 5.0, 17.3)
"""Periods of the load in updates of the sensor."""


class Condition(NamedTuple):
    """Class of runs. `updates`: period of the load in updates; None for a flat load."""

    sensor: Sensor
    updates: float | None
    seconds: float

    @property
    def key(self) -> dict[str, Any]:
        return {"sensor": self.sensor.title, "period": self.updates, "seconds": self.seconds}


def conditions() -> Iterator[Condition]:
    """Yield all classes of runs."""
    for sensor in SENSORS:
        for updates in (None, *PERIODS):
            for seconds in LENGTHS_S:
                yield Condition(sensor, updates, seconds)


@dataclass(frozen=True)
class WindowGpu(ReplayedGpu):
    """Replayed GPU that reports only one of its powers, or both."""

    has_instant: bool = True
    has_average: bool = True

    def _read(self, t: float) -> tuple[float | None, float | None, float | None]:
        counted_j, instant_w, average_w = super()._read(t)
        return (
            counted_j,
            instant_w if self.has_instant else None,
            average_w if self.has_average else None,
        )


class WindowDraw(NamedTuple):
    """Error and half-width of the energy of one run, in joules."""

    error_j: float
    half_width_j: float


def measure_windows(rng: random.Random, condition: Condition, count: int) -> list[WindowDraw]:
    """Return runs whose lengths vary by 10 %, since the errors of both ends cancel in whole periods
    of a load.
    """
    return [_measure_run(rng, condition) for _ in range(count)]


def _measure_run(rng: random.Random, condition: Condition) -> WindowDraw:
    gpu = make_gpu(rng, condition)
    energy, true_j = measure(gpu, condition.seconds * rng.uniform(0.9, 1.1), rng)
    return WindowDraw(energy.joules - true_j, energy.half_width_j)


def make_gpu(rng: random.Random, condition: Condition) -> WindowGpu:
    """Return a GPU with the load and the sensor of a class, both with random phases."""
    sensor, updates, _ = condition
    duty = rng.uniform(*DUTIES)
    if updates is None:
        made = gpu_with_load(rng, Constant(LOW_W + duty * (HIGH_W - LOW_W)))
    else:
        made = square_wave(rng, period_s=updates * UPDATE_S, duty=duty)
    product = replace(
        made.gpu.product,
        instant_window_s=sensor.instant_s or UPDATE_S,
        average_window_s=sensor.average_s or UPDATE_S,
        noise_w=NOISE_W,
    )
    return WindowGpu(
        replace(made.gpu, product=product, sensor_phase_s=made.gpu.counter_phase_s),
        has_instant=sensor.instant_s is not None,
        has_average=sensor.average_s is not None,
        was_short=sensor.was_short,
    )


def summarize_windows(draws: Sequence[WindowDraw]) -> dict[str, Any]:
    """Return the coverage, mean and median half-width, and how many times the width needed they
    are.

    Disagreements of counter and power widen a few runs by far, which only the mean shows.
    """
    errors_j = np.abs([draw.error_j for draw in draws])
    halves_j = np.array([draw.half_width_j for draw in draws])
    needed_j = float(np.quantile(errors_j, LEVEL))
    return {
        "runs": len(draws),
        "coverage": round(float(np.mean(errors_j <= halves_j)), 4),
        "half_width_j": round(float(np.mean(halves_j)), 2),
        "median_half_width_j": round(float(np.median(halves_j)), 2),
        "needed_j": round(needed_j, 2),
        "times_needed": round(float(np.mean(halves_j)) / needed_j, 2),
        "median_times_needed": round(float(np.median(halves_j)) / needed_j, 2),
    }


def measure_condition(condition: Condition, seed: int, count: int) -> dict[str, Any]:
    """Return the summary of one class."""
    rng = random.Random(f"windows {condition.key} {seed}")
    return condition.key | summarize_windows(measure_windows(rng, condition, count))


def window_table() -> str:
    """Return the table of the stored coverages and of the half-widths over the needed ones,
    a row for each load of each sensor, which only the first one names; RESULTS has the half-widths
    in joules.
    """
    lengths = [f"{seconds:g} s" for seconds in LENGTHS_S]
    titles = [
        *(f"coverage in %, {length}" for length in lengths),
        *(f"of the needed, {length}" for length in lengths),
    ]
    lines = [
        "| power over | period | " + " | ".join(titles) + " |",
        "|---|--:|" + "--:|" * len(titles),
    ]
    rows = stored_rows(RESULTS)
    for first in range(0, len(rows), len(LENGTHS_S)):
        group = rows[first : first + len(LENGTHS_S)]
        period = group[0]["period"]
        cells = [
            "" if group[0]["period"] else group[0]["sensor"],
            "flat" if period is None else f"{period:g}",
            *(f"{100 * row['coverage']:.1f}" for row in group),
            *(f"{row['times_needed']:.1f}" for row in group),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = draw_parser("tests.calibration.windows", __doc__, 200, "Runs of each class.")
    parser.add_argument("--only", default="", help="Part of the titles of the sensors to measure.")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of the generated sensors
    stored = {_identity(row): row for row in stored_rows(RESULTS)}
    for condition in conditions():
        if given.only not in condition.sensor.title:
            continue
        row = measure_condition(condition, given.seed, given.draws)
        stored[_identity(row)] = row
        print(
            f"{row['sensor']:32s} {row['period'] or 'flat':>5} {row['seconds']:4.0f} s"
            f" {100 * row['coverage']:6.1f} % ± {row['half_width_j']:7.2f} J,"
            f" needed {row['needed_j']:6.2f} J, {row['times_needed']:6.2f} times,"
            f" median {row['median_times_needed']:5.2f} times",
            flush=True,
        )
    write_rows(RESULTS, [stored[_identity(condition.key)] for condition in conditions()])


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the class of a row: its sensor, its period and the length of its runs."""
    return row["sensor"], row["period"], row["seconds"]


if __name__ == "__main__":
    main()
