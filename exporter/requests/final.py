"""Energies of the latest final requests, in a ring of rows."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from exporter.request_energy.pieces import FloatArray, IntArray

OPEN_TYPE = np.dtype(
    [("id", "i8"), ("batch", "i8"), ("labels", "i4"), ("arrived_s", "f8"), ("ended_s", "f8"), ("has_first_token", "?")]
)
"""Request whose energy is not final: hash of its id, numbers of its batch and labels, and times of CLOCK_BOOTTIME."""
REQUEST_FIELDS = ["id", "batch", "labels"]
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
"""Final request with its energy in joules. `is_shared`: another run used its GPUs then. `mean_s`: time whose power
is a mean, since the meters were read late. `loss` is the reason why it has no energy, or 0."""
STOPPED, NO_GPU, TOO_LATE, NO_TIME = 1, 2, 3, 4
"""Reasons why a request has no energy."""
_RING_TYPE = np.dtype([("run", "i4"), ("row", FINAL_TYPE)])
_MAX_RUNS = 1_000


def totals_j(rows: np.ndarray) -> FloatArray:
    """Return the energies of rows of FINAL_TYPE."""
    total: FloatArray = rows["prefill_j"] + rows["decode_j"] + rows["idle_j"]
    return total


def undivided(id_hashes: list[int], labels: IntArray, batch: int) -> np.ndarray:
    """Return rows of requests of a previous exporter, which has not divided their energy."""
    rows = np.zeros(len(id_hashes), FINAL_TYPE)
    rows["id"], rows["labels"], rows["batch"], rows["loss"] = id_hashes, labels, batch, STOPPED
    return rows


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

    @property
    def total_j(self) -> float:
        return self.prefill_j + self.decode_j + self.idle_j


class FinalEnergies:
    """Rows of the latest `count` final requests of all runs."""

    def __init__(self, count: int) -> None:
        self._rows = np.zeros(count, _RING_TYPE)
        self._rows["run"] = -1
        self._next = 0
        self._runs: list[str] = []

    def add(self, run_id: str, rows: np.ndarray) -> None:
        rows = rows[-len(self._rows) :]
        number, room = self._number(run_id), len(self._rows) - self._next
        for begin, part in ((self._next, rows[:room]), (0, rows[room:])):
            replaced = self._rows[begin : begin + len(part)]
            replaced["run"], replaced["row"] = number, part
        self._next = (self._next + len(rows)) % len(self._rows)

    def find(self, id_hash: int, run_id: str | None) -> tuple[int, str, FinalEnergy] | None:
        """Return batch, run and energy of a request, of several the one that was reported last."""
        found = (self._rows["row"]["id"] == id_hash) & (self._rows["run"] >= 0)
        if run_id is not None:
            found &= self._rows["run"] == (self._runs.index(run_id) if run_id in self._runs else -1)
        rows = self._rows[found]
        if not len(rows):
            return None
        latest = rows[np.argmax(rows["row"]["batch"])]
        return int(latest["row"]["batch"]), self._runs[latest["run"]], FinalEnergy.of(latest["row"])

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
        is_used = self._rows["run"] >= 0
        used, numbers = np.unique(self._rows["run"][is_used], return_inverse=True)
        self._rows["run"][is_used] = numbers
        self._runs = [self._runs[number] for number in used]
