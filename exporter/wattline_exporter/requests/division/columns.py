"""Columns of the requests that a server reports in one call."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from wattline_exporter.requests.division.arrays import FloatArray, IntArray, Mask
from wattline_exporter.requests.division.spans import RequestSpans, with_first_tokens

_MANY = 200
"""Requests from which on each column is read by itself."""


@dataclass(frozen=True, eq=False, slots=True)
class LabelSet:
    """Labels and role that requests have in common. Sets are compared by identity, which is
    fast.
    """

    labels: Mapping[str, str]
    role: str | None


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """N requests that ended: times in Unix seconds and counts of tokens.

    `values` (6, N) has the columns `started_at`, `first_token_at` (NaN if unknown), `ended_at`,
    `prompt_tokens`, `cached_tokens` and `generated_tokens`. `set_numbers` (N,) are the positions of
    each one's set in `sets`.
    """

    ids: Sequence[str]
    values: FloatArray
    set_numbers: IntArray
    sets: Sequence[LabelSet]

    @classmethod
    def of(
        cls,
        requests: Sequence[Any],
        set_numbers: Sequence[int] | None = None,
        sets: Sequence[LabelSet] = (),
    ) -> RequestColumns:
        """Return the columns of objects with the fields of
        `wattline.contract.requests.ServedRequest`.

        With `set_numbers`, their labels and roles are not read.
        """
        if set_numbers is None:
            known: dict[object, int] = {}
            set_numbers = [
                known.setdefault((tuple(each.labels.items()), each.role), len(known))
                for each in requests
            ]
            firsts = dict(zip(reversed(set_numbers), reversed(requests), strict=True))
            sets = [
                LabelSet(firsts[number].labels, firsts[number].role) for number in range(len(known))
            ]
        values = (
            [each.started_at for each in requests],
            [each.first_token_at for each in requests],
            [each.ended_at for each in requests],
            [each.prompt_tokens for each in requests],
            [each.cached_tokens for each in requests],
            [each.generated_tokens for each in requests],
        )
        return cls.of_values([each.request_id for each in requests], values, set_numbers, sets)

    @classmethod
    def of_values(
        cls,
        ids: Sequence[str],
        values: Sequence[Sequence[float | None]],
        set_numbers: Sequence[int],
        sets: Sequence[LabelSet],
    ) -> RequestColumns:
        """Return the columns of values (6, N), in which None becomes NaN."""
        if len(ids) < _MANY:
            return cls(
                ids, np.array(values, dtype=np.float64), np.array(set_numbers, dtype=np.intp), sets
            )
        columns = np.empty((len(values), len(ids)))
        for column, each in zip(columns, values, strict=True):
            column[:] = _numbers(each)
        return cls(ids, columns, _numbers(set_numbers).astype(np.intp), sets)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def id_hashes(self) -> IntArray:
        """Hashes of the ids, 64 bits but 0, with a key of this process: different ids have the same
        one by chance.
        """
        hashes: IntArray = np.fromiter(map(hash, self.ids), np.int64, len(self.ids))
        hashes[hashes == 0] = 1
        return hashes

    @property
    def end_range(self) -> tuple[float, float]:
        """Earliest and latest end."""
        return float(self.ended_at.min()), float(self.ended_at.max())

    def _row(self, column: int) -> FloatArray:
        row: FloatArray = self.values[column]
        return row

    @property
    def started_at(self) -> FloatArray:
        return self._row(0)

    @property
    def first_token_at(self) -> FloatArray:
        return self._row(1)

    @property
    def ended_at(self) -> FloatArray:
        return self._row(2)

    @property
    def prompt_tokens(self) -> FloatArray:
        return self._row(3)

    @property
    def cached_tokens(self) -> FloatArray:
        return self._row(4)

    @property
    def generated_tokens(self) -> FloatArray:
        return self._row(5)

    def take(self, chosen: Mask) -> RequestColumns:
        """Return some of the requests."""
        ids = list(compress(self.ids, chosen))
        return RequestColumns(ids, self.values[:, chosen], self.set_numbers[chosen], self.sets)

    def packed(self) -> tuple[list[Mapping[str, str]], list[str | None], list[tuple[str, bytes]]]:
        """Return labels, roles, and the columns of the stored form. See
        `wattline.contract.requests.stored`.
        """
        role_of = [each.role for each in self.sets]
        roles = list(dict.fromkeys(role_of))
        role = np.array([roles.index(each) for each in role_of], dtype=np.intp)[self.set_numbers]
        columns = [
            ("ddd", self.values[:3].astype("<f8").tobytes()),
            _smallest(self.values[3:]),
            _smallest(np.array([self.set_numbers, role])),
        ]
        return [each.labels for each in self.sets], roles, columns


def _numbers(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return numbers as an array; many of one type in a third of the time that `np.array` takes."""
    for code in "qd":
        with suppress(struct.error):
            return np.frombuffer(struct.pack(f"{len(values)}{code}", *values), code)
    return np.array(values, dtype=np.float64)


def spans_at(values: FloatArray, offset_s: FloatArray | float) -> tuple[RequestSpans, Mask | None]:
    """Return the spans of the values (6, N) of columns, on a clock that is `offset_s` behind Unix
    time.

    The mask has the requests whose first token is a guess.
    """
    arrived_s, first_s, ended_s = values[:3] - offset_s
    return with_first_tokens(RequestSpans(arrived_s, first_s, ended_s, *values[3:]))


_MOST_FULL = 0.75
"""Part of an array up to which rows are moved to its begin, instead of to a new array."""


def as_items(rows: np.ndarray) -> np.ndarray:
    """Return rows with fields as one item each, which NumPy copies in a sixth of the time; others
    as they are.
    """
    return rows.view(f"V{rows.itemsize}") if rows.dtype.names else rows


class HeldRows:
    """Rows at the end of an array: new ones are appended, the oldest ones removed, without a copy
    of the others.
    """

    def __init__(self, empty: np.ndarray) -> None:
        self._type, self._array, self._begin, self._end = empty.dtype, as_items(empty), 0, 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def values(self) -> np.ndarray:
        return self._array[..., self._begin : self._end].view(self._type)

    def first(self, count: int) -> np.ndarray:
        """Return a copy of the first rows."""
        return self._array[..., self._begin : self._begin + count].copy().view(self._type)

    def append(self, new: int) -> np.ndarray:
        """Return a number of new rows to be set."""
        if self._end + new > self._array.shape[-1]:
            count = len(self)
            moved = self._array
            if count + new > _MOST_FULL * moved.shape[-1]:
                moved = np.empty((*moved.shape[:-1], 2 * (count + new)), moved.dtype)
            moved[..., :count] = self._array[..., self._begin : self._end]
            self._array = moved
            self._begin = 0
            self._end = count
        self._end += new
        return self._array[..., self._end - new : self._end].view(self._type)

    def remove(self, count: int) -> None:
        self._begin += count


def _smallest(counts: npt.NDArray[Any]) -> tuple[str, bytes]:
    """Return the shortest type of `array` that holds the counts (K, N), for each of the K, and the
    counts in it.
    """
    most = counts.max(initial=0)
    code, dtype = ("B", "u1") if most < 1 << 8 else ("H", "<u2") if most < 1 << 16 else ("I", "<u4")
    return code * len(counts), counts.astype(dtype).tobytes()
