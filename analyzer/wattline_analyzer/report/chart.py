"""Charts: lines with fewer points but every extreme and gap, ranges, devices, time window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable
from wattline_analyzer.core.samples import GAP_FACTOR, FloatArray, Samples, clean, median_spacing_s

Points = tuple[list[float], list[float | None]]
"""Times and values; None is a gap."""
_LEAST_POINTS = 250
"""Points that a line keeps at least, because hovering shows values only near a point."""
_USUAL_STEP = 90
"""Percentile of the steps that is the usual one; downsampled series have short and long steps."""
Kind = Literal["line", "second", "limit", "slot"]


@dataclass(frozen=True, slots=True)
class Resolution:
    """Approximate maximum of points and decimals of values."""

    points: int
    decimals: int


def line_points(
    series: Samples,
    resolution: Resolution,
    gaps: Sequence[tuple[float, float]] | None = None,
    least_s: float = 0.0,
) -> Points:
    """Return the extremes of each bucket and the edges of gaps; of constant stretches the ends and
    some points.

    `gaps` has the gaps of a downsampled series, whose steps do not show them. Steps of at most
    `least_s` are no gaps.
    """
    t = series.t
    value = series.value
    points = resolution.points
    decimals = resolution.decimals
    if not len(t):
        return [], []
    before_gap = _before_gaps(t, least_s) if gaps is None else _before(t, gaps)
    edges = np.concatenate([[0, len(t) - 1], before_gap, before_gap + 1])
    kept = np.unique(np.concatenate([edges, _extremes(value, max(points // 2, 1))]))
    left_out = _inside_constant_stretch(np.round(value[kept], decimals)) & ~np.isin(kept, edges)
    left_out[:: max(len(kept) // _LEAST_POINTS, 1)] = False
    kept = kept[~left_out]
    at = np.searchsorted(kept, before_gap) + 1
    times = np.insert(np.round(t[kept], 2), at, np.round(t[before_gap], 2))
    values = np.insert(np.round(value[kept], decimals), at, np.nan)
    return _plain(times), [None if number != number else number for number in _plain(values)]  # noqa: PLR0124  # NaN


def with_neighbors(series: Samples, start_s: float, end_s: float) -> Samples:
    """Return the samples in [start_s, end_s] and the adjacent one on either side, unless a gap lies
    between.

    The adjacent samples make the line of a run visible that is shorter than the scrape interval.
    """
    inside = np.flatnonzero((series.t >= start_s) & (series.t <= end_s))
    spacing_s = median_spacing_s(series)
    if not len(inside) or spacing_s is None:
        return series.between(start_s, end_s)
    first = int(inside[0])
    last = int(inside[-1])
    near_s = GAP_FACTOR * spacing_s
    if first > 0 and series.t[first] - series.t[first - 1] <= near_s:
        first -= 1
    if last + 1 < len(series) and series.t[last + 1] - series.t[last] <= near_s:
        last += 1
    return Samples(
        series.t[first : last + 1], series.value[first : last + 1], series.exact_in(start_s, end_s)
    )


def break_at_gaps(
    t: FloatArray, value: FloatArray, least_s: float
) -> tuple[FloatArray, FloatArray]:
    """Return the line with NaN where samples are missing."""
    if len(t) < 3:
        return t, value
    steps = np.diff(t)
    wide = np.flatnonzero(steps > max(GAP_FACTOR * max(float(np.median(steps)), 1e-3), least_s)) + 1
    return np.insert(t, wide, t[wide - 1]), np.insert(value, wide, np.nan)


def _before(
    t: FloatArray, gaps: Sequence[tuple[float, float]]
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    middles_s = np.array([(start_s + end_s) / 2 for start_s, end_s in gaps])
    places = np.unique(np.searchsorted(t, middles_s) - 1)
    return places[(places >= 0) & (places < len(t) - 1)]


def _before_gaps(t: FloatArray, least_s: float) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the indices after which samples are missing."""
    steps = np.diff(t)
    if len(steps) < 2:
        return np.empty(0, dtype=np.intp)
    usual = max(float(np.median(steps)), float(np.percentile(steps, _USUAL_STEP, method="lower")))
    return np.flatnonzero(steps > max(GAP_FACTOR * max(usual, 1e-3), least_s))


def _extremes(value: FloatArray, buckets: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the index of the lowest and of the highest value of each bucket."""
    if len(value) <= 2 * buckets:
        return np.arange(len(value))
    size = -(-len(value) // buckets)
    whole = len(value) // size
    body = value[: whole * size].reshape(whole, size)
    first = np.arange(whole) * size
    rest = np.arange(whole * size, len(value))
    tail = [rest[[value[rest].argmin(), value[rest].argmax()]]] if len(rest) else []
    return np.concatenate([first + body.argmin(axis=1), first + body.argmax(axis=1), *tail])


def _inside_constant_stretch(value: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    inside = np.zeros(len(value), dtype=np.bool_)
    inside[1:-1] = (value[1:-1] == value[:-2]) & (value[1:-1] == value[2:])
    return inside


def _plain(values: FloatArray) -> list[float]:
    """Return integers without their `.0`, which would be a third of the page."""
    return [int(number) if number.is_integer() else number for number in values.tolist()]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line; `device` is its position in the legend, None for lines of several devices."""

    name: str
    kind: Kind
    points: Points
    device: int | None = None


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Minimum, median and maximum of a line during the run."""

    name: str
    minimum: float
    median: float | None
    maximum: float


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart; `description` is its text alternative."""

    key: str
    title: str
    unit: str
    description: str
    lines: tuple[ChartLine, ...]
    ranges: tuple[ValueRange, ...] = ()
    note: str = ""


def legend_devices(report: Report) -> tuple[ReportDevice, ...]:
    return report.gpus or tuple(device for device in report.devices if device.component == "cpu")


def time_window_s(report: Report) -> tuple[float, float]:
    """Return the time window of the charts, in seconds since the start of the run."""
    pad_s = max(0.08 * report.duration_s, 2.0)
    return -pad_s, report.duration_s + pad_s


def device_gaps(
    report: Report, recorded: RecordedRun, device: ReportDevice
) -> list[tuple[float, float]] | None:
    """Return gaps in the device's power, in seconds since the start of the run; None where its
    samples show them.
    """
    exact = recorded.exact.get((device.instance, device.device))
    if exact is None:
        return None
    return [
        (gap.start_s - report.started_at_s, gap.end_s - report.started_at_s) for gap in exact.gaps
    ]


def window_samples(rows: SampleTable, report: Report) -> Samples:
    return with_neighbors(clean(rows.t - report.started_at_s, rows.value), *time_window_s(report))
