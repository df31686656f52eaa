"""Source that reads the exporter's local history from its file."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattline.contract.compact_history import SteadySpan, is_compact, steady_spans, time_span_ms
from wattline.contract.history import HISTORY_FILE, Matcher, open_read_only, select_labels
from wattline.contract.metrics import Metric
from wattline_analyzer.core.facts import Fact, newest_facts
from wattline_analyzer.core.sample_table import SampleTable, table_of
from wattline_analyzer.core.samples import FloatArray, Series
from wattline_analyzer.core.sources.base import (
    FetchError,
    Progress,
    Text,
    is_there,
    metric_names,
    no_progress,
)

_OTHER_SOURCE = "give --source an exporter's history.sqlite, or its folder"
_REMEDIES = {
    "not a Wattline history": _OTHER_SOURCE,
    "has schema": "read it with the version of Wattline that wrote it",
    "malformed": "it is damaged: give --source a copy from before",
    "unable to open": "let this user write to its folder, where SQLite keeps history.sqlite-shm",
}
"""Remedies by a part of SQLite's or of the schema's message."""
FIRST_CHUNK_S = 3_600.0
LONGEST_CHUNK_S = 43_200.0
MANY_SAMPLES = 200_000
"""Target size of a part."""
_SHORT_S = 1_200.0
"""Length of a request up to which its samples are kept: short runs need mostly the same samples of
their node.
"""
_Request = tuple[list[str], tuple[Matcher, ...]]
"""Names of metrics, and matchers."""
_Columns = tuple[FloatArray, FloatArray]
"""Times in Unix seconds, and values."""
_NOTHING: _Columns = np.empty(0), np.empty(0)


@dataclass(frozen=True, slots=True)
class _KeptSamples:
    """All samples of a series in [begin_ms, end_ms]."""

    begin_ms: int
    end_ms: int
    t: FloatArray
    value: FloatArray

    def since(self, begin_ms: int) -> _Columns:
        left = np.searchsorted(self.t, begin_ms / 1_000)
        return self.t[left:], self.value[left:]

    def between(self, begin_ms: int, end_ms: int) -> _Columns:
        left = self.t.searchsorted(begin_ms / 1_000)
        right = self.t.searchsorted(end_ms / 1_000, side="right")
        return self.t[left:right], self.value[left:right]


class HistorySource:
    """Local history; `path` is the file or its folder. Raises FetchError if it cannot be read."""

    def __init__(self, path: Path, progress: Progress = no_progress) -> None:
        self._path = path / HISTORY_FILE if is_there(path) and path.is_dir() else path
        self._progress = progress
        self._noted_span_s = math.nan, math.nan
        self._noted: list[_Request] = []
        self._read: list[list[Series]] | None = None
        self._version: int | None = None
        self._kept: dict[int, _KeptSamples] = {}
        self._labels: dict[tuple[tuple[str, ...], tuple[Matcher, ...]], dict[int, dict[str, str]]]
        self._labels = {}
        self.name = str(self._path)
        if not is_there(self._path):
            raise FetchError(
                f"cannot read {self._path}: no such file",
                "give --source a history.sqlite, its folder, or a server's http:// address",
            )
        try:
            self._path.open("rb").close()  # SQLite's errors do not name the cause
            self._connection = open_read_only(self._path)
        except OSError as error:
            is_denied = isinstance(error, PermissionError)
            raise FetchError(
                f"cannot read {self._path}: {error.strerror}",
                "let this user read it" if is_denied else _OTHER_SOURCE,
            ) from error
        except (sqlite3.Error, ValueError) as error:
            raise self._cannot_read(error) from error

    def facts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> list[Fact]:
        return newest_facts(metrics, self.parts(metrics, matchers, start_s, end_s))

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> SampleTable:
        return table_of(
            [one for part in self.parts(metrics, matchers, start_s, end_s) for one in part]
        )

    def parts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> Iterator[list[Series]]:
        """Yield samples in time order; the length of a part adapts to the number of samples."""
        names = [metric.name for metric in metrics]
        equal = _equal(matchers)
        chunk_s = FIRST_CHUNK_S
        position_s, last_s = self._limits_s(start_s, end_s)
        start_s = position_s
        end_s = last_s
        try:
            while position_s < end_s:
                self._progress(
                    metric_names(metrics), (position_s - start_s) / max(end_s - start_s, 1.0)
                )
                until_s = min(position_s + chunk_s, end_s)
                found = self._take(
                    (position_s, until_s), names, equal, is_short=until_s - start_s <= _SHORT_S
                )
                count = sum(len(t) for _, t, _ in found)
                chunk_s = min(
                    chunk_s * max(min(MANY_SAMPLES / max(count, 1), 2.0), 0.25), LONGEST_CHUNK_S
                )
                yield found
                position_s = until_s
        finally:
            self._progress(metric_names(metrics), 1.0)

    def prefetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> None:
        """Note a request, so that the first parts of all with the same start and end are read at
        once.
        """
        position_s, last_s = self._limits_s(start_s, end_s)
        span_s = position_s, min(position_s + FIRST_CHUNK_S, last_s)
        if self._noted_span_s != span_s or self._read is not None:
            self._noted_span_s = span_s
            self._noted = []
            self._read = None
        self._noted.append(([metric.name for metric in metrics], _equal(matchers)))

    @property
    def folder(self) -> Path:
        """Folder of the file: the state folder of its exporter, or of a copy."""
        return self._path.parent

    def close(self) -> None:
        self._connection.close()

    def _limits_s(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Return the part of a time range that has samples; it excludes its start."""
        first_s, last_s = self.span_s()
        return max(start_s, first_s) - 0.001, min(end_s, last_s)

    def span_s(self) -> tuple[float, float]:
        """Return the times of the first and the last sample; of an empty file, a range without
        time. Raises FetchError.
        """
        try:
            span_ms = time_span_ms(self._connection)
        except sqlite3.Error as error:
            raise self._cannot_read(error) from error
        return (span_ms[0] / 1_000, span_ms[1] / 1_000) if span_ms else (math.inf, -math.inf)

    def _take(
        self,
        span_s: tuple[float, float],
        names: list[str],
        equal: tuple[Matcher, ...],
        *,
        is_short: bool,
    ) -> list[Series]:
        """Return the series in a span, from a read of all noted requests if this is one of them."""
        try:
            if span_s != self._noted_span_s or (names, equal) not in self._noted:
                return self._select(span_s, [(names, equal)], is_short=is_short)[0]
            if self._read is None:
                self._read = self._select(span_s, self._noted, is_short=is_short)
        except sqlite3.Error as error:
            raise self._cannot_read(error) from error
        return self._read[self._noted.index((names, equal))]

    def _select(
        self, span_s: tuple[float, float], requests: Sequence[_Request], *, is_short: bool
    ) -> list[list[Series]]:
        """Return the series of each request, by one read of the samples."""
        self._forget_if_changed()
        labels = [self._select_labels(names, equal) for names, equal in requests]
        begin_ms, end_ms = (
            round(span_s[0] * 1_000) + 1,
            round(span_s[1] * 1_000),
        )  # a span excludes its start
        wanted = sorted({known for one in labels for known in one})
        read = self._read_new if is_short else self._read_all
        columns = read(begin_ms, end_ms, wanted)
        return [
            [(one, *columns[known]) for known, one in of.items() if known in columns]
            for of in labels
        ]

    def _forget_if_changed(self) -> None:
        """Forget all that is kept if the exporter has written since it was read."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._kept.clear()
            self._labels.clear()

    def _select_labels(
        self, names: list[str], equal: tuple[Matcher, ...]
    ) -> dict[int, dict[str, str]]:
        """Return the labels of series by id, in the order of the names."""
        key = tuple(names), equal
        if key not in self._labels:
            matchers = (Matcher("__name__", "=~", "|".join(names)), *equal)
            found = select_labels(self._connection, "", matchers)
            order = {name: at for at, name in enumerate(names)}
            ordered = sorted(found.items(), key=lambda one: order[one[1]["__name__"]])
            self._labels[key] = dict(ordered)
        return self._labels[key]

    def _read_all(self, begin_ms: int, end_ms: int, wanted: Sequence[int]) -> dict[int, _Columns]:
        return _columns(self._connection, begin_ms, end_ms, wanted)

    def _read_new(self, begin_ms: int, end_ms: int, wanted: Sequence[int]) -> dict[int, _Columns]:
        """Return the samples in [begin_ms, end_ms]; those that follow the kept ones are read, and
        kept as well.
        """
        missing: defaultdict[int, list[int]] = defaultdict(list)
        for known in wanted:
            kept = self._kept.get(known)
            if kept is None or not kept.begin_ms <= begin_ms <= kept.end_ms:
                missing[begin_ms].append(known)
            elif kept.end_ms < end_ms:
                missing[kept.end_ms + 1].append(known)
        for from_ms, series in missing.items():
            columns = self._read_all(from_ms, end_ms, series)
            for known in series:
                t, value = columns.get(known, _NOTHING)
                if from_ms > begin_ms:
                    earlier = self._kept[known].since(begin_ms)
                    t = np.concatenate([earlier[0], t])
                    value = np.concatenate([earlier[1], value])
                self._kept[known] = _KeptSamples(begin_ms, end_ms, t, value)
        found = {known: self._kept[known].between(begin_ms, end_ms) for known in wanted}
        return {known: columns for known, columns in found.items() if len(columns[0])}

    def _cannot_read(self, error: Exception) -> FetchError:
        """Return the error of a file that SQLite cannot read, with the remedy for its cause."""
        text = str(error)
        remedies = (remedy for part, remedy in _REMEDIES.items() if part in text)
        return FetchError(
            f"cannot read {self._path}: {text}", next(remedies, "check the file and its disk")
        )


def _equal(matchers: Mapping[str, Text]) -> tuple[Matcher, ...]:
    """Return the matchers of labels; texts of which a label has one are without `|`."""
    return tuple(
        Matcher(label, "=", text)
        if isinstance(text, str)
        else Matcher(label, "=~", "|".join(sorted(text)))
        for label, text in matchers.items()
    )


def _columns(
    connection: sqlite3.Connection, begin_ms: int, end_ms: int, series: Sequence[int]
) -> dict[int, _Columns]:
    """Return the samples of series in [begin_ms, end_ms] by id; none without samples."""
    compact = is_compact(connection)
    rows = connection.execute(
        f"SELECT series_id, t_ms, value FROM {'changed' if compact else 'samples'} WHERE t_ms "
        "BETWEEN ? AND ?"
        " AND series_id IN (SELECT value FROM json_each(?))",
        (begin_ms, end_ms, json.dumps(list(series))),
    )
    table = np.fromiter(chain.from_iterable(rows), dtype=np.float64).reshape(-1, 3)
    of_series = table[:, 0].astype(np.int64)
    t = table[:, 1]
    value = table[:, 2]
    if compact:
        steady = _steady_columns(list(steady_spans(connection, begin_ms, end_ms, series)))
        of_series, t, value = (
            np.concatenate(both) for both in zip((of_series, t, value), steady, strict=True)
        )
    order = np.lexsort((value, t, of_series))
    of_series = of_series[order]
    t = t[order] / 1_000
    value = value[order]
    borders = [*np.flatnonzero(np.diff(of_series, prepend=-1)), len(of_series)]
    return {int(of_series[a]): (t[a:b], value[a:b]) for a, b in pairwise(borders)}


def _steady_columns(
    spans: Sequence[SteadySpan],
) -> tuple[npt.NDArray[np.int64], FloatArray, FloatArray]:
    """Return series id, time in milliseconds and value of each sample in the spans."""
    lists = {id(times): times for _, _, times, _, _ in spans}
    ends = dict(zip(lists, accumulate(map(len, lists.values())), strict=True))
    ids = np.array([known for known, *_ in spans], dtype=np.int64)
    values = np.array([value for _, value, *_ in spans], dtype=np.float64)
    counts = np.array([right - left for *_, left, right in spans], dtype=np.int64)
    firsts = np.array(
        [ends[id(times)] - len(times) + left for _, _, times, left, _ in spans], dtype=np.int64
    )
    moments = np.fromiter(chain.from_iterable(lists.values()), dtype=np.float64)
    places = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return np.repeat(ids, counts), moments[places], np.repeat(values, counts)
