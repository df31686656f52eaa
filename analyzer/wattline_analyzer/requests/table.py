"""Requests with their labels, and their energies by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import overload

import numpy as np
import numpy.typing as npt

from wattline.contract.work import energy_of_one
from wattline.figures import Figure
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.requests.stored_energies import StoredEnergies
from wattline_exporter.requests.division.division import RequestEnergies
from wattline_exporter.requests.division.model import Role, only_role
from wattline_exporter.requests.division.spans import RequestSpans
from wattline_exporter.requests.division.totals import EnergyPart

PERCENTILES = (50.0, 95.0, 99.0)
LENGTH = "length"
"""Name of the groups by generated tokens, for `by`."""
_LENGTHS = (32, 128, 512, 2_048)
_CHUNK = 500_000


class TakenIds(Sequence[str]):
    """Some of the ids of a table, which stay where they are: a list of those of a day needs half a
    gigabyte.
    """

    def __init__(self, ids: Sequence[str], positions: npt.NDArray[np.intp]) -> None:
        self._ids, self._positions = ids, positions.astype(np.int32)

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self._ids[k] for k in self._positions[index].tolist()]
        return self._ids[int(self._positions[index])]


@dataclass(frozen=True, slots=True)
class RequestTable:
    """N requests in the order of arrival.

    `label_of` (N,) are the positions of their labels in `label_sets`, and of their reported roles
    in `roles`. `untimed` (N,) is the mask of those whose first token is not known, None if there is
    none; `repeated` is the number of those that occurred again.
    """

    ids: Sequence[str]
    label_sets: Sequence[Mapping[str, str]]
    label_of: npt.NDArray[np.int32]
    spans: RequestSpans
    untimed: npt.NDArray[np.bool_] | None = None
    repeated: int = 0
    roles: Sequence[str | None] = ()
    energies: StoredEnergies | None = None
    """Final energies of the exporter, None for requests that it does not have."""

    @property
    def label_names(self) -> list[str]:
        return sorted({name for labels in self.label_sets for name in labels})

    @property
    def only_role(self) -> Role | None:
        """Role of all requests if they have the same one, else None."""
        return only_role(self.roles)

    def take(self, chosen: npt.NDArray[np.bool_]) -> RequestTable:
        """Return some of the requests."""
        if np.all(chosen):
            return self
        positions = np.flatnonzero(chosen)
        return replace(
            self,
            ids=TakenIds(self.ids, positions),
            label_of=self.label_of[positions],
            spans=RequestSpans(
                *(getattr(self.spans, each.name)[positions] for each in fields(RequestSpans))
            ),
            untimed=None if self.untimed is None else self.untimed[positions],
            energies=None if self.energies is None else self.energies.take(positions),
        )

    def label_values(self, name: str, chosen: npt.NDArray[np.intp]) -> npt.NDArray[np.object_]:
        """Return a label of some of the requests, empty where they lack it."""
        values = np.array([labels.get(name, "") for labels in self.label_sets], dtype=object)
        return values[self.label_of[chosen]]


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """Requests with the same labels; energies in joules, with idle energy if it is shared.

    `half_j` is the half-width of the 95 % interval of the sum, in which errors of requests cancel
    in part. A percentile is between those of the lower and of the upper ends of the requests'
    intervals. `prefill` is the energy of the prompts above idle, None where it cannot be separated;
    its half-width is the larger one of the run's and of the sum of those of the requests, relative
    to the energy.
    """

    keys: tuple[str, ...]
    requests: int
    prompt_tokens: float
    prefilled_tokens: float
    generated_tokens: float
    energy_j: float
    half_j: float
    percentiles_j: tuple[EnergyPart, ...]
    prefill: Figure | None = None

    @property
    def energy(self) -> Figure:
        return Figure(self.energy_j, self.half_j)

    @property
    def per_request(self) -> Figure:
        """Mean energy of a request."""
        return self.energy.scaled(1 / self.requests)

    @property
    def per_generated_token(self) -> Figure | None:
        return energy_of_one(self.energy, self.generated_tokens)

    @property
    def per_prompt_token(self) -> Figure | None:
        """Energy of the prompts above idle, divided by their tokens that are not from the prefix
        cache.
        """
        return None if self.prefill is None else energy_of_one(self.prefill, self.prefilled_tokens)


def interval_of(energy: EnergyPart | None) -> Figure | None:
    """Return an energy with its interval."""
    return Figure(energy.joules, energy.half_j) if energy else None


def _prefill(
    energies: RequestEnergies, prefill_j: float, decode_j: float, half_j: float
) -> Figure | None:
    """Return the energy of the prompts of a group, whose energies above idle have a sum of
    half-widths.
    """
    whole = interval_of(energies.prefill)
    if whole is None or not whole.value:
        return None
    wholes = [whole, Figure(prefill_j + decode_j, half_j)]
    halves_j = [
        each.scaled(prefill_j / each.number).known_half_width for each in wholes if each.number
    ]
    return Figure(prefill_j, max(halves_j))


def energies_j(
    energies: RequestEnergies, chosen: slice | npt.NDArray[np.intp], *, idle_shared: bool
) -> FloatArray:
    """Return the joules of some of the requests."""
    divided = energies.divided
    joules: FloatArray = divided.prefill_j[chosen] + divided.decode_j[chosen]
    if idle_shared:
        joules += divided.idle_j[chosen]
    return joules


@dataclass(frozen=True, slots=True)
class Grouping:
    """Values of the labels of each group, and the number of the group of each request (N,)."""

    keys: list[tuple[str, ...]]
    numbers: npt.NDArray[np.int32]


def group_requests(
    table: RequestTable, energies: RequestEnergies, grouping: Grouping, *, idle_shared: bool
) -> list[RequestGroup]:
    """Return the groups, the one with the most energy first; the energies have their half-widths.

    Requests are read in chunks: a copy of one column of two days has 70 MB.
    """
    keys = grouping.keys
    group = grouping.numbers
    sums = _sums(table.spans, energies, group, len(keys), idle_shared=idle_shared)
    percentiles = _percentiles(energies, group, _counts(group, len(keys)), idle_shared=idle_shared)
    groups = [
        RequestGroup(
            keys=each,
            requests=len_,
            prompt_tokens=prompt,
            prefilled_tokens=prefilled,
            generated_tokens=generated,
            energy_j=energy_j,
            half_j=half_j,
            percentiles_j=found,
            prefill=_prefill(energies, prefill_j, decode_j, sum_half_j),
        )
        for each, half_j, (len_, found), (
            prompt,
            prefilled,
            generated,
            energy_j,
            sum_half_j,
            prefill_j,
            decode_j,
        ) in zip(keys, energies.group_half_j.tolist(), percentiles, sums.T.tolist(), strict=True)
    ]
    return sorted(groups, key=lambda group: (-group.energy_j, group.keys))


def in_order_of_length(groups: Sequence[RequestGroup], by: Sequence[str]) -> list[RequestGroup]:
    """Return groups by LENGTH with rising lengths, after their other labels; other groups as they
    are.
    """
    if LENGTH not in by:
        return list(groups)
    at = by.index(LENGTH)
    lengths = [_length(bucket) for bucket in range(len(_LENGTHS) + 1)]

    def key(group: RequestGroup) -> tuple[tuple[str, ...], int]:
        length = group.keys[at]
        return (*group.keys[:at], *group.keys[at + 1 :]), lengths.index(
            length
        ) if length in lengths else -1

    return sorted(groups, key=key)


def _sums(
    spans: RequestSpans,
    energies: RequestEnergies,
    group: npt.NDArray[np.int32],
    groups: int,
    *,
    idle_shared: bool,
) -> FloatArray:
    """Return sums by group, (7, groups): three kinds of tokens, energy, half-widths, energies of
    prefill and decode.
    """
    totals = np.zeros((7, groups))
    for start in range(0, len(group), _CHUNK):
        part = slice(start, start + _CHUNK)
        columns = [
            spans.prompt_tokens[part],
            np.maximum(spans.prompt_tokens[part] - spans.cached_tokens[part], 1),
            spans.generated_tokens[part],
            energies_j(energies, part, idle_shared=idle_shared),
            energies.half_j[part],
            energies.divided.prefill_j[part],
            energies.divided.decode_j[part],
        ]
        totals += [np.bincount(group[part], column, minlength=groups) for column in columns]
    return totals


def _percentiles(
    energies: RequestEnergies,
    group: npt.NDArray[np.int32],
    counts: npt.NDArray[np.intp],
    *,
    idle_shared: bool,
) -> list[tuple[int, tuple[EnergyPart, ...]]]:
    """Return the number of requests of each group, and PERCENTILES of their energies with
    half-widths.
    """

    def joules(chosen: npt.NDArray[np.intp], sign: float) -> FloatArray:
        own_j = energies_j(energies, chosen, idle_shared=idle_shared)
        return np.maximum(own_j + sign * energies.half_j[chosen], 0.0) if sign else own_j

    best, low, high = (
        _percentiles_of(partial(joules, sign=sign), group, counts) for sign in (0.0, -1.0, 1.0)
    )
    half_j = np.maximum(best - low, high - best)
    return [
        (count, tuple(EnergyPart(*each) for each in zip(values, halves, strict=True)))
        for count, values, halves in zip(
            counts.tolist(), best.tolist(), half_j.tolist(), strict=True
        )
    ]


def _percentiles_of(
    joules: Callable[[npt.NDArray[np.intp]], FloatArray],
    group: npt.NDArray[np.int32],
    counts: npt.NDArray[np.intp],
) -> FloatArray:
    """Return PERCENTILES of the energies of G groups, (G, 3); `joules` returns the energies of some
    requests.
    """
    found: list[FloatArray] = []
    first = 0
    while first < len(counts):  # groups with up to _CHUNK requests together, or one with more
        final = max(
            first + 1, int(np.searchsorted(np.cumsum(counts[first:]), _CHUNK, side="right")) + first
        )
        some_j = np.empty(int(counts[first:final].sum()))
        numbers = np.empty(0, dtype=np.int32)
        filled = 0
        for start in range(0, len(group), _CHUNK):
            part = group[start : start + _CHUNK]
            members = np.flatnonzero((part >= first) & (part < final))
            some_j[filled : filled + len(members)] = joules(members + start)
            if final - first > 1:
                numbers = np.append(numbers, part[members])
            filled += len(members)
        if final - first > 1:
            some_j = some_j[np.argsort(numbers, kind="stable")]
        of_groups = np.split(some_j, np.cumsum(counts[first : final - 1]))
        found += [np.percentile(each, PERCENTILES, overwrite_input=True) for each in of_groups]
        first = final
    return np.array(found).reshape(-1, len(PERCENTILES))


def groups_by(table: RequestTable, by: Sequence[str]) -> Grouping:
    """Return the groups by labels and LENGTH."""
    kinds = len(_LENGTHS) + 1 if LENGTH in by else 1
    codes = table.label_of * np.int32(kinds)
    if LENGTH in by:
        for start in range(0, len(codes), _CHUNK):
            part = slice(start, start + _CHUNK)
            codes[part] += np.searchsorted(_LENGTHS, table.spans.generated_tokens[part]).astype(
                np.int32
            )
    present = np.flatnonzero(_counts(codes, len(table.label_sets) * kinds))
    numbers: dict[tuple[str, ...], int] = {}
    group_of = np.zeros(len(table.label_sets) * kinds, dtype=np.int32)
    for code in present:
        labels = table.label_sets[int(code) // kinds]
        bucket = int(code) % kinds
        keys = tuple(labels.get(name, _length(bucket) if name == LENGTH else "") for name in by)
        group_of[code] = numbers.setdefault(keys, len(numbers))
    for start in range(0, len(codes), _CHUNK):
        part = slice(start, start + _CHUNK)
        codes[part] = group_of[codes[part]]
    return Grouping(list(numbers), codes)


def _counts(numbers: npt.NDArray[np.int32], groups: int) -> npt.NDArray[np.intp]:
    """Return how often each number occurs. Of all numbers at once, bincount makes a copy that is
    twice as large.
    """
    total = np.zeros(groups, dtype=np.intp)
    for start in range(0, len(numbers), _CHUNK):
        total += np.bincount(numbers[start : start + _CHUNK], minlength=groups)
    return total


def _length(bucket: int) -> str:
    """Return a range of generated tokens: `33 to 128`."""
    if bucket == len(_LENGTHS):
        return f"above {_LENGTHS[-1]:,}"
    return (
        f"{_LENGTHS[bucket - 1] + 1:,} to {_LENGTHS[bucket]:,}"
        if bucket
        else f"up to {_LENGTHS[0]}"
    )
