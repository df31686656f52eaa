"""The file state.sqlite: totals, counters and runs that continue after a restart."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO

from wattline.contract.history import STATE_FILE
from wattline.counters import CounterTotal
from wattline_exporter.attribution.owner_counters import OwnerAmount
from wattline_exporter.attribution.policy import AttributedKey
from wattline_exporter.config.values import OperationError
from wattline_exporter.meter.totals import LastPoll, MeterTotals
from wattline_exporter.sensors.exported_counters import SeriesKey
from wattline_exporter.sensors.readings import Device
from wattline_exporter.storage.file_versions import STATE_SCHEMA_VERSION, check_file_version
from wattline_exporter.storage.run_archive import (
    ARCHIVE_SCHEMA,
    ARCHIVED_AT_ONCE,
    archive_runs,
    archived_run,
    newest_runs,
)
from wattline_exporter.storage.saved_state import SavedState, StateChanges, StoredRun

LOCK_FILE = "lock"
ARCHIVE_EVERY_S = 60.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS device (
    kind TEXT NOT NULL, id TEXT NOT NULL, energy_j REAL NOT NULL, integrated_j REAL NOT NULL,
    raw_j REAL,
    variance_j2 REAL NOT NULL, covered_s REAL NOT NULL, resets INTEGER NOT NULL,
    unseen_j REAL NOT NULL,
    peak_w REAL NOT NULL, PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS emission (
    component TEXT NOT NULL, device TEXT NOT NULL, basis TEXT NOT NULL, quality TEXT NOT NULL,
    grams REAL NOT NULL,
    PRIMARY KEY (component, device, basis, quality)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (
    name TEXT NOT NULL, labels TEXT NOT NULL, total REAL NOT NULL, raw REAL NOT NULL,
    PRIMARY KEY (name, labels)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attributed (
    kind TEXT NOT NULL, id TEXT NOT NULL, policy TEXT NOT NULL, run_id TEXT NOT NULL,
    microjoules INTEGER NOT NULL,
    PRIMARY KEY (kind, id, policy, run_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owner (
    name TEXT NOT NULL, labels TEXT NOT NULL, amount INTEGER NOT NULL, is_shown INTEGER NOT NULL,
    PRIMARY KEY (name, labels)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS idle (
    kind TEXT NOT NULL, id TEXT NOT NULL, watts REAL NOT NULL, PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS short_window (
    kind TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS last_poll (
    kind TEXT NOT NULL, id TEXT NOT NULL, t_s REAL NOT NULL, most_w REAL NOT NULL,
    shown_s REAL NOT NULL, pending_j REAL NOT NULL, PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run (
    run_id TEXT PRIMARY KEY, started_at REAL NOT NULL, running INTEGER NOT NULL,
    is_final INTEGER NOT NULL, request TEXT NOT NULL, body TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS run_by_state ON run (is_final, started_at);
"""


class StateError(OperationError):
    """A state folder that cannot be used."""


def storage_remedy(error: OSError | sqlite3.Error) -> str:
    """Return the remedy for a file that cannot be opened or written."""
    if isinstance(error, OSError):
        return (
            "make room on its disk"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "let this user write there"
        )
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF
    if code in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
    ):
        return "make room on its disk and see that this user may read and write it"
    return "move it away to start afresh"


def read_boot_id(root: Path = Path("/proc")) -> str:
    return (root / "sys/kernel/random/boot_id").read_text().strip()


class StateFile:
    """The open file, and the lock on its folder. Raises StateError and FileVersionError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._boot_id = read_boot_id()
        self._program = version("wattline")
        self._archived_s = -math.inf
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_file_version(folder / STATE_FILE)
            self._lock = _lock(folder)
            self._connection = sqlite3.connect(
                folder / STATE_FILE, check_same_thread=False, timeout=1
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA cache_size = -512")  # kibibytes: little is read
            self._connection.executescript(SCHEMA + ARCHIVE_SCHEMA)
            self._reader = sqlite3.connect(folder / STATE_FILE, check_same_thread=False, timeout=1)
        except FileExistsError as error:
            raise StateError(
                f"cannot use {folder}: it is a file; name a folder with --state.path"
            ) from error
        except OSError as error:
            raise StateError(
                f"cannot write to {folder}: {error.strerror}; {storage_remedy(error)}, "
                "or choose another folder with --state.path"
            ) from error
        except sqlite3.Error as error:
            raise StateError(
                f"cannot use {folder / STATE_FILE}: {error}; {storage_remedy(error)}, or choose "
                "--state.path"
            ) from error

    def load(self) -> SavedState:
        """Return the saved state. Raises StateError for a file that is damaged."""
        path = self.folder / STATE_FILE
        try:
            meta = dict(self._connection.execute("SELECT key, value FROM meta").fetchall())
            return self._load(meta)
        except (sqlite3.Error, ValueError) as error:
            cause = str(error).splitlines()[0]
            raise StateError(
                f"cannot read {path}: {cause}; move it away to start afresh"
            ) from error

    def _load(self, meta: dict[str, str]) -> SavedState:
        read = self._connection.execute
        same_boot = meta.get("boot_id") == self._boot_id
        totals = {
            Device(kind, identity): MeterTotals(
                energy_j, integrated_j, raw_j if same_boot else None, *rest
            )
            for kind, identity, energy_j, integrated_j, raw_j, *rest in read("SELECT * FROM device")
        }
        rows = read("SELECT component, device, basis, quality, grams FROM emission")
        return SavedState(
            totals,
            {
                (component, device, basis, quality): grams
                for component, device, basis, quality, grams in rows
            },
            [body for (body,) in read("SELECT body FROM run WHERE is_final = 0")],
            {
                _series(name, labels): CounterTotal(total, raw)
                for name, labels, total, raw in read("SELECT * FROM counter")
            },
            {
                AttributedKey(Device(kind, identity), policy, run_id): amount
                for kind, identity, policy, run_id, amount in read("SELECT * FROM attributed")
            },
            {Device(kind, identity): watts for kind, identity, watts in read("SELECT * FROM idle")},
            meta.get("boot_id"),
            float(meta.get("saved_at", 0)),
            float(meta.get("saved_s", 0)),
            {
                Device(kind, identity): LastPoll(*poll)
                for kind, identity, *poll in read("SELECT * FROM last_poll")
            },
            {
                (name, tuple(json.loads(labels))): OwnerAmount(amount, bool(is_shown))
                for name, labels, amount, is_shown in read("SELECT * FROM owner")
            },
            {Device(kind, identity) for kind, identity in read("SELECT * FROM short_window")},
        )

    def save(self, snapshot: StateChanges) -> None:
        """Save in one transaction. Raises sqlite3.Error."""
        try:
            self._save(snapshot)
        except sqlite3.Error:
            with suppress(sqlite3.Error):  # the journal may be what fills the disk
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            raise

    def _save(self, snapshot: StateChanges) -> None:
        with self._connection:
            self._write(
                "INSERT OR REPLACE INTO device VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(d.kind, d.id, *t) for d, t in snapshot.totals.items()],
            )
            self._write(
                "INSERT OR REPLACE INTO emission VALUES (?, ?, ?, ?, ?)",
                [(*key, grams) for key, grams in snapshot.emissions.items()],
            )
            self._write(
                "INSERT OR REPLACE INTO counter VALUES (?, ?, ?, ?)",
                [
                    (name, json.dumps(rest), *risen)
                    for (name, *rest), risen in snapshot.counters.items()
                    if risen
                ],
            )
            self._write(
                "DELETE FROM counter WHERE name = ? AND labels = ?",
                [
                    (name, json.dumps(rest))
                    for (name, *rest), risen in snapshot.counters.items()
                    if not risen
                ],
            )
            self._write(
                "DELETE FROM attributed WHERE run_id = ?",
                [(run_id,) for run_id in snapshot.attributed.forgotten],
            )
            parts = snapshot.attributed.microjoules.items()
            self._write(
                "INSERT OR REPLACE INTO attributed VALUES (?, ?, ?, ?, ?)",
                [(d.kind, d.id, policy, run_id, amount) for (d, policy, run_id), amount in parts],
            )
            self._write(
                "INSERT OR REPLACE INTO owner VALUES (?, ?, ?, ?)",
                [
                    (name, json.dumps(labels), *n)
                    for (name, labels), n in snapshot.attributed.owners.items()
                ],
            )
            self._write(
                "INSERT OR REPLACE INTO idle VALUES (?, ?, ?)",
                [(d.kind, d.id, watts) for d, watts in snapshot.idle_w.items()],
            )
            self._connection.execute("DELETE FROM short_window")  # a later reading may exclude one
            self._write(
                "INSERT INTO short_window VALUES (?, ?)",
                [(d.kind, d.id) for d in snapshot.short_windows],
            )
            self._connection.execute("DELETE FROM last_poll")  # those of an earlier exporter
            self._write(
                "INSERT INTO last_poll VALUES (?, ?, ?, ?, ?, ?)",
                [(d.kind, d.id, *poll) for d, poll in snapshot.polls.items()],
            )
            self._write("INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?)", snapshot.runs)
            self._write(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [
                    ("schema_version", str(STATE_SCHEMA_VERSION)),
                    ("wattline_version", self._program),
                    ("boot_id", self._boot_id),
                    ("saved_at", repr(snapshot.now.at)),
                    ("saved_s", repr(snapshot.now.s)),
                ],
            )

        now_s = snapshot.now.s
        if not 0 <= now_s - self._archived_s < ARCHIVE_EVERY_S:
            is_done = archive_runs(self._connection) < ARCHIVED_AT_ONCE
            self._archived_s = now_s if is_done else -math.inf

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            self._connection.executemany(statement, rows)

    def run(self, run_id: str) -> StoredRun | None:
        """Return a run. For the event loop: one row by its key, over a separate connection."""
        row = self._reader.execute("SELECT * FROM run WHERE run_id = ?", (run_id,)).fetchone()
        return StoredRun(*row) if row else archived_run(self._reader, run_id)

    def runs(self, limit: int, before: tuple[float, str] | None = None) -> list[StoredRun]:
        """Return the newest runs, over a separate connection so that no write waits; with `before`
        those that are older than that start and run id.
        """
        with closing(sqlite3.connect(self.folder / STATE_FILE, timeout=1)) as connection:
            connection.execute("BEGIN")  # runs may move to the archive between two reads
            return newest_runs(connection, limit, before)

    def close(self) -> None:
        self._reader.close()
        self._connection.close()
        self._lock.close()


def _series(name: str, stored: str) -> SeriesKey:
    labels, extra = json.loads(stored)
    return name, tuple(labels), tuple((key, value) for key, value in extra)


def _lock(folder: Path) -> IO[str]:
    """Return the locked file; it has the pid of its owner for the error message of a second
    exporter.
    """
    file = (folder / LOCK_FILE).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "?"
        file.close()
        raise StateError(
            f"another exporter (pid {holder}) writes to {folder}; stop it, or choose another "
            "folder with --state.path"
        ) from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
