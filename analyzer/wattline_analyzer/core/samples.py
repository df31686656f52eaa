"""Single series of raw samples: cleaned, with gaps and figures from before downsampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Series = tuple[Mapping[str, str], FloatArray, FloatArray]
"""One series of a source: all its labels including `__name__`, times (Unix seconds, rising) and
values.
"""
_UNEQUAL = 1.05
"""Ratio of spacings from which they alternate between short and long ones."""
GAP_FACTOR = 2.5
"""Multiple of the median spacing above which the time between two samples is a gap."""
_AT_REST_S = 1.5 * 15
"""Longest spacing in an exporter's own history without an active run: one sample each 15 s, which
can be late.
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """Time span without samples."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time span in which the value does not change in any digit; `count` is the number of its
    samples.
    """

    start_s: float
    end_s: float
    value: float
    count: int

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Exact:
    """Figures from all samples of a series in `window_s`, before downsampling (see
    `wattline_analyzer.core.downsample`).

    `integral` is the value times seconds over the `covered_s` seconds without gaps; `spacing_s` is
    the median. `jumps_squared` is Σ(width · jump)² over the intervals without gaps,
    `jump_correlation` is Σ(jump · next jump) over Σ(jump²). Where the samples are faster than the
    sensor, both are of the sensor's updates.
    """

    window_s: tuple[float, float]
    spacing_s: float
    integral: float
    covered_s: float
    gaps: tuple[Gap, ...]
    stretches: tuple[Stretch, ...]
    jumps_squared: float = 0.0
    jump_correlation: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One series: `t` in Unix seconds, strictly rising; `value` finite, in the metric's unit.

    `exact` holds the figures of all samples if the series is downsampled.
    """

    t: FloatArray
    value: FloatArray
    exact: Exact | None = None

    def __len__(self) -> int:
        return len(self.t)

    def between(self, start_s: float, end_s: float) -> Samples:
        """Return the samples in [start_s, end_s]."""
        inside = (self.t >= start_s) & (self.t <= end_s)
        return Samples(self.t[inside], self.value[inside], self.exact_in(start_s, end_s))

    def exact_in(self, start_s: float, end_s: float) -> Exact | None:
        """Return the exact figures if they cover this window."""
        return self.exact if self.exact and self.exact.window_s == (start_s, end_s) else None


def sample_median(values: FloatArray) -> float:
    """Return the median of some values; numpy's own loads its masked arrays first, which takes 10
    ms.
    """
    middle = len(values) // 2
    ordered = np.sort(values)
    return float(
        ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    )


def sample_quantiles(values: FloatArray, shares: Sequence[float]) -> list[float]:
    """Return quantiles, interpolated between two values; for numpy's own see `sample_median`."""
    places = np.array(shares) * (len(values) - 1)
    found: list[float] = np.interp(places, np.arange(len(values)), np.sort(values)).tolist()
    return found


def distinct(values: FloatArray) -> FloatArray:
    """Return the different values in rising order; for numpy's own see `sample_median`."""
    ordered: FloatArray = np.sort(values)
    return np.delete(ordered, np.flatnonzero(ordered[1:] == ordered[:-1]))


def clean(t: FloatArray, value: FloatArray) -> Samples:
    """Return the finite samples in time order; the first of several with the same timestamp is
    kept.
    """
    finite = np.isfinite(t) & np.isfinite(value)
    if not finite.all():
        t = t[finite]
        value = value[finite]
    if (t[1:] > t[:-1]).all():
        return Samples(t, value)
    times, first = np.unique(t, return_index=True)
    return Samples(times, value[first])


def median_spacing_s(series: Samples) -> float | None:
    """Return the median time between samples; None for fewer than two samples.

    Where two servers scrape in turn, at unequal distances, it is half the median time between every
    second sample.
    """
    if series.exact:
        return series.exact.spacing_s
    if len(series) < 2:
        return None
    pairs_s = sample_median(series.t[2:] - series.t[:-2]) if len(series) > 2 else 0.0
    return usual_spacing(sample_median(np.diff(series.t)), pairs_s)


def usual_spacing(single: float, double: float) -> float:
    """Return the usual time between samples from the medians between neighbours (`single`) and
    between every second sample (`double`); half of `double` where neighbours alternate.
    """
    return double / 2 if double / 2 > _UNEQUAL * single else single


def rests_s(instance: str, *, untagged: bool) -> float:
    """Return the spacing up to which no sample is missing, 0 if unknown.

    An untagged range may have no active run, and an exporter's own history, which names no
    instance, is sparse then.
    """
    return _AT_REST_S if untagged and not instance else 0.0


def gaps(series: Samples, start_s: float, end_s: float) -> list[Gap]:
    """Return the spans of [start_s, end_s] without a sample for more than 2.5 times the median
    spacing.

    The times before the first and after the last sample count as well.
    """
    exact = series.exact_in(start_s, end_s)
    if exact:
        return list(exact.gaps)
    spacing_s = median_spacing_s(series)
    if spacing_s is None:
        return [Gap(start_s, end_s)]
    before = series.t[series.t <= start_s][-1:]
    after = series.t[series.t >= end_s][:1]
    inside = series.t[(series.t > start_s) & (series.t < end_s)]
    first = before if len(before) else np.array([start_s])
    final = after if len(after) else np.array([end_s])
    edges = np.concatenate([first, inside, final])
    wide = np.flatnonzero(np.diff(edges) > GAP_FACTOR * spacing_s)
    return [Gap(max(float(edges[i]), start_s), min(float(edges[i + 1]), end_s)) for i in wide]
