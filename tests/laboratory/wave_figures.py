"""Other figures than a run's energy, on waves: `python -m tests.laboratory.wave_figures`.

Square waves of 72 and 640 W for 20 to 70 % of a period. The power is the mean of an update of
0.1 s. Phases and emissions are those of an exporter with a counter of the same update; the energies
of samples are those that the analyzer states for logs without a counter.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np

from tests.calibration.coverage import Draw, from_bound, from_half_width
from tests.calibration.ranges import LIMIT_W
from tests.calibration.sensors import driver_calls, measure_phased
from tests.calibration.windows import LEVEL, NOISE_W, UPDATE_S
from tests.exporter.faults.virtual_node import make_gpu
from tests.laboratory.loads import HIGH_W, LOW_W, PowerLoad, square_wave, wave
from tests.laboratory.results import (
    Row,
    draw_parser,
    file_of,
    markdown_table,
    marked,
    stored_rows,
    write_rows,
)
from wattline_analyzer.core.integrate import counter_energy, power_range, trapezoid
from wattline_analyzer.core.samples import Samples, clean
from wattline_analyzer.core.timeline import Window
from wattline_analyzer.report.error_budget import integral_half_j

RESULTS = file_of("wave_figures")
PERIODS_S = (0.033, 0.05, 0.1, 0.11, 0.21, 0.5, 1.73)
SECONDS = 10.0
"""Length of the runs and of the ranges, which varies by 10 %."""
DRAWS = 40
RANGE_S = 60.0
"""Length of the ranges between scrapes."""
WATCHED_S = 1.0
"""Time after the end for which a GPU is polled."""

Figure = Literal["phase", "emissions", "samples", "range"]
TITLES: Mapping[Figure, str] = {
    "phase": "energy of a phase",
    "emissions": "emissions of a run",
    "range": "range of 60 s between scrapes of a counter, 5 s apart",
    "samples": "integral of samples, 0.1 s apart, for 10 s",
}


def phased_draws(rng: random.Random, period_s: float) -> dict[Figure, Draw]:
    """Return the intervals of a phase, if one is long enough, and of the emissions of one run."""
    gpu = make_gpu(rng, wave(rng, period_s), instant_window_s=UPDATE_S, average_window_s=UPDATE_S)
    faulty = driver_calls(gpu, rng, "counter")
    faulty.watched_s = WATCHED_S
    found = measure_phased(rng, faulty, SECONDS * rng.uniform(0.9, 1.1))
    kinds: tuple[Figure, ...] = ("phase", "emissions")
    return {kind: found[kind] for kind in kinds if kind in found}


def _load(rng: random.Random, period_s: float, seconds: float) -> PowerLoad:
    return square_wave(period_s, rng.uniform(0.2, 0.7), (LOW_W, HIGH_W), seconds, rng.random())


def sampled_draw(rng: random.Random, period_s: float, spacing_s: float = UPDATE_S) -> Draw:
    """Return the integral of samples, each of which has the power's latest update."""
    length_s = SECONDS * rng.uniform(0.9, 1.1)
    seconds = length_s + 4.0
    load = _load(rng, period_s, seconds + 1.0)
    updates_s = (np.arange(int(seconds / UPDATE_S)) + rng.random()) * UPDATE_S
    means_w = (load.energy_j(updates_s) - load.energy_j(updates_s - UPDATE_S)) / UPDATE_S
    means_w += [rng.uniform(-NOISE_W, NOISE_W) for _ in means_w]
    times_s = UPDATE_S + spacing_s * (np.arange(int(seconds / spacing_s) - 2) + rng.random())
    power = clean(
        np.asarray(times_s, np.float64), means_w[np.searchsorted(updates_s, times_s, "right") - 1]
    )
    begin_s = 1.0 + rng.random()
    end_s = begin_s + length_s
    window = Window(begin_s, end_s, True, length_s)
    truth_j = float(load.energy_j(end_s) - load.energy_j(begin_s))
    integral = trapezoid(power, begin_s, end_s)
    return from_half_width(truth_j, integral.energy_j, integral_half_j(power, window))


def range_draw(rng: random.Random, period_s: float, spacing_s: float = 5.0) -> Draw:
    """Return the energy of a range, from scrapes of a counter that are up to 0.4 s old."""
    load = _load(rng, period_s, RANGE_S + 4 * spacing_s)
    times_s = np.arange(0.0, RANGE_S + 4 * spacing_s, spacing_s)
    ages_s = np.array([rng.uniform(0.0, 0.4) for _ in times_s])
    joules = load.energy_j(times_s - ages_s) - load.energy_j(-1.0)
    means_w = (load.energy_j(times_s) - load.energy_j(times_s - UPDATE_S)) / UPDATE_S
    begin_s = spacing_s * (1.0 + rng.random())
    end_s = begin_s + RANGE_S
    possible = power_range(Samples(times_s, means_w), LIMIT_W)
    assert possible is not None
    found = counter_energy(Samples(times_s, joules), begin_s, end_s, possible)
    assert found is not None
    truth_j = float(load.energy_j(end_s) - load.energy_j(begin_s))
    return from_bound(truth_j, found.number, found.limits)


_DRAWN: Mapping[Figure, Callable[[random.Random, float], Draw]] = {
    "range": range_draw,
    "samples": sampled_draw,
}


def measure_figures(period_s: float, seed: int, count: int) -> dict[Figure, list[Draw]]:
    """Return `count` intervals of each figure; of phases as many as are long enough."""
    rng = random.Random(f"wave figures {period_s} {seed}")
    runs = [phased_draws(rng, period_s) for _ in range(count)]
    found: dict[Figure, list[Draw]] = {
        "phase": [run["phase"] for run in runs if "phase" in run],
        "emissions": [run["emissions"] for run in runs],
    }
    for figure, drawn in _DRAWN.items():
        found[figure] = [drawn(rng, period_s) for _ in range(count)]
    return found


def summarize_draws(draws: list[Draw]) -> Row:
    """Return the coverage, and the mean half-width over the 95 % quantile of the error."""
    errors = np.abs([draw.estimate - draw.truth for draw in draws])
    halves = np.array([draw.half_width for draw in draws])
    needed = float(np.quantile(errors, LEVEL))
    return {
        "runs": len(draws),
        "coverage": round(float(np.mean(errors <= halves)), 4),
        "times_needed": round(float(np.mean(halves)) / needed, 2),
    }


def rows_of(period_s: float, seed: int, count: int) -> Iterator[Row]:
    """Yield the row of each figure of one period."""
    for figure, draws in measure_figures(period_s, seed, count).items():
        yield {"figure": figure, "period_s": period_s, **summarize_draws(draws)}


def figure_table() -> str:
    """Return the coverage of each figure by period, and the median width over the needed one."""
    rows = []
    for figure, title in TITLES.items():
        found = {row["period_s"]: row for row in stored_rows(RESULTS) if row["figure"] == figure}
        times = np.median([row["times_needed"] for row in found.values()])
        rows.append([title, *(marked(found[one]["coverage"]) for one in PERIODS_S), f"{times:.1f}"])
    header = ["figure", *(f"{period_s:g} s" for period_s in PERIODS_S), "of the needed"]
    return markdown_table(header, rows)


def main() -> None:
    parser = draw_parser("tests.laboratory.wave_figures", __doc__, DRAWS, "Runs of each period.")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of the generated sensors
    rows = []
    for period_s in PERIODS_S:
        for row in rows_of(period_s, given.seed, given.draws):
            rows.append(row)
            print(row, flush=True)
    write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
