"""Counters of requests and their energy, by model, role and chosen labels; they outlive the exporter."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from exporter.contract import metrics as m
from exporter.contract.metrics import Metric
from exporter.contract.requests import ServedRequest
from exporter.model import Reading, ReadingKey

BUCKETS_J = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4)
MAX_LABEL_SETS = 100
"""Most sets of labels with series of their own; requests of further ones have OTHER in all labels."""
OTHER = "(other)"
_METRICS = {
    each.name: each
    for each in (m.REQUEST_ENERGY_BUCKET, m.REQUEST_ENERGY_SUM, m.REQUEST_ENERGY_TOTAL, m.REQUESTS, m.REQUESTS_REJECTED)
}


@dataclass(slots=True)
class _Tally:
    """Requests of one label set since the last save, and the energy and buckets of those with an energy."""

    requests: int = 0
    joules: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)


class RequestCounters:
    """Counters by metric and labels, of which the chosen ones are `NAME=VALUE`.

    Buckets have only their own requests, under the number of the bucket.

    `readings` has the values that were saved, so that no counter falls after a crash.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._values: dict[ReadingKey, float] = {}
        self._published: dict[ReadingKey, float] = {}
        self._changed: set[ReadingKey] = set()
        self._sets: set[tuple[str, ...]] = set()
        self._tallies: dict[tuple[str, ...], _Tally] = {}

    def restore(self, saved: Mapping[ReadingKey, float]) -> None:
        """Continue the counters of a previous exporter."""
        self._values, self._published = dict(saved), dict(saved)
        self._sets = {labels for (name, labels) in saved if name == m.REQUESTS.name}

    def add(self, request: ServedRequest, joules: float | None) -> None:
        """Count a request, and its energy if it is known."""
        labels = self._labels(request)
        tally = self._tallies.get(labels)
        if tally is None:
            tally = self._tallies[labels] = _Tally()
        tally.requests += 1
        if joules is not None:
            tally.joules += joules
            bucket = bisect_left(BUCKETS_J, joules)
            tally.buckets[bucket] = tally.buckets.get(bucket, 0) + 1

    def _add_tallies(self) -> None:
        """Add what `add` has counted: one addition for each label set costs less than for each request."""
        tallies, self._tallies = self._tallies, {}
        for labels, tally in tallies.items():
            self._add(m.REQUESTS, labels, tally.requests)
            if tally.buckets:
                self._add(m.REQUEST_ENERGY_TOTAL, labels, tally.joules)
                self._add(m.REQUEST_ENERGY_SUM, labels, tally.joules)
            for bucket, count in tally.buckets.items():
                self._add(m.REQUEST_ENERGY_BUCKET, (*labels, str(bucket)), count)

    def reject(self, reason: str, count: int) -> None:
        self._add(m.REQUESTS_REJECTED, (reason,), float(count))

    def _labels(self, request: ServedRequest) -> tuple[str, ...]:
        own = request.labels
        chosen = (f"{name}={own[name]}" for name in self._names if name in own)
        labels = (own.get("model", ""), request.role or "", *chosen)
        if labels not in self._sets:
            if len(self._sets) >= MAX_LABEL_SETS:
                return (OTHER, OTHER, *(f"{name}={OTHER}" for name in self._names))
            self._sets.add(labels)
        return labels

    def _add(self, metric: Metric, labels: tuple[str, ...], amount: float) -> None:
        key = metric.name, labels
        self._values[key] = self._values.get(key, 0.0) + amount
        self._changed.add(key)

    def take_changes(self) -> dict[ReadingKey, float]:
        """Return the values that changed since the last call."""
        self._add_tallies()
        changed, self._changed = self._changed, set()
        return {key: self._values[key] for key in changed}

    def put_back(self, changes: Mapping[ReadingKey, float]) -> None:
        """Add changes that could not be saved to the next ones."""
        self._changed |= changes.keys()

    def publish(self, changes: Mapping[ReadingKey, float]) -> None:
        """Show changes that are saved."""
        self._published.update(changes)

    def readings(self) -> Iterator[Reading]:
        buckets: dict[tuple[str, ...], list[float]] = {}
        for (name, labels), value in self._published.items():
            if name == m.REQUEST_ENERGY_BUCKET.name:
                counts = buckets.setdefault(labels[:-1], [0.0] * (len(BUCKETS_J) + 1))
                counts[int(labels[-1])] += value
            else:
                fixed = len(_METRICS[name].labels)
                yield Reading(_METRICS[name], labels[:fixed], value, _extra(labels[fixed:]))
        for labels, counts in buckets.items():
            extra = _extra(labels[2:])
            for edge, value in zip((*map(str, BUCKETS_J), "+Inf"), accumulate(counts), strict=True):
                yield Reading(m.REQUEST_ENERGY_BUCKET, (*labels[:2], edge), value, extra)
            yield Reading(m.REQUEST_ENERGY_COUNT, labels[:2], sum(counts), extra)


def _extra(chosen: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, _, value in (each.partition("=") for each in chosen))
