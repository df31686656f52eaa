"""Source that reads the exporter's local history from its file."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analyzer.model.samples import Series, tidy
from analyzer.sources.base import FetchError, Progress, metric_names, no_progress
from exporter.contract.compact_history import time_span_ms
from exporter.contract.history import HISTORY_FILE, Matcher, RangeQuery, open_read_only, select_series
from exporter.contract.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

FIRST_CHUNK_S = 3_600.0
LONGEST_CHUNK_S = 43_200.0
MANY_SAMPLES = 200_000
"""Target size of a part: samples from the file are tuples until they are in an array."""


class HistorySource:
    """Local history; `path` is the file or its folder. Raises FetchError if it cannot be read."""

    def __init__(self, path: Path, progress: Progress = no_progress) -> None:
        self._path = path / HISTORY_FILE if path.is_dir() else path
        self._progress = progress
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
    ) -> pd.DataFrame:
        return tidy([one for part in self.parts(metrics, matchers, start_s, end_s) for one in part])

    def parts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> Iterator[list[Series]]:
        """Yield samples in time order; the length of a part adapts to the number of samples."""
        first_s, last_s = self._span_s()
        start_s, end_s = max(start_s, first_s), min(end_s, last_s)
        equal = tuple(Matcher(label, "=", text) for label, text in matchers.items())
        chunk_s, position_s = FIRST_CHUNK_S, start_s - 0.001  # the range excludes its start
        try:
            while position_s < end_s:
                self._progress(metric_names(metrics), (position_s - start_s) / max(end_s - start_s, 1.0))
                until_s = min(position_s + chunk_s, end_s)
                found = [
                    one
                    for metric in metrics
                    for one in self._select(RangeQuery(metric.name, equal, until_s - position_s), until_s)
                ]
                count = sum(len(t) for _, t, _ in found)
                chunk_s = min(chunk_s * max(min(MANY_SAMPLES / max(count, 1), 2.0), 0.25), LONGEST_CHUNK_S)
                yield found
                position_s = until_s
        finally:
            self._progress(metric_names(metrics), 1.0)

    def close(self) -> None:
        self._connection.close()

    def _span_s(self) -> tuple[float, float]:
        """Return the times of the first and the last sample; of an empty file, a range without time."""
        try:
            span_ms = time_span_ms(self._connection)
        except sqlite3.Error as error:
            raise self._cannot_read(error) from error
        return (span_ms[0] / 1_000, span_ms[1] / 1_000) if span_ms else (math.inf, -math.inf)

    def _select(self, query: RangeQuery, end_s: float) -> Iterator[Series]:
        try:
            series = select_series(self._connection, query, end_s)
        except sqlite3.Error as error:
            raise self._cannot_read(error) from error
        for one in series:
            pairs = np.array(one.samples, dtype=np.float64).reshape(-1, 2)
            yield one.labels, pairs[:, 0], pairs[:, 1]

    def _cannot_read(self, error: sqlite3.Error) -> FetchError:
        return FetchError(f"cannot read {self._path}: {error}", "check the file and its disk")
