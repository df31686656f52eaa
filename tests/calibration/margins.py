"""Narrowest half-widths of the meter by class of load, run and sensor: `python -m
tests.calibration.margins`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.calibration.sensors import Conditions, Sensor, measure_run
from tests.laboratory.results import (
    draw_parser,
    file_of,
    markdown_table,
    percent,
    stored_rows,
    write_rows,
)
from wattline_exporter.simulation import Constant, Ramp, Square, Trace

RESULTS = file_of("margins")
LEVEL = 0.95
TITLES: dict[Sensor, str] = {"counter": "energy counter", "averaged": "power averaged over 1 s"}
NEAR_UPDATE = 0.3, 6.0
"""Load periods, relative to the update period, at which the error of an edge is the same in each
period.
"""
LONG = 1e9


def _is_periodic(low: float, high: float) -> Callable[[Conditions], bool]:
    """Return whether the load has a period from `low` to `high`, relative to the sensor's update
    period.
    """
    return lambda run: (
        isinstance(run.load, Square) and low <= run.load.period_s / run.update_s < high
    )


CLASSES: dict[str, Callable[[Conditions], bool]] = {
    "all": lambda _: True,
    "constant load": lambda run: isinstance(run.load, Constant),
    "rising load": lambda run: isinstance(run.load, Ramp),
    "random steps": lambda run: isinstance(run.load, Trace),
    "period below 0.3 updates": _is_periodic(0.0, NEAR_UPDATE[0]),
    "period of 0.3 to 6 updates": _is_periodic(*NEAR_UPDATE),
    "period above 6 updates": _is_periodic(NEAR_UPDATE[1], LONG),
    "runs of 1 to 5 s": lambda run: run.seconds < 5,
    "runs of 5 to 30 s": lambda run: 5 <= run.seconds < 30,
    "runs of 30 to 120 s": lambda run: run.seconds >= 30,
    "updates each 20 to 100 ms": lambda run: run.update_s < 0.1,
    "updates each 0.1 to 0.3 s": lambda run: 0.1 <= run.update_s < 0.3,
    "updates each 0.3 to 1 s": lambda run: run.update_s >= 0.3,
}


class MarginDraw(NamedTuple):
    """Run with the error of its energy, as a part of its half-width."""

    conditions: Conditions
    error_ratio: float


def measure_margins(seed: int, sensor: Sensor, count: int) -> list[MarginDraw]:
    rng = random.Random(f"margins {sensor} {seed}")
    found = []
    for _ in range(count):
        conditions, draws = measure_run(rng, sensor)
        draw = draws["run"]
        found.append(MarginDraw(conditions, abs(draw.estimate - draw.truth) / draw.half_width))
    return found


def summarize_margins(sensor: Sensor, draws: Sequence[MarginDraw]) -> list[dict[str, Any]]:
    """Return the coverage of each class, with the stated half-widths and with those that contain
    LEVEL of all runs.

    `factor` narrows the half-widths such that they contain LEVEL of the class.
    """
    of_all = float(np.quantile([one.error_ratio for one in draws], LEVEL))
    rows = []
    for name, is_member in CLASSES.items():
        ratios = np.array([one.error_ratio for one in draws if is_member(one.conditions)])
        if len(ratios):
            rows.append(
                {
                    "sensor": sensor,
                    "class": name,
                    "runs": len(ratios),
                    "coverage": round(float(np.mean(ratios <= 1.0)), 4),
                    "narrowed": round(float(np.mean(ratios <= of_all)), 4),
                    "factor": round(float(np.quantile(ratios, LEVEL)), 3),
                }
            )
    return rows


def margin_table() -> str:
    """Return the table of the stored coverages."""
    header = ["runs"]
    for title in TITLES.values():
        header += [f"{title}: coverage", "narrowed", "factor"]
    stored = {(row["class"], row["sensor"]): row for row in stored_rows(RESULTS)}
    rows = []
    for name in CLASSES:
        cells = [name]
        for sensor in TITLES:
            row = stored[name, sensor]
            cells += [percent(row["coverage"]), percent(row["narrowed"]), f"{row['factor']:.2f}"]
        rows.append(cells)
    return markdown_table(header, rows)


def main() -> None:
    given = draw_parser(
        "tests.calibration.margins", __doc__, 2_000, "Runs of each sensor."
    ).parse_args()
    logging.disable(logging.CRITICAL)  # of the generated sensors
    rows = [
        row
        for sensor in TITLES
        for row in summarize_margins(sensor, measure_margins(given.seed, sensor, given.draws))
    ]
    write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
