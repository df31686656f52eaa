"""Increase of a counter over a range, and percentiles of a histogram's increase."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattline.counter_arrays import CounterSteps, counter_steps
from wattline.figures import Figure
from wattline_analyzer.core.samples import GAP_FACTOR, FloatArray, Samples, sample_median


@dataclass(frozen=True, slots=True)
class Increase:
    """Increase of a counter over a range.

    `bound` is interpolated between the samples at each edge, and limited by them. `restarts` is the
    number of restarts in the range; a `partial` counter does not exist over the whole range.
    """

    bound: Figure
    restarts: int
    partial: bool


def increase(counter: Samples, start_s: float, end_s: float) -> Increase | None:
    """Return the increase in [start_s, end_s]; None without samples there.

    Three counts are only in the upper limit: the one before the first sample, which may be outside
    the range; the possible one, at the highest rate, between a last sample and a restart or the
    end; and the one before each late sample, which may be a restart.
    """
    if len(counter) < 2 or counter.t[0] > end_s or counter.t[-1] < start_s:
        return None
    steps = counter_steps(counter.t, counter.value)
    line = Samples(counter.t[steps.kept], steps.increase.cumsum())
    fastest = _fastest(line, steps)
    first = _at(line, start_s)
    final = _at(line, end_s)
    restart_spans_s = np.diff(line.t)[steps.restarted[1:] & _spans_in(line.t, start_s, end_s)]
    reach_s = GAP_FACTOR * sample_median(np.diff(counter.t))
    unseen = fastest * float(restart_spans_s.sum())
    unseen += fastest * min(max(end_s - float(counter.t[-1]), 0.0), reach_s)
    unseen += _before_late(counter, steps, fastest, start_s, end_s)
    if counter.t[0] > start_s:
        unseen += float(counter.value[0])
    first_low, first_high = first.limits
    final_low, final_high = final.limits
    limits = max(final_low - first_high, 0.0), final_high - first_low + unseen
    bound = Figure(final.number - first.number, skewed=limits)
    partial = bool(counter.t[0] > start_s + reach_s or counter.t[-1] < end_s - reach_s)
    return Increase(bound, len(restart_spans_s), partial)


def without_restarts(counter: Samples) -> Samples:
    """Return the samples that count, raised at each restart by the value before it, so that they
    never fall.
    """
    steps = counter_steps(counter.t, counter.value)
    kept = steps.kept
    return Samples(counter.t[kept], counter.value[kept[:1]].sum() + steps.increase.cumsum())


def _fastest(line: Samples, steps: CounterSteps) -> float:
    """Return the highest rate between two samples, 0 with one sample."""
    if len(line) < 2:
        return 0.0
    return float((steps.increase[1:] / np.diff(line.t)).max())


def _spans_in(t_s: FloatArray, start_s: float, end_s: float) -> npt.NDArray[np.bool_]:
    """Return which spans between consecutive times (N - 1,) touch a range."""
    return (t_s[1:] > start_s) & (t_s[:-1] < end_s)


def _before_late(
    counter: Samples, steps: CounterSteps, fastest: float, start_s: float, end_s: float
) -> float:
    """Return the count that is missing if each fall to a late sample is a restart."""
    is_late = np.ones(len(counter), dtype=np.bool_)
    is_late[steps.kept] = False
    falls = is_late[1:] & (np.diff(counter.value) < 0) & _spans_in(counter.t, start_s, end_s)
    spans_s = np.diff(counter.t)[falls]
    return float((counter.value[:-1][falls] + fastest * spans_s).sum())


def _at(line: Samples, t_s: float) -> Figure:
    """Return the count at an instant, limited by the samples before and after it."""
    after = int(np.searchsorted(line.t, t_s, side="left"))
    before = max(int(np.searchsorted(line.t, t_s, side="right")) - 1, 0)
    value = float(np.interp(t_s, line.t, line.value))
    limits = float(line.value[before]), float(line.value[min(after, len(line) - 1)])
    return Figure(value, skewed=limits)


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
