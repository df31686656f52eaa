"""The file history.sqlite: one sample a second around runs, else one in 15 s, bounded in age and size."""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.contract.history import HISTORY_FILE, SCHEMA, SCHEMA_VERSION, canonical_labels
from exporter.energy.counter_wraps import SeriesKey
from exporter.model import Reading, printable
from exporter.storage.push_queue import PushQueue
from exporter.storage.state_file import StateError, storage_remedy

SPARSE_S = 15.0
AROUND_S = 60.0
KEEP_S = 30 * 86_400.0
KEEP_BYTES = 2 << 30
MAX_WAITING = 600
"""Snapshots kept in memory while the disk cannot be written."""
STEP_S = 1.0
"""Difference between wall clock and elapsed time above which the clock was set."""
MAX_STEP_S = 86_400.0
"""Longest step after which samples are moved: beyond, they would not overlap older ones."""
MOVED_S = 7_200.0
"""Time range of written samples that a clock step moves, which limits the work."""
UNTRUSTED_S = 3_600.0
"""Time after a longer step, and after the start, in which no sample is deleted for its age, which may be wrong."""
_TRIM_EVERY_S = 600.0
_SWEEP_EVERY_S = 86_400.0
_SHARE_A_TRIM = 0.05
_AGED_SHARE_A_TRIM = 0.1
_EVER_MS = 1 << 62
_COUNTED_BYTES = 8 << 20
_SAMPLE_BYTES = 32
_SPARE_IDS = 1_000
_PAGES_A_TRIM = 4_096


@dataclass(frozen=True, slots=True)
class _Snapshot:
    t_ms: int
    series: array[int]
    values: array[float]


class History:
    """The open file. All methods block, and run in the history's thread."""

    def __init__(self, folder: Path, keep_bytes: int = KEEP_BYTES) -> None:
        self.path = folder / HISTORY_FILE
        self._keep_bytes = keep_bytes
        self._ids: dict[SeriesKey, int] = {}
        self._new: dict[tuple[str, str], int] = {}
        """Ids of series that are not in the file yet, by name and labels."""
        self._waiting: deque[_Snapshot] = deque(maxlen=MAX_WAITING)
        self._written_s = self._trimmed_s = self._swept_s = 0.0
        self._dense_until_s = 0.0
        self._offset_s: float | None = None
        self._untrusted_until_s = -math.inf
        """CLOCK_BOOTTIME until which ages are not trusted."""
        self._first_ms: int | None = None
        """First sample of this process, the oldest that it may move."""
        self._to_move_ms = 0
        self.backlog: PushQueue | None = None
        """Queue of the server to which the history is pushed."""
        self.settled_ms = 0
        """Time up to which no more samples are added; when a run begins, seconds of the last minute are."""
        try:
            self._connection = sqlite3.connect(self.path, check_same_thread=False, timeout=1)
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA cache_size = -512")  # KiB: it is appended to
            self._connection.executescript(SCHEMA)
            with self._connection as connection:
                row = ("schema_version", str(SCHEMA_VERSION))
                connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", row)
            self._last_id: int = self._connection.execute("SELECT coalesce(max(id), 0) FROM series").fetchone()[0]
            self.settled_ms = self._connection.execute("SELECT coalesce(max(t_ms), 0) FROM samples").fetchone()[0]
        except sqlite3.Error as error:
            raise StateError(
                f"cannot use {self.path}: {error}; {storage_remedy(error)}, or use --no-history"
            ) from error

    def add(self, now_at: float, readings: Iterable[Reading], *, run_open: bool, now_s: float | None = None) -> None:
        """Add the readings at Unix time `now_at`. Raises sqlite3.Error; the next call retries the write.

        `now_s` is the same instant on CLOCK_BOOTTIME, to detect a wall clock that was set.
        """
        if now_s is not None:
            self._follow_clock(now_at - now_s, now_s)
        batch = list(readings)
        self._waiting.append(_Snapshot(round(now_at * 1_000), array("q", self._series(batch)), _values(batch)))
        if run_open:
            self._dense_until_s = now_at + AROUND_S
        if self._dense_until_s - AROUND_S <= now_at <= self._dense_until_s:  # False after the clock was set back
            self._write(list(self._waiting))
            self._waiting.clear()
        elif not 0 <= now_at - self._written_s < SPARSE_S:
            self._write([self._waiting[-1]])
        while self._waiting and self._waiting[0].t_ms < (now_at - AROUND_S) * 1_000:
            self._waiting.popleft()
        if not self._to_move_ms:
            self.settled_ms = self._waiting[0].t_ms - 1 if self._waiting else round(self._written_s * 1_000)
        if not 0 <= now_at - self._trimmed_s < _TRIM_EVERY_S:
            self._trimmed_s = now_at
            self._trim(now_at, by_age=now_s is None or now_s >= self._untrusted_until_s)

    def follow(self, url: str) -> None:
        """Track the samples that the server with this URL has not acknowledged, also when they are moved or deleted."""
        self.backlog = PushQueue(self._connection, url)

    def _follow_clock(self, offset_s: float, now_s: float) -> None:
        """After a wall clock step, move recent samples along, so that they stay in order."""
        step_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        if self._offset_s is None or abs(step_s) > MAX_STEP_S:
            self._untrusted_until_s = now_s + UNTRUSTED_S
        self._offset_s = offset_s
        if not STEP_S < abs(step_s) <= MAX_STEP_S:
            return
        step_ms = round(step_s * 1_000)
        moved = [replace(snapshot, t_ms=snapshot.t_ms + step_ms) for snapshot in self._waiting]
        self._waiting = deque(moved, maxlen=MAX_WAITING)
        self._dense_until_s += step_s
        if self._first_ms is not None:
            self._to_move_ms += step_ms

    def _move(self, connection: sqlite3.Connection, begin_ms: int) -> None:
        """Move the samples since `begin_ms`; older ones in their new place had the same wrong clock and are deleted."""
        step_ms = self._to_move_ms
        connection.execute("DELETE FROM samples WHERE t_ms >= ? AND t_ms < ?", (begin_ms + step_ms, begin_ms))
        # through negative times, since the primary key must be unique at each step
        connection.execute("UPDATE samples SET t_ms = -t_ms - ? WHERE t_ms >= ?", (step_ms, begin_ms))
        connection.execute("UPDATE samples SET t_ms = -t_ms WHERE t_ms < 0")
        if self.backlog:
            self.backlog.move(begin_ms, step_ms)

    def _series(self, readings: list[Reading]) -> list[int]:
        """Return the ids of the readings' series; new series are written with their first samples."""
        if len(self._ids) > 2 * len(readings) + _SPARE_IDS and not self._new:  # most are of forgotten runs
            self._ids.clear()
        ids = []
        for reading in readings:
            series = (reading.metric.name, reading.labels, reading.extra)
            series_id = self._ids.get(series)
            if series_id is None:
                series_id = self._ids[series] = self._find(reading)
            ids.append(series_id)
        return ids

    def _find(self, reading: Reading) -> int:
        pairs = (*zip(reading.metric.labels, reading.labels, strict=True), *reading.extra)
        labels = canonical_labels({name: printable(value) for name, value in pairs})
        row = (reading.metric.name, labels)
        found = self._connection.execute("SELECT id FROM series WHERE name = ? AND labels = ?", row).fetchone()
        if found:
            return int(found[0])
        if row not in self._new:
            self._last_id += 1
            self._new[row] = self._last_id
        return self._new[row]

    def _write(self, snapshots: list[_Snapshot]) -> None:
        rows = (
            (snapshot.t_ms, series, value)
            for snapshot in snapshots
            for series, value in zip(snapshot.series, snapshot.values, strict=True)
        )
        if not snapshots:
            return
        began_ms = snapshots[0].t_ms
        if self._first_ms is not None:
            began_ms = max(self._first_ms, round((self._written_s - MOVED_S) * 1_000))
        with self._connection as connection:
            if self._to_move_ms:
                self._move(connection, began_ms)
            if self.backlog:
                self.backlog.rewind_before(snapshots[0].t_ms)
            connection.executemany("INSERT INTO series VALUES (?, ?, ?)", [(n, *row) for row, n in self._new.items()])
            connection.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", rows)
        self._new.clear()
        if self._first_ms is None or self._to_move_ms:
            self._first_ms = began_ms + self._to_move_ms
        self._to_move_ms = 0
        self._written_s = snapshots[-1].t_ms / 1_000

    def _trim(self, now_at: float, *, by_age: bool) -> None:
        """Delete old samples, the oldest while the file is too large, and once a day series without samples."""
        dropped = 0
        if by_age:
            oldest_ms = round((now_at - KEEP_S) * 1_000)
            dropped = self._drop_before(self._end_of_share(_AGED_SHARE_A_TRIM, oldest_ms))
        while self._bytes() > self._keep_bytes:
            end_ms = self._end_of_share(_SHARE_A_TRIM, _EVER_MS)
            if end_ms == _EVER_MS:
                break
            dropped += self._drop_before(end_ms)
        if dropped and not 0 <= now_at - self._swept_s < _SWEEP_EVERY_S:
            self._swept_s = now_at
            with self._connection as connection:
                connection.execute("DELETE FROM series WHERE id NOT IN (SELECT DISTINCT series_id FROM samples)")
            self._ids.clear()
            self._new.clear()
            self._waiting.clear()
        if dropped:
            self._connection.execute(f"PRAGMA incremental_vacuum({_PAGES_A_TRIM})").fetchall()

    def _end_of_share(self, share: float, before_ms: int) -> int:
        """Return the time at which that share of the samples ends, from the oldest; at most `before_ms`.

        By number, not by time: a single sample with a wrong clock stretches the time range.
        """
        row = self._connection.execute(
            "SELECT t_ms FROM samples WHERE t_ms < ? ORDER BY t_ms LIMIT 1 OFFSET ?",
            (before_ms, int(share * self._samples())),
        ).fetchone()
        return before_ms if row is None else row[0] + 1

    def _samples(self) -> int:
        """Return the number of samples; for a large file a low estimate by its size, since counting takes seconds."""
        size = self._bytes()
        if size > _COUNTED_BYTES:
            return size // _SAMPLE_BYTES
        return int(self._connection.execute("SELECT count(*) FROM samples").fetchone()[0])

    def _drop_before(self, t_ms: int) -> int:
        with self._connection as connection:
            if self.backlog:
                self.backlog.drop(t_ms)
            return connection.execute("DELETE FROM samples WHERE t_ms < ?", (t_ms,)).rowcount

    def _bytes(self) -> int:
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        free = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
        size = self._connection.execute("PRAGMA page_size").fetchone()[0]
        return int((pages - free) * size)

    def close(self) -> None:
        self._connection.close()


def _values(readings: list[Reading]) -> array[float]:
    return array("d", [reading.value for reading in readings])
