"""The exporter's local history, read from its file without a server."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analyzer.series import tidy
from analyzer.sources.error import SourceError
from exporter.contract.history import HISTORY_FILE, Matcher, RangeQuery, open_read_only, select
from exporter.contract.metrics import Metric


class HistorySource:
    """`path` is the file, or the folder that holds it. Raises SourceError where it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path / HISTORY_FILE if path.is_dir() else path
        self.name = str(self._path)
        if not self._path.exists():
            raise SourceError(
                f"there is no {self._path}", "give --source a history.sqlite, its folder, or a server's http:// address"
            )
        try:
            self._connection = open_read_only(self._path)
        except (sqlite3.Error, ValueError) as error:
            raise SourceError(
                f"cannot read {self._path}: {error}",
                "is it the exporter's history.sqlite, readable for you, from this version of Wattline?",
            ) from error

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> pd.DataFrame:
        equal = tuple(Matcher(label, "=", text) for label, text in matchers.items())
        window_s = end_s - start_s + 0.001  # the range excludes its begin
        series = []
        for metric in metrics:
            try:
                found = select(self._connection, RangeQuery(metric.name, equal, window_s), end_s)
            except sqlite3.Error as error:
                raise SourceError(f"cannot read {self._path}: {error}", "was it moved, or is the disk full?") from error
            for one in found:
                pairs = np.array(one.samples, dtype=np.float64).reshape(-1, 2)
                series.append((one.labels, pairs[:, 0], pairs[:, 1]))
        return tidy(series)

    def close(self) -> None:
        self._connection.close()
