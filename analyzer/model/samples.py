"""Raw samples: tidy frames as they come from a source, and single series cleaned of what scraping does to them.

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

from exporter.contract.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

FloatArray = npt.NDArray[np.float64]
Series = tuple[Mapping[str, str], FloatArray, FloatArray]
"""One series as a source gives it: all its labels, `__name__` too, times (Unix seconds, rising) and values."""
GAP_FACTOR = 2.5
_AT_REST_S = 1.5 * 15
"""An exporter's own history keeps a sample each 15 s while no run is on, and one can come late."""


@dataclass(frozen=True, slots=True)
class Gap:
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Stretch:
    """Over which the value was the same to the last digit, in so many samples."""

    start_s: float
    end_s: float
    value: float
    count: int

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Exact:
    """What was taken of every sample of a series in `window_s` before downsampling (see `analyzer.sources.downsample`).

    `integral` is the value times seconds, over the `covered_s` seconds that are no gap; `spacing_s` is the median.
    """

    window_s: tuple[float, float]
    spacing_s: float
    integral: float
    covered_s: float
    gaps: tuple[Gap, ...]
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One series: `t` in Unix seconds, strictly rising; `value` finite, in the metric's unit.

    `exact` is there where samples were left out.
    """

    t: FloatArray
    value: FloatArray
    exact: Exact | None = None

    def __len__(self) -> int:
        return len(self.t)

    def between(self, start_s: float, end_s: float) -> Samples:
        """The samples in [start_s, end_s]."""
        inside = (self.t >= start_s) & (self.t <= end_s)
        return Samples(self.t[inside], self.value[inside], self.exact_in(start_s, end_s))

    def exact_in(self, start_s: float, end_s: float) -> Exact | None:
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
    """What a source holds of one run, as tidy frames.

    `ledger`: the run's own series around their last scrape; `raw`: its nodes' series from a while before the run until
    a while after; `others`: start, end and GPUs of the other runs on the same instances. `clock_set_s`: by instance, by
    how much the wall clock was set while the run was on. Of a range that no run tagged (`untagged`), `age_s` is how old
    a scraped counter can be, by GPU. `exact` is what was taken of GPUs' power before it was thinned, by instance and
    UUID.
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
    """One tidy frame of many series; samples that are not finite are dropped."""
    import pandas as pd

    parts = [_finite(one) for one in series]
    lengths = [len(t) for _, t, _ in parts]
    names = sorted({name for labels, _, _ in parts for name in labels} - {"__name__", "instance", "job"})
    columns: dict[str, object] = {
        "t": np.concatenate([np.empty(0), *(t for _, t, _ in parts)]),
        "value": np.concatenate([np.empty(0), *(value for _, _, value in parts)]),
    }
    for column, label in [("metric", "__name__"), ("instance", "instance"), *((name, name) for name in names)]:
        columns[column] = _text_column([labels.get(label, "") for labels, _, _ in parts], lengths)
    return pd.DataFrame(columns)


def _finite(one: Series) -> Series:
    labels, t, value = one
    finite = np.isfinite(value)
    return one if finite.all() else (labels, t[finite], value[finite])


def _text_column(texts: list[str], lengths: list[int]) -> pd.Categorical:
    """A text for each series, a byte or two for each sample; the empty text is always among the categories."""
    import pandas as pd

    known = sorted({"", *texts})
    places = {text: place for place, text in enumerate(known)}
    narrow = np.int8 if len(known) < 128 else np.int32
    codes = np.repeat(np.array([places[text] for text in texts], dtype=narrow), lengths)
    return pd.Categorical.from_codes(codes, categories=pd.Index(known, dtype="str"))


def rows_of(frame: pd.DataFrame, metric: Metric, **labels: str) -> pd.DataFrame:
    """The rows of one metric with these labels; all of the metric's labels are there as columns."""
    missing: dict[str, str] = {name: "" for name in metric.labels if name not in frame}
    rows = frame.assign(**missing) if missing else frame
    return rows[_chosen(rows, metric, labels)]


def around(rows: pd.DataFrame, start_s: float, end_s: float) -> pd.DataFrame:
    """Return the rows in [start_s, end_s], those of the last scrape before it, and those of the first after it."""
    before, after = rows["t"] < start_s, rows["t"] > end_s
    latest_s, next_s = rows["t"][before].max(), rows["t"][after].min()  # NaN, which equals nothing, where there is none
    chosen: pd.DataFrame = rows[~before & ~after | (rows["t"] == latest_s) | (rows["t"] == next_s)]
    return chosen.sort_values("t", kind="stable")


def _chosen(rows: pd.DataFrame, metric: Metric, labels: Mapping[str, str]) -> npt.NDArray[np.bool_]:
    chosen = (rows["metric"] == metric.name).to_numpy(dtype=bool)
    for name, value in labels.items():
        chosen = chosen & (rows[name] == value).to_numpy(dtype=bool)
    return chosen


def last(frame: pd.DataFrame, metric: Metric, **labels: str) -> list[Row]:
    """The newest sample of each series of the metric, by instance and the metric's own labels: what two jobs scrape
    from one exporter is one series.
    """
    import pandas as pd

    if any(value and name not in frame for name, value in labels.items()):
        return []
    at = np.flatnonzero(_chosen(frame, metric, {name: value for name, value in labels.items() if name in frame}))
    at = at[np.argsort(frame["t"].to_numpy(dtype=np.float64)[at], kind="stable")]
    key = np.zeros(len(at), dtype=np.int64)
    for name in ("instance", *metric.labels):
        if name in frame:
            codes, known = pd.factorize(frame[name].array[at])
            key = key * (len(known) + 1) + codes
    newest = at[np.sort(len(at) - 1 - np.unique(key[::-1], return_index=True)[1])]
    texts = [name for name in frame.columns if name not in ("t", "value", "metric", "instance")]
    columns = {name: frame[name].array[newest] for name in ("instance", "t", "value", *texts)}
    return [
        Row(
            str(columns["instance"][row]),
            float(columns["t"][row]),
            float(columns["value"][row]),
            {name: str(columns[name][row]) for name in texts if columns[name][row]},
        )
        for row in range(len(newest))
    ]


def clean(t: FloatArray, value: FloatArray) -> Samples:
    """Sorted by time; of samples with the same timestamp the first stays; what is not finite goes."""
    finite = np.isfinite(t) & np.isfinite(value)
    if not finite.all():
        t, value = t[finite], value[finite]
    if (t[1:] > t[:-1]).all():
        return Samples(t, value)
    times, first = np.unique(t, return_index=True)
    return Samples(times, value[first])


def samples(frame: pd.DataFrame, metric: Metric, **labels: str) -> Samples:
    if any(value and name not in frame for name, value in labels.items()):
        return Samples(np.empty(0), np.empty(0))
    chosen = _chosen(frame, metric, {name: value for name, value in labels.items() if name in frame})
    times, values = (frame[name].to_numpy(dtype=np.float64)[chosen] for name in ("t", "value"))
    return clean(times, values)


def median_spacing_s(series: Samples) -> float | None:
    """None where there are fewer than two samples."""
    if series.exact:
        return series.exact.spacing_s
    return float(np.median(np.diff(series.t))) if len(series) > 1 else None


def rests_s(instance: str, *, untagged: bool) -> float:
    """How far apart samples can be where none is missing. In a range that no run tagged none need be on, and an
    exporter's own history, which names no instance, has few samples then.
    """
    return _AT_REST_S if untagged and not instance else 0.0


def gaps(series: Samples, start_s: float, end_s: float) -> list[Gap]:
    """Stretches of [start_s, end_s] without a sample for more than 2.5 times the median spacing, edges included."""
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


def join_frames(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return one tidy frame; `pandas.concat` would turn its text columns into objects."""
    import pandas as pd

    every = list(frames)
    parts = [part for part in every if len(part)] or every[:1]
    texts = sorted({name for part in parts for name in part.columns} - {"t", "value", "metric", "instance"})
    columns: dict[str, object] = {
        name: np.concatenate([part[name].to_numpy(dtype=np.float64) for part in parts]) for name in ("t", "value")
    }
    for name in ("metric", "instance", *texts):
        columns[name] = _joined_column([part.get(name) for part in parts], parts)
    return pd.DataFrame(columns)


def _joined_column(columns: list[pd.Series | None], parts: list[pd.DataFrame]) -> pd.Categorical:
    import pandas as pd

    made = [
        pd.Categorical(np.full(len(part), "")) if column is None else column.astype("category").array
        for column, part in zip(columns, parts, strict=True)
    ]
    known = sorted({"", *(str(text) for one in made for text in one.categories)})
    narrow = np.int8 if len(known) < 128 else np.int32
    places = {text: place for place, text in enumerate(known)}
    # the place at the end is that of code -1, which is none: a label that is missing is the empty text
    tables = [np.array([*(places[str(text)] for text in one.categories), places[""]]) for one in made]
    codes = np.concatenate([table[one.codes] for table, one in zip(tables, made, strict=True)])
    return pd.Categorical.from_codes(codes.astype(narrow), categories=pd.Index(known, dtype="str"))
