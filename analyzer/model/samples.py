"""Raw samples: tidy frames as a source returns them, and single clean series.

A tidy frame has the columns `t` (Unix seconds), `value` (in the metric's unit), `metric`, `instance` (empty where the
source has only one) and one text column for each label; a label that a series lacks is the empty text. Text columns
are categorical, each with the empty text among its categories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analyzer.model.text_columns import FrameMemory, TextCodesByName, text_column
from exporter.contract.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

FloatArray = npt.NDArray[np.float64]
Series = tuple[Mapping[str, str], FloatArray, FloatArray]
"""One series of a source: all its labels including `__name__`, times (Unix seconds, rising) and values."""
_UNEQUAL = 1.05
"""Ratio of spacings from which they alternate between short and long ones."""
GAP_FACTOR = 2.5
"""Multiple of the median spacing above which the time between two samples is a gap."""
_AT_REST_S = 1.5 * 15
"""Longest spacing in an exporter's own history without an active run: one sample each 15 s, which can be late."""


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
    """Time span in which the value does not change in any digit; `count` is the number of its samples."""

    start_s: float
    end_s: float
    value: float
    count: int

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Exact:
    """Figures from all samples of a series in `window_s`, before downsampling (see `analyzer.sources.downsample`).

    `integral` is the value times seconds over the `covered_s` seconds without gaps; `spacing_s` is the median.
    `jumps_squared` is Σ(width · jump)² over the intervals without gaps, `jump_correlation` is Σ(jump · next jump) over
    Σ(jump²). Where the samples are faster than the sensor, both are of the sensor's updates.
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


@dataclass(frozen=True, slots=True)
class Row:
    """One sample with the labels that are not empty."""

    instance: str
    t: float
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunFrames:
    """Series of one run as tidy frames.

    `ledger` has the run's own series around their last scrape, `raw` the series of its nodes from before the run until
    after it, `others` start, end and GPUs of other runs on the same instances. `clock_set_s` are the steps of the wall
    clock during the run, by instance. In an `untagged` range, `age_s` is the maximum age of a scraped counter, by GPU.
    `exact` holds the figures of GPU power before downsampling, by instance and UUID.
    """

    run_id: str
    source: str
    ledger: pd.DataFrame
    raw: pd.DataFrame
    others: pd.DataFrame
    clock_set_s: Mapping[str, float] = field(default_factory=dict)
    untagged: bool = False
    age_s: Mapping[str, float] = field(default_factory=dict)
    exact: Mapping[tuple[str, str], Exact] = field(default_factory=dict)


def tidy(series: Iterable[Series]) -> pd.DataFrame:
    """Return one tidy frame of many series, without samples that are not finite."""
    import pandas as pd

    parts = [_finite(one) for one in series]
    lengths = [len(t) for _, t, _ in parts]
    names = sorted({name for labels, _, _ in parts for name in labels} - {"__name__", "instance", "job"})
    columns: dict[str, object] = {
        "t": np.concatenate([np.empty(0), *(t for _, t, _ in parts)]),
        "value": np.concatenate([np.empty(0), *(value for _, _, value in parts)]),
    }
    for column, label in [("metric", "__name__"), ("instance", "instance"), *((name, name) for name in names)]:
        columns[column] = text_column([labels.get(label, "") for labels, _, _ in parts], lengths)
    return pd.DataFrame(columns)


def _finite(one: Series) -> Series:
    labels, t, value = one
    finite = np.isfinite(value)
    return one if finite.all() else (labels, t[finite], value[finite])


def rows_of(frame: pd.DataFrame, metric: Metric, **labels: str) -> pd.DataFrame:
    """Return the rows of one metric with these labels; the frame has a column for each label of the metric."""
    missing: dict[str, str] = {name: "" for name in metric.labels if name not in frame}
    rows = frame.iloc[_columns(frame).rows(metric, labels)]
    return rows.assign(**missing) if missing else rows


def around(rows: pd.DataFrame, start_s: float, end_s: float) -> pd.DataFrame:
    """Return the rows in [start_s, end_s], those of the last scrape before it, and those of the first after it."""
    before, after = rows["t"] < start_s, rows["t"] > end_s
    # NaN, which equals nothing, if there is no such row
    latest_s, next_s = rows["t"][before].max(), rows["t"][after].min()
    chosen: pd.DataFrame = rows[~before & ~after | (rows["t"] == latest_s) | (rows["t"] == next_s)]
    return chosen.sort_values("t", kind="stable")


class _Columns:
    """Columns of a frame as arrays, which pandas is slow to look up; the rows and newest samples of each metric."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.t, self.value = (frame[name].to_numpy(dtype=np.float64) for name in ("t", "value"))
        self.texts = TextCodesByName(frame, [name for name in frame.columns if name not in ("t", "value")])
        self._rows: dict[str, npt.NDArray[np.intp]] = {}
        self._newest: dict[str, list[Row]] = {}

    def rows(self, metric: Metric, labels: Mapping[str, str]) -> npt.NDArray[np.intp]:
        """Return the rows of a metric with these labels; a missing column is a label that all rows lack."""
        if metric.name not in self._rows:
            self._rows[metric.name] = np.flatnonzero(self.texts["metric"].equal(metric.name))
        rows = self._rows[metric.name]
        for name, value in labels.items():
            if name in self.texts:
                rows = rows[self.texts[name].equal(value, rows)]
            elif value:
                return rows[:0]
        return rows

    def newest(self, metric: Metric) -> list[Row]:
        """Return the newest sample of each series of the metric."""
        if metric.name not in self._newest:
            self._newest[metric.name] = self._find_newest(metric)
        return self._newest[metric.name]

    def _find_newest(self, metric: Metric) -> list[Row]:
        at = self.rows(metric, {})
        if not len(at):
            return []
        at = at[np.argsort(self.t[at], kind="stable")]
        key = np.zeros(len(at), dtype=np.int64)
        for name in ("instance", *metric.labels):
            if name in self.texts:
                column = self.texts[name]
                key = np.unique(key * (len(column.texts) + 1) + column.codes[at], return_inverse=True)[1]
        at = at[np.sort(len(at) - 1 - np.unique(key[::-1], return_index=True)[1])]
        labels: list[dict[str, str]] = [{} for _ in at]
        for name, column in self.texts.items():
            for own, text in zip(labels, column.at(at), strict=True) if name not in ("metric", "instance") else ():
                if text:
                    own[name] = text
        columns = self.texts["instance"].at(at), self.t[at].tolist(), self.value[at].tolist(), labels
        return [Row(*one) for one in zip(*columns, strict=True)]


_columns = FrameMemory(_Columns)


def last(frame: pd.DataFrame, metric: Metric, **labels: str) -> list[Row]:
    """Return the newest sample of each series of the metric.

    A series is identified by instance and the metric's own labels, so that two jobs that scrape one exporter give one
    series.
    """
    assert {"instance", *metric.labels} >= labels.keys()
    return [
        row
        for row in _columns(frame).newest(metric)
        if all(
            text == (row.instance if name == "instance" else row.labels.get(name, "")) for name, text in labels.items()
        )
    ]


def clean(t: FloatArray, value: FloatArray) -> Samples:
    """Return the finite samples in time order; the first of several with the same timestamp is kept."""
    finite = np.isfinite(t) & np.isfinite(value)
    if not finite.all():
        t, value = t[finite], value[finite]
    if (t[1:] > t[:-1]).all():
        return Samples(t, value)
    times, first = np.unique(t, return_index=True)
    return Samples(times, value[first])


def samples(frame: pd.DataFrame, metric: Metric, **labels: str) -> Samples:
    """Return the series of a metric with these labels as one clean series, empty if there is none."""
    columns = _columns(frame)
    rows = columns.rows(metric, labels)
    return clean(columns.t[rows], columns.value[rows])


def median_spacing_s(series: Samples) -> float | None:
    """Return the median time between samples; None for fewer than two samples.

    Where two servers scrape in turn, at unequal distances, it is half the median time between every second sample.
    """
    if series.exact:
        return series.exact.spacing_s
    if len(series) < 2:
        return None
    pairs_s = float(np.median(series.t[2:] - series.t[:-2])) if len(series) > 2 else 0.0
    return usual_spacing(float(np.median(np.diff(series.t))), pairs_s)


def usual_spacing(single: float, double: float) -> float:
    """Return the usual spacing by the median between neighbours, and that between every second sample."""
    return double / 2 if double / 2 > _UNEQUAL * single else single


def rests_s(instance: str, *, untagged: bool) -> float:
    """Return the spacing up to which no sample is missing, 0 if unknown.

    An untagged range may have no active run, and an exporter's own history, which names no instance, is sparse then.
    """
    return _AT_REST_S if untagged and not instance else 0.0


def gaps(series: Samples, start_s: float, end_s: float) -> list[Gap]:
    """Return the spans of [start_s, end_s] without a sample for more than 2.5 times the median spacing.

    The times before the first and after the last sample count as well.
    """
    exact = series.exact_in(start_s, end_s)
    if exact:
        return list(exact.gaps)
    spacing_s = median_spacing_s(series)
    if spacing_s is None:
        return [Gap(start_s, end_s)]
    before, after = series.t[series.t <= start_s][-1:], series.t[series.t >= end_s][:1]
    inside = series.t[(series.t > start_s) & (series.t < end_s)]
    first = before if len(before) else np.array([start_s])
    final = after if len(after) else np.array([end_s])
    edges = np.concatenate([first, inside, final])
    wide = np.flatnonzero(np.diff(edges) > GAP_FACTOR * spacing_s)
    return [Gap(max(float(edges[i]), start_s), min(float(edges[i + 1]), end_s)) for i in wide]
