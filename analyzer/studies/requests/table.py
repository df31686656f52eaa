"""Requests with their labels, and their energies by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from analyzer.model.samples import FloatArray
from exporter.request_energy.divide import EnergyPart, RequestEnergies, Role
from exporter.request_energy.spans import RequestSpans

PERCENTILES = (50.0, 95.0, 99.0)
LENGTH = "length"
"""Name of the groups by generated tokens, for `by`."""
_LENGTHS = (32, 128, 512, 2_048)


@dataclass(frozen=True, slots=True)
class RequestTable:
    """N requests in the order of arrival.

    `label_of` (N,) are the positions of their labels in `label_sets`. `untimed` is the number of those without the
    time of the first token, `repeated` of those that occurred again.
    """

    ids: Sequence[str]
    label_sets: Sequence[Mapping[str, str]]
    label_of: npt.NDArray[np.int32]
    spans: RequestSpans
    untimed: int = 0
    repeated: int = 0

    @property
    def label_names(self) -> list[str]:
        return sorted({name for labels in self.label_sets for name in labels})

    @property
    def only_role(self) -> Role | None:
        """Role of all requests, if they are those of one part of a disaggregated server."""
        roles = {labels.get("role") for labels in self.label_sets}
        return next((role for role in get_args(Role) if roles == {role}), None)

    def label_values(self, name: str, chosen: npt.NDArray[np.intp]) -> npt.NDArray[np.object_]:
        """Return a label of some of the requests, empty where they lack it."""
        values = np.array([labels.get(name, "") for labels in self.label_sets], dtype=object)
        return values[self.label_of[chosen]]


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """Requests with the same labels; energies in joules, with idle energy if it is shared.

    `half_j` is the half-width of the 95 % interval of the sum. The errors of the requests of a group are not
    independent, so their half-widths add up. `prefill` is the energy of the prompts above idle, None where it cannot be
    separated; its half-width is the larger one of the run's and of its share of `half_j`, relative to the energy.
    """

    keys: tuple[str, ...]
    requests: int
    prompt_tokens: float
    prefilled_tokens: float
    generated_tokens: float
    energy_j: float
    half_j: float
    percentiles_j: tuple[float, ...]
    prefill: EnergyPart | None = None

    @property
    def per_request_j(self) -> tuple[float, float]:
        """Mean energy of a request with its half-width."""
        return self.energy_j / self.requests, self.half_j / self.requests

    @property
    def per_generated_token(self) -> EnergyPart | None:
        return _each(EnergyPart(self.energy_j, self.half_j), self.generated_tokens)

    @property
    def per_prompt_token(self) -> EnergyPart | None:
        """Energy of the prompts above idle, divided by their tokens that are not from the prefix cache."""
        return _each(self.prefill, self.prefilled_tokens)


def _each(energy: EnergyPart | None, tokens: float) -> EnergyPart | None:
    return EnergyPart(energy.joules / tokens, energy.half_j / tokens) if energy and tokens else None


def _prefill(energies: RequestEnergies, members: npt.NDArray[np.intp]) -> EnergyPart | None:
    whole = energies.prefill
    if whole is None or not whole.joules:
        return None
    prefill_j = float(energies.divided.prefill_j[members].sum())
    dynamic_j = prefill_j + float(energies.divided.decode_j[members].sum())
    own_ratio = float(energies.half_j[members].sum()) / dynamic_j if dynamic_j else 0.0
    return EnergyPart(prefill_j, prefill_j * max(whole.half_j / whole.joules, own_ratio))


def energies_j(energies: RequestEnergies, *, idle_shared: bool) -> FloatArray:
    """Return the joules of each request, (N,)."""
    return energies.total_j if idle_shared else energies.dynamic_j


def group_requests(
    table: RequestTable, energies: RequestEnergies, by: Sequence[str], *, idle_shared: bool
) -> list[RequestGroup]:
    """Return the groups by labels, the one with the most energy first."""
    spans, joules = table.spans, energies_j(energies, idle_shared=idle_shared)
    keys, group = _group_numbers(table, by)
    order = np.argsort(group, kind="stable")
    borders = np.cumsum(np.bincount(group, minlength=len(keys)))
    groups = [
        RequestGroup(
            keys=each,
            requests=len(members),
            prompt_tokens=float(spans.prompt_tokens[members].sum()),
            prefilled_tokens=float(np.maximum(spans.prompt_tokens[members] - spans.cached_tokens[members], 1).sum()),
            generated_tokens=float(spans.generated_tokens[members].sum()),
            energy_j=float(joules[members].sum()),
            half_j=float(energies.half_j[members].sum()),
            percentiles_j=tuple(float(one) for one in np.percentile(joules[members], PERCENTILES)),
            prefill=_prefill(energies, members),
        )
        for each, members in zip(keys, np.split(order, borders[:-1]), strict=True)
    ]
    return sorted(groups, key=lambda group: (-group.energy_j, group.keys))


def _group_numbers(table: RequestTable, by: Sequence[str]) -> tuple[list[tuple[str, ...]], npt.NDArray[np.int32]]:
    """Return the values of the labels of each group, and the group of each request (N,)."""
    kinds = len(_LENGTHS) + 1 if LENGTH in by else 1
    codes = table.label_of * np.int32(kinds)
    if LENGTH in by:
        codes += np.searchsorted(_LENGTHS, table.spans.generated_tokens).astype(np.int32)
    present = np.flatnonzero(np.bincount(codes))
    numbers: dict[tuple[str, ...], int] = {}
    group_of = np.zeros(len(table.label_sets) * kinds, dtype=np.int32)
    for code in present:
        labels, bucket = table.label_sets[int(code) // kinds], int(code) % kinds
        keys = tuple(labels.get(name, _length(bucket) if name == LENGTH else "") for name in by)
        group_of[code] = numbers.setdefault(keys, len(numbers))
    return list(numbers), group_of[codes]


def _length(bucket: int) -> str:
    """Return a range of generated tokens: `33 to 128`."""
    if bucket == len(_LENGTHS):
        return f"above {_LENGTHS[-1]:,}"
    return f"{_LENGTHS[bucket - 1] + 1:,} to {_LENGTHS[bucket]:,}" if bucket else f"up to {_LENGTHS[0]}"
