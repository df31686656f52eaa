"""Requests of a run that an exporter stored: its state folder or its run API."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import weakref
from array import array
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any, overload
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from wattline.contract.history import REQUESTS_FILE
from wattline.contract.requests.stored import (
    BATCHES_QUERY,
    DIVISIONS_QUERY,
    SECONDS_QUERY,
    StoredColumns,
    unpack_columns,
)
from wattline_analyzer.core.runs.load import RunNotFoundError
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.core.sources.base import FetchError, SampleSource, is_there
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.requests.stored_division import DividedSeconds
from wattline_analyzer.requests.stored_energies import EnergyFile, not_final
from wattline_analyzer.requests.table import RequestTable
from wattline_exporter.requests.division.energy_rows import unpack_energies
from wattline_exporter.requests.division.spans import RequestSpans, with_first_tokens

_CODES = "dddiii"
_LONGEST_S = 3_600.0
"""Time after a range within which requests that began in it end."""
_NO_RUN = "run_id: no run "
"""Begin of the exporter's answer for a run that it does not know."""
_REMEDY = "report them to the exporter, or give --requests FILE"


def read_stored_requests(
    source: SampleSource, run_id: str, span_s: tuple[float, float] | None = None
) -> RequestTable:
    """Return the requests of a run in the order of arrival; with a time range in Unix seconds,
    those in it.

    Raises FetchError if the source has none, or is a server that stores no requests.
    """
    if isinstance(source, HistorySource):
        batches = _file_batches(source.folder / REQUESTS_FILE, run_id, span_s)
    elif isinstance(source, PrometheusSource):
        batches = _pages(source, run_id, span_s)
    else:
        raise FetchError(f"{source.name} stores no requests", "give --requests FILE")
    try:
        columns = _RequestColumns()
        for batch in batches:
            columns.add(*batch)
    except OSError as error:
        raise FetchError(
            f"cannot hold the requests: {error.strerror}", "free disk space, or set TMPDIR"
        ) from error
    if not len(columns):
        raise FetchError(f"no requests of run {run_id} at {source.name}", _REMEDY)
    table = columns.table()
    if span_s is not None:
        table = table.take((table.spans.ended_s > span_s[0]) & (table.spans.arrived_s < span_s[1]))
    if not len(table.spans):
        raise FetchError(f"no requests of run {run_id} at {source.name} in that time", _REMEDY)
    return table


class StoredIds(Sequence[str]):
    """Ids in temporary files: those of two days of requests need several hundred megabytes."""

    def __init__(self) -> None:
        self._file, self._ends_file = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  # closed below
        for file in (self._file, self._ends_file):
            weakref.finalize(self, file.close)
        self._count = 0
        self._end = 0
        self._ends_file.write(array("q", [0]).tobytes())
        self._ends: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self._order: npt.NDArray[np.int32] | None = None

    def extend(self, ids: Sequence[str]) -> None:
        parts = [name.encode() for name in ids]
        ends = array("q", accumulate(map(len, parts), initial=self._end))[1:]
        self._count = self._count + len(parts)
        self._end = ends[-1] if parts else self._end
        self._file.write(b"".join(parts))
        self._ends_file.write(ends.tobytes())

    def in_order(self, order: npt.NDArray[np.int32]) -> StoredIds:
        """Set the order in which the ids are read; there are no more ids."""
        for file in (self._file, self._ends_file):
            file.flush()
        self._ends = np.memmap(self._ends_file, dtype=np.int64, mode="r")
        self._order = order
        return self

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        place = int(index if self._order is None else self._order[index])
        start, end = self._ends[place : place + 2].tolist()
        return os.pread(self._file.fileno(), end - start, start).decode()


class _RequestColumns:
    """Columns that grow by batches; the requests of two days fit in half a gigabyte."""

    def __init__(self) -> None:
        self._ids = StoredIds()
        self._energies = EnergyFile()
        self._columns = [array(code) for code in _CODES]
        self._label_of = array("i")
        self._numbers: dict[tuple[tuple[tuple[str, str], ...], str | None], int] = {}
        """Distinct labels with the reported role, which is also one of the labels."""

    def __len__(self) -> int:
        return len(self._label_of)

    def add(self, batch: StoredColumns, energies: np.ndarray) -> None:
        """Add requests with rows of ENERGY_TYPE."""
        self._ids.extend(batch.ids)
        self._energies.extend(energies)
        *values, labels, roles = batch.columns
        for column, new in zip(self._columns, values, strict=True):
            column.extend(new if new.typecode == column.typecode else array(column.typecode, new))
        known: dict[tuple[int, int], int] = {}
        for pair in zip(labels, roles, strict=True):
            if pair not in known:
                role = batch.roles[pair[1]]
                named = (
                    batch.labels[pair[0]]
                    if role is None
                    else {**batch.labels[pair[0]], "role": role}
                )
                known[pair] = self._numbers.setdefault(
                    (tuple(sorted(named.items())), role), len(self._numbers)
                )
            self._label_of.append(known[pair])

    def table(self) -> RequestTable:
        """Return the requests; the columns are empty afterwards, so that none is held twice."""
        order = np.argsort(np.frombuffer(self._columns[0]), kind="stable").astype(np.int32)
        started_s, first_s, ended_s, *counts = (self._take(order) for _ in range(len(_CODES)))
        spans, untimed = with_first_tokens(RequestSpans(started_s, first_s, ended_s, *counts))
        return RequestTable(
            ids=self._ids.in_order(order),
            label_sets=[dict(labels) for labels, _ in self._numbers],
            label_of=np.frombuffer(self._label_of, dtype=np.int32)[order],
            spans=spans,
            untimed=untimed,
            roles=[role for _, role in self._numbers],
            energies=self._energies.in_order(order),
        )

    def _take(self, order: npt.NDArray[np.int32]) -> FloatArray:
        column = self._columns.pop(0)
        values: FloatArray = np.frombuffer(column, dtype=column.typecode)[order]
        return values


_Batch = tuple[StoredColumns, np.ndarray]
"""Requests with rows of ENERGY_TYPE."""


def _unpacked(requests: bytes, energies: bytes | None) -> _Batch:
    """Return a batch. Raises ValueError for a body that is damaged."""
    columns = unpack_columns(requests)
    return columns, not_final(len(columns.ids)) if energies is None else unpack_energies(energies)


def _file_batches(path: Path, run_id: str, span_s: tuple[float, float] | None) -> Iterator[_Batch]:
    if not is_there(path):
        raise FetchError(f"no requests of run {run_id}: {path} does not exist", _REMEDY)
    try:
        with closing(_opened(path)) as connection:
            values = (run_id, *_ends_s(span_s), 0)
            for _, body, energies in connection.execute(BATCHES_QUERY, values):
                yield _unpacked(body, energies)
    except (sqlite3.Error, ValueError) as error:
        raise _unreadable(path, error) from error


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)


def _unreadable(path: Path, error: Exception) -> FetchError:
    remedy = "check the file, its permissions and its disk"
    return FetchError(f"cannot read {path}: {error}", remedy)


def _ends_s(span_s: tuple[float, float] | None) -> tuple[float, float]:
    """Return the limits of the ends of requests in a time range; some go on after it."""
    return (-inf, inf) if span_s is None else (max(span_s[0], 0.0), span_s[1] + _LONGEST_S)


def _pages(
    source: PrometheusSource, run_id: str, span_s: tuple[float, float] | None
) -> Iterator[_Batch]:
    """Yield the batches of the run API."""
    after: int | None = 0
    ends_s = _ends_s(span_s)
    span = {} if span_s is None else {"start": f"{ends_s[0]:.3f}", "end": f"{ends_s[1]:.3f}"}
    while after is not None:
        document = _answer(source, run_id, "packed", {"after": str(after), **span})
        for requests, energies in document["batches"]:
            yield _unpacked(b64decode(requests), None if energies is None else b64decode(energies))
        after = document["next"]


def _answer(
    source: PrometheusSource, run_id: str, name: str, parameters: dict[str, str]
) -> dict[str, Any]:
    """Return an answer of the run API. Raises FetchError."""
    path = f"/api/v1/runs/{quote(run_id, safe='')}/requests/{name}"
    response = source.get(path, parameters)
    is_json = "json" in response.headers.get("Content-Type", "")
    document = _parsed(response.content) if is_json else {}
    if response.ok and document.keys() & {"batches", "seconds"}:
        return document
    if response.status_code == 404 and str(document.get("detail")).startswith(_NO_RUN):
        raise RunNotFoundError(f"no run {run_id!r} at {source.name}", "see: analyzer runs")
    if "detail" in document:
        raise FetchError(
            f"{source.name} has no requests of run {run_id}: {document['detail']}", _REMEDY
        )
    raise FetchError(
        f"{source.name} stores samples, but no requests",
        "give --requests FILE, or --source with the exporter that got them, or its state folder",
    )


def read_divided_seconds(source: SampleSource, run_id: str) -> DividedSeconds:
    """Return the energy of a run that its exporter divided. Raises FetchError."""
    if isinstance(source, PrometheusSource):
        return _divided_pages(source, run_id)
    assert isinstance(source, HistorySource), "other sources store no requests"
    path = source.folder / REQUESTS_FILE
    try:
        with closing(_opened(path)) as connection:
            seconds = connection.execute(SECONDS_QUERY, (run_id, 0.0)).fetchall()
            totals = [text for (text,) in connection.execute(DIVISIONS_QUERY, (run_id,))]
        return DividedSeconds.of(seconds, totals)
    except (sqlite3.Error, ValueError) as error:
        raise _unreadable(path, error) from error


def _divided_pages(source: PrometheusSource, run_id: str) -> DividedSeconds:
    seconds: list[list[float]] = []
    while True:
        after_s = seconds[-1][0] if seconds else 0.0
        document = _answer(source, run_id, "divided", {"after": f"{after_s:.9f}"})
        page = [each for each in document["seconds"] if each[0] > after_s]
        seconds += page
        if not page:
            return DividedSeconds.of(seconds, document["totals"])


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
