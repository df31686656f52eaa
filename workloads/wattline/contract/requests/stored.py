"""The file requests.sqlite in the state folder: reported requests of servers, a batch in each row,
as packed columns.

A body begins with the CRC-32 of all that follows and the length of a JSON object (32 bits each,
little endian) with `ids`, distinct `labels`, distinct `roles` and the types of the columns. Columns
follow, each with one value for each request: `started_at`, `first_token_at` (NaN if unknown) and
`ended_at` as doubles; `prompt_tokens`, `cached_tokens`, `generated_tokens` and the numbers of
labels and role as 8, 16 or 32 bits without a sign. All are little endian. Bodies are not
compressed: ids are random, and zlib would take a third of the time of a report.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wattline.contract.requests.served import ServedRequest

REQUESTS_SCHEMA_VERSION = 3
"""`PRAGMA user_version` of the file."""
REQUESTS_SCHEMA = """
CREATE TABLE IF NOT EXISTS batch (
    id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, first_end REAL NOT NULL, last_end REAL NOT NULL,
    requests INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS batch_by_run ON batch (run_id, id);
CREATE TABLE IF NOT EXISTS request_counter (
    name TEXT NOT NULL, labels TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (name, labels)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS divided (run_id TEXT PRIMARY KEY,
    batch_id INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS divided_time (run_id TEXT PRIMARY KEY,
    until_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS final_energy (batch_id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS divided_slot (run_id TEXT NOT NULL, begin_at REAL NOT NULL,
    end_at REAL NOT NULL, joules REAL NOT NULL, idle_joules REAL NOT NULL,
    idle_known INTEGER NOT NULL, PRIMARY KEY (run_id, begin_at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS division (run_id TEXT NOT NULL, begin_at REAL NOT NULL,
    totals TEXT NOT NULL, PRIMARY KEY (run_id, begin_at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS energy_trail (uuid TEXT NOT NULL, last_at REAL NOT NULL,
    body BLOB NOT NULL, PRIMARY KEY (uuid, last_at)) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS deleted_batch AFTER DELETE ON batch BEGIN
    DELETE FROM final_energy WHERE batch_id = old.id;
END;
"""
"""`first_end` and `last_end` are the earliest and the latest end of a batch's requests. `divided`
has the batch up to which the requests of a run have their energy and are counted, `divided_time`
the Unix time up to which its energy is divided. `final_energy` has the energies of the
batches whose requests are all final, as `wattline_exporter.requests.division.energy_rows` packs
them. `divided_slot` has the run's part of the energy of its GPUs in each second that is divided, in
Unix time, and the idle energy in it. `division` has sums over all divided slots of a server since
`begin_at`, as JSON of `wattline_exporter.requests.division.totals`. `energy_trail` has the energies
of GPUs that the next exporter needs for requests without one, as
`wattline_exporter.requests.energy_trail` packs them.
"""
BATCHES_QUERY = """
SELECT id, batch.body, final_energy.body FROM batch
LEFT JOIN final_energy ON final_energy.batch_id = batch.id
WHERE run_id = ?1 AND last_end >= ?2 AND first_end < ?3 AND id > ?4 ORDER BY id
"""
"""Batches of a run with the energies of their requests, if all are final."""
SECONDS_QUERY = """
SELECT begin_at, end_at, joules, idle_joules, idle_known FROM divided_slot
WHERE run_id = ?1 AND begin_at > ?2 ORDER BY begin_at
"""
DIVISIONS_QUERY = "SELECT totals FROM division WHERE run_id = ?1 ORDER BY begin_at"
_HEAD = struct.Struct("<II")


def pack_requests(
    ids: Sequence[str],
    labels: Sequence[Mapping[str, str]],
    roles: Sequence[str | None],
    columns: Sequence[tuple[str, bytes]],
) -> bytes:
    """Return the body of a batch: ids, distinct labels and roles, and columns with their types of
    `array`.

    Several columns may be in one item.
    """
    import msgspec  # 3 MB, needed with the first request

    head = {
        "ids": ids,
        "labels": labels,
        "roles": roles,
        "types": "".join(code for code, _ in columns),
    }
    text = msgspec.json.encode(head)
    content = b"".join([text, *(column for _, column in columns)])
    return _HEAD.pack(zlib.crc32(content), len(text)) + content


class StoredColumns(NamedTuple):
    """Requests of a batch: their ids, distinct labels and roles, and the eight columns."""

    ids: list[str]
    labels: list[dict[str, str]]
    roles: list[str | None]
    columns: list[array[Any]]


def unpack_columns(body: bytes) -> StoredColumns:
    """Return the columns of a batch. Raises ValueError for a body that is damaged."""
    try:
        checksum, length = _HEAD.unpack_from(body)
        content = memoryview(body)[_HEAD.size :]
        if zlib.crc32(content) != checksum:
            raise ValueError("a batch of requests is damaged: its checksum is wrong")
        head = json.loads(bytes(content[:length]))
        count = len(head["ids"])
        at = length
        columns = []
        for code in head["types"]:
            column = array(code, bytes(content[at : at + count * struct.calcsize(code)]))
            if len(column) < count:
                raise ValueError("a batch of requests is damaged: a column is too short")
            if sys.byteorder == "big":
                column.byteswap()
            columns.append(column)
            at += count * column.itemsize
        labels = [dict(each) for each in head["labels"]]  # objects, or lists of pairs
        found = StoredColumns(head["ids"], labels, head["roles"], columns)
    except (struct.error, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"a batch of requests is damaged: {error}") from error
    return found


def unpack_requests(body: bytes) -> list[ServedRequest]:
    """Return the requests of a batch. Raises ValueError for a body that is damaged."""
    found = unpack_columns(body)
    return [
        ServedRequest(
            *(name, start, end, prompt, made, None if math.isnan(first) else first, cached),
            *(found.labels[labels], found.roles[role]),
        )
        for name, start, first, end, prompt, cached, made, labels, role in zip(
            found.ids, *found.columns, strict=True
        )
    ]
