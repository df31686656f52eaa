"""Raw samples: tidy frames as they come from a source, and single series cleaned of what scraping does to them.

A tidy frame has the columns `t` (Unix seconds), `value` (in the metric's unit), `metric`, `instance` (empty where the
source has only one) and one text column for each label; a label that a series lacks is the empty text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from exporter.contract.metrics import Metric

FloatArray = npt.NDArray[np.float64]
GAP_FACTOR = 2.5


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One series: `t` in Unix seconds, strictly rising; `value` finite, in the metric's unit."""

    t: FloatArray
    value: FloatArray

    def __len__(self) -> int:
        return len(self.t)

    def between(self, start_s: float, end_s: float) -> Samples:
        """The samples in [start_s, end_s]."""
        inside = (self.t >= start_s) & (self.t <= end_s)
        return Samples(self.t[inside], self.value[inside])


@dataclass(frozen=True, slots=True)
class Gap:
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Row:
    """One sample with the labels that are not empty."""

    instance: str
    t: float
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunFrames:
    """What a source holds of one run, as tidy frames.

    `ledger`: the run's own series around their last scrape; `raw`: its nodes' series from a while before the run until
    a while after; `others`: start, end and GPUs of the other runs on the same instances. `clock_set_s`: by instance, by
    how much the wall clock was set while the run was on.
    """

    run_id: str
    source: str
    ledger: pd.DataFrame
    raw: pd.DataFrame
    others: pd.DataFrame
    clock_set_s: Mapping[str, float] = field(default_factory=dict)


def tidy(series: Iterable[tuple[Mapping[str, str], FloatArray, FloatArray]]) -> pd.DataFrame:
    """One tidy frame of many series, each given as (labels, t, value); samples that are not finite are dropped."""
    parts = list(series)
    lengths = [len(t) for _, t, _ in parts]
    names = sorted({name for labels, _, _ in parts for name in labels} - {"__name__", "instance", "job"})
    columns: dict[str, object] = {
        "t": np.concatenate([np.empty(0), *(t for _, t, _ in parts)]),
        "value": np.concatenate([np.empty(0), *(value for _, _, value in parts)]),
    }
    for column, label in [("metric", "__name__"), ("instance", "instance"), *((name, name) for name in names)]:
        texts = np.array([labels.get(label, "") for labels, _, _ in parts], dtype=object)
        columns[column] = pd.Series(np.repeat(texts, lengths), dtype="str")
    frame = pd.DataFrame(columns)
    finite: pd.DataFrame = frame[np.isfinite(frame["value"])]
    return finite.reset_index(drop=True)


def of(frame: pd.DataFrame, metric: Metric, **labels: str) -> pd.DataFrame:
    """The rows of one metric with these labels; all of the metric's labels are there as columns."""
    missing: dict[str, str] = {name: "" for name in metric.labels if name not in frame}
    rows = frame.assign(**missing) if missing else frame
    chosen = rows["metric"] == metric.name
    for name, value in labels.items():
        chosen &= rows[name] == value
    return rows[chosen]


def last(frame: pd.DataFrame, metric: Metric, **labels: str) -> list[Row]:
    """The newest sample of each series of the metric, by instance and the metric's own labels: what two jobs scrape
    from one exporter is one series.
    """
    rows = of(frame, metric, **labels).sort_values("t", kind="stable")
    newest = rows.drop_duplicates(["instance", *metric.labels], keep="last")
    texts = [name for name in newest.columns if name not in ("t", "value", "metric", "instance")]
    return [
        Row(row["instance"], row["t"], row["value"], {name: row[name] for name in texts if row[name]})
        for row in newest.to_dict("records")
    ]


def clean(t: FloatArray, value: FloatArray) -> Samples:
    """Sorted by time; of samples with the same timestamp the first stays; what is not finite goes."""
    finite = np.isfinite(t) & np.isfinite(value)
    t, value = t[finite], value[finite]
    times, first = np.unique(t, return_index=True)
    return Samples(times, value[first])


def samples(frame: pd.DataFrame, metric: Metric, **labels: str) -> Samples:
    rows = of(frame, metric, **labels)
    return clean(rows["t"].to_numpy(dtype=np.float64), rows["value"].to_numpy(dtype=np.float64))


def median_spacing_s(series: Samples) -> float | None:
    """None where there are fewer than two samples."""
    return float(np.median(np.diff(series.t))) if len(series) > 1 else None


def gaps(series: Samples, start_s: float, end_s: float) -> list[Gap]:
    """Stretches of [start_s, end_s] without a sample for more than 2.5 times the median spacing, edges included."""
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
