"""Fetches of long series, downsampled part by part so that memory stays bounded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.downsample import (
    MAX_UNCHANGED,
    DownsampledSeries,
    DownsamplePlan,
    Key,
    Mask,
    RandomSample,
    SeriesKind,
    near_edges,
    plan_buckets,
    series_key,
)
from wattline_analyzer.core.sample_table import SampleTable, table_of
from wattline_analyzer.core.samples import Exact, FloatArray, Samples, Series, distinct
from wattline_analyzer.core.sources.base import SampleSource

Place = tuple[str, str]
"""Instance and UUID of a GPU."""
LabelledSamples = tuple[Mapping[str, str], Samples]
TimeRange = tuple[float, float]
_SOURCES = {
    metric.name
    for metric in (
        *(m.CARBON_INTENSITY, m.CARBON_INTENSITY_TIMESTAMP, m.CARBON_FETCHED_TIMESTAMP),
        *(m.SOURCE_UP, m.SOURCE_READ_TIMESTAMP),
    )
}
_AGES = {m.RUN_DURATION, m.RUN_PHASE_SECONDS, m.RUN_PHASE_START, m.GPU_CLOCK_EVENT_SECONDS}


class StateGroup:
    """Series with the same scrapes; the values of `moving` series differ at each scrape."""

    def __init__(
        self,
        edges_s: Sequence[float],
        moving: Callable[[Mapping[str, str]], bool],
        whole: int = MAX_UNCHANGED,
    ) -> None:
        self._edges_s = edges_s
        self._moving = moving
        self._whole = whole
        self._labels: dict[Key, Mapping[str, str]] = {}
        self._waiting: list[Series] = []
        self._counts: dict[Key, int] = {}
        self._kept: dict[Key, list[tuple[FloatArray, FloatArray]]] = {}
        self._open: tuple[float, dict[Key, float]] | None = None
        """Last scrape, which is kept if the next one differs."""
        self._kept_s = float("-inf")

    def add(self, part: Iterable[Series]) -> None:
        """Add all series of the group over a time range after all earlier ones."""
        added = [(series_key(one[0]), one) for one in part if len(one[1])]
        for known, one in added:
            self._labels.setdefault(known, one[0])
            self._counts[known] = self._counts.get(known, 0) + len(one[1])
        self._waiting += [one for _, one in added]
        if self._is_long:
            self._downsample()

    def result(self) -> list[Series]:
        if not self._is_long:
            return self._waiting
        self._downsample()
        if self._open and self._open[0] > self._kept_s:
            self._keep(*self._open)
        return [(self._labels[known], *_together(parts)) for known, parts in self._kept.items()]

    @property
    def _is_long(self) -> bool:
        return max(self._counts.values(), default=0) > self._whole

    def _downsample(self) -> None:
        if not self._waiting:
            return
        times, table = self._table()
        self._waiting = []
        shown = {
            known: row for known, row in table.items() if not self._moving(self._labels[known])
        }
        shown |= {
            known: np.where(np.isnan(row), np.nan, 1.0)
            for known, row in table.items()
            if known not in shown
        }
        kept = _around_changes(times, list(shown.values())) | near_edges(times, self._edges_s)
        kept[0] |= self._open is None
        kept &= times > self._kept_s
        for known, row in table.items():
            some = kept & ~np.isnan(row)
            if some.any():
                self._kept.setdefault(known, []).append((times[some], row[some]))
        if kept.any():
            self._kept_s = float(times[kept][-1])
        newest = {known: float(row[-1]) for known, row in table.items() if not np.isnan(row[-1])}
        self._open = float(times[-1]), newest

    def _table(self) -> tuple[FloatArray, dict[Key, FloatArray]]:
        """Return the times of scrapes and each series at them, NaN where absent; the open scrape is
        the first.
        """
        times = distinct(np.concatenate([t for _, t, _ in self._waiting]))
        if self._open:
            times = np.concatenate([[self._open[0]], times[times > self._open[0]]])
        table = {known: np.full(len(times), np.nan) for known in self._labels}
        for labels, t, value in self._waiting:
            table[series_key(labels)][np.searchsorted(times, t)] = value
        if self._open:
            for known, shown in self._open[1].items():
                table[known][0] = shown
        return times, table

    def _keep(self, t_s: float, values: Mapping[Key, float]) -> None:
        for known, value in values.items():
            self._kept.setdefault(known, []).append((np.array([t_s]), np.array([value])))


def _around_changes(times: FloatArray, rows: Sequence[FloatArray]) -> Mask:
    kept = np.zeros(len(times), dtype=bool)
    changed = np.zeros(max(len(times) - 1, 0), dtype=bool)
    for row in rows:
        changed |= (row[1:] != row[:-1]) & ~(np.isnan(row[1:]) & np.isnan(row[:-1]))
    kept[:-1] |= changed
    kept[1:] |= changed
    return kept


def _together(parts: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    return np.concatenate([t for t, _ in parts]), np.concatenate([value for _, value in parts])


class SeriesRequest(NamedTuple):
    """Arguments of the methods of a source: series of some metrics in a time range."""

    metrics: Sequence[Metric]
    matchers: Mapping[str, str]
    start_s: float
    end_s: float


def fetch_states(
    source: SampleSource, request: SeriesRequest, edges_s: Sequence[float] = ()
) -> SampleTable:
    """Return `state_series` as a table. Raises FetchError."""
    return table_of(state_series(source, request, edges_s))


def state_series(
    source: SampleSource, request: SeriesRequest, edges_s: Sequence[float] = ()
) -> list[Series]:
    """Fetch series that rarely change; all samples within ten minutes of `edges_s` are kept. Raises
    FetchError.
    """
    groups: defaultdict[tuple[str, str], StateGroup] = defaultdict(
        lambda: StateGroup(edges_s, _is_moving)
    )
    for part in source.parts(*request):
        by_group: defaultdict[tuple[str, str], list[Series]] = defaultdict(list)
        for one in part:
            by_group[one[0].get("instance", ""), _state_group(one[0])].append(one)
        for name, series in by_group.items():
            groups[name].add(series)
    return [one for group in groups.values() for one in group.result()]


def fetch_signals(
    source: SampleSource, request: SeriesRequest, planned: DownsamplePlan
) -> SampleTable:
    """Return `signal_series` as a table. Raises FetchError."""
    return table_of(signal_series(source, request, planned)[0])


def signal_series(
    source: SampleSource,
    request: SeriesRequest,
    planned: DownsamplePlan,
    window_s: TimeRange | None = None,
) -> tuple[list[Series], dict[Place, Exact]]:
    """Fetch gauges, counters and ages; also return the exact values over `window_s` of the
    downsampled ones.

    Series that differ only in labels outside the contract are one series. Raises FetchError.
    """
    by_name = {metric.name: metric for metric in request.metrics}

    def identity(labels: Mapping[str, str]) -> Key:
        names = ("__name__", "instance", *by_name[labels["__name__"]].labels)
        return frozenset((name, labels.get(name, "")) for name in names)

    series = _downsampled(source, request, planned, window_s, identity)
    exact = {_place(labels): samples.exact for labels, samples in series if samples.exact}
    return [(labels, samples.t, samples.value) for labels, samples in series], exact


def fetch_range_series(
    source: SampleSource,
    metrics: Sequence[Metric],
    matchers: Mapping[str, str],
    span_s: TimeRange,
    window_s: TimeRange,
) -> list[LabelledSamples]:
    """Fetch an exporter's gauges and counters over `span_s`, with exact values over `window_s`.
    Raises FetchError.
    """
    request = SeriesRequest(metrics, matchers, *span_s)
    return _downsampled(source, request, plan_buckets(*span_s, window_s), window_s, series_key)


def _downsampled(
    source: SampleSource,
    request: SeriesRequest,
    planned: DownsamplePlan,
    window_s: TimeRange | None,
    identity: Callable[[Mapping[str, str]], Key],
) -> list[LabelledSamples]:
    hows = {metric.name: _how(metric) for metric in request.metrics}
    labels: dict[Key, Mapping[str, str]] = {}
    found: dict[Key, DownsampledSeries] = {}
    for part in source.parts(*request):
        by_series: defaultdict[Key, list[Series]] = defaultdict(list)
        for one in part:
            by_series[identity(one[0])].append(one)
        for which, series in by_series.items():
            if which not in found:
                name = labels.setdefault(which, series[0][0])["__name__"]
                found[which] = DownsampledSeries(hows[name], planned, window_s)
            found[which].add(
                np.concatenate([t for _, t, _ in series]), np.concatenate([v for _, _, v in series])
            )
    return [(labels[which], Samples(*one.result())) for which, one in found.items()]


def fetch_random_samples(source: SampleSource, request: SeriesRequest) -> SampleTable:
    """Fetch gauges for percentiles and means: of a long series a random sample. Raises
    FetchError.
    """
    labels: dict[Key, Mapping[str, str]] = {}
    found: dict[Key, RandomSample] = {}
    for part in source.parts(*request):
        for own, t, value in part:
            labels.setdefault(series_key(own), own)
            found.setdefault(series_key(own), RandomSample()).add(t, value)
    return table_of((labels[known], *one.result()) for known, one in found.items())


def _place(labels: Mapping[str, str]) -> Place:
    return labels.get("instance", ""), labels.get("uuid", "")


def _how(metric: Metric) -> SeriesKind:
    if metric in _AGES:
        return "age"
    return "counter" if metric.kind == "counter" else "gauge"


def _state_group(labels: Mapping[str, str]) -> str:
    """Return the name of the group of states that are downsampled together.

    Scrapes of other sources show when no carbon intensity was known.
    """
    name = labels["__name__"]
    return "source" if name in _SOURCES else name


def _is_moving(labels: Mapping[str, str]) -> bool:
    return labels["__name__"] == m.SOURCE_READ_TIMESTAMP.name
