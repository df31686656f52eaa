"""Downsampling of long series that keeps every figure computed from them.

A series of up to `MAX_UNCHANGED` samples is unchanged. A longer one is divided into a limited
number of buckets. Each bucket keeps:

- of a gauge: the first, lowest, highest and last sample.
- of a counter: the first and last sample, those around each fall, and those of the fastest and
  slowest rise.
- of an age, which counts the seconds of an activity: the samples at which it stops and continues.

All buckets keep the ends of the longest interval in a bucket, and every sample near the edges of
the run. Figures that need all samples of a gauge are computed while they are read
(`wattline_analyzer.core.streaming`). For states see `wattline_analyzer.core.fetch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from wattline_analyzer.core.samples import Exact, FloatArray, Samples, clean, distinct
from wattline_analyzer.core.streaming import ExactAccumulator

MAX_UNCHANGED = 20_000
RANDOM_SAMPLES = 100_000
NEAR_S = 600.0
_BUCKETS = 2_500
_GRIDS_S = (300.0, 900.0, 1_800.0, 3_600.0, 10_800.0, 43_200.0, 86_400.0)
"""Widths of buckets: slots of carbon intensity start at their borders, where counters are exact."""
_OLDEST_S = 1.4
"""Maximum age of a counter's value, which is added to the time of a rise, see
`wattline_analyzer.core.integrate`.
"""
_GOES = 0.9
_STANDS = 1e-6

SeriesKind = Literal["gauge", "counter", "age"]
Mask = npt.NDArray[np.bool_]
Key = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class DownsamplePlan:
    """Sorted borders of the buckets (`cuts`) in Unix seconds, and `edges_s` around which every
    sample is kept.

    A series of up to `whole` samples is unchanged.
    """

    cuts: FloatArray
    edges_s: tuple[float, ...]
    whole: int = MAX_UNCHANGED


def plan_buckets(
    start_s: float, end_s: float, edges_s: Iterable[float], marks_s: Iterable[float] = ()
) -> DownsamplePlan:
    """Return the buckets of a time range; `marks_s` are times at which counters must be exact."""
    wanted_s = max(end_s - start_s, 0.0) / _BUCKETS
    grid_s = next((width_s for width_s in _GRIDS_S if width_s >= wanted_s), wanted_s)
    grid = np.arange(np.ceil(start_s / grid_s), np.floor(end_s / grid_s) + 1) * grid_s
    edges = tuple(sorted(edges_s))
    return DownsamplePlan(distinct(np.concatenate([grid, list(edges), sorted(marks_s)])), edges)


def series_key(labels: Mapping[str, str]) -> Key:
    """Return the identity of a series, without `job`: two jobs may scrape one exporter."""
    return frozenset((name, text) for name, text in labels.items() if name != "job")


def near_edges(t: FloatArray, edges_s: Sequence[float]) -> Mask:
    found = np.zeros(len(t), dtype=bool)
    for edge_s in edges_s:
        found |= np.abs(t - edge_s) <= NEAR_S
    return found


def gauge_mask(value: FloatArray, buckets: npt.NDArray[np.intp]) -> Mask:
    kept = np.zeros(len(value), dtype=bool)
    for each in (value, -value):
        kept[_lowest(each, buckets)] = True
    return kept


def counter_mask(t: FloatArray, value: FloatArray, buckets: npt.NDArray[np.intp]) -> Mask:
    kept = np.zeros(len(value), dtype=bool)
    if len(value) < 2:
        return kept
    rises = np.diff(value)
    rates = rises / (np.diff(t) + _OLDEST_S)
    falls = np.flatnonzero(rises < 0)
    pairs = np.concatenate([falls, *(_lowest(each, buckets[:-1]) for each in (rates, -rates))])
    kept[pairs] = True
    kept[pairs + 1] = True
    return kept


def age_mask(t: FloatArray, value: FloatArray) -> Mask:
    """Select the samples at which an age stops and continues, and those between which it does
    both.
    """
    kept = np.zeros(len(value), dtype=bool)
    if len(value) < 2:
        return kept
    rises = np.diff(value)
    widths = np.diff(t)
    ways = np.where(rises >= _GOES * widths, 2, np.where(np.abs(rises) <= _STANDS, 0, 1))
    turns = np.flatnonzero((ways[1:] != ways[:-1]) | (ways[1:] == 1)) + 1
    kept[turns] = True
    lead = t - value
    kept[[lead.argmin(), lead.argmax()]] = True
    return kept


def _lowest(value: FloatArray, buckets: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the index of the first lowest value of each bucket; `buckets` is sorted."""
    if not len(value):
        return np.empty(0, dtype=np.intp)
    begins = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
    lows = np.minimum.reduceat(value, begins)
    places = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(value))))
    hits = np.flatnonzero(value == lows[places])
    return hits[np.unique(places[hits], return_index=True)[1]]


def downsample_mask(
    t: FloatArray, value: FloatArray, how: SeriesKind, planned: DownsamplePlan
) -> Mask:
    """Select the samples to keep of complete buckets."""
    buckets = np.searchsorted(planned.cuts, t, side="right")
    kept = near_edges(t, planned.edges_s)
    borders = np.flatnonzero(np.diff(buckets))
    kept[[0, len(t) - 1]] = True
    kept[borders] = True
    kept[borders + 1] = True
    if len(t) > 1:
        widest = _lowest(-np.diff(t), buckets[:-1])
        kept[widest] = True
        kept[widest + 1] = True
    if how == "gauge":
        return kept | gauge_mask(value, buckets)
    return kept | (counter_mask(t, value, buckets) if how == "counter" else age_mask(t, value))


class DownsampledSeries:
    """Series that is downsampled while it is read, with exact figures over `window_s` if given."""

    def __init__(
        self, how: SeriesKind, planned: DownsamplePlan, window_s: tuple[float, float] | None
    ) -> None:
        self._how = how
        self._plan = planned
        self._taken = ExactAccumulator(window_s) if window_s else None
        self._pending: list[tuple[FloatArray, FloatArray]] = []
        self._kept: list[tuple[FloatArray, FloatArray]] = []
        self._contradicting: list[tuple[FloatArray, FloatArray]] = []
        """Samples at a time with another value: they are ignored and become a finding."""
        self._count = 0

    def add(self, t: FloatArray, value: FloatArray) -> None:
        """Add samples that are later than all earlier ones."""
        series = clean(t, value)
        if len(series) < len(t):
            self._contradicting.append(contradicting_samples(t, value, series))
        self._pending.append((series.t, series.value))
        self._count += len(series)
        if self._taken:
            self._taken.add(series.t, series.value)
        if self._count > self._plan.whole:
            self._downsample(last=False)

    def result(self) -> tuple[FloatArray, FloatArray, Exact | None]:
        """Return times, values and exact figures, which are None for an unchanged series."""
        if self._count > self._plan.whole:
            self._downsample(last=True)
        kept = self._kept if self._count > self._plan.whole else self._pending
        t, value = _together([*kept, *self._contradicting])
        return (
            t,
            value,
            self._taken.result() if self._taken and self._count > self._plan.whole else None,
        )

    def _downsample(self, *, last: bool) -> None:
        """Downsample all complete buckets; the bucket of the newest sample stays open."""
        t, value = _together(self._pending)
        if not len(t):
            return
        closed = len(t) if last else int(np.searchsorted(t, self._open_since(t[-1]), side="left"))
        if closed:
            kept = downsample_mask(t[:closed], value[:closed], self._how, self._plan)
            self._kept.append((t[:closed][kept], value[:closed][kept]))
        self._pending = [(t[closed:].copy(), value[closed:].copy())]

    def _open_since(self, newest_s: float) -> float:
        at = int(np.searchsorted(self._plan.cuts, newest_s, side="right"))
        return float(self._plan.cuts[at - 1]) if at else float("-inf")


def contradicting_samples(
    t: FloatArray, value: FloatArray, kept: Samples
) -> tuple[FloatArray, FloatArray]:
    """Return the finite samples that have the time of a kept sample and another value."""
    finite = np.isfinite(t) & np.isfinite(value)
    t = t[finite]
    value = value[finite]
    other = value != kept.value[np.searchsorted(kept.t, t)]
    return t[other], value[other]


def _together(parts: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    if not parts:
        return np.empty(0), np.empty(0)
    return np.concatenate([t for t, _ in parts]), np.concatenate([value for _, value in parts])


class RandomSample:
    """Random sample of at most `most` samples of a series, for unbiased percentiles and means.

    Equally spaced samples would be biased for a periodic load.
    """

    def __init__(self, most: int = RANDOM_SAMPLES) -> None:
        self._most = most
        self._share = 1.0
        self._random = np.random.default_rng(0)
        self._t, self._value = np.empty(0), np.empty(0)

    def add(self, t: FloatArray, value: FloatArray) -> None:
        """Add samples that are later than all earlier ones."""
        kept = self._random.random(len(t)) < self._share
        self._t, self._value = (
            np.concatenate([self._t, t[kept]]),
            np.concatenate([self._value, value[kept]]),
        )
        while len(self._t) > self._most:
            self._share /= 2
            half = self._random.random(len(self._t)) < 0.5
            self._t = self._t[half]
            self._value = self._value[half]

    def result(self) -> tuple[FloatArray, FloatArray]:
        return self._t, self._value
