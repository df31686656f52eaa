"""How far values lie apart: between GPUs, and within one. Pure.

The whisker range over the median is the statistic of "Not All GPUs Are Created Equal" (Sinha et al., SC22,
arXiv 2208.11035): from the lowest to the highest value within 1.5 interquartile ranges of the box, outliers apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analyzer.series import FloatArray

RESAMPLES = 2_000
CONFIDENCE = 0.95
_WHISKER = 1.5
_LEAST_CLUSTERS = 5
"""Of fewer GPUs the bootstrap's interval holds the truth far less often than it says."""

Statistic = Callable[[FloatArray], float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """`low` and `high` hold the truth with 95 %; None where too little is there to know."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0


def coefficient_of_variation(values: npt.ArrayLike) -> float:
    """Sample standard deviation over the mean; NaN below two values."""
    x = np.asarray(values, dtype=np.float64)
    return float(np.std(x, ddof=1) / np.mean(x)) if len(x) > 1 and np.mean(x) else float("nan")


def whiskers(values: npt.ArrayLike) -> tuple[float, float]:
    """The lowest and the highest value within 1.5 interquartile ranges of the quartiles (Tukey's box plot)."""
    x = np.asarray(values, dtype=np.float64)
    first, third = np.percentile(x, [25, 75])
    reach = _WHISKER * (third - first)
    inside = x[(x >= first - reach) & (x <= third + reach)]
    return float(inside.min()), float(inside.max())


def whisker_range_ratio(values: npt.ArrayLike) -> float:
    """NaN below two values: one alone does not vary, and does not show that others would not."""
    x = np.asarray(values, dtype=np.float64)
    low, high = whiskers(x)
    middle = float(np.median(x))
    return (high - low) / middle if len(x) > 1 and middle else float("nan")


def within_ratio(groups: Sequence[FloatArray]) -> float:
    """The typical coefficient of variation within a group: the median over those with two values or more."""
    found = [coefficient_of_variation(values) for values in groups if len(values) > 1]
    return float(np.median(found)) if found else float("nan")


def correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Pearson's; NaN where one of them does not vary."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(a) < 3 or not np.ptp(a) or not np.ptp(b):
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def gini(values: npt.ArrayLike) -> float:
    """0 where all are equal, up to (n − 1) / n where one has all (Gini, 1912); for values that are not negative."""
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    if not x.sum():
        return float("nan")
    return max(float(np.sum((2 * np.arange(1, n + 1) - n - 1) * x) / (n * x.sum())), 0.0)


def over_groups(
    groups: Sequence[FloatArray], statistic: Callable[[Sequence[FloatArray]], float], seed: int = 0
) -> Estimate:
    """`statistic` of all groups, with a percentile bootstrap that draws whole groups: the runs of a GPU are alike, so
    that single runs would look like more evidence than they are (Davison and Hinkley, 1997, section 3.8).

    Without an interval below five groups.
    """
    value, n = statistic(groups), len(groups)
    if n < _LEAST_CLUSTERS or not np.isfinite(value):
        return Estimate(value, n=n)
    random = np.random.default_rng(seed)
    drawn = [statistic([groups[i] for i in random.integers(0, n, n)]) for _ in range(RESAMPLES)]
    edge = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(drawn, [edge, 100 - edge])
    return Estimate(value, float(low), float(high), n)


def over_rows(rows: FloatArray, statistic: Statistic, seed: int = 0) -> Estimate:
    """The same of one row a group."""
    groups = [rows[at : at + 1] for at in range(len(rows))]
    return over_groups(groups, lambda drawn: statistic(np.concatenate(drawn)), seed)
