"""A series as the page draws it: few points, no peak lost, gaps kept. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.model.samples import GAP_FACTOR, FloatArray, Samples, median_spacing_s

Points = tuple[list[float], list[float | None]]
"""Times and values; a value of None is a gap."""
_FOR_THE_MOUSE = 250
"""So many points a line has at least, where it has samples: values are shown only near a point."""
_USUAL = 90
"""Percentile of the steps: a series that was thinned already has short steps and long ones."""


@dataclass(frozen=True, slots=True)
class Fineness:
    """At most about so many `points`, and values to so many `decimals`."""

    points: int
    decimals: int


def drawn(
    series: Samples, fine: Fineness, gaps: Sequence[tuple[float, float]] | None = None, least_s: float = 0.0
) -> Points:
    """Of each bucket the lowest and the highest, the edges of gaps, and of a stretch of equal values its ends and some.

    `gaps` are those of a series that was thinned before: they are not seen in its steps. A step of no more than
    `least_s` is none.
    """
    t, value, points, decimals = series.t, series.value, fine.points, fine.decimals
    if not len(t):
        return [], []
    before_gap = _before_gaps(t, least_s) if gaps is None else _before(t, gaps)
    edges = np.concatenate([[0, len(t) - 1], before_gap, before_gap + 1])
    kept = np.unique(np.concatenate([edges, _extremes(value, max(points // 2, 1))]))
    left_out = _inside_of_stretch(np.round(value[kept], decimals)) & ~np.isin(kept, edges)
    left_out[:: max(len(kept) // _FOR_THE_MOUSE, 1)] = False
    kept = kept[~left_out]
    at = np.searchsorted(kept, before_gap) + 1
    times = np.insert(np.round(t[kept], 2), at, np.round(t[before_gap], 2))
    values = np.insert(np.round(value[kept], decimals), at, np.nan)
    return _plain(times), [None if number != number else number for number in _plain(values)]  # noqa: PLR0124  # NaN


def reaching(series: Samples, start_s: float, end_s: float) -> Samples:
    """The samples in [start_s, end_s] and the next one on either side, where none is missing on the way to it.

    Of a run of seconds, scraped each quarter of a minute, a line is seen at all only as it comes in and goes out.
    """
    inside = np.flatnonzero((series.t >= start_s) & (series.t <= end_s))
    spacing_s = median_spacing_s(series)
    if not len(inside) or spacing_s is None:
        return series.between(start_s, end_s)
    first, last = int(inside[0]), int(inside[-1])
    near_s = GAP_FACTOR * spacing_s
    if first > 0 and series.t[first] - series.t[first - 1] <= near_s:
        first -= 1
    if last + 1 < len(series) and series.t[last + 1] - series.t[last] <= near_s:
        last += 1
    return Samples(series.t[first : last + 1], series.value[first : last + 1], series.exact_in(start_s, end_s))


def _before(t: FloatArray, gaps: Sequence[tuple[float, float]]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    middles_s = np.array([(start_s + end_s) / 2 for start_s, end_s in gaps])
    places = np.unique(np.searchsorted(t, middles_s) - 1)
    return places[(places >= 0) & (places < len(t) - 1)]


def _before_gaps(t: FloatArray, least_s: float) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The indices after which samples are missing."""
    steps = np.diff(t)
    if len(steps) < 2:
        return np.empty(0, dtype=np.intp)
    usual = max(float(np.median(steps)), float(np.percentile(steps, _USUAL, method="lower")))
    return np.flatnonzero(steps > max(GAP_FACTOR * max(usual, 1e-3), least_s))


def _extremes(value: FloatArray, buckets: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The index of the lowest and of the highest value of each bucket."""
    if len(value) <= 2 * buckets:
        return np.arange(len(value))
    size = -(-len(value) // buckets)
    whole = len(value) // size
    body = value[: whole * size].reshape(whole, size)
    first = np.arange(whole) * size
    rest = np.arange(whole * size, len(value))
    tail = [rest[[value[rest].argmin(), value[rest].argmax()]]] if len(rest) else []
    return np.concatenate([first + body.argmin(axis=1), first + body.argmax(axis=1), *tail])


def _inside_of_stretch(value: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    inside = np.zeros(len(value), dtype=np.bool_)
    inside[1:-1] = (value[1:-1] == value[:-2]) & (value[1:-1] == value[2:])
    return inside


def _plain(values: FloatArray) -> list[float]:
    """Whole numbers without their `.0`, which is a third of the page."""
    return [int(number) if number.is_integer() else number for number in values.tolist()]
