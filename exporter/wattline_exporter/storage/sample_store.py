"""Tables of the history file: series by template and run, and samples by change."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattline.contract.compact_history import COMPACT_SCHEMA, RUN_PLACEHOLDER, is_compact
from wattline.contract.history import canonical_labels

EPOCH_MS = 3_600_000
"""Length of an epoch, which limits the rows that a reader of one moment has to search."""
_MAX_TEMPLATES = 10_000
_RENAMES = "ALTER TABLE samples RENAME TO changed; ALTER TABLE series RENAME TO label_template"
_PLAIN_RUN = f"""
SELECT 1 FROM label_template
WHERE labels LIKE '%"run_id":%' AND labels NOT LIKE '%"run_id":"{RUN_PLACEHOLDER}"%' LIMIT 1
"""
"""Finds a series of a run that has a template of its own, as a program for plain tables writes."""
_FORMER_SERIES = "INSERT INTO stored_series SELECT id, id, 0 FROM label_template"


@dataclass(frozen=True, slots=True)
class EndedSeries:
    """Series and values of an ended run."""

    series: array[int]
    values: array[float]


@dataclass(frozen=True, slots=True)
class StoredMoment:
    """Samples of one instant; `ended` has those of each ended run.

    `with_ended` is True if all ended runs have a sample at this instant.
    """

    t_ms: int
    series: array[int]
    values: array[float]
    ended: Mapping[str, EndedSeries] = field(default_factory=dict)
    with_ended: bool = True


def prepare_tables(connection: sqlite3.Connection) -> None:
    """Create the tables; convert the plain tables of an earlier version, whose samples stay as they
    are.
    """
    if not is_compact(connection):
        tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if "samples" in tables:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_RENAMES}; {COMPACT_SCHEMA}; {_FORMER_SERIES}; COMMIT;"
            )
    connection.executescript(COMPACT_SCHEMA)


class SeriesIds:
    """Ids of series. `insert_new` writes the rows of new ones; call `confirm` after the commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last = {
            table: self._last_id(table) for table in ("label_template", "run_name", "stored_series")
        }
        self._templates: dict[tuple[str, str], int] = {}
        self._runs: dict[str, int] = {}
        self._series: dict[tuple[int, int], int] = {}
        self._new_templates: dict[int, tuple[str, str]] = {}
        self._new_runs: dict[int, str] = {}
        self._new_series: dict[int, tuple[int, int]] = {}
        self._has_plain_runs = bool(connection.execute(_PLAIN_RUN).fetchone())

    def _last_id(self, table: str) -> int:
        return int(
            self._connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0]
        )

    @property
    def has_new(self) -> bool:
        return bool(self._new_series)

    def find(self, name: str, labels: Mapping[str, str]) -> int:
        """Return the id of a series. Raises sqlite3.Error."""
        run_id = labels.get("run_id")
        if not run_id or self._is_plain(name, labels):
            key = self._template((name, canonical_labels(dict(labels)))), 0
        else:
            key = (
                self._template((name, canonical_labels({**labels, "run_id": RUN_PLACEHOLDER}))),
                self._run(run_id),
            )
        return self._series_id(key)

    def _is_plain(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a series of a run has a template of its own, without the run."""
        if not self._has_plain_runs:
            return False
        return self._find_stored(name, canonical_labels(dict(labels))) is not None

    def _find_stored(self, name: str, labels: str) -> int | None:
        found = self._connection.execute(
            "SELECT id FROM label_template WHERE name = ? AND labels = ?", (name, labels)
        ).fetchone()
        return int(found[0]) if found else None

    def _template(self, key: tuple[str, str]) -> int:
        if key not in self._templates:
            stored = self._find_stored(*key)
            self._templates[key] = self._next("label_template") if stored is None else stored
            if stored is None:
                self._new_templates[self._templates[key]] = key
        return self._templates[key]

    def _run(self, run_id: str) -> int:
        if run_id not in self._runs:
            found = self._connection.execute(
                "SELECT id FROM run_name WHERE run_id = ?", (run_id,)
            ).fetchone()
            self._runs[run_id] = int(found[0]) if found else self._next("run_name")
            if not found:
                self._new_runs[self._runs[run_id]] = run_id
        return self._runs[run_id]

    def _series_id(self, key: tuple[int, int]) -> int:
        if key not in self._series:
            found = None
            if key[1] not in self._new_runs:  # a new run has no series yet
                found = self._connection.execute(
                    "SELECT id FROM stored_series WHERE template = ? AND run = ?", key
                ).fetchone()
            self._series[key] = int(found[0]) if found else self._next("stored_series")
            if not found:
                self._new_series[self._series[key]] = key
        return self._series[key]

    def _next(self, table: str) -> int:
        self._last[table] += 1
        return self._last[table]

    def insert_new(self) -> None:
        """Insert the new rows, in the caller's transaction."""
        insert = self._connection.executemany
        insert(
            "INSERT INTO label_template VALUES (?, ?, ?)",
            [(n, *key) for n, key in self._new_templates.items()],
        )
        insert("INSERT INTO run_name VALUES (?, ?)", self._new_runs.items())
        insert(
            "INSERT INTO stored_series VALUES (?, ?, ?)",
            [(n, *key) for n, key in self._new_series.items()],
        )

    def confirm(self) -> None:
        """Forget the new rows, which are committed, and the ids of series, which callers keep."""
        self._new_templates = {}
        self._new_runs = {}
        self._new_series = {}
        self._runs = {}
        self._series = {}
        if len(self._templates) > _MAX_TEMPLATES:
            self._templates = {}

    def delete_unused(self) -> None:
        """Delete series without samples, and forget all ids."""
        delete = self._connection.execute
        delete(
            "DELETE FROM stored_series"
            " WHERE id NOT IN (SELECT series_id FROM changed UNION SELECT series_id FROM steady)"
        )
        delete("DELETE FROM run_name WHERE id NOT IN (SELECT run FROM stored_series)")
        delete("DELETE FROM label_template WHERE id NOT IN (SELECT template FROM stored_series)")
        self._templates = {}
        self.confirm()


class SampleTables:
    """Writer of samples, in transactions of the caller. After a failed one, the caller calls
    `restart`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        epochs = (
            "SELECT max(coalesce((SELECT max(epoch) FROM steady), 0), coalesce((SELECT "
            "max(epoch) FROM moment), 0))"
        )
        self._epoch = int(connection.execute(epochs).fetchone()[0])
        last = (
            "SELECT max(coalesce((SELECT max(t_ms) FROM changed), 0), coalesce((SELECT "
            "max(t_ms) FROM moment), 0))"
        )
        self.last_ms = int(connection.execute(last).fetchone()[0])
        """Time of the newest sample."""
        self._written_ms = self._epoch_ms = 0
        self._values: dict[int, float] = {}
        self._steady: dict[int, int] = {}
        """Start of the open row of each steady series."""
        self._ended: dict[str, tuple[int, array[int]]] = {}
        """Start of the open rows of each ended run, and its series."""
        self.restart()

    def restart(self) -> None:
        """Start a new epoch, in which no series has a value yet."""
        self._epoch += 1
        self._epoch_ms = self._written_ms = 0
        self._values = {}
        self._steady = {}
        self._ended = {}

    def write(self, moments: list[StoredMoment]) -> None:
        for moment in moments:
            if self._epoch_ms and not (self._written_ms < moment.t_ms <= self._epoch_ms + EPOCH_MS):
                self.restart()
            self._write(moment)

    def _write(self, moment: StoredMoment) -> None:
        t_ms = moment.t_ms
        execute = self._connection.executemany
        if t_ms <= self.last_ms:
            self._connection.execute("DELETE FROM changed WHERE t_ms = ?", (t_ms,))
        self._connection.execute(
            "INSERT OR REPLACE INTO moment VALUES (?, ?, ?)", (t_ms, self._epoch, moment.with_ended)
        )
        now = dict(zip(moment.series, moment.values, strict=True))
        changed, opened = self._changes(now)
        closed = [
            series
            for series in self._steady
            if series not in now or now[series] != self._values[series]
        ]
        execute(
            "UPDATE steady SET end_ms = ? WHERE epoch = ? AND series_id = ? AND begin_ms = ?",
            [
                (self._written_ms, self._epoch, series, self._steady.pop(series))
                for series in closed
            ],
        )
        for series, _ in opened:
            self._steady[series] = t_ms
        execute(
            "INSERT OR REPLACE INTO changed VALUES (?, ?, ?)", [(t_ms, *row) for row in changed]
        )
        execute(
            "INSERT OR REPLACE INTO steady VALUES (?, ?, ?, NULL, ?, 0)",
            [(self._epoch, series, t_ms, value) for series, value in opened],
        )
        self._write_ended(moment)
        self._values = now
        self._epoch_ms = self._epoch_ms or t_ms
        self._written_ms = t_ms
        self.last_ms = max(self.last_ms, t_ms)

    def _changes(
        self, now: dict[int, float]
    ) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Return the samples whose value is new, and those that start to be steady."""
        before = self._values
        changed = []
        opened = []
        for series, value in now.items():
            if before.get(series) != value:
                changed.append((series, value))
            elif series not in self._steady:
                opened.append((series, value))
        return changed, opened

    def _write_ended(self, moment: StoredMoment) -> None:
        """Write one row for each series of a run that has ended, which covers the time until it
        disappears.
        """
        execute = self._connection.executemany
        t_ms = moment.t_ms
        for run_id in moment.ended.keys() - self._ended.keys():
            run = moment.ended[run_id]
            self._ended[run_id] = t_ms, run.series
            execute(
                "INSERT OR REPLACE INTO steady VALUES (?, ?, ?, NULL, ?, 1)",
                [
                    (self._epoch, series, t_ms, value)
                    for series, value in zip(run.series, run.values, strict=True)
                ],
            )
        for run_id in self._ended.keys() - moment.ended.keys():
            begin_ms, series = self._ended.pop(run_id)
            execute(
                "UPDATE steady SET end_ms = ? WHERE epoch = ? AND series_id = ? AND begin_ms = ?",
                [(t_ms - 1, self._epoch, one, begin_ms) for one in series],
            )

    def move(self, begin_ms: int, step_ms: int) -> None:
        """Move the samples since `begin_ms` by `step_ms`; older ones in their new place are
        deleted.
        """
        execute = self._connection.execute
        span = {"begin": begin_ms, "step": step_ms}
        found = execute(
            "SELECT min(epoch), max(epoch) FROM moment WHERE t_ms >= :begin", span
        ).fetchone()
        first, last = (int(epoch or 0) for epoch in found)
        span |= {"first": first, "last": last, "shift": self._epoch + 1 - first}
        overlaps = "epoch BETWEEN :first AND :last AND (end_ms IS NULL OR end_ms >= :begin)"
        execute(
            "INSERT OR REPLACE INTO steady SELECT epoch + :shift, series_id, max(begin_ms, :begin) "
            "+ :step,"
            f" end_ms + :step, value, ended FROM steady WHERE {overlaps}",
            span,
        )
        execute(
            "DELETE FROM steady WHERE epoch BETWEEN :first AND :last AND begin_ms >= :begin", span
        )
        execute(f"UPDATE steady SET end_ms = :begin - 1 WHERE {overlaps}", span)
        for table, epoch in (("changed", ""), ("moment", ", epoch = epoch + :shift")):
            execute(f"DELETE FROM {table} WHERE t_ms >= :begin + :step AND t_ms < :begin", span)
            # through negative times, since the primary key must be unique at each step
            execute(f"UPDATE {table} SET t_ms = -t_ms - :step{epoch} WHERE t_ms >= :begin", span)
            execute(f"UPDATE {table} SET t_ms = -t_ms WHERE t_ms < 0")
        self._epoch = last + span["shift"]
        self.restart()

    def drop_before(self, t_ms: int) -> int:
        """Delete the samples before `t_ms`; return the number of deleted rows."""
        execute = self._connection.execute
        epochs = execute("SELECT DISTINCT epoch FROM moment WHERE t_ms < ?", (t_ms,)).fetchall()
        rows = execute("DELETE FROM changed WHERE t_ms < ?", (t_ms,)).rowcount
        rows += execute("DELETE FROM moment WHERE t_ms < ?", (t_ms,)).rowcount
        for (epoch,) in epochs:
            if execute("SELECT 1 FROM moment WHERE epoch = ? LIMIT 1", (epoch,)).fetchone():
                execute("DELETE FROM steady WHERE epoch = ? AND end_ms < ?", (epoch, t_ms))
            elif epoch != self._epoch:
                execute("DELETE FROM steady WHERE epoch = ?", (epoch,))
        return rows

    def count(self) -> int:
        rows = "SELECT (SELECT count(*) FROM changed) + (SELECT count(*) FROM moment)"
        return int(self._connection.execute(rows).fetchone()[0])

    def time_of_row(self, number: int, before_ms: int) -> int | None:
        """Return the time of the row with this number, from the oldest; None if there are fewer
        before `before_ms`.
        """
        row = self._connection.execute(
            "SELECT t_ms FROM (SELECT t_ms FROM changed WHERE t_ms < :before UNION ALL"
            " SELECT t_ms FROM moment WHERE t_ms < :before) ORDER BY t_ms LIMIT 1 OFFSET :number",
            {"before": before_ms, "number": number},
        ).fetchone()
        return row and int(row[0])
