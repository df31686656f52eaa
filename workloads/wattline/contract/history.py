"""Local history: schema of its SQLite file, and the one form of PromQL query that it supports.

The file is in WAL mode. `samples.t_ms` is Unix time in milliseconds; `series.labels` is canonical
JSON. In the exporter's own file, both are views of compact tables (see `compact_history`).
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from wattline.contract.compact_history import compact_labels, is_compact, steady_samples

SCHEMA_VERSION = 1
META_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
SCHEMA = f"""{META_SCHEMA}
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, labels TEXT NOT NULL, UNIQUE (name, labels)
);
CREATE TABLE IF NOT EXISTS samples (
    t_ms INTEGER NOT NULL, series_id INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (t_ms,
    series_id)
) WITHOUT ROWID;
"""
HISTORY_FILE = "history.sqlite"
STATE_FILE = "state.sqlite"
REQUESTS_FILE = "requests.sqlite"
"""Reported requests; see `wattline.contract.requests.stored`."""

_SELECTOR = re.compile(
    r"^\s*([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(.*)\})?\s*\[(\d+(?:\.\d+)?)(ms|s|m|h|d)\]\s*$",
    re.DOTALL,
)
_MATCHER = re.compile(
    r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.DOTALL
)
_LITERAL_ALTERNATIVES = re.compile(r"[\w:/ |-]*", re.ASCII)
"""Value of `=~` and `!~`: texts separated by `|`, which a client needs to select several metrics in
one query.
"""
_RUN_LABEL = re.compile(r'"run_id":"([^"\\\\]*)"')
"""Run id in canonical labels; quotes in other labels are escaped."""
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}


class QueryError(ValueError):
    """Error of a query that the history does not support; the text is the reason."""


@dataclass(frozen=True)
class Matcher:
    """Label matcher. With `=~` and `!~`, `value` holds literal alternatives separated by `|`."""

    label: str
    operator: Literal["=", "!=", "=~", "!~"]
    value: str

    @cached_property
    def texts(self) -> frozenset[str]:
        """Texts that the label has, or has not."""
        is_plain = self.operator in ("=", "!=")
        return frozenset([self.value] if is_plain else self.value.split("|"))

    @property
    def is_positive(self) -> bool:
        return self.operator in ("=", "=~")

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels match by Prometheus's rules: an absent label is empty."""
        return (labels.get(self.label, "") in self.texts) == self.is_positive


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """Query `name{matchers}[window_s]`; an empty name selects all metrics."""

    name: str
    matchers: tuple[Matcher, ...]
    window_s: float


@dataclass(frozen=True, slots=True)
class Series:
    """Labels and samples (Unix seconds, value) of a series, oldest first."""

    labels: dict[str, str]
    samples: list[tuple[float, float]]


def parse_query(query: str) -> RangeQuery:
    found = _SELECTOR.match(query)
    if not found or not (found[1] or found[2]):
        raise QueryError(f'unsupported query: {query[:200]}; use metric{{label="value"}}[300s]')
    matchers: list[Matcher] = []
    text = found[2] or ""
    position = 0
    while text[position:].strip():
        match = _MATCHER.match(text, position)
        if not match:
            raise QueryError(f"invalid label matcher: {text[position : position + 80]}")
        operator: Any = match[2]
        value = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), match[3], flags=re.DOTALL)
        if operator in ("=~", "!~") and not _LITERAL_ALTERNATIVES.fullmatch(value):
            raise QueryError(
                f"{match[1]}: unsupported regular expression {value[:200]!r}; use texts separated "
                "by |"
            )
        matchers.append(Matcher(match[1], operator, value))
        position = match.end()
    return RangeQuery(found[1] or "", tuple(matchers), float(found[3]) * _SECONDS[found[4]])


def open_read_only(path: Path) -> sqlite3.Connection:
    """Return a read-only connection. Raises `sqlite3.Error` if the file is not a history."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        connection.execute("PRAGMA query_only = ON")
        _check_schema(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        if str(error) == "file is not a database" or str(error).startswith("no such table"):
            raise sqlite3.DatabaseError("it is not a Wattline history") from error
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if not row or int(row[0]) != SCHEMA_VERSION:
        raise sqlite3.DatabaseError(
            f"{path} has schema {row and row[0]}; this version reads schema {SCHEMA_VERSION}"
        )


def select_series(
    connection: sqlite3.Connection,
    query: RangeQuery,
    end_s: float,
    max_samples: int | None = None,
    is_late: Callable[[], bool] = lambda: False,
) -> list[Series]:
    """Return the raw samples of `query` in (end_s − window, end_s], as Prometheus does.

    Raises QueryError where there are more than `max_samples`, or where `is_late` returns true
    before they are selected.
    """
    found = select_labels(connection, query.name, query.matchers, is_late)
    chosen = {series_id: Series(labels, []) for series_id, labels in found.items()}
    begin_ms = round((end_s - query.window_s) * 1_000) + 1
    end_ms = round(end_s * 1_000)
    compact = is_compact(connection)
    rows = connection.execute(
        f"SELECT t_ms, series_id, value FROM {'changed' if compact else 'samples'} WHERE t_ms "
        "BETWEEN ? AND ?"
        " AND series_id IN (SELECT value FROM json_each(?)) ORDER BY t_ms LIMIT ?",
        (
            begin_ms,
            end_ms,
            json.dumps(list(chosen)),
            -1 if max_samples is None else max_samples + 1,
        ),
    )
    steady = steady_samples(connection, begin_ms, end_ms, chosen) if compact else ()
    for number, (t_ms, series_id, value) in enumerate(chain(rows, steady)):
        if max_samples is not None and number >= max_samples:
            raise QueryError(
                f"the query selects more than {max_samples} samples; use a shorter window or fewer "
                "series"
            )
        chosen[series_id].samples.append((t_ms / 1_000, value))
    if compact:
        for series in chosen.values():
            series.samples.sort()
    return [series for series in chosen.values() if series.samples]


def select_labels(
    connection: sqlite3.Connection,
    name: str,
    matchers: Collection[Matcher],
    is_late: Callable[[], bool] = lambda: False,
) -> dict[int, dict[str, str]]:
    """Return the labels of the matching series by id; an empty name selects all metrics. Raises as
    `select_series`.
    """
    names = _texts(matchers, "__name__") if not name else frozenset([name])
    run_ids = _texts(matchers, "run_id")
    select = compact_labels if is_compact(connection) else _plain_labels
    found: dict[int, dict[str, str]] = {}
    for series_id, its_name, labels in select(connection, names, run_ids):
        if is_late():
            raise QueryError("the query took too long; name the metric, or use fewer matchers")
        named = {"__name__": its_name, **labels}
        if all(matcher.accepts(named) for matcher in matchers):
            found[series_id] = named
    return found


def _texts(matchers: Collection[Matcher], label: str) -> frozenset[str] | None:
    """Return the texts of which a label has one, None for any."""
    known = [one.texts for one in matchers if one.label == label and one.is_positive]
    return frozenset.intersection(*known) if known else None


def _plain_labels(
    connection: sqlite3.Connection, names: Collection[str] | None, run_ids: Collection[str] | None
) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yield id, name and labels of the series that may match; None stands for any."""
    wanted = None if names is None else json.dumps(sorted(names))
    chosen = "" if wanted is None else " WHERE name IN (SELECT value FROM json_each(?))"
    rows = connection.execute(
        f"SELECT id, name, labels FROM series{chosen}", () if wanted is None else (wanted,)
    )
    for series_id, name, text in rows:
        if run_ids is not None:
            of_run = _RUN_LABEL.search(text)
            if (of_run[1] if of_run else "") not in run_ids:
                continue
        yield series_id, name, json.loads(text)


def canonical_labels(labels: dict[str, str]) -> str:
    """Return the labels as the `series` table holds them."""
    return json.dumps(labels, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def query_response(series: list[Series]) -> dict[str, Any]:
    """Return the JSON of Prometheus for an instant query over a range vector."""
    result = [
        {"metric": s.labels, "values": [[t, repr(value)] for t, value in s.samples]} for s in series
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}
