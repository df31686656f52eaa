"""Requests with their labels, and their energies by group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.model.samples import FloatArray
from exporter.request_energy.divide import RequestEnergies
from exporter.request_energy.spans import RequestSpans

PERCENTILES = (50.0, 95.0, 99.0)
LENGTH = "length"
"""Name of the groups by generated tokens, for `by`."""
_LENGTHS = (32, 128, 512, 2_048)


@dataclass(frozen=True, slots=True)
class RequestTable:
    """N requests in the order of arrival.

    `untimed` is the number of those without the time of the first token, `repeated` of those that occurred again.
    """

    ids: Sequence[str]
    labels: Sequence[dict[str, str]]
    spans: RequestSpans
    untimed: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """Requests with the same labels; energies in joules, with idle energy if it is shared.

    `half_j` is the half-width of the 95 % interval of the sum. The errors of the requests of a group are not
    independent, so their half-widths add up.
    """

    keys: tuple[str, ...]
    requests: int
    prompt_tokens: float
    generated_tokens: float
    energy_j: float
    half_j: float
    percentiles_j: tuple[float, ...]

    @property
    def per_request_j(self) -> tuple[float, float]:
        """Mean energy of a request with its half-width."""
        return self.energy_j / self.requests, self.half_j / self.requests

    @property
    def per_generated_token_j(self) -> float | None:
        return self.energy_j / self.generated_tokens if self.generated_tokens else None


def energies_j(energies: RequestEnergies, *, idle_shared: bool) -> FloatArray:
    """Return the joules of each request, (N,)."""
    return energies.total_j if idle_shared else energies.dynamic_j


def group_requests(
    table: RequestTable, energies: RequestEnergies, by: Sequence[str], *, idle_shared: bool
) -> list[RequestGroup]:
    """Return the groups by labels, the one with the most energy first."""
    joules = energies_j(energies, idle_shared=idle_shared)
    found: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    lengths = np.searchsorted(_LENGTHS, table.spans.generated_tokens)
    for index, labels in enumerate(table.labels):
        keys = (labels.get(name, _length(lengths[index]) if name == LENGTH else "") for name in by)
        found[tuple(keys)].append(index)
    spans = table.spans
    groups = [
        RequestGroup(
            keys=keys,
            requests=len(members),
            prompt_tokens=float(spans.prompt_tokens[members].sum()),
            generated_tokens=float(spans.generated_tokens[members].sum()),
            energy_j=float(joules[members].sum()),
            half_j=float(energies.half_j[members].sum()),
            percentiles_j=tuple(float(one) for one in np.percentile(joules[members], PERCENTILES)),
        )
        for keys, members in found.items()
    ]
    return sorted(groups, key=lambda group: (-group.energy_j, group.keys))


def _length(bucket: int) -> str:
    """Return a range of generated tokens: `33 to 128`."""
    if bucket == len(_LENGTHS):
        return f"above {_LENGTHS[-1]:,}"
    return f"{_LENGTHS[bucket - 1] + 1:,} to {_LENGTHS[bucket]:,}" if bucket else f"up to {_LENGTHS[0]}"
