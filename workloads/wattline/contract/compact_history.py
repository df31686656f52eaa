"""Compact tables of the exporter's history, and the reading of their samples.

Most series change rarely. The first sample of a value is a row of `changed`. While the value stays
the same, a row of `steady` covers all later moments up to `end_ms`, or up to the last moment of its
epoch. `moment` lists the times at which the exporter wrote samples. The series of ended runs
(`ended` = 1) have samples only at the first moment, and at moments `with_ended`. An epoch is a span
of time that one process wrote in order. The views `samples` and `series` show the samples and
series as in the plain tables of `SCHEMA`, which earlier versions wrote.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator

RUN_PLACEHOLDER = "*"
"""Value of `run_id` in a template of labels; it is no valid run id."""
COMPACT_SCHEMA = """
CREATE TABLE IF NOT EXISTS label_template (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, labels TEXT NOT NULL, UNIQUE (name, labels)
);
CREATE TABLE IF NOT EXISTS run_name (id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS stored_series (
    id INTEGER PRIMARY KEY, template INTEGER NOT NULL, run INTEGER NOT NULL, UNIQUE (template, run)
);
CREATE TABLE IF NOT EXISTS changed (
    t_ms INTEGER NOT NULL, series_id INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (t_ms,
    series_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS moment (t_ms INTEGER PRIMARY KEY, epoch INTEGER NOT NULL,
    with_ended INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS steady (
    epoch INTEGER NOT NULL, series_id INTEGER NOT NULL, begin_ms INTEGER NOT NULL, end_ms INTEGER,
    value REAL NOT NULL,
    ended INTEGER NOT NULL, PRIMARY KEY (epoch, series_id, begin_ms)
) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS series AS
    SELECT s.id AS id, t.name AS name, CASE s.run WHEN 0 THEN t.labels
        ELSE replace(t.labels, '"run_id":"*"', '"run_id":"' || r.run_id || '"') END AS labels
    FROM stored_series s JOIN label_template t ON t.id = s.template
    LEFT JOIN run_name r ON r.id = s.run;
CREATE VIEW IF NOT EXISTS samples AS
    SELECT t_ms, series_id, value FROM changed
    UNION ALL
    SELECT m.t_ms, s.series_id, s.value FROM moment m JOIN steady s
        ON s.epoch = m.epoch AND s.begin_ms <= m.t_ms AND (s.end_ms IS NULL OR s.end_ms >= m.t_ms)
            AND (s.ended <= m.with_ended OR s.begin_ms = m.t_ms);
CREATE TRIGGER IF NOT EXISTS insert_series INSTEAD OF INSERT ON series BEGIN
    INSERT OR IGNORE INTO label_template (name, labels) VALUES (NEW.name, NEW.labels);
    INSERT INTO stored_series VALUES (
        NEW.id, (SELECT id FROM label_template WHERE name = NEW.name AND labels = NEW.labels), 0
    );
END;
CREATE TRIGGER IF NOT EXISTS insert_samples INSTEAD OF INSERT ON samples BEGIN
    INSERT OR REPLACE INTO changed VALUES (NEW.t_ms, NEW.series_id, NEW.value);
END;
CREATE TRIGGER IF NOT EXISTS delete_samples INSTEAD OF DELETE ON samples BEGIN
    DELETE FROM changed WHERE t_ms = OLD.t_ms AND series_id = OLD.series_id;
END;
"""
"""Tables, and views with which programs for the plain tables can read and write them."""
_FEW_SERIES = 64
"""Number of series up to which each is looked up, instead of reading all of an epoch."""

Sample = tuple[int, int, float]
"""Time in milliseconds, series id, value."""
SteadySpan = tuple[int, float, list[int], int, int]
"""Series id, value, times in milliseconds, and the first and the end position of those at which it
has the value.
"""


def is_compact(connection: sqlite3.Connection) -> bool:
    found = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'steady'"
    ).fetchone()
    return found is not None


def compact_labels(
    connection: sqlite3.Connection, names: Collection[str] | None, run_ids: Collection[str] | None
) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yield id, name and labels of series of `names`, of runs `run_ids` or in no table of runs.

    None stands for any. The cost grows with the templates of the names and with the result.
    """
    conditions = []
    if names is not None:
        conditions.append("t.name IN (SELECT value FROM json_each(:names))")
    if run_ids is not None:
        conditions.append(
            "s.run IN (SELECT 0 UNION ALL SELECT id FROM run_name"
            " WHERE run_id IN (SELECT value FROM json_each(:run_ids)))"
        )
    # without CROSS, SQLite may read all series first
    rows = connection.execute(
        "SELECT s.id, t.name, t.labels, r.run_id FROM label_template t"
        " CROSS JOIN stored_series s ON s.template = t.id LEFT JOIN run_name r ON r.id = s.run"
        f" WHERE {' AND '.join(conditions) or '1'}",
        {"names": json.dumps(sorted(names or ())), "run_ids": json.dumps(sorted(run_ids or ()))},
    )
    templates: dict[str, dict[str, str]] = {}
    for series_id, name, text, run_id in rows:
        if text not in templates:
            templates[text] = json.loads(text)
        labels = templates[text]
        yield series_id, name, labels if run_id is None else {**labels, "run_id": run_id}


def time_span_ms(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """Return the times of the first and of the last sample; None for an empty history."""
    tables = ("changed", "moment") if is_compact(connection) else ("samples",)
    spans = [
        connection.execute(
            f"SELECT (SELECT min(t_ms) FROM {table}), (SELECT max(t_ms) FROM {table})"
        ).fetchone()
        for table in tables
    ]
    firsts, lasts = zip(*spans, strict=True)
    known = (
        [t_ms for t_ms in firsts if t_ms is not None],
        [t_ms for t_ms in lasts if t_ms is not None],
    )
    return (min(known[0]), max(known[1])) if known[0] else None


def steady_samples(
    connection: sqlite3.Connection,
    begin_ms: int,
    end_ms: int,
    series: Collection[int] | None = None,
) -> Iterator[Sample]:
    """Yield the samples in [begin_ms, end_ms] that are stored in `steady`, by series, then time
    within each row.
    """
    for series_id, value, times, left, right in steady_spans(connection, begin_ms, end_ms, series):
        for t_ms in times[left:right]:
            yield t_ms, series_id, value


def steady_spans(
    connection: sqlite3.Connection,
    begin_ms: int,
    end_ms: int,
    series: Collection[int] | None = None,
) -> Iterator[SteadySpan]:
    """Yield the rows of `steady` in [begin_ms, end_ms] with the times of their samples; rows share
    lists of times.
    """
    moments: dict[int, tuple[list[int], list[int]]] = {}
    for t_ms, epoch, with_ended in connection.execute(
        "SELECT t_ms, epoch, with_ended FROM moment WHERE t_ms BETWEEN ? AND ? ORDER BY t_ms",
        (begin_ms, end_ms),
    ):
        of_epoch = moments.setdefault(epoch, ([], []))
        of_epoch[0].append(t_ms)
        if with_ended:
            of_epoch[1].append(t_ms)
    column = "series_id" if series is not None and len(series) <= _FEW_SERIES else "+series_id"
    chosen = "" if series is None else (f" AND {column} IN (SELECT value FROM json_each(:series))")
    query = (
        "SELECT series_id, begin_ms, end_ms, value, ended FROM steady WHERE epoch = :epoch AND "
        "begin_ms <= :last"
        f" AND (end_ms IS NULL OR end_ms >= :first){chosen}"
    )
    ids = json.dumps(None if series is None else list(series))
    for epoch, times in moments.items():
        span = {"epoch": epoch, "first": times[0][0], "last": times[0][-1], "series": ids}
        for series_id, from_ms, until_ms, value, ended in connection.execute(query, span):
            its = times[ended]
            left = bisect_left(its, from_ms)
            right = len(its) if until_ms is None else bisect_right(its, until_ms)
            if ended and from_ms not in its[left : left + 1] and _contains(times[0], from_ms):
                yield series_id, value, [from_ms], 0, 1
            yield series_id, value, its, left, right


def _contains(times: list[int], t_ms: int) -> bool:
    place = bisect_left(times, t_ms)
    return place < len(times) and times[place] == t_ms
