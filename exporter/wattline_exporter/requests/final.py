"""Energies of the latest final requests: a ring of rows in memory, and packed batches in the
state.
"""

from __future__ import annotations

import logging
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple

import numpy as np

from wattline_exporter.requests.division.arrays import FloatArray, IntArray
from wattline_exporter.requests.division.columns import as_items

OPEN_TYPE = np.dtype(
    [
        *(("id", "i8"), ("batch", "i8"), ("position", "i4"), ("labels", "i4")),
        *(("arrived_s", "f8"), ("ended_s", "f8"), ("has_first_token", "?")),
    ]
)
"""Request whose energy is not final: hash of its id, number of its batch and position in it, number
of its labels, and times of CLOCK_BOOTTIME.
"""
REQUEST_FIELDS = ["id", "batch", "position", "labels"]
ENERGY_FIELDS = ("prefill_j", "decode_j", "idle_j", "half_j", "missing_s")
FINAL_TYPE = np.dtype(
    [
        *((name, OPEN_TYPE[name]) for name in REQUEST_FIELDS),
        *((name, "f8") for name in ENERGY_FIELDS),
        ("is_separable", "?"),
        ("is_shared", "?"),
        ("mean_s", "f8"),
        ("loss", "u1"),
    ]
)
"""Final request with its energy in joules. `is_shared`: another run used its GPUs then. `mean_s`:
time whose power is a mean, since the meters were read late. `loss` is the reason why it has no
energy, or 0.
"""
STOPPED, NO_GPU, TOO_LATE, NO_TIME, DAMAGED = 1, 2, 3, 4, 5
"""Reasons why a request has no energy."""
_MAX_RUNS = 1_000
MAX_FINAL = 50_000
"""Final requests whose energies are kept, in memory and in the state."""
_PACKED_FIELDS = (*ENERGY_FIELDS, "mean_s")
_HEAD = struct.Struct("<IB")
"""CRC-32 of all that follows, and a bit for each of _PACKED_FIELDS that is not 0 for all requests
of a batch.
"""
log = logging.getLogger(__name__)


def totals_j(rows: np.ndarray) -> FloatArray:
    """Return the energies of rows of FINAL_TYPE."""
    total: FloatArray = rows["prefill_j"] + rows["decode_j"] + rows["idle_j"]
    return total


def undivided(id_hashes: IntArray, labels: IntArray, batch: int) -> np.ndarray:
    """Return rows of requests of a previous exporter, which has not divided their energy."""
    rows = np.zeros(len(id_hashes), FINAL_TYPE)
    rows["id"], rows["labels"], rows["batch"], rows["loss"] = id_hashes, labels, batch, STOPPED
    rows["position"] = np.arange(len(rows))
    return rows


class PackedBatch(NamedTuple):
    """Energies of a batch's requests in their order: `_HEAD`, single precision columns, and a byte
    with the rest.
    """

    number: int
    requests: int
    body: bytes


def packed_batches(rows: np.ndarray) -> Iterator[PackedBatch]:
    """Yield the batches of rows of FINAL_TYPE; each one has the rows of all its requests."""
    keys = (rows["batch"] << 32) + rows["position"]
    if (np.diff(keys) < 0).any():
        rows = rows[np.argsort(keys, kind="stable")]
    columns = np.array([rows[name] for name in _PACKED_FIELDS], "<f4")
    is_used = columns.any(axis=1)
    columns, bits = columns[is_used], sum(1 << bit for bit in np.flatnonzero(is_used).tolist())
    flags = (rows["loss"] * 4 + rows["is_separable"] * 2 + rows["is_shared"]).astype("u1")
    firsts = np.flatnonzero(np.diff(rows["batch"], prepend=-1)).tolist()
    for first, end in zip(firsts, [*firsts[1:], len(rows)], strict=True):
        content = bytes([bits]) + columns[:, first:end].tobytes() + flags[first:end].tobytes()
        number = int(rows["batch"][first])
        yield PackedBatch(number, end - first, zlib.crc32(content).to_bytes(4, "little") + content)


@dataclass(frozen=True, slots=True)
class FinalEnergy:
    """Energy of a final request in joules. See FINAL_TYPE."""

    prefill_j: float
    decode_j: float
    idle_j: float
    half_j: float
    missing_s: float
    is_separable: bool
    is_shared: bool
    mean_s: float
    loss: int

    @classmethod
    def of(cls, row: np.void) -> FinalEnergy:
        return cls(*(row[each.name].item() for each in fields(cls)))

    @classmethod
    def unpacked(cls, body: bytes, position: int) -> FinalEnergy:
        """Return the energy of a request of a batch. Raises ValueError for a body that is
        damaged.
        """
        if len(body) < _HEAD.size or zlib.crc32(body[4:]) != _HEAD.unpack_from(body)[0]:
            raise ValueError("its checksum is wrong")
        bits = body[4]
        used = [name for bit, name in enumerate(_PACKED_FIELDS) if bits >> bit & 1]
        count = (len(body) - _HEAD.size) // (4 * len(used) + 1)  # single precision, and a byte
        if position >= count:
            raise ValueError(
                f"it has the energies of {count:,} requests, not of request {position + 1:,}"
            )
        columns = np.frombuffer(body, "<f4", len(used) * count, _HEAD.size).reshape(
            len(used), count
        )
        values = dict.fromkeys(_PACKED_FIELDS, 0.0) | dict(
            zip(used, columns[:, position].tolist(), strict=True)
        )
        flags = body[len(body) - count + position]
        return cls(
            **values, is_separable=bool(flags & 2), is_shared=bool(flags & 1), loss=flags >> 2
        )

    @property
    def total_j(self) -> float:
        return self.prefill_j + self.decode_j + self.idle_j


def latest_rows(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the last arrays of rows, as many as have MAX_FINAL rows."""
    kept, count = list(parts), sum(map(len, parts))
    while kept and count - len(kept[0]) >= MAX_FINAL:
        count -= len(kept.pop(0))
    return kept


def save_energies(connection: sqlite3.Connection, parts: Sequence[np.ndarray]) -> None:
    """Save rows of whole batches in the state, and delete those before the latest MAX_FINAL. Raises
    sqlite3.Error.
    """
    (last,) = connection.execute("SELECT coalesce(max(last), 0) FROM final_energy").fetchone()
    rows = parts[0] if len(parts) == 1 else np.concatenate([*map(as_items, parts)]).view(FINAL_TYPE)
    for number, requests, body in packed_batches(rows):
        last += requests
        connection.execute("INSERT INTO final_energy VALUES (?, ?, ?)", (last, number, body))
    connection.execute("DELETE FROM final_energy WHERE last <= ?", (last - MAX_FINAL,))


def saved_energy(connection: sqlite3.Connection, batch: int, position: int) -> FinalEnergy | None:
    """Return the energy of a request in the state, with the loss DAMAGED if its batch is; None if
    it is not kept.

    Raises sqlite3.Error.
    """
    query = "SELECT body FROM final_energy WHERE batch_id = ? ORDER BY last DESC"
    row = connection.execute(
        query, (batch,)
    ).fetchone()  # a file that was deleted has its first numbers again
    if row is None:
        return None
    try:
        return FinalEnergy.unpacked(row[0], position)
    except ValueError as error:
        _log_damage(f"batch {batch} is damaged: {error}")
        return FinalEnergy(
            **dict.fromkeys(_PACKED_FIELDS, 0.0), is_separable=False, is_shared=False, loss=DAMAGED
        )


@cache
def _log_damage(cause: str) -> None:
    """Log it once for each batch."""
    log.warning(
        "cannot read saved energies of requests: %s; use analyzer requests for these requests",
        cause,
    )


class FinalEnergies:
    """Rows of the latest `count` final requests of all runs."""

    def __init__(self, count: int = MAX_FINAL) -> None:
        self._rows, self._run = np.zeros(count, FINAL_TYPE), np.full(count, -1, np.int32)
        """Rows, and the numbers of their runs, -1 without a row."""
        self._next = 0
        self._runs: list[str] = []

    def add(self, run_id: str, rows: np.ndarray) -> None:
        rows = rows[-len(self._rows) :]
        number, room = self._number(run_id), len(self._rows) - self._next
        for begin, part in ((self._next, rows[:room]), (0, rows[room:])):
            replaced = slice(begin, begin + len(part))
            as_items(self._rows)[replaced], self._run[replaced] = as_items(part), number
        self._next = (self._next + len(rows)) % len(self._rows)

    def find(self, id_hash: int, run_id: str | None) -> tuple[int, str, FinalEnergy] | None:
        """Return batch, run and energy of a request, of several the one that was reported last."""
        found = (self._rows["id"] == id_hash) & (self._run >= 0)
        if run_id is not None:
            found &= self._run == (self._runs.index(run_id) if run_id in self._runs else -1)
        (at,) = np.nonzero(found)
        if not len(at):
            return None
        latest = at[np.argmax(self._rows["batch"][at])]
        row = self._rows[latest]
        return int(row["batch"]), self._runs[self._run[latest]], FinalEnergy.of(row)

    def _number(self, run_id: str) -> int:
        if self._runs and self._runs[-1] == run_id:
            return len(self._runs) - 1
        if run_id in self._runs:
            return self._runs.index(run_id)
        if len(self._runs) >= _MAX_RUNS:
            self._forget_runs()
        self._runs.append(run_id)
        return len(self._runs) - 1

    def _forget_runs(self) -> None:
        """Forget the runs without rows, and renumber the others."""
        is_used = self._run >= 0
        used, numbers = np.unique(self._run[is_used], return_inverse=True)
        self._run[is_used] = numbers
        self._runs = [self._runs[number] for number in used]
