"""The file history.sqlite: one sample a second around runs, else one in 15 s, bounded in age and
size.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from wattline.contract.history import HISTORY_FILE, META_SCHEMA, SCHEMA_VERSION
from wattline_exporter.sensors.exported_counters import SeriesKey
from wattline_exporter.sensors.readings import Reading, printable
from wattline_exporter.storage.file_versions import check_file_version
from wattline_exporter.storage.sample_store import (
    EndedSeries,
    SampleTables,
    SeriesIds,
    StoredMoment,
    prepare_tables,
)
from wattline_exporter.storage.state_file import StateError, storage_remedy

SPARSE_S = 15.0
AROUND_S = 60.0
KEEP_S = 30 * 86_400.0
KEEP_BYTES = 2 << 30
MAX_WAITING = 600
"""Snapshots kept in memory while the disk cannot be written."""
MOMENTS_A_WRITE = 10
"""Snapshots in one transaction: after an outage, a disk with little space cannot take all of them
at once.
"""
STEP_S = 1.0
"""Difference between wall clock and elapsed time above which the clock was set."""
MAX_STEP_S = 86_400.0
"""Longest step after which samples are moved: beyond, they would not overlap older ones."""
MOVED_S = 7_200.0
"""Time range of written samples that a clock step moves, which limits the work."""
UNTRUSTED_S = 3_600.0
"""Time after a longer step, and after the start, in which no sample is deleted for its age, which
may be wrong.
"""
_TRIM_EVERY_S = 600.0
_SWEEP_EVERY_S = 86_400.0
_SHARE_A_TRIM = 0.05
_AGED_SHARE_A_TRIM = 0.1
_EVER_MS = 1 << 62
_COUNTED_BYTES = 8 << 20
_ROW_BYTES = 32
_SPARE_IDS = 1_000
_PAGES_A_TRIM = 4_096


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """Series of each ended run, by run id; they do not change."""

    series: Mapping[str, Iterable[Reading]] = field(default_factory=dict)
    are_due: bool = True


class History:
    """The open file. All methods block, and run in the history's thread."""

    def __init__(self, folder: Path, keep_bytes: int = KEEP_BYTES) -> None:
        self.path = folder / HISTORY_FILE
        self._keep_bytes = keep_bytes
        self._ids: dict[SeriesKey, int] = {}
        self._ended: dict[str, EndedSeries] = {}
        """Series of the ended runs, which do not change, by run id."""
        self._waiting: deque[StoredMoment] = deque(maxlen=MAX_WAITING)
        self._written_s = self._trimmed_s = self._swept_s = 0.0
        self._dense_until_s = 0.0
        self._offset_s: float | None = None
        self._untrusted_until_s = -math.inf
        """CLOCK_BOOTTIME until which ages are not trusted."""
        self._first_ms: int | None = None
        """First sample of this process, the oldest that it may move."""
        self._to_move_ms = 0
        check_file_version(self.path)
        try:
            self._connection = sqlite3.connect(self.path, check_same_thread=False, timeout=1)
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA cache_size = -512")  # KiB: it is appended to
            self._connection.executescript(META_SCHEMA)
            prepare_tables(self._connection)
            with self._connection as connection:
                rows = [
                    ("schema_version", str(SCHEMA_VERSION)),
                    ("wattline_version", version("wattline")),
                ]
                connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
            self._series_ids = SeriesIds(self._connection)
            self._tables = SampleTables(self._connection)
        except sqlite3.Error as error:
            raise StateError(
                f"cannot use {self.path}: {error}; {storage_remedy(error)}, or use --no-history"
            ) from error

    def add(
        self,
        now_at: float,
        readings: Iterable[Reading],
        *,
        run_open: bool,
        now_s: float | None = None,
        ended: EndedRuns | None = None,
    ) -> None:
        """Add the readings at Unix time `now_at`. Raises sqlite3.Error; the next call retries the
        write.

        `now_s` is the same instant on CLOCK_BOOTTIME, to detect a wall clock that was set. Of the
        ended runs, new ones are added, or all of them if they are due.
        """
        if now_s is not None:
            self._follow_clock(now_at - now_s, now_s)
        batch = list(readings)
        ids = array("q", self._series(batch))
        ended = ended or EndedRuns()
        moment = StoredMoment(
            round(now_at * 1_000),
            ids,
            _values(batch),
            self._ended_series(ended.series),
            ended.are_due,
        )
        self._waiting.append(moment)
        if run_open:
            self._dense_until_s = now_at + AROUND_S
        if (
            self._dense_until_s - AROUND_S <= now_at <= self._dense_until_s
        ):  # False after the clock was set back
            while self._waiting:
                part = list(islice(self._waiting, MOMENTS_A_WRITE))
                self._write(part)
                for _ in part:
                    self._waiting.popleft()
        elif not 0 <= now_at - self._written_s < SPARSE_S:
            self._write([self._waiting[-1]])
        while self._waiting and self._waiting[0].t_ms < (now_at - AROUND_S) * 1_000:
            self._waiting.popleft()
        if not 0 <= now_at - self._trimmed_s < _TRIM_EVERY_S:
            self._trimmed_s = now_at
            self._trim(now_at, by_age=now_s is None or now_s >= self._untrusted_until_s)

    def _follow_clock(self, offset_s: float, now_s: float) -> None:
        """After a wall clock step, move recent samples along, so that they stay in order."""
        step_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        if self._offset_s is None or abs(step_s) > MAX_STEP_S:
            self._untrusted_until_s = now_s + UNTRUSTED_S
        if (
            abs(step_s) > MAX_STEP_S
        ):  # another time begins: later small steps move nothing of the time before
            self._first_ms = round((offset_s + now_s) * 1_000)
            self._to_move_ms = 0
            self._written_s = offset_s + now_s - SPARSE_S
        self._offset_s = offset_s
        if not STEP_S < abs(step_s) <= MAX_STEP_S:
            return
        step_ms = round(step_s * 1_000)
        moved = [replace(snapshot, t_ms=snapshot.t_ms + step_ms) for snapshot in self._waiting]
        self._waiting = deque(moved, maxlen=MAX_WAITING)
        self._dense_until_s += step_s
        if self._first_ms is not None:
            self._to_move_ms += step_ms

    def _ended_series(self, ended: Mapping[str, Iterable[Reading]]) -> dict[str, EndedSeries]:
        """Return the series of the ended runs, found once for each run. Most are known from the
        time before its end, and are no longer needed there.
        """
        self._ended = {
            run_id: self._ended.get(run_id)
            or EndedSeries(
                array("q", [self._ids.pop(_key(each), 0) or self._find(each) for each in readings]),
                _values(readings),
            )
            for run_id, readings in ended.items()
        }
        return self._ended

    def _series(self, readings: list[Reading]) -> list[int]:
        """Return the ids of the readings' series; new series are written with their first
        samples.
        """
        if (
            len(self._ids) > 2 * len(readings) + _SPARE_IDS and not self._series_ids.has_new
        ):  # of forgotten runs
            self._ids.clear()
        ids = []
        for reading in readings:
            series = _key(reading)
            series_id = self._ids.get(series)
            if series_id is None:
                series_id = self._ids[series] = self._find(reading)
            ids.append(series_id)
        return ids

    def _find(self, reading: Reading) -> int:
        pairs = (*zip(reading.metric.labels, reading.labels, strict=True), *reading.extra)
        return self._series_ids.find(
            reading.metric.name, {name: printable(value) for name, value in pairs}
        )

    def _write(self, moments: list[StoredMoment]) -> None:
        if not moments:
            return
        began_ms = moments[0].t_ms
        if self._first_ms is not None:
            began_ms = max(self._first_ms, round((self._written_s - MOVED_S) * 1_000))
        try:
            with self._connection:
                if self._to_move_ms:
                    self._tables.move(began_ms, self._to_move_ms)
                self._series_ids.insert_new()
                self._tables.write(moments)
        except BaseException:
            self._tables.restart()
            with suppress(sqlite3.Error):  # the journal may be what fills the disk
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            raise
        self._series_ids.confirm()
        if self._first_ms is None or self._to_move_ms:
            self._first_ms = began_ms + self._to_move_ms
        self._to_move_ms = 0
        self._written_s = moments[-1].t_ms / 1_000

    def _trim(self, now_at: float, *, by_age: bool) -> None:
        """Delete old samples, the oldest while the file is too large, and once a day series without
        samples.
        """
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
            with self._connection:
                self._series_ids.delete_unused()
            self._tables.restart()
            self._ids.clear()
            self._ended = {}
            self._waiting.clear()
        if dropped:
            self._connection.execute(f"PRAGMA incremental_vacuum({_PAGES_A_TRIM})").fetchall()

    def _end_of_share(self, share: float, before_ms: int) -> int:
        """Return the time at which that share of the samples ends, from the oldest; at most
        `before_ms`.

        By number, not by time: a single sample with a wrong clock stretches the time range.
        """
        t_ms = self._tables.time_of_row(int(share * self._rows()), before_ms)
        return before_ms if t_ms is None else t_ms + 1

    def _rows(self) -> int:
        """Return the number of rows; for a large file a low estimate by its size, since counting
        takes seconds.
        """
        size = self._bytes()
        return size // _ROW_BYTES if size > _COUNTED_BYTES else self._tables.count()

    def _drop_before(self, t_ms: int) -> int:
        with self._connection:
            return self._tables.drop_before(t_ms)

    def _bytes(self) -> int:
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        free = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
        size = self._connection.execute("PRAGMA page_size").fetchone()[0]
        return int((pages - free) * size)

    def close(self) -> None:
        self._connection.close()


def _key(reading: Reading) -> SeriesKey:
    return reading.metric.name, reading.labels, reading.extra


def _values(readings: Iterable[Reading]) -> array[float]:
    return array("d", [reading.value for reading in readings])
