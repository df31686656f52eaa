"""Intervals by class of load, sensor and edges of the run: `python -m tests.laboratory.classes`.

Runs of 1 to 10 s on a GPU whose counter and powers update every 0.1 s, in phase or not. The command
stores the coverage and the half-width of each class; `needed` is the 95 % quantile of the error.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tests.calibration.windows import (
    NOISE_W,
    SENSORS,
    UPDATE_S,
    Sensor,
    WindowDraw,
    WindowGpu,
    summarize_windows,
)
from tests.exporter.meter.replay import START_S, ReplayedGpu, gpu_with_load, measure
from tests.laboratory.clients import EDGES, LATEST_S, draw_edges
from tests.laboratory.loads import CLASSES, log_uniform
from tests.laboratory.results import (
    ENOUGH,
    Row,
    draw_parser,
    file_of,
    markdown_table,
    marked,
    stored_rows,
    write_rows,
)

RESULTS = file_of("classes")
SECONDS = 1.0, 10.0
DRAWS = 25
LEAD_S = 6.0
"""Time between the start of the load and the earliest start of a run."""


def measure_class(
    rng: random.Random, load: str, sensor: Sensor, edges: str, count: int
) -> list[WindowDraw]:
    """Return the errors and half-widths of `count` runs."""
    return [_measure_run(rng, load, sensor, edges) for _ in range(count)]


def loaded_gpu(rng: random.Random, load: str, seconds: float) -> ReplayedGpu:
    """Return a GPU whose load lasts from before the earliest start to after the latest end."""
    drawn = CLASSES[load](rng, UPDATE_S, LEAD_S + LATEST_S + seconds)
    return gpu_with_load(rng, drawn, from_s=START_S - LEAD_S)


def _measure_run(rng: random.Random, load: str, sensor: Sensor, edges: str) -> WindowDraw:
    seconds = log_uniform(rng, *SECONDS)
    made = loaded_gpu(rng, load, seconds)
    product = replace(
        made.gpu.product,
        instant_window_s=sensor.instant_s or UPDATE_S,
        average_window_s=sensor.average_s or UPDATE_S,
        noise_w=NOISE_W,
    )
    state = replace(made.gpu, product=product)
    if rng.random() < 0.5:
        state = replace(state, sensor_phase_s=state.counter_phase_s)
    gpu = WindowGpu(
        state,
        has_instant=sensor.instant_s is not None,
        has_average=sensor.average_s is not None,
    )
    begin_s, seconds = draw_edges(rng, edges, seconds, UPDATE_S, state.counter_phase_s)
    energy, true_j = measure(gpu, seconds, rng, begin_s)
    return WindowDraw(energy.joules - true_j, energy.half_width_j)


def measure_classes(seed: int, count: int, loads: Iterable[str]) -> Iterator[Row]:
    """Yield the row of each class of these loads."""
    for load, sensor, edges in itertools.product(loads, SENSORS, EDGES):
        rng = random.Random(f"classes {load} {sensor.title} {edges} {seed}")
        names = {"load": load, "sensor": sensor.title, "edges": edges}
        yield names | summarize_windows(measure_class(rng, load, sensor, edges, count))


def class_table() -> str:
    """Return the least coverage and the median half-width over the needed one, over all sensors."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in stored_rows(RESULTS):
        found.setdefault((row["load"], row["edges"]), []).append(row)
    rows = []
    for load in CLASSES:
        of_load = [row for edges in EDGES for row in found[load, edges]]
        least = [min(row["coverage"] for row in found[load, edges]) for edges in EDGES]
        times = sorted(row["median_times_needed"] for row in of_load)
        below = sum(row["coverage"] < ENOUGH for row in of_load)
        rows.append(
            [
                load,
                *(marked(coverage) for coverage in least),
                f"{below} of {len(of_load)}",
                f"{times[len(times) // 2]:.1f}",
            ]
        )
    header = ["load", *(f"edges {name}" for name in EDGES), "classes below 93 %", "of the needed"]
    return markdown_table(header, rows)


def main() -> None:
    parser = draw_parser("tests.laboratory.classes", __doc__, DRAWS, "Runs of each class.")
    parser.add_argument("--only", default="", help="Part of the names of the loads to measure.")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of the generated sensors
    loads = [load for load in CLASSES if given.only in load]
    rows = []
    for row in measure_classes(given.seed, given.draws, loads):
        rows.append(row)
        if row["coverage"] < ENOUGH:
            print(f"{row['load']}, {row['sensor']}, edges {row['edges']}: {row['coverage']:.0%}")
    write_rows(RESULTS, rows, key=("load", "sensor", "edges"))


if __name__ == "__main__":
    main()
