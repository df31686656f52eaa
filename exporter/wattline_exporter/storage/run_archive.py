"""Archive of final runs, each compressed against the text of other runs of the node."""

from __future__ import annotations

import math
import sqlite3
import zlib

from wattline_exporter.storage.saved_state import StoredRun

ARCHIVE_SCHEMA = """
CREATE TABLE IF NOT EXISTS run_dictionary (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS archived_run (
    run_id TEXT PRIMARY KEY, started_at REAL NOT NULL, request TEXT NOT NULL,
    dictionary INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS archived_run_by_start ON archived_run (started_at);
"""
KEPT_RUNS = 1_000
"""Final runs that stay in the table `run`: as many as the run API lists."""
ARCHIVED_AT_ONCE = 200
"""Runs archived in one transaction, which takes about 10 ms."""
_DICTIONARY_BYTES = 32_768
"""Text of runs in a dictionary, as much as zlib searches: neighbouring runs have the GPUs and
labels of later ones.
"""
_POOR_RATIO = 5
"""Ratio of compression below which a new dictionary is made, at most once in a transaction."""


def archive_runs(connection: sqlite3.Connection) -> int:
    """Move the oldest final runs beyond KEPT_RUNS to the archive, in a transaction. Return their
    number.
    """
    with connection:
        (final,) = connection.execute("SELECT count(*) FROM run WHERE is_final = 1").fetchone()
        rows = connection.execute(
            "SELECT run_id, started_at, request, body FROM run WHERE is_final = 1 "
            "ORDER BY started_at LIMIT ?",
            (max(0, min(ARCHIVED_AT_ONCE, final - KEPT_RUNS)),),
        ).fetchall()
        found = connection.execute(
            "SELECT id, body FROM run_dictionary ORDER BY id DESC LIMIT 1"
        ).fetchone()
        dictionary = (int(found[0]), bytes(found[1])) if found else (0, b"")
        is_new = False
        for run_id, started_at, request, text in rows:
            body = text.encode()
            packed = _compress(body, dictionary[1])
            if not is_new and len(packed) * _POOR_RATIO > len(body):
                neighbours = "".join(text for *_, text in rows).encode()
                is_new = True
                dictionary = (dictionary[0] + 1, neighbours[:_DICTIONARY_BYTES])
                connection.execute("INSERT INTO run_dictionary VALUES (?, ?)", dictionary)
                packed = _compress(body, dictionary[1])
            row = (run_id, started_at, request, dictionary[0], packed)
            connection.execute("INSERT OR REPLACE INTO archived_run VALUES (?, ?, ?, ?, ?)", row)
        connection.executemany(
            "DELETE FROM run WHERE run_id = ?", [(run_id,) for run_id, *_ in rows]
        )
    return len(rows)


def archived_run(connection: sqlite3.Connection, run_id: str) -> StoredRun | None:
    """Return an archived run, None if there is none."""
    row = connection.execute(
        "SELECT r.started_at, r.request, r.body, d.body FROM archived_run r "
        "LEFT JOIN run_dictionary d ON d.id = r.dictionary WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    if row is None:
        return None
    started_at, request, packed, dictionary = row
    body = _decompress(bytes(packed), bytes(dictionary or b""))
    return StoredRun(run_id, started_at, is_open=False, is_final=True, request=request, body=body)


def newest_runs(
    connection: sqlite3.Connection, limit: int, before: tuple[float, str] | None
) -> list[StoredRun]:
    """Return the newest runs, archived ones included; with `before` those that are older than that
    start and run id.
    """
    parameters = (*(before or (math.inf, "")), limit)
    rows = connection.execute(
        "SELECT * FROM run WHERE (started_at, run_id) < (?, ?) "
        "ORDER BY started_at DESC, run_id DESC LIMIT ?",
        parameters,
    ).fetchall()
    found = [StoredRun(*row) for row in rows]
    archived = connection.execute(
        "SELECT run_id, started_at FROM archived_run WHERE (started_at, run_id) < (?, ?) "
        "ORDER BY started_at DESC, run_id DESC LIMIT ?",
        parameters,
    ).fetchall()
    known = [(run.started_at, run.run_id) for run in found]
    keys = sorted([*known, *((at, run_id) for run_id, at in archived)], reverse=True)[:limit]
    wanted = {run_id for _, run_id in keys}
    for run_id, _ in archived:
        if run_id in wanted and (run := archived_run(connection, run_id)):
            found.append(run)
    found.sort(key=lambda run: (run.started_at, run.run_id), reverse=True)
    return found[:limit]


def _compress(body: bytes, dictionary: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, dictionary)
    return packer.compress(body) + packer.flush()


def _decompress(packed: bytes, dictionary: bytes) -> str:
    unpacker = zlib.decompressobj(-15, dictionary)
    return (unpacker.decompress(packed) + unpacker.flush()).decode()
