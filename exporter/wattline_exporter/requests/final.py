"""Energies of final requests: those of the latest ones in memory, and all of them in the state."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from wattline_exporter.requests.division.arrays import IntArray
from wattline_exporter.requests.division.columns import as_items
from wattline_exporter.requests.division.energy_rows import (
    ENERGY_FIELDS,
    ENERGY_TYPE,
    pack_energies,
    row_half_widths_j,
    unpack_energies,
)

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
FINAL_TYPE = np.dtype([*((name, OPEN_TYPE[name]) for name in REQUEST_FIELDS), *ENERGY_FIELDS])
"""Final request with its energy in joules: see ENERGY_TYPE."""
STOPPED = 1
NO_GPU = 2
TOO_LATE = 3
NO_TIME = 4
DAMAGED = 5
"""Reasons why a request has no energy."""
_MAX_RUNS = 1_000
MAX_FINAL = 50_000
"""Final requests whose energies are kept in memory."""
log = logging.getLogger(__name__)


def undivided(id_hashes: IntArray, labels: IntArray, batch: int) -> np.ndarray:
    """Return rows of requests of a previous exporter, which has not divided their energy."""
    rows = np.zeros(len(id_hashes), FINAL_TYPE)
    rows["id"] = id_hashes
    rows["labels"] = labels
    rows["batch"] = batch
    rows["loss"] = STOPPED
    rows["position"] = np.arange(len(rows))
    return rows


def batches_of(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the batches of rows of FINAL_TYPE, each one in the order of its requests."""
    keys = (rows["batch"] << 32) + rows["position"]
    if (np.diff(keys) < 0).any():
        rows = rows[np.argsort(keys, kind="stable")]
    firsts = np.flatnonzero(np.diff(rows["batch"], prepend=-1)).tolist()
    for first, end in zip(firsts, [*firsts[1:], len(rows)], strict=True):
        yield rows[first:end]


@dataclass(frozen=True, slots=True)
class FinalEnergy:
    """Energy of a final request in joules. See ENERGY_TYPE."""

    prefill_j: float
    decode_j: float
    idle_j: float
    half_j: float
    missing_s: float
    is_separable: bool
    is_idle_known: bool
    is_of_role: bool
    is_shared: bool
    mean_s: float
    loss: int

    @classmethod
    def of(cls, rows: np.ndarray) -> FinalEnergy:
        """Return the energy of the request in a row of ENERGY_TYPE or FINAL_TYPE, (1,)."""
        names = [name for name in cls.__dataclass_fields__ if name != "half_j"]
        values = {name: rows[name].item() for name in names}
        return cls(**values, half_j=row_half_widths_j(rows).item())

    @property
    def total_j(self) -> float:
        return self.prefill_j + self.decode_j + self.idle_j


def latest_rows(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the last arrays of rows, as many as have MAX_FINAL rows."""
    kept = list(parts)
    count = sum(map(len, parts))
    while kept and count - len(kept[0]) >= MAX_FINAL:
        count -= len(kept.pop(0))
    return kept


def save_energies(connection: sqlite3.Connection, parts: Sequence[np.ndarray]) -> None:
    """Save rows of whole batches in the state. Raises sqlite3.Error."""
    rows = parts[0] if len(parts) == 1 else np.concatenate([*map(as_items, parts)]).view(FINAL_TYPE)
    saved = [(int(each["batch"][0]), pack_energies(each)) for each in batches_of(rows)]
    connection.executemany("INSERT OR REPLACE INTO final_energy VALUES (?, ?)", saved)


def saved_energy(connection: sqlite3.Connection, batch: int, position: int) -> FinalEnergy | None:
    """Return the energy of a request in the state, with the loss DAMAGED if its batch is; None if
    it is not saved.

    Raises sqlite3.Error.
    """
    query = "SELECT body FROM final_energy WHERE batch_id = ?"
    row = connection.execute(query, (batch,)).fetchone()
    if row is None:
        return None
    try:
        rows = _rows_of(row[0], position + 1)
    except ValueError as error:
        _log_damage(f"batch {batch} is damaged: {error}")
        rows = np.zeros(position + 1, ENERGY_TYPE)
        rows["loss"] = DAMAGED
    return FinalEnergy.of(rows[position : position + 1])


def _rows_of(body: bytes, least: int) -> np.ndarray:
    """Return the rows of a batch. Raises ValueError if it is damaged, or has less than `least`."""
    rows = unpack_energies(body)
    if len(rows) < least:
        raise ValueError(f"it has the energies of {len(rows):,} requests, not of {least:,}")
    return rows


@cache
def _log_damage(cause: str) -> None:
    """Log it once for each batch."""
    log.warning(
        "cannot read saved energies of requests: %s; these requests have no energy; check the disk",
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
        number = self._number(run_id)
        room = len(self._rows) - self._next
        for begin, part in ((self._next, rows[:room]), (0, rows[room:])):
            replaced = slice(begin, begin + len(part))
            as_items(self._rows)[replaced] = as_items(part)
            self._run[replaced] = number
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
        row = self._rows[latest : latest + 1]
        return row["batch"].item(), self._runs[self._run[latest]], FinalEnergy.of(row)

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
