"""The file requests.sqlite in the state folder: reported requests of servers, a batch in each row, as packed columns.

A body is compressed by zlib. It begins with the length of a JSON object (32 bits, little endian) with `ids`, distinct
`labels` and distinct `roles`. Columns follow, each with one value for each request: `started_at`, `first_token_at` (NaN
if unknown) and `ended_at` as doubles; `prompt_tokens`, `cached_tokens`, `generated_tokens` and the numbers of labels
and role as 32 bits without a sign. All are little endian.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from exporter.contract.requests.served import ServedRequest

REQUESTS_FILE = "requests.sqlite"
REQUESTS_SCHEMA_VERSION = 1
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
CREATE TABLE IF NOT EXISTS divided (run_id TEXT PRIMARY KEY, batch_id INTEGER NOT NULL) WITHOUT ROWID;
"""
"""`first_end` and `last_end` are the earliest and the latest end of a batch's requests. `divided` has the batch up to
which the requests of a run have their energy and are counted."""
_DOUBLE, _UNSIGNED = "d", "I"
_COLUMNS = (_DOUBLE, _DOUBLE, _DOUBLE, _UNSIGNED, _UNSIGNED, _UNSIGNED, _UNSIGNED, _UNSIGNED)


def pack_requests(
    ids: Sequence[str],
    labels: Sequence[Sequence[tuple[str, str]]],
    roles: Sequence[str | None],
    columns: Sequence[bytes],
) -> bytes:
    """Return the body of a batch: ids, distinct labels and roles, and the columns in their stored form."""
    head = {"ids": ids, "labels": labels, "roles": roles}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    return zlib.compress(b"".join([struct.pack("<I", len(text)), text, *columns]), 1)


class StoredColumns(NamedTuple):
    """Requests of a batch: their ids, distinct labels and roles, and the eight columns."""

    ids: list[str]
    labels: list[dict[str, str]]
    roles: list[str | None]
    columns: list[array[Any]]


def unpack_columns(body: bytes) -> StoredColumns:
    """Return the columns of a batch. Raises ValueError for a body that is damaged."""
    try:
        plain = zlib.decompress(body)
        (length,) = struct.unpack_from("<I", plain)
        head = json.loads(plain[4 : 4 + length])
        count, at, columns = len(head["ids"]), 4 + length, []
        for code in _COLUMNS:
            column = array(code, plain[at : at + count * struct.calcsize(code)])
            if len(column) < count:
                raise ValueError("a batch of requests is damaged: a column is too short")
            if sys.byteorder == "big":
                column.byteswap()
            columns.append(column)
            at += count * column.itemsize
        found = StoredColumns(head["ids"], [dict(each) for each in head["labels"]], head["roles"], columns)
        if count and (max(columns[-2]) >= len(found.labels) or max(columns[-1]) >= len(found.roles)):
            raise ValueError("a batch of requests is damaged: unknown labels or role")
    except (zlib.error, struct.error, KeyError, IndexError, TypeError) as error:
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
        for name, start, first, end, prompt, cached, made, labels, role in zip(found.ids, *found.columns, strict=True)
    ]
