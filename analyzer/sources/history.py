"""Source that reads the exporter's local history from its file."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from analyzer.model.sample_table import SampleTable, table_of
from analyzer.model.samples import FloatArray, Series
from analyzer.sources.base import FetchError, Progress, metric_names, no_progress
from exporter.contract.compact_history import is_compact, steady_spans, time_span_ms
from exporter.contract.history import HISTORY_FILE, Matcher, open_read_only, select_labels
from exporter.contract.metrics import Metric

FIRST_CHUNK_S = 3_600.0
LONGEST_CHUNK_S = 43_200.0
MANY_SAMPLES = 200_000
"""Target size of a part."""
_Request = tuple[list[str], tuple[Matcher, ...]]
"""Names of metrics, and matchers."""


class HistorySource:
    """Local history; `path` is the file or its folder. Raises FetchError if it cannot be read."""

    def __init__(self, path: Path, progress: Progress = no_progress) -> None:
        self._path = path / HISTORY_FILE if path.is_dir() else path
        self._progress = progress
        self._noted_span_s = math.nan, math.nan
        self._noted: list[_Request] = []
        self._read: list[list[Series]] | None = None
        self.name = str(self._path)
        if not self._path.exists():
            raise FetchError(
                f"cannot read {self._path}: no such file",
                "give --source a history.sqlite, its folder, or a server's http:// address",
            )
        try:
            self._connection = open_read_only(self._path)
        except (sqlite3.Error, ValueError) as error:
            raise FetchError(
                f"cannot read {self._path}: {error}",
                "check that it is an exporter's history.sqlite of this version, and its permissions",
            ) from error

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> SampleTable:
        return table_of([one for part in self.parts(metrics, matchers, start_s, end_s) for one in part])

    def parts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> Iterator[list[Series]]:
        """Yield samples in time order; the length of a part adapts to the number of samples."""
        names, equal = [metric.name for metric in metrics], _equal(matchers)
        chunk_s, (position_s, last_s) = FIRST_CHUNK_S, self._limits_s(start_s, end_s)
        start_s, end_s = position_s, last_s
        try:
            while position_s < end_s:
                self._progress(metric_names(metrics), (position_s - start_s) / max(end_s - start_s, 1.0))
                until_s = min(position_s + chunk_s, end_s)
                found = self._take((position_s, until_s), names, equal)
                count = sum(len(t) for _, t, _ in found)
                chunk_s = min(chunk_s * max(min(MANY_SAMPLES / max(count, 1), 2.0), 0.25), LONGEST_CHUNK_S)
                yield found
                position_s = until_s
        finally:
            self._progress(metric_names(metrics), 1.0)

    def prefetch(self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float) -> None:
        """Note a request, so that the first parts of all with the same start and end are read at once."""
        position_s, last_s = self._limits_s(start_s, end_s)
        span_s = position_s, min(position_s + FIRST_CHUNK_S, last_s)
        if self._noted_span_s != span_s or self._read is not None:
            self._noted_span_s, self._noted, self._read = span_s, [], None
        self._noted.append(([metric.name for metric in metrics], _equal(matchers)))

    def close(self) -> None:
        self._connection.close()

    def _limits_s(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Return the part of a time range that has samples; it excludes its start."""
        first_s, last_s = self._span_s()
        return max(start_s, first_s) - 0.001, min(end_s, last_s)

    def _span_s(self) -> tuple[float, float]:
        """Return the times of the first and the last sample; of an empty file, a range without time."""
        try:
            span_ms = time_span_ms(self._connection)
        except sqlite3.Error as error:
            raise self._cannot_read(error) from error
        return (span_ms[0] / 1_000, span_ms[1] / 1_000) if span_ms else (math.inf, -math.inf)

    def _take(self, span_s: tuple[float, float], names: list[str], equal: tuple[Matcher, ...]) -> list[Series]:
        """Return the series in a span, from a read of all noted requests if this is one of them."""
        try:
            if span_s != self._noted_span_s or (names, equal) not in self._noted:
                return self._select(span_s, [(names, equal)])[0]
            if self._read is None:
                self._read = self._select(span_s, self._noted)
        except sqlite3.Error as error:
            raise self._cannot_read(error) from error
        return self._read[self._noted.index((names, equal))]

    def _select(self, span_s: tuple[float, float], requests: Sequence[_Request]) -> list[list[Series]]:
        """Return the series of each request, by one read of the samples."""
        labels = [
            {known: one for name in names for known, one in select_labels(self._connection, name, equal).items()}
            for names, equal in requests
        ]
        begin_ms, end_ms = round(span_s[0] * 1_000) + 1, round(span_s[1] * 1_000)  # a span excludes its start
        columns = _columns(self._connection, begin_ms, end_ms, sorted({known for one in labels for known in one}))
        return [[(one, *columns[known]) for known, one in of.items() if known in columns] for of in labels]

    def _cannot_read(self, error: sqlite3.Error) -> FetchError:
        return FetchError(f"cannot read {self._path}: {error}", "check the file and its disk")


def _equal(matchers: Mapping[str, str]) -> tuple[Matcher, ...]:
    return tuple(Matcher(label, "=", text) for label, text in matchers.items())


def _columns(
    connection: sqlite3.Connection, begin_ms: int, end_ms: int, series: Sequence[int]
) -> dict[int, tuple[FloatArray, FloatArray]]:
    """Return the times (Unix seconds) and the values of series in [begin_ms, end_ms], by id; none without samples."""
    compact = is_compact(connection)
    rows = connection.execute(
        f"SELECT series_id, t_ms, value FROM {'changed' if compact else 'samples'} WHERE t_ms BETWEEN ? AND ?"  # noqa: S608  # constants
        " AND series_id IN (SELECT value FROM json_each(?))",
        (begin_ms, end_ms, json.dumps(list(series))),
    )
    table = np.fromiter(chain.from_iterable(rows), dtype=np.float64).reshape(-1, 3)
    ids, t_ms, values = [table[:, 0].astype(np.int64)], [table[:, 1]], [table[:, 2]]
    moments: dict[int, tuple[list[int], FloatArray]] = {}  # with the lists, so that no other gets their identity
    for known, steady, times, left, right in steady_spans(connection, begin_ms, end_ms, series) if compact else ():
        if id(times) not in moments:
            moments[id(times)] = times, np.array(times, dtype=np.float64)
        ids.append(np.full(right - left, known))
        t_ms.append(moments[id(times)][1][left:right])
        values.append(np.full(right - left, steady))
    of_series, t, value = np.concatenate(ids), np.concatenate(t_ms), np.concatenate(values)
    order = np.lexsort((value, t, of_series))
    of_series, t, value = of_series[order], t[order] / 1_000, value[order]
    borders = [*np.flatnonzero(np.diff(of_series, prepend=-1)), len(of_series)]
    return {int(of_series[a]): (t[a:b], value[a:b]) for a, b in pairwise(borders)}
