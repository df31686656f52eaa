"""Long series made short as they come, so that nothing that is computed from them changes. Pure.

Up to `WHOLE` samples a series stays as it is. Beyond that, of each of a bounded number of buckets
- a gauge keeps the first, the lowest, the highest and the last sample,
- a counter keeps the first and the last, the two around each fall, and those of its fastest and its slowest rise,
- an age, which goes by seconds while something is on, keeps the samples at which it stops and goes on.
All of them keep the ends of the widest interval of a bucket, and every sample near the edges of the run. What hangs on
all samples of a gauge is taken as they go by (`analyzer.energy.streaming`). States are thinned together: see
`analyzer.sources.downsample_states`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from analyzer.energy.streaming import Taken
from analyzer.model.samples import Exact, FloatArray, Samples, clean

WHOLE = 20_000
DRAWN = 100_000
NEAR_S = 600.0
_BUCKETS = 2_500
_GRIDS_S = (300.0, 900.0, 1_800.0, 3_600.0, 10_800.0, 43_200.0, 86_400.0)
"""Widths of buckets, in which the slots of carbon intensities begin: counters are exact there."""
_OLDEST_S = 1.4
"""A counter's rise is judged over so much more than between its samples, see `analyzer.energy.integrate`."""
_GOES = 0.9
_STANDS = 1e-6

How = Literal["gauge", "counter", "age"]
Mask = npt.NDArray[np.bool_]
Key = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """`cuts` are the borders of the buckets, in Unix seconds, rising; around each of `edges_s` everything is kept.

    Up to `whole` samples a series stays as it is.
    """

    cuts: FloatArray
    edges_s: tuple[float, ...]
    whole: int = WHOLE


def plan(start_s: float, end_s: float, edges_s: Iterable[float], marks_s: Iterable[float] = ()) -> Plan:
    """`marks_s` are moments at which a counter, or a highest value up to them, has to be exact."""
    wanted_s = max(end_s - start_s, 0.0) / _BUCKETS
    grid_s = next((width_s for width_s in _GRIDS_S if width_s >= wanted_s), wanted_s)
    grid = np.arange(np.ceil(start_s / grid_s), np.floor(end_s / grid_s) + 1) * grid_s
    edges = tuple(sorted(edges_s))
    return Plan(np.unique(np.concatenate([grid, list(edges), sorted(marks_s)])), edges)


def key(labels: Mapping[str, str]) -> Key:
    """What two jobs scrape from one exporter is one series."""
    return frozenset((name, text) for name, text in labels.items() if name != "job")


def near(t: FloatArray, edges_s: Sequence[float]) -> Mask:
    found = np.zeros(len(t), dtype=bool)
    for edge_s in edges_s:
        found |= np.abs(t - edge_s) <= NEAR_S
    return found


def gauge(value: FloatArray, buckets: npt.NDArray[np.intp]) -> Mask:
    kept = np.zeros(len(value), dtype=bool)
    for each in (value, -value):
        kept[_lowest(each, buckets)] = True
    return kept


def counter(t: FloatArray, value: FloatArray, buckets: npt.NDArray[np.intp]) -> Mask:
    kept = np.zeros(len(value), dtype=bool)
    if len(value) < 2:
        return kept
    rises = np.diff(value)
    rates = rises / (np.diff(t) + _OLDEST_S)
    falls = np.flatnonzero(rises < 0)
    pairs = np.concatenate([falls, *(_lowest(each, buckets[:-1]) for each in (rates, -rates))])
    kept[pairs], kept[pairs + 1] = True, True
    return kept


def age(t: FloatArray, value: FloatArray) -> Mask:
    """Where it neither stands nor goes, it does a part of both: those samples stay."""
    kept = np.zeros(len(value), dtype=bool)
    if len(value) < 2:
        return kept
    rises, widths = np.diff(value), np.diff(t)
    ways = np.where(rises >= _GOES * widths, 2, np.where(np.abs(rises) <= _STANDS, 0, 1))
    turns = np.flatnonzero((ways[1:] != ways[:-1]) | (ways[1:] == 1)) + 1
    kept[turns] = True
    lead = t - value
    kept[[lead.argmin(), lead.argmax()]] = True
    return kept


def _lowest(value: FloatArray, buckets: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The index of the first lowest value of each bucket; `buckets` rises."""
    if not len(value):
        return np.empty(0, dtype=np.intp)
    begins = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
    lows = np.minimum.reduceat(value, begins)
    places = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(value))))
    hits = np.flatnonzero(value == lows[places])
    return hits[np.unique(places[hits], return_index=True)[1]]


def kept_of(t: FloatArray, value: FloatArray, how: How, planned: Plan) -> Mask:
    """Of samples that make up whole buckets."""
    buckets = np.searchsorted(planned.cuts, t, side="right")
    kept = near(t, planned.edges_s)
    borders = np.flatnonzero(np.diff(buckets))
    kept[[0, len(t) - 1]], kept[borders], kept[borders + 1] = True, True, True
    if len(t) > 1:
        widest = _lowest(-np.diff(t), buckets[:-1])
        kept[widest], kept[widest + 1] = True, True
    if how == "gauge":
        return kept | gauge(value, buckets)
    return kept | (counter(t, value, buckets) if how == "counter" else age(t, value))


class Thinned:
    """One series. `window_s`, where it is given, is what the exact figures are of."""

    def __init__(self, how: How, planned: Plan, window_s: tuple[float, float] | None) -> None:
        self._how, self._plan = how, planned
        self._taken = Taken(window_s) if window_s else None
        self._pending: list[tuple[FloatArray, FloatArray]] = []
        self._kept: list[tuple[FloatArray, FloatArray]] = []
        self._contradicting: list[tuple[FloatArray, FloatArray]] = []
        """Samples at a time that has another value: they do not count, and are there to be told."""
        self._count = 0

    def add(self, t: FloatArray, value: FloatArray) -> None:
        """Samples after all that were added before."""
        series = clean(t, value)
        if len(series) < len(t):
            self._contradicting.append(contradicting(t, value, series))
        self._pending.append((series.t, series.value))
        self._count += len(series)
        if self._taken:
            self._taken.add(series.t, series.value)
        if self._count > self._plan.whole:
            self._thin(last=False)

    def result(self) -> tuple[FloatArray, FloatArray, Exact | None]:
        """The figures are None where all samples are there."""
        if self._count > self._plan.whole:
            self._thin(last=True)
        kept = self._kept if self._count > self._plan.whole else self._pending
        t, value = _together([*kept, *self._contradicting])
        return t, value, self._taken.result() if self._taken and self._count > self._plan.whole else None

    def _thin(self, *, last: bool) -> None:
        """What is in the bucket of the newest sample waits for the rest of it."""
        t, value = _together(self._pending)
        if not len(t):
            return
        closed = len(t) if last else int(np.searchsorted(t, self._open_since(t[-1]), side="left"))
        if closed:
            kept = kept_of(t[:closed], value[:closed], self._how, self._plan)
            self._kept.append((t[:closed][kept], value[:closed][kept]))
        self._pending = [(t[closed:].copy(), value[closed:].copy())]

    def _open_since(self, newest_s: float) -> float:
        at = int(np.searchsorted(self._plan.cuts, newest_s, side="right"))
        return float(self._plan.cuts[at - 1]) if at else float("-inf")


def contradicting(t: FloatArray, value: FloatArray, kept: Samples) -> tuple[FloatArray, FloatArray]:
    """The finite samples whose time is that of one that was kept, and their value is not."""
    finite = np.isfinite(t) & np.isfinite(value)
    t, value = t[finite], value[finite]
    other = value != kept.value[np.searchsorted(kept.t, t)]
    return t[other], value[other]


def _together(parts: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    if not parts:
        return np.empty(0), np.empty(0)
    return np.concatenate([t for t, _ in parts]), np.concatenate([value for _, value in parts])


class Drawn:
    """At most `most` samples of a series, drawn at random as they come: percentiles and means are those of all of them,
    but for the square root of so few, which samples that are equally far apart would miss where a load repeats.
    """

    def __init__(self, most: int = DRAWN) -> None:
        self._most = most
        self._share = 1.0
        self._random = np.random.default_rng(0)
        self._t, self._value = np.empty(0), np.empty(0)

    def add(self, t: FloatArray, value: FloatArray) -> None:
        """Samples after all that were added before."""
        kept = self._random.random(len(t)) < self._share
        self._t, self._value = np.concatenate([self._t, t[kept]]), np.concatenate([self._value, value[kept]])
        while len(self._t) > self._most:
            self._share /= 2
            half = self._random.random(len(self._t)) < 0.5
            self._t, self._value = self._t[half], self._value[half]

    def result(self) -> tuple[FloatArray, FloatArray]:
        return self._t, self._value
