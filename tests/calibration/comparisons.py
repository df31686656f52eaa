"""Intervals of `compare` and `recommend` over generated runs, whose scatter and ratios are
known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from tests.analyzer.recommend.sample_sweeps import sample_run
from tests.calibration.coverage import LEVELS, Draw, Kind, from_intervals
from tests.laboratory.loads import log_uniform
from wattline.figures import Figure
from wattline_analyzer.core.statistics import RunValue, geometric_means, ratios_to_first
from wattline_analyzer.recommend.advice import advise
from wattline_analyzer.recommend.objective import SweepQuestion
from wattline_analyzer.recommend.sweep import Sweep

MEASURED_RATIO = 1e-4
"""Half-width of each run's own energy, which is small compared with the scatter of repeats."""


def _group(
    rng: np.random.Generator, mean_log: float, spread: float, drifts: np.ndarray, *, paired: bool
) -> list[RunValue]:
    logs = mean_log + drifts + spread * rng.standard_normal(len(drifts))
    values = [math.exp(log) for log in logs]
    return [
        RunValue(Figure(value, MEASURED_RATIO * value), number if paired else object())
        for number, value in enumerate(values)
    ]


def _ratio(rng: np.random.Generator, *, paired: bool, few: int = 2, equal: bool = False) -> Draw:
    """Compare two or three groups of different spread; one of them is chosen at random and compared
    with the first.
    """
    others = int(rng.integers(1, 3))
    counts = rng.integers(3 if paired else few, 13, others + 1)
    if paired:
        counts[:] = counts[0]
    if few == 1:
        counts[1] = 1
        counts[0] = max(counts[0], 2)
    truths = [0.0, *rng.normal(0, 0.1, others)]
    spreads = [log_uniform(rng, 0.001, 0.05) for _ in range(others + 1)]
    if equal:
        spreads = [spreads[0]] * (others + 1)
    drifts = rng.normal(0, log_uniform(rng, 0.001, 0.05), counts[0]) if paired else np.zeros(13)
    groups = [
        _group(rng, truth, spread, drifts[:count], paired=paired)
        for truth, spread, count in zip(truths, spreads, counts, strict=True)
    ]
    chosen = 1 if few == 1 else int(rng.integers(1, others + 1))
    found = [ratios_to_first(groups, level)[chosen - 1] for level in LEVELS]
    limits = [None if one.low is None or one.high is None else (one.low, one.high) for one in found]
    return from_intervals(
        math.exp(truths[chosen]),
        [Figure(one.ratio, skewed=ends) for one, ends in zip(found, limits, strict=True)],
    )


def _group_mean(rng: np.random.Generator) -> Draw:
    truth, count = math.exp(rng.uniform(-3, 8)), int(rng.integers(2, 13))
    group = _group(
        rng, math.log(truth), log_uniform(rng, 0.001, 0.05), np.zeros(count), paired=False
    )
    found = [geometric_means([group], level)[0] for level in LEVELS]
    return from_intervals(truth, found)


def ratios_in_pairs(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    return (_ratio(rng, paired=True) for _ in range(count))


def ratios_of_unequal_spread(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    return (_ratio(rng, paired=False) for _ in range(count))


def ratios_of_a_single_run(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    return (_ratio(rng, paired=False, few=1, equal=True) for _ in range(count))


def group_means(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    return (_group_mean(rng) for _ in range(count))


def _sweep(rng: np.random.Generator, *, unequal: float) -> tuple[Sweep, list[float], list[float]]:
    """Return a sweep of 3 to 8 limits, and the true energy and time at each limit relative to the
    highest.
    """
    limits_w = sorted(
        rng.choice(np.arange(200, 701, 25), int(rng.integers(3, 9)), replace=False).tolist()
    )
    repeats, spread = int(rng.integers(3, 11)), log_uniform(rng, 0.002, 0.03)
    static_w, power = rng.uniform(20, 150), rng.uniform(0.15, 0.9)
    times = [(limits_w[-1] / watts) ** power for watts in limits_w]
    energies = [
        (watts + static_w) / (limits_w[-1] + static_w) * time
        for watts, time in zip(limits_w, times, strict=True)
    ]
    spreads = [spread * log_uniform(rng, 1 / unequal, unequal) for _ in limits_w]
    drifts = rng.normal(0, log_uniform(rng, 0.001, 0.03), repeats)
    runs = []
    for repeat in range(repeats):
        for watts, energy, time, scatter in zip(limits_w, energies, times, spreads, strict=True):
            joules = 30_000 * energy * math.exp(drifts[repeat] + scatter * rng.standard_normal())
            seconds = 60 * time * math.exp(drifts[repeat] / 2 + scatter / 2 * rng.standard_normal())
            facts = {"capped_s": seconds, "p95_power_w": watts, "mean_power_w": watts}
            runs.append(sample_run(watts, joules, seconds, repeat=str(repeat), **facts))
    return Sweep("generated", tuple(runs)), energies, times


def _changes(figure: str, unequal: float, rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Yield the interval of each limit below the highest one; those of one sweep share its highest
    limit.
    """
    left = count
    while left > 0:
        sweep, energies, times = _sweep(rng, unequal=unequal)
        found = [advise(sweep, SweepQuestion(confidence=level)).candidates for level in LEVELS]
        for number in range(min(left, len(energies) - 1)):
            truth = 1 - energies[number] if figure == "saving" else times[number] - 1
            yield from_intervals(
                truth,
                [
                    each[number].saving if figure == "saving" else each[number].slowdown
                    for each in found
                ],
            )
        left -= len(energies) - 1


KINDS = (
    Kind("compare: ratio of groups, paired by repeat", "statistical", ratios_in_pairs),
    Kind("compare: ratio of groups of unequal spread", "statistical", ratios_of_unequal_spread),
    Kind(
        "compare: ratio of a single run to repeats of the same spread",
        "statistical",
        ratios_of_a_single_run,
    ),
    Kind("compare: mean of a group", "statistical", group_means),
    Kind("recommend: saving", "statistical", partial(_changes, "saving", 1.0), cost=10.0),
    Kind("recommend: slowdown", "statistical", partial(_changes, "slowdown", 1.0), cost=10.0),
    Kind(
        "recommend: saving, limits of unequal spread",
        "statistical",
        partial(_changes, "saving", 3.0),
        cost=10.0,
    ),
)
