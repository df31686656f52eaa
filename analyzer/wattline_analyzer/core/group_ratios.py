"""Ratios of groups of runs with repeats, with their confidence intervals.

Values are compared as ratios, so the arithmetic is on logarithms. The interval is Student's of the
ratios within each repeat where both groups have the same repeats, else Welch's, with Bonferroni's
correction for several groups. A group of one run is assumed to scatter like the groups with
repeats. Without any repeats the interval is the measurement uncertainty alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from wattline.figures import Figure, sum_of_independent
from wattline_analyzer.core.statistics import CONFIDENCE, FloatArray, student_quantile

FEWEST_PAIRS = 3
"""Pairs below which the scatter within the groups is known better than that of the ratios."""
_SAME = 1e-9
_WIDEST = 5.0
"""Half-widths (of a logarithm) above are unknown: two repeats say nothing."""


@dataclass(frozen=True, slots=True)
class RunValue:
    """The positive value of one run; `block` is its repeat."""

    value: Figure
    block: Hashable


@dataclass(frozen=True, slots=True)
class RatioDifference:
    """Ratio of a group to the first one, with the limits of its 95 % CI, None where unknown.

    `clear`: the ratio differs from 1 with the correction for the number of groups. `repeated` is
    false where the CI is the measurement uncertainty alone.
    """

    ratio: float
    low: float | None
    high: float | None
    n: int
    clear: bool
    repeated: bool


def geometric_means(
    groups: Sequence[Sequence[RunValue]], confidence: float = CONFIDENCE
) -> list[Figure]:
    """Return the geometric mean of each group with its CI, and the systematic error of its first
    run.
    """
    pooled = _pooled_scatter(groups)
    out = []
    for group in groups:
        error, measured = _error_of_mean(group, pooled), _measurement(group)
        mean, half = _mean_log(group), _half_width(error, measured, confidence)
        limits = None if half is None else (math.exp(mean - half), math.exp(mean + half))
        out.append(Figure(math.exp(mean), skewed=limits).with_accuracy_of(group[0].value))
    return out


def ratios_to_first(
    groups: Sequence[Sequence[RunValue]], confidence: float = CONFIDENCE
) -> list[RatioDifference]:
    """Return the ratio of each other group to the first one."""
    pooled, base = _pooled_scatter(groups), groups[0]
    out = []
    for group in groups[1:]:
        n, log, measured = (
            len(base) + len(group),
            _mean_log(group) - _mean_log(base),
            _joint_measurement(base, group),
        )
        error = _error_of_difference(base, group, pooled)
        half = _half_width(error, measured, confidence)
        wide = _half_width(error, measured, confidence, comparisons=len(groups) - 1)
        low, high = (None, None) if half is None else (math.exp(log - half), math.exp(log + half))
        clear = wide is not None and abs(log) > max(wide, _SAME)
        out.append(RatioDifference(math.exp(log), low, high, n, clear, repeated=error is not None))
    return out


@dataclass(frozen=True, slots=True)
class _StandardError:
    """Standard error of a mean logarithm, or of a difference of two, with its degrees of
    freedom.
    """

    value: float
    freedom: float


def _logs(group: Sequence[RunValue]) -> FloatArray:
    return np.log([sample.value.number for sample in group])


def _mean_log(group: Sequence[RunValue]) -> float:
    return math.fsum(math.log(sample.value.number) for sample in group) / len(group)


def _pooled_scatter(groups: Sequence[Sequence[RunValue]]) -> _StandardError | None:
    """Return the standard deviation of the logarithms within the groups; None without repeats."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return None
    squares = [
        (math.log(sample.value.number) - _mean_log(group)) ** 2
        for group in groups
        for sample in group
    ]
    return _StandardError(math.sqrt(math.fsum(squares) / freedom), freedom)


def _error_of_mean(
    group: Sequence[RunValue], pooled: _StandardError | None
) -> _StandardError | None:
    """Return the error by the group's own scatter; a single run scatters like the other groups."""
    if len(group) > 1:
        return _StandardError(
            float(np.std(_logs(group), ddof=1)) / math.sqrt(len(group)), len(group) - 1
        )
    return pooled


def _error_of_difference(
    first: Sequence[RunValue], second: Sequence[RunValue], pooled: _StandardError | None
) -> _StandardError | None:
    """Return the error by pairs if both groups have the same repeats, else Welch's."""
    by_block = [
        {sample.block: math.log(sample.value.number) for sample in group}
        for group in (first, second)
    ]
    if (
        by_block[0].keys() == by_block[1].keys()
        and len(by_block[0]) == len(first) == len(second) >= FEWEST_PAIRS
    ):
        ratios = np.array([by_block[1][block] - value for block, value in by_block[0].items()])
        return _StandardError(
            float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios)), len(ratios) - 1
        )
    errors = [
        error for group in (first, second) if (error := _error_of_mean(group, pooled)) is not None
    ]
    if len(errors) < 2:
        return None
    if min(len(first), len(second)) == 1:
        assert pooled is not None
        return _StandardError(
            pooled.value * math.sqrt(1 / len(first) + 1 / len(second)), pooled.freedom
        )
    variances = [error.value**2 for error in errors]
    spread = math.fsum(
        variance**2 / error.freedom for variance, error in zip(variances, errors, strict=True)
    )
    freedom = (
        math.fsum(variances) ** 2 / spread
        if spread > 0
        else math.fsum(error.freedom for error in errors)
    )
    return _StandardError(math.sqrt(math.fsum(variances)), freedom)


def _half_width(
    error: _StandardError | None, measured: float | None, confidence: float, comparisons: int = 1
) -> float | None:
    """Return the wider of Student's half-width (Bonferroni-corrected) and the measurement
    uncertainty.

    Without `measured`, it is Student's alone: the scatter of repeats has their errors in it.
    """
    if error is None:
        return measured
    quantile = student_quantile(error.freedom, 1 - (1 - confidence) / 2 / comparisons)
    half = quantile * error.value
    if measured is not None:
        half = max(half, measured)
    return half if half <= _WIDEST else None


def _measurement(group: Sequence[RunValue]) -> float | None:
    """Return the relative half-width of the mean due to the measurement uncertainty of each run."""
    relative = [sample.value.scaled(1 / sample.value.number) for sample in group]
    return sum_of_independent(relative).scaled(1 / len(group)).half_width


def _joint_measurement(first: Sequence[RunValue], second: Sequence[RunValue]) -> float | None:
    groups = (first, second)
    return sum_of_independent(Figure(0.0, _measurement(group)) for group in groups).half_width
