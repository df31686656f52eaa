"""history.sqlite, written: one sample a second around runs, else one in 15 s; bounded in age and size."""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.contract.history import HISTORY_FILE, SCHEMA, SCHEMA_VERSION, canonical_labels
from exporter.model import Reading, printable
from exporter.storage.push_queue import PushQueue
from exporter.storage.state_file import StateError, storage_remedy

SPARSE_S = 15.0
AROUND_S = 60.0
KEEP_S = 30 * 86_400.0
KEEP_BYTES = 2 << 30
KEEP_WAITING = 600
"""So many snapshots are kept in memory while the disk takes none."""
STEP_S = 1.0
"""A wall clock that goes on by so much more, or less, than the time that passed was set by someone."""
LONGEST_STEP_S = 86_400.0
"""After one that is longer nothing is moved: it would not overlap what is there."""
MOVED_S = 7_200.0
"""So much of what was written last is moved along with the clock, which bounds the work."""
DOUBTED_S = 3_600.0
"""For so long after one, and after the start, nothing is dropped for its age, which may be wrong."""
_TRIM_EVERY_S = 600.0
_SWEEP_EVERY_S = 86_400.0
_SHARE_A_TRIM = 0.05
_AGED_SHARE_A_TRIM = 0.1
_EVER_MS = 1 << 62
_COUNTED_BYTES = 8 << 20
_SAMPLE_BYTES = 32
_SPARE_IDS = 1_000
_PAGES_A_TRIM = 4_096

SeriesKey = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    t_ms: int
    series: array[int]
    values: array[float]


class History:
    """The open file. All methods block; the app calls them in its one thread for the disk."""

    def __init__(self, folder: Path, keep_bytes: int = KEEP_BYTES) -> None:
        self.path = folder / HISTORY_FILE
        self._keep_bytes = keep_bytes
        self._ids: dict[SeriesKey, int] = {}
        self._new: dict[tuple[str, str], int] = {}
        """The ids of series that are not in the file yet, by name and labels."""
        self._waiting: deque[_Snapshot] = deque(maxlen=KEEP_WAITING)
        self._written_s = self._trimmed_s = self._swept_s = 0.0
        self._dense_until_s = 0.0
        self._offset_s: float | None = None
        self._doubted_until_s = -math.inf
        """On CLOCK_BOOTTIME."""
        self._began_ms: int | None = None
        """The first sample that is ours to move."""
        self._to_move_ms = 0
        self.backlog: PushQueue | None = None
        """Of the server that what is kept is pushed to."""
        self.settled_ms = 0
        """Nothing is put in up to there any more: of the last minute seconds are, when a run begins."""
        try:
            self._connection = sqlite3.connect(self.path, check_same_thread=False, timeout=1)
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA cache_size = -512")  # kibibytes: it is written at its end
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
        """Takes in what there is at `now_at` (Unix time). Raises sqlite3.Error; what waits is written the next time.

        `now_s` is the same moment on CLOCK_BOOTTIME: by it a wall clock that was set is told from time that passed.
        """
        if now_s is not None:
            self._follow_clock(now_at - now_s, now_s)
        taken = list(readings)
        self._waiting.append(_Snapshot(round(now_at * 1_000), array("q", self._series(taken)), _values(taken)))
        if run_open:
            self._dense_until_s = now_at + AROUND_S
        if self._dense_until_s - AROUND_S <= now_at <= self._dense_until_s:  # so not where the clock was set back
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
            self._trim(now_at, by_age=now_s is None or now_s >= self._doubted_until_s)

    def follow(self, url: str) -> None:
        """From now on what that server has not acknowledged is known, also where it is moved or dropped."""
        self.backlog = PushQueue(self._connection, url)

    def _follow_clock(self, offset_s: float, now_s: float) -> None:
        """Where the wall clock was set, what was taken in lately lies at other moments now: samples stay in order."""
        step_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        if self._offset_s is None or abs(step_s) > LONGEST_STEP_S:
            self._doubted_until_s = now_s + DOUBTED_S
        self._offset_s = offset_s
        if not STEP_S < abs(step_s) <= LONGEST_STEP_S:
            return
        step_ms = round(step_s * 1_000)
        moved = [replace(snapshot, t_ms=snapshot.t_ms + step_ms) for snapshot in self._waiting]
        self._waiting = deque(moved, maxlen=KEEP_WAITING)
        self._dense_until_s += step_s
        if self._began_ms is not None:
            self._to_move_ms += step_ms

    def _move(self, connection: sqlite3.Connection, begin_ms: int) -> None:
        """Moves the samples since `begin_ms`; older ones in their new place were of the same wrong clock, and go."""
        step_ms = self._to_move_ms
        connection.execute("DELETE FROM samples WHERE t_ms >= ? AND t_ms < ?", (begin_ms + step_ms, begin_ms))
        # by way of negative times, since no two samples may be in one place, not even for a moment
        connection.execute("UPDATE samples SET t_ms = -t_ms - ? WHERE t_ms >= ?", (step_ms, begin_ms))
        connection.execute("UPDATE samples SET t_ms = -t_ms WHERE t_ms < 0")
        if self.backlog:
            self.backlog.move(begin_ms, step_ms)

    def _series(self, readings: list[Reading]) -> list[int]:
        """The ids of the readings' series; new ones are written with their first samples, whenever that may be."""
        if len(self._ids) > 2 * len(readings) + _SPARE_IDS and not self._new:  # of runs that are shown no longer
            self._ids.clear()
        ids = []
        for reading in readings:
            series = (reading.metric.name, reading.labels, reading.extra)
            known = self._ids.get(series)
            if known is None:
                known = self._ids[series] = self._find(reading)
            ids.append(known)
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
        if self._began_ms is not None:
            began_ms = max(self._began_ms, round((self._written_s - MOVED_S) * 1_000))
        with self._connection as connection:
            if self._to_move_ms:
                self._move(connection, began_ms)
            if self.backlog:
                self.backlog.precede(snapshots[0].t_ms)
            connection.executemany("INSERT INTO series VALUES (?, ?, ?)", [(n, *row) for row, n in self._new.items()])
            connection.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", rows)
        self._new.clear()
        if self._began_ms is None or self._to_move_ms:
            self._began_ms = began_ms + self._to_move_ms
        self._to_move_ms = 0
        self._written_s = snapshots[-1].t_ms / 1_000

    def _trim(self, now_at: float, *, by_age: bool) -> None:
        """Drops what is too old, and the oldest while the file is too large; once a day series without samples."""
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
        """Where that share of the samples ends, counted from the oldest; `before_ms` where fewer are older than that.

        By their number, not their time: one sample of a wrong clock makes the time that they span much longer.
        """
        row = self._connection.execute(
            "SELECT t_ms FROM samples WHERE t_ms < ? ORDER BY t_ms LIMIT 1 OFFSET ?",
            (before_ms, int(share * self._samples())),
        ).fetchone()
        return before_ms if row is None else row[0] + 1

    def _samples(self) -> int:
        """How many there are; in a large file, which takes seconds to count, by its size, and rather too few."""
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
