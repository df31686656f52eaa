"""Columns of the requests that a server reports in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.request_energy.pieces import FloatArray, IntArray, Mask
from exporter.request_energy.spans import RequestSpans


@dataclass(frozen=True, eq=False, slots=True)
class LabelSet:
    """Labels and role that requests have in common. Sets are compared by identity, which is fast."""

    labels: Mapping[str, str]
    role: str | None


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """N requests that ended: times in Unix seconds and counts of tokens, (N,). `first_token_at` is NaN if unknown.

    `set_numbers` (N,) are the positions of each one's labels and role in `sets`.
    """

    ids: Sequence[str]
    started_at: FloatArray
    first_token_at: FloatArray
    ended_at: FloatArray
    prompt_tokens: FloatArray
    cached_tokens: FloatArray
    generated_tokens: FloatArray
    set_numbers: IntArray
    sets: Sequence[LabelSet]

    @classmethod
    def of(
        cls, requests: Sequence[Any], set_numbers: Sequence[int] | None = None, sets: Sequence[LabelSet] = ()
    ) -> RequestColumns:
        """Return the columns of objects with the fields of `exporter.contract.requests.ServedRequest`.

        With `set_numbers`, their labels and roles are not read.
        """
        if set_numbers is None:
            known: dict[object, int] = {}
            set_numbers = [known.setdefault((tuple(each.labels.items()), each.role), len(known)) for each in requests]
            firsts = dict(zip(reversed(set_numbers), reversed(requests), strict=True))
            sets = [LabelSet(firsts[number].labels, firsts[number].role) for number in range(len(known))]
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
        """Return the columns of times and counts, (6, N) in the order of the fields; None becomes NaN."""
        started, first, ended, prompt, cached, generated = (np.array(each, dtype=np.float64) for each in values)
        return cls(ids, started, first, ended, prompt, cached, generated, np.array(set_numbers, dtype=np.intp), sets)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def id_hashes(self) -> list[int]:
        """Hashes of the ids, 64 bits with a key of this process: two different ids have the same one by chance."""
        return list(map(hash, self.ids))

    @property
    def end_range(self) -> tuple[float, float]:
        """Earliest and latest end."""
        return float(self.ended_at.min()), float(self.ended_at.max())

    def take(self, chosen: Mask) -> RequestColumns:
        """Return some of the requests."""
        return RequestColumns(
            list(compress(self.ids, chosen)),
            self.started_at[chosen],
            self.first_token_at[chosen],
            self.ended_at[chosen],
            self.prompt_tokens[chosen],
            self.cached_tokens[chosen],
            self.generated_tokens[chosen],
            self.set_numbers[chosen],
            self.sets,
        )

    def spans(self, offset_s: float) -> RequestSpans:
        """Return the spans on a clock that is `offset_s` behind Unix time."""
        arrived_s, ended_s = self.started_at - offset_s, self.ended_at - offset_s
        share = self.prompt_tokens / np.maximum(self.prompt_tokens + self.generated_tokens, 1.0)
        likely_s = arrived_s + np.minimum(share, 0.5) * (ended_s - arrived_s)
        first_s = np.where(np.isnan(self.first_token_at), likely_s, self.first_token_at - offset_s)
        return RequestSpans(arrived_s, first_s, ended_s, self.prompt_tokens, self.cached_tokens, self.generated_tokens)

    def packed(self) -> tuple[list[list[tuple[str, str]]], list[str | None], list[tuple[str, bytes]]]:
        """Return labels, roles, and the columns of the stored form. See `exporter.contract.requests.stored`."""
        roles = list(dict.fromkeys(each.role for each in self.sets))
        role = np.array([roles.index(each.role) for each in self.sets], dtype=np.intp)[self.set_numbers]
        times = self.started_at, self.first_token_at, self.ended_at
        counts = self.prompt_tokens, self.cached_tokens, self.generated_tokens, self.set_numbers, role
        columns = [*(("d", each.astype("<f8").tobytes()) for each in times), *map(_smallest, counts)]
        return [list(each.labels.items()) for each in self.sets], roles, columns


class HeldRows:
    """Rows at the end of an array: new ones are appended, the oldest ones removed, without a copy of the others."""

    def __init__(self, empty: np.ndarray) -> None:
        self._array, self._begin, self._end = empty, 0, 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def values(self) -> np.ndarray:
        return self._array[..., self._begin : self._end]

    def append(self, new: int) -> np.ndarray:
        """Return a number of new rows to be set."""
        if self._end + new > self._array.shape[-1]:
            count = len(self)
            moved = self._array
            if 2 * (count + new) > moved.shape[-1]:
                moved = np.empty((*moved.shape[:-1], 2 * (count + new)), moved.dtype)
            moved[..., :count] = self.values
            self._array, self._begin, self._end = moved, 0, count
        self._end += new
        return self._array[..., self._end - new : self._end]

    def remove(self, count: int) -> None:
        self._begin += count


def _smallest(counts: npt.NDArray[Any]) -> tuple[str, bytes]:
    """Return the shortest type of `array` that holds the counts, and the counts in it."""
    most = counts.max(initial=0)
    code = "B" if most < 1 << 8 else "H" if most < 1 << 16 else "I"
    return code, counts.astype(np.dtype(code).newbyteorder("<")).tobytes()
