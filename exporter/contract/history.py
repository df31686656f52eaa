"""The local history: its file, and the one form of query that it answers, in Prometheus's dialect.

The file is SQLite in WAL mode. `samples.t_ms` is Unix time in milliseconds; `series.labels` is canonical JSON.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from exporter.contract.pattern import Pattern, PatternError

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, labels TEXT NOT NULL, UNIQUE (name, labels)
);
CREATE TABLE IF NOT EXISTS samples (
    t_ms INTEGER NOT NULL, series_id INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (t_ms, series_id)
) WITHOUT ROWID;
"""
HISTORY_FILE = "history.sqlite"
STATE_FILE = "state.sqlite"

_SELECTOR = re.compile(
    r"^\s*([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(.*)\})?\s*\[(\d+(?:\.\d+)?)(ms|s|m|h|d)\]\s*$", re.DOTALL
)
_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.DOTALL)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}


class QueryError(ValueError):
    """The query is not of the one form that the history answers; the text says why."""


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    operator: Literal["=", "!=", "=~", "!~"]
    value: str
    pattern: Pattern | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raises PatternError."""
        if self.operator in ("=~", "!~"):
            object.__setattr__(self, "pattern", Pattern(self.value))

    def accepts(self, labels: dict[str, str]) -> bool:
        """Prometheus's rules: an absent label is empty, a regular expression matches the whole value."""
        value = labels.get(self.label, "")
        if self.pattern is None:
            return (value == self.value) == (self.operator == "=")
        return self.pattern.matches(value) == (self.operator == "=~")


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """`name{matchers}[window_s]`; an empty name is any."""

    name: str
    matchers: tuple[Matcher, ...]
    window_s: float


@dataclass(frozen=True, slots=True)
class Series:
    """`samples` are (Unix seconds, value), oldest first."""

    labels: dict[str, str]
    samples: list[tuple[float, float]]


def parse(query: str) -> RangeQuery:
    found = _SELECTOR.match(query)
    if not found or not (found[1] or found[2]):
        raise QueryError(f'this history answers only metric{{label="value"}}[300s], not: {query[:200]}')
    matchers: list[Matcher] = []
    text, position = found[2] or "", 0
    while text[position:].strip():
        match = _MATCHER.match(text, position)
        if not match:
            raise QueryError(f"cannot read the label matcher at: {text[position : position + 80]}")
        operator: Any = match[2]
        value = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), match[3], flags=re.DOTALL)
        try:
            matchers.append(Matcher(match[1], operator, value))
        except PatternError as error:
            raise QueryError(f"{match[1]}: not a regular expression: {value[:200]!r} ({error})") from error
        position = match.end()
    return RangeQuery(found[1] or "", tuple(matchers), float(found[3]) * _SECONDS[found[4]])


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. Raises `sqlite3.Error` where the file is not a history."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        connection.execute("PRAGMA query_only = ON")
        _check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if not found or int(found[0]) != SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"{path}: schema {found and found[0]}, this version reads {SCHEMA_VERSION}")


def select(
    connection: sqlite3.Connection,
    query: RangeQuery,
    end_s: float,
    most: int | None = None,
    late: Callable[[], bool] = lambda: False,
) -> list[Series]:
    """The raw samples of `query` in (end_s − window, end_s], as Prometheus would give them.

    Raises QueryError where there are more than `most`, or where it is `late` before they are found.
    """
    where, parameters = ("WHERE name = ?", [query.name]) if query.name else ("", [])
    candidates = connection.execute(f"SELECT id, name, labels FROM series {where}", parameters).fetchall()  # noqa: S608  # a constant
    chosen: dict[int, Series] = {}
    for series_id, name, text in candidates:
        if late():
            raise QueryError("it took too long; name the metric, or use simpler matchers")
        labels = {"__name__": name, **json.loads(text)}
        if all(matcher.accepts(labels) for matcher in query.matchers):
            chosen[series_id] = Series(labels, [])
    rows = connection.execute(
        "SELECT series_id, t_ms, value FROM samples WHERE t_ms > ? AND t_ms <= ?"
        " AND series_id IN (SELECT value FROM json_each(?)) ORDER BY t_ms LIMIT ?",
        (
            round((end_s - query.window_s) * 1_000),
            round(end_s * 1_000),
            json.dumps(list(chosen)),
            -1 if most is None else most + 1,
        ),
    )
    for number, (series_id, t_ms, value) in enumerate(rows):
        if most is not None and number >= most:
            raise QueryError(f"these are more than {most} samples; ask for a shorter window or fewer series")
        chosen[series_id].samples.append((t_ms / 1_000, value))
    return [series for series in chosen.values() if series.samples]


def canonical(labels: dict[str, str]) -> str:
    """The labels as they stand in the `series` table."""
    return json.dumps(labels, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def answer(series: list[Series]) -> dict[str, Any]:
    """Prometheus's JSON of an instant query over a range vector."""
    result = [{"metric": s.labels, "values": [[t, repr(value)] for t, value in s.samples]} for s in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}
