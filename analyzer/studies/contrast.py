"""How far groups of runs differ, as ratios with intervals, and in words. Pure.

Ratios of geometric means, with Student's interval of the difference of logarithms: repeats of all groups scatter by one
share, so that a group of one run has an interval as well, where another has repeats. Where no group has any, the
interval is that of the measurement alone, and the words say so.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.model.interval import Interval
from analyzer.studies.spread import CONFIDENCE, Estimate

_SAME = 1e-9
_ENDLESS = 5.0
"""An interval that wide, as a logarithm, says that two repeats are too few to tell anything."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one run, positive; `block` is the repeat in which it was made."""

    value: Interval
    block: Hashable


@dataclass(frozen=True, slots=True)
class Difference:
    """This group over the other; `low` and `high` hold the ratio with 95 %, None where nobody knows.

    `clear` takes into account how many groups were looked at. `repeated` is false where the interval is that of the
    measurement alone.
    """

    ratio: float
    low: float | None
    high: float | None
    n: int
    clear: bool
    repeated: bool


def levels(groups: Sequence[Sequence[Sample]]) -> list[Estimate]:
    """The geometric mean of each group with its interval."""
    scatter = _scatter(groups)
    out = []
    for group in groups:
        mean, half = _mean(group), _half(scatter, 1 / len(group), _measured(group))
        low, high = (None, None) if half is None else (math.exp(mean - half), math.exp(mean + half))
        out.append(Estimate(math.exp(mean), low, high, len(group)))
    return out


def differences(groups: Sequence[Sequence[Sample]]) -> list[Difference]:
    """Each group but the first against the first. All values are positive."""
    scatter, base = _scatter(groups), groups[0]
    out = []
    for group in groups[1:]:
        n, log, measured = len(base) + len(group), _mean(group) - _mean(base), _both_measured(base, group)
        weight = 1 / len(base) + 1 / len(group)
        half = _half(scatter, weight, measured)
        wide = _half(scatter, weight, measured, looks=len(groups) - 1)
        low, high = (None, None) if half is None else (math.exp(log - half), math.exp(log + half))
        clear = wide is not None and abs(log) > max(wide, _SAME)
        out.append(Difference(math.exp(log), low, high, n, clear, repeated=scatter is not None))
    return out


def _mean(group: Sequence[Sample]) -> float:
    return math.fsum(math.log(sample.value.value) for sample in group) / len(group)


def _scatter(groups: Sequence[Sequence[Sample]]) -> tuple[float, int] | None:
    """Pooled standard deviation of the logarithms and its degrees of freedom; None where no group has two runs."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return None
    squares = [(math.log(sample.value.value) - _mean(group)) ** 2 for group in groups for sample in group]
    return math.sqrt(math.fsum(squares) / freedom), freedom


def _half(scatter: tuple[float, int] | None, weight: float, measured: float | None, looks: int = 1) -> float | None:
    """The wider of what repeats and what the measurement leave open; with Bonferroni's correction for `looks`."""
    if scatter is None:
        return measured
    from scipy.stats import t

    quantile = float(t.ppf(1 - (1 - CONFIDENCE) / 2 / looks, scatter[1]))
    half = max(quantile * scatter[0] * math.sqrt(weight), measured or 0.0)
    return half if half <= _ENDLESS else None


def _measured(group: Sequence[Sample]) -> float | None:
    """Relative half-width of the mean by what the measurement of each run leaves open."""
    halves = [sample.value.half / sample.value.value for sample in group if sample.value.half is not None]
    return float(np.sqrt(np.sum(np.square(halves))) / len(halves)) if len(halves) == len(group) else None


def _both_measured(first: Sequence[Sample], second: Sequence[Sample]) -> float | None:
    parts = (_measured(first), _measured(second))
    return None if None in parts else math.hypot(*(part or 0.0 for part in parts))


def words(found: Difference, less: str, more: str) -> str:
    """`saves 7 % (4 to 10 %, n = 12)`: `less` and `more` say where the number goes, as in `saves {}`."""
    count = f"n = {found.n}"
    if found.low is None or found.high is None:
        change = signed_percent(found.ratio - 1)
        return f"{change}, how sure nobody knows ({count})"
    alone = "" if found.repeated else ", by the measurement alone; repeats may scatter more"
    if not found.clear:
        span = f"{signed_percent(found.low - 1).removesuffix(' %')} to {signed_percent(found.high - 1)}"
        return f"no clear difference ({span}, {count}{alone})"
    by_less = found.ratio < 1
    edges = sorted((abs(found.low - 1), abs(found.high - 1)))
    digits = _digits(edges[1] - edges[0])
    low, high = (f"{100 * edge:.{digits}f}" for edge in edges)
    size = f"{100 * abs(found.ratio - 1):.{digits}f} %"
    return f"{(less if by_less else more).format(size)} ({low} to {high} %, {count}{alone})"


def signed_percent(ratio: float) -> str:
    digits = _digits(abs(ratio))
    return f"{100 * ratio:+.{digits}f} %".replace("-", "−")


def _digits(width: float) -> int:
    """So many that a width in percent shows two digits."""
    percent = 100 * width
    return 0 if percent >= 10 or not percent else min(max(1 - math.floor(math.log10(percent)), 0), 3)
