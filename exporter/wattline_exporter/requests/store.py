"""The open file requests.sqlite: the requests of a call are in it before the answer."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wattline.contract.history import REQUESTS_FILE
from wattline.contract.requests.served import ServedRequest
from wattline.contract.requests.stored import (
    BATCHES_QUERY,
    DIVISIONS_QUERY,
    REQUESTS_SCHEMA,
    REQUESTS_SCHEMA_VERSION,
    SECONDS_QUERY,
    pack_requests,
    unpack_columns,
    unpack_requests,
)
from wattline_exporter.requests.energy_trail import TrailPart
from wattline_exporter.sensors.readings import ReadingKey, RunError
from wattline_exporter.storage.file_versions import check_file_version

if TYPE_CHECKING:  # numpy is imported with the first request
    import numpy as np

    from wattline_exporter.requests.division.columns import RequestColumns
    from wattline_exporter.requests.final import FinalEnergy

KEEP_S = 30 * 86_400.0
KEEP_BYTES = 1 << 30
MAX_QUEUED = 64
"""Calls that wait for the disk; further ones get 429."""
WITHIN_S = 5.0
"""Longest wait of a call for the disk."""
SEARCH_S = 1.0
_STEPS = 100
"""Longest search for a request, and the steps of SQLite between two checks of the time."""
_PAGE_BYTES = 4 << 20
PAGE_SECONDS = 50_000
"""Size of the batches and number of the divided seconds in an answer."""
_TRIM_EVERY_S = 600.0
_SHARE_A_TRIM = 0.05

Counters = dict[ReadingKey, float]


@dataclass(eq=False, slots=True)
class _Waiting:
    run_id: str
    requests: RequestColumns
    saved: asyncio.Future[int]


class StoredPage(NamedTuple):
    requests: list[ServedRequest]
    next: str | None
    """Start of the next page; None at the end."""


class FoundRequest(NamedTuple):
    """Run of a stored request, and its energy, if that is final and kept."""

    run_id: str
    energy: FinalEnergy | None


DividedSecond = tuple[str, float, float, float, float, bool]
"""Run, begin and end in Unix time, joules, idle joules, and whether the idle power is known."""


class DividedState(NamedTuple):
    """Divided energy since the last save.

    `divided` has the batch up to which each run's requests are in the counters, `divided_at` the
    Unix time up to which its energy is divided, `final` rows of FINAL_TYPE of whole batches,
    `divisions` the JSON of the sums by run and begin, and `trails` the energies of GPUs.
    """

    counters: Counters
    divided: dict[str, int]
    divided_at: dict[str, float]
    final: list[np.ndarray]
    seconds: list[DividedSecond]
    divisions: dict[tuple[str, float], str]
    trails: SavedTrails


class SavedRequests(NamedTuple):
    """State that a previous exporter left: counters, requests and energies of GPUs."""

    counters: Counters
    divided_at: dict[str, float]
    """Unix time up to which the energy of each run was divided."""
    undivided: list[tuple[str, int, RequestColumns]]
    """Requests whose energy was not divided, by run and batch."""
    recent: list[tuple[str, int, RequestColumns]]
    """Divided requests that ended within the window, or after the first of those without energy
    began, by run and batch.
    """
    trails: dict[str, TrailPart]
    """Energies of GPUs at Unix times, by UUID."""


class SavedTrails(NamedTuple):
    """New energies of GPUs by UUID, and the time from which they are kept, all at Unix times."""

    parts: dict[str, TrailPart]
    from_at: float


class RequestStore:
    """Batches of requests in the folder. The file is made for the first request. Blocking parts run
    in one thread.

    Raises FileVersionError.
    """

    def __init__(
        self, folder: Path, keep_bytes: int = KEEP_BYTES, within_s: float = WITHIN_S
    ) -> None:
        self.path = folder / REQUESTS_FILE
        check_file_version(self.path)
        self._keep_bytes = keep_bytes
        self.within_s = within_s
        self._thread = ThreadPoolExecutor(1, "requests")
        self._connection: sqlite3.Connection | None = None
        self._queue: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._trimmed_s = 0.0

    def load(self, window_s: float) -> SavedRequests:
        """Return the state of a previous exporter. Raises sqlite3.Error and ValueError."""
        if not self.path.exists():
            return SavedRequests({}, {}, [], [], {})
        read = self._open().execute
        from wattline_exporter.requests.division.columns import RequestColumns

        counters = {
            (name, tuple(json.loads(labels))): value
            for name, labels, value in read("SELECT name, labels, value FROM request_counter")
        }
        divided_at = dict(read("SELECT run_id, until_at FROM divided_time"))
        batches = (
            "SELECT batch.run_id, id, body FROM batch "
            "LEFT JOIN divided ON divided.run_id = batch.run_id WHERE id "
        )
        undivided = [
            (run_id, number, RequestColumns.of(unpack_requests(body)))
            for run_id, number, body in read(
                f"{batches} > coalesce(divided.batch_id, 0) ORDER BY id"
            )
        ]
        begins_at = [float(requests.started_at.min()) for _, _, requests in undivided]
        recent = [
            (run_id, number, RequestColumns.of(unpack_requests(body)))
            for run_id, number, body in read(
                f"{batches} <= divided.batch_id AND last_end > ? ORDER BY id",
                (min([time.time() - window_s, *begins_at]),),
            )
        ]
        trails: dict[str, TrailPart] = {}
        for uuid, body in read("SELECT uuid, body FROM energy_trail ORDER BY uuid, last_at"):
            trails[uuid] = trails.get(uuid, TrailPart.empty()).plus(TrailPart.unpacked(body))
        return SavedRequests(counters, divided_at, undivided, recent, trails)

    def check_room(self) -> None:
        """Raise RunError while too many calls wait for the disk."""
        if len(self._queue) >= MAX_QUEUED:
            raise RunError(
                429, f"{MAX_QUEUED} calls wait for the disk; send the requests again later", 1
            )

    async def add(self, run_id: str, requests: RequestColumns) -> int:
        """Save a batch, in one write with all that came meanwhile. Return its number.

        Raises sqlite3.Error and OSError.
        """
        waiting = _Waiting(run_id, requests, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_queue())
        return await waiting.saved

    async def wait(self, saving: Collection[asyncio.Task[int]]) -> None:
        """Wait for calls of `add`, which continue in any case. Raises RunError if one failed, or
        takes too long.
        """
        done, late = await asyncio.wait(saving, timeout=self.within_s)
        errors = [error for each in done if (error := each.exception())]
        if errors or late:
            cause = str(errors[0]) if errors else "the disk does not answer"
            raise RunError(
                503,
                f"the requests are not saved: {cause}; check the disk that holds --state.path",
                5,
            )

    async def _write_queue(self) -> None:
        while self._queue:
            batches = self._queue
            self._queue = []
            try:
                numbers = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._write, batches
                )
            except (sqlite3.Error, OSError) as error:
                for each in batches:
                    each.saved.set_exception(error)
            else:
                for each, number in zip(batches, numbers, strict=True):
                    each.saved.set_result(number)

    def _write(self, batches: Sequence[_Waiting]) -> list[int]:
        numbers = []
        with self._open() as connection:
            for each in batches:
                requests = each.requests
                body = pack_requests(requests.ids, *requests.packed())
                row = (each.run_id, *requests.end_range, len(requests), body)
                cursor = connection.execute(
                    "INSERT INTO batch (run_id, first_end, last_end, requests, body) VALUES (?, ?, "
                    "?, ?, ?)",
                    row,
                )
                numbers.append(cursor.lastrowid or 0)
        if not 0 <= time.monotonic() - self._trimmed_s < _TRIM_EVERY_S:
            self._trimmed_s = time.monotonic()
            with suppress(sqlite3.Error):
                self._trim(time.time())
        return numbers

    def _trim(self, now_at: float) -> None:
        """Delete batches that are too old, and the oldest ones of a file that is too large."""
        with self._open() as connection:
            connection.execute("DELETE FROM batch WHERE last_end < ?", (now_at - KEEP_S,))
            connection.execute("DELETE FROM divided_time WHERE until_at < ?", (now_at - KEEP_S,))
            connection.execute(
                "DELETE FROM divided_slot WHERE run_id IN (SELECT run_id FROM division) "
                "AND begin_at < ?",
                (now_at - KEEP_S,),
            )
            connection.execute(
                "DELETE FROM division WHERE NOT EXISTS "
                "(SELECT 1 FROM divided_slot WHERE divided_slot.run_id = division.run_id)"
            )
            pages, size, free = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "page_size", "freelist_count")
            )
            if (pages - free) * size > self._keep_bytes:
                _delete_oldest(connection, "batch", "id")
                _delete_oldest(connection, "divided_slot", "begin_at")
        self._open().execute("PRAGMA incremental_vacuum(4096)").fetchall()

    async def save(self, state: DividedState) -> bool:
        """Save the divided energy in one transaction. Return False if that failed."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._save, state)
        except (sqlite3.Error, OSError):
            return False
        return True

    def _save(self, state: DividedState) -> None:
        counters = [
            (name, json.dumps(labels), value) for (name, labels), value in state.counters.items()
        ]
        divisions = [(*key, totals) for key, totals in state.divisions.items()]
        with self._open() as connection:
            write = connection.executemany
            write("INSERT OR REPLACE INTO request_counter VALUES (?, ?, ?)", counters)
            write("INSERT OR REPLACE INTO divided VALUES (?, ?)", state.divided.items())
            write("INSERT OR REPLACE INTO divided_time VALUES (?, ?)", state.divided_at.items())
            write("INSERT OR REPLACE INTO divided_slot VALUES (?, ?, ?, ?, ?, ?)", state.seconds)
            write("INSERT OR REPLACE INTO division VALUES (?, ?, ?)", divisions)
            write(
                "INSERT OR REPLACE INTO energy_trail VALUES (?, ?, ?)",
                [
                    (uuid, each.times_s[-1], each.packed())
                    for uuid, each in state.trails.parts.items()
                ],
            )
            connection.execute(
                "DELETE FROM energy_trail WHERE last_at < ?", (state.trails.from_at,)
            )
            if state.final:
                from wattline_exporter.requests.final import save_energies

                save_energies(connection, state.final)

    def page(
        self, run_id: str, start: float, end: float, limit: int, after: tuple[int, int]
    ) -> StoredPage:
        """Return requests of a run that ended from `start` up to `end`, in the order of their
        reports.

        `after` is the number of a batch, and a position in it. Blocks. Raises sqlite3.Error and
        ValueError.
        """
        if not self.path.exists():
            return StoredPage([], None)
        found: list[ServedRequest] = []
        with closing(self._reader()) as connection:
            if not connection.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'batch'"
            ).fetchone():
                return StoredPage([], None)  # the file is being created
            rows = connection.execute(
                "SELECT id, body FROM batch WHERE run_id = ? AND id >= ? AND last_end >= ? AND "
                "first_end < ? "
                "ORDER BY id",
                (run_id, after[0], start, end),
            )
            for number, body in rows:
                for position, each in enumerate(
                    _from(unpack_requests(body), after[1] if number == after[0] else 0)
                ):
                    if not start <= each.ended_at < end:
                        continue
                    if len(found) == limit:
                        skipped = after[1] if number == after[0] else 0
                        return StoredPage(found, f"{number}:{position + skipped}")
                    found.append(each)
        return StoredPage(found, None)

    def batches(
        self, run_id: str, start: float, end: float, after: int
    ) -> tuple[list[tuple[bytes, bytes | None]], int | None]:
        """Return packed requests of a run with their energies, None for those that are not final,
        and the number after which the next ones begin.

        Batches have requests that ended from `start` up to `end`. Blocks. Raises sqlite3.Error.
        """
        if not self.path.exists():
            return [], None
        found: list[tuple[bytes, bytes | None]] = []
        size = 0
        with closing(self._reader()) as connection:
            rows = connection.execute(BATCHES_QUERY, (run_id, start, end, after))
            for number, body, energies in rows:
                found.append((body, energies))
                size += len(body) + len(energies or b"")
                if size > _PAGE_BYTES:
                    return found, number
        return found, None

    def divided_energy(
        self, run_id: str, after: float
    ) -> tuple[list[tuple[float, float, float, float, int]], list[str]]:
        """Return divided seconds of a run that begin after a Unix time, up to PAGE_SECONDS, and
        the sums of its divisions. Blocks. Raises sqlite3.Error.
        """
        if not self.path.exists():
            return [], []
        with closing(self._reader()) as connection:
            seconds = connection.execute(
                f"{SECONDS_QUERY} LIMIT {PAGE_SECONDS}", (run_id, after)
            ).fetchall()
            totals = [text for (text,) in connection.execute(DIVISIONS_QUERY, (run_id,))]
        return seconds, totals

    def find(self, request_id: str, run_id: str | None) -> FoundRequest | None:
        """Return the request that was reported last, None if there is none. Blocks.

        Raises TimeoutError after SEARCH_S, sqlite3.Error and ValueError.
        """
        if not self.path.exists():
            return None
        until_s = time.monotonic() + SEARCH_S
        text = json.dumps(request_id, ensure_ascii=False).encode()
        with closing(self._reader()) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > until_s, _STEPS)
            try:
                rows = connection.execute(
                    "SELECT id, run_id, body FROM batch WHERE (?1 IS NULL OR run_id = ?1) AND "
                    "instr(body, ?2) "
                    "ORDER BY id DESC",
                    (run_id, text),
                )
                for number, name, body in rows:
                    if request_id in (ids := unpack_columns(body).ids):
                        from wattline_exporter.requests.final import saved_energy

                        return FoundRequest(
                            name, saved_energy(connection, number, ids.index(request_id))
                        )
            except sqlite3.OperationalError as error:
                if time.monotonic() > until_s:
                    raise TimeoutError from error
                raise
        return None

    def _reader(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=1)

    def _open(self) -> sqlite3.Connection:
        if (
            self._connection is not None and not self.path.exists()
        ):  # deleted: rows written to it would be lost
            self._connection.close()
            self._connection = None
        if self._connection is None:
            connection = sqlite3.connect(self.path, check_same_thread=False, timeout=1)
            connection.execute("PRAGMA page_size = 16384")  # a batch is large; only for a new file
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA cache_size = -512")  # KiB: it is appended to
            connection.executescript(
                f"{REQUESTS_SCHEMA}; PRAGMA user_version = {REQUESTS_SCHEMA_VERSION}"
            )
            self._connection = connection
        return self._connection

    def close(self) -> None:
        self._thread.shutdown()
        if self._connection:
            with suppress(sqlite3.Error):
                self._connection.close()


def _from(requests: list[ServedRequest], first: int) -> Iterator[ServedRequest]:
    return iter(requests[first:])


def _delete_oldest(connection: sqlite3.Connection, table: str, column: str) -> None:
    """Delete the first _SHARE_A_TRIM of a table's range of a column, but not its last row."""
    first, last = connection.execute(f"SELECT min({column}), max({column}) FROM {table}").fetchone()  # noqa: S608  # names of this module
    if first is not None and first < last:
        until = min(first + _SHARE_A_TRIM * (last - first) + 1, last)
        connection.execute(f"DELETE FROM {table} WHERE {column} < ?", (until,))  # noqa: S608  # names of this module
