"""Intervals of `variability` over generated fleets, whose scatter is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from tests.calibration.coverage import LEVELS, Draw, Kind, from_bound, from_intervals
from wattline_analyzer.core.statistics import gpu_outliers
from wattline_analyzer.variability.figures import (
    correlation_estimate,
    median_estimate,
    outlier_share,
    variation_estimate,
)

Fleet = Callable[[np.random.Generator, int], np.ndarray]
_POPULATION = 200_000
"""Generated GPUs whose scatter is the true value, where it has no closed form."""


def _with_outliers(share: float, deviation: float) -> Fleet:
    """GPUs that scatter by 1 %, of which a share is slower."""
    return lambda rng, n: 1 + 0.01 * rng.standard_normal(n) + deviation * (rng.random(n) < share)


ORDINARY: tuple[Fleet, ...] = (
    lambda rng, n: 1 + 0.03 * rng.standard_normal(n),
    lambda rng, n: 1 + 0.05 * rng.uniform(-1, 1, n),
)
SKEWED: tuple[Fleet, ...] = (
    lambda rng, n: 1 + 0.03 * rng.exponential(1, n),
    lambda rng, n: np.exp(0.3 * rng.standard_normal(n)),
    lambda rng, n: 1 + 0.03 * rng.standard_t(5, n),
)
OUTLIERS: tuple[Fleet, ...] = (
    _with_outliers(0.1, 0.08),
    _with_outliers(0.03, 0.2),
    _with_outliers(0.05, 0.05),
)


def _truths(rng: np.random.Generator, fleets: tuple[Fleet, ...]) -> list[tuple[float, float]]:
    """Return the coefficient of variation without outliers, and the share of outliers, of each kind
    of fleet.
    """
    found = []
    for fleet in fleets:
        values = fleet(rng, _POPULATION)
        outliers = np.array(gpu_outliers(values))
        inner = values[~outliers]
        found.append((float(inner.std() / inner.mean()), float(outliers.mean())))
    return found


def _variations(fleets: tuple[Fleet, ...]) -> Callable[[np.random.Generator, int], Iterator[Draw]]:
    def draws(rng: np.random.Generator, count: int) -> Iterator[Draw]:
        truths = _truths(rng, fleets)
        for _ in range(count):
            kind, gpus = (
                int(rng.integers(len(fleets))),
                round(math.exp(rng.uniform(math.log(8), math.log(100)))),
            )
            values = fleets[kind](rng, gpus)
            yield from_intervals(
                truths[kind][0], [variation_estimate(values, level) for level in LEVELS]
            )

    return draws


def outlier_shares(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    truths = _truths(rng, OUTLIERS)
    for _ in range(count):
        kind, gpus = int(rng.integers(len(OUTLIERS))), int(rng.integers(8, 101))
        share = outlier_share(OUTLIERS[kind](rng, gpus))
        yield from_bound(truths[kind][1], share.number, share.limits)


def variations_within(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Median of the scatter of three repeats: by the chi distribution the square root of ln 2 times
    their deviation.
    """
    for _ in range(count):
        gpus, spread = int(rng.integers(8, 65)), math.exp(rng.uniform(-7, -3))
        repeats = 1 + spread * rng.standard_normal((gpus, 3))
        values = repeats.std(axis=1, ddof=1) / repeats.mean(axis=1)
        yield from_intervals(
            spread * math.sqrt(math.log(2)), [median_estimate(values, level) for level in LEVELS]
        )


def placement_effects(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Median of a skewed effect."""
    for _ in range(count):
        gpus, effect, spread = (
            int(rng.integers(8, 65)),
            rng.normal(0, 0.1),
            math.exp(rng.uniform(-6, -2)),
        )
        values = effect + spread * (rng.exponential(1.0, gpus) - math.log(2))
        yield from_intervals(effect, [median_estimate(values, level) for level in LEVELS])


def correlations(rng: np.random.Generator, count: int) -> Iterator[Draw]:
    """Correlation of one to five repeats on each GPU, which differ less than the GPUs."""
    for _ in range(count):
        gpus, repeats, truth = (
            int(rng.integers(5, 65)),
            int(rng.integers(1, 6)),
            rng.uniform(-0.95, 0.95),
        )
        x = np.repeat(rng.standard_normal(gpus), repeats)
        y = truth * x + math.sqrt(1 - truth**2) * np.repeat(rng.standard_normal(gpus), repeats)
        yield from_intervals(truth, [correlation_estimate(x, y, gpus, level) for level in LEVELS])


KINDS = (
    Kind("variability: CV between GPUs, normal and uniform", "statistical", _variations(ORDINARY)),
    Kind(
        "variability: CV between GPUs, skewed and heavy tails", "statistical", _variations(SKEWED)
    ),
    Kind("variability: CV between GPUs, with outliers", "statistical", _variations(OUTLIERS)),
    Kind("variability: share of outliers", "conservative", outlier_shares),
    Kind("variability: CV within a GPU", "conservative", variations_within),
    Kind("variability: effect of a placement", "conservative", placement_effects),
    Kind("variability: correlation", "statistical", correlations),
)
