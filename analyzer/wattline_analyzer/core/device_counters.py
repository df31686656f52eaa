"""Increase of a counter over a range, and percentiles of a histogram's increase."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from wattline_analyzer.core.interval import Interval
from wattline_analyzer.core.samples import GAP_FACTOR, FloatArray, Samples, sample_median


@dataclass(frozen=True, slots=True)
class Increase:
    """Increase of a counter over a range.

    `bound` is interpolated between the samples at each edge, and limited by them. `restarts` is the
    number of falls in the range; a `partial` counter does not exist over the whole range.
    """

    bound: Interval
    restarts: int
    partial: bool


def increase(counter: Samples, start_s: float, end_s: float) -> Increase | None:
    """Return the increase in [start_s, end_s]; None without samples there. After a fall the new
    value is added.

    Two counts are only in the upper limit: the one before the first sample, which may be outside
    the range, and the possible one, at the highest rate, between a last sample and a restart or the
    end.
    """
    if len(counter) < 2 or counter.t[0] > end_s or counter.t[-1] < start_s:
        return None
    steps = np.diff(counter.value)
    fell = steps < 0
    rises = np.where(fell, counter.value[1:], steps)
    line = np.concatenate([[0.0], rises.cumsum()])
    spans_s = np.diff(counter.t)
    fastest = float((rises / spans_s).max())
    fell_within = fell & (counter.t[1:] > start_s) & (counter.t[:-1] < end_s)
    first, final = _at(counter, line, start_s), _at(counter, line, end_s)
    unseen = fastest * float(spans_s[fell_within].sum())
    reach_s = GAP_FACTOR * sample_median(spans_s)
    unseen += fastest * min(max(end_s - float(counter.t[-1]), 0.0), reach_s)
    if counter.t[0] > start_s:
        unseen += float(counter.value[0])
    (first_low, first_high), (final_low, final_high) = first.ends, final.ends
    limits = max(final_low - first_high, 0.0), final_high - first_low + unseen
    bound = Interval(final.value - first.value, limits=limits)
    partial = bool(counter.t[0] > start_s + reach_s or counter.t[-1] < end_s - reach_s)
    return Increase(bound, int(fell_within.sum()), partial)


def _at(counter: Samples, line: FloatArray, t_s: float) -> Interval:
    """Return the count at an instant, limited by the samples before and after it."""
    after = int(np.searchsorted(counter.t, t_s, side="left"))
    before = max(int(np.searchsorted(counter.t, t_s, side="right")) - 1, 0)
    value = float(np.interp(t_s, counter.t, line))
    return Interval(value, limits=(float(line[before]), float(line[min(after, len(line) - 1)])))


def by_limit(parts: Iterable[tuple[str, float]]) -> dict[float, float]:
    """Return the increase of each bucket, summed over replicas; `parts` are pairs of the label `le`
    and an increase.

    If replicas have different bucket limits, as versions of a server do, only common limits are
    kept.
    """
    rises: defaultdict[float, list[float]] = defaultdict(list)
    for text, rise in parts:
        rises[float(text)].append(rise)
    replicas = max(map(len, rises.values()), default=0)
    return {limit: sum(each) for limit, each in rises.items() if len(each) == replicas}


def percentile(buckets: Mapping[float, float], percent: float) -> float | None:
    """Return a percentile, interpolated in its bucket as by PromQL's `histogram_quantile`;
    `buckets` are cumulative.

    None if nothing was counted, or if the percentile is above the last limit.
    """
    limits = sorted(buckets)
    counts = (
        np.maximum.accumulate(np.array([buckets[limit] for limit in limits]))
        if limits
        else np.empty(0)
    )
    if not limits or counts[-1] <= 0:
        return None
    rank = percent / 100 * counts[-1]
    place = int(np.searchsorted(counts, rank, side="left"))
    if math.isinf(limits[place]):
        return None
    below = float(counts[place - 1]) if place else 0.0
    lower = limits[place - 1] if place else min(0.0, limits[0])
    within = float(counts[place]) - below
    share = (rank - below) / within if within > 0 else 1.0
    return float(lower + (limits[place] - lower) * share)
