"""Counters of requests and their energy, by model, role and chosen labels; they outlive the
exporter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_exporter.sensors.readings import NativeBuckets, Reading, ReadingKey

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.arrays import FloatArray, IntArray, Mask
    from wattline_exporter.requests.division.columns import LabelSet

BUCKETS_J = (
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1e3,
    2.5e3,
    5e3,
    1e4,
)
NATIVE_SCHEMA = 3
"""Native buckets for each power of two: 2 ** 3, each 9 % wide."""
ZERO_J = 2.0**-10
"""Largest energy in the zero bucket of native histograms."""
_ZERO = -10_000
"""Number of the zero bucket; the others have numbers above it and below -_ZERO."""
_KEYS = -2 * _ZERO
MAX_LABEL_SETS = 100
"""Limit of the sets of labels with separate series; requests of further sets have OTHER in all
labels.
"""
OTHER = "(other)"
NEW_SERIES_S = 65.0
"""Time for which new series are at 0, so that each scrape up to a minute apart has that 0."""
_MAX_KNOWN = 4_096
_METRICS = {
    each.name: each
    for each in (
        m.REQUEST_ENERGY_BUCKET,
        m.REQUEST_ENERGY_SUM,
        m.REQUEST_ENERGY_TOTAL,
        m.REQUESTS,
        m.REQUESTS_REJECTED,
    )
}


class RequestCounters:
    """Counters by metric and labels, of which the chosen ones are `NAME=VALUE`.

    Buckets have only their own requests, under the number of the bucket. Native buckets are stored
    under the name of the family.

    `readings` has the values that were saved, so that no counter falls after a crash. New series,
    but for those of rejected requests, are at 0 for NEW_SERIES_S: PromQL's `increase` counts no
    first value. Those of energies may be newer than those of requests, of which the first ones may
    have no energy.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._values: dict[ReadingKey, float] = {}
        self._published: dict[ReadingKey, float] = {}
        self._shown_from_s: dict[ReadingKey, float] = {}
        """Time until which new series are at 0; without their bucket's number."""
        self._changed: set[ReadingKey] = set()
        self._numbers: dict[tuple[str, ...], int] = {}
        """Labels in the order of their numbers."""
        self._known: dict[LabelSet, int] = {}
        """Numbers of the latest sets of labels."""

    def restore(self, saved: Mapping[ReadingKey, float]) -> None:
        """Continue the counters of a previous exporter."""
        self._values = dict(saved)
        self._published = dict(saved)
        for name, labels in saved:
            if name == m.REQUESTS.name:
                self._numbers.setdefault(labels, len(self._numbers))
        if not any(
            name == m.REQUEST_ENERGY.name for name, _ in saved
        ):  # an earlier version had classic buckets only
            for (name, labels), count in saved.items():
                if name == m.REQUEST_ENERGY_BUCKET.name:
                    edge_j = BUCKETS_J[min(int(labels[-1]), len(BUCKETS_J) - 1)]
                    number = math.ceil(math.log2(edge_j) * 2**NATIVE_SCHEMA)
                    self._add(m.REQUEST_ENERGY, (*labels[:-1], str(number)), count)
            self._published = dict(self._values)

    def number(self, labels: LabelSet) -> int:
        """Return the number of the labels that the metrics of a request have."""
        if labels not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[labels] = self._number(labels)
        return self._known[labels]

    def _number(self, known: LabelSet) -> int:
        labels = known.labels
        chosen = (f"{name}={labels[name]}" for name in self._names if name in labels)
        own = (labels.get("model", ""), known.role or "", *chosen)
        if own not in self._numbers and len(self._numbers) >= MAX_LABEL_SETS:
            own = (OTHER, OTHER, *(f"{name}={OTHER}" for name in self._names))
        return self._numbers.setdefault(own, len(self._numbers))

    def add(self, numbers: IntArray, joules: FloatArray, is_measured: Mask) -> None:
        """Count requests by the numbers of their labels (N,), and the energies (N,) of those that
        have one.
        """
        import numpy as np

        from wattline_exporter.requests.division.arrays import amounts_at

        sets = len(self._numbers)
        buckets = len(BUCKETS_J) + 1
        measured = numbers[is_measured]
        known_j = joules[is_measured]
        requests = np.bincount(numbers, minlength=sets)
        totals_j = amounts_at(measured, known_j, sets)
        place = measured * buckets + np.searchsorted(BUCKETS_J, known_j)
        counts = np.bincount(place, minlength=sets * buckets).reshape(sets, buckets)
        native = np.ceil(np.log2(np.maximum(known_j, ZERO_J)) * 2**NATIVE_SCHEMA).astype(np.intp)
        native[known_j <= ZERO_J] = _ZERO
        labels = list(self._numbers)
        (used,) = np.nonzero(np.bincount(native - _ZERO))
        position = np.zeros(_KEYS, dtype=np.intp)
        position[used] = np.arange(len(used))
        amounts = np.bincount(
            measured * len(used) + position[native - _ZERO]
        )  # `np.unique` takes ten times as long
        for key in np.flatnonzero(amounts).tolist():
            number, bucket = divmod(key, len(used))
            self._add(
                m.REQUEST_ENERGY, (*labels[number], str(used[bucket] + _ZERO)), float(amounts[key])
            )
        for number in np.flatnonzero(requests).tolist():
            own = labels[number]
            self._add(m.REQUESTS, own, float(requests[number]))
            if counts[number].any():
                self._add(m.REQUEST_ENERGY_TOTAL, own, float(totals_j[number]))
                self._add(m.REQUEST_ENERGY_SUM, own, float(totals_j[number]))
            for bucket in np.flatnonzero(counts[number]).tolist():
                self._add(
                    m.REQUEST_ENERGY_BUCKET, (*own, str(bucket)), float(counts[number, bucket])
                )

    def reject(self, reason: str, count: int) -> None:
        self._add(m.REQUESTS_REJECTED, (reason,), float(count))

    def _add(self, metric: Metric, labels: tuple[str, ...], amount: float) -> None:
        key = metric.name, labels
        self._values[key] = self._values.get(key, 0.0) + amount
        self._changed.add(key)

    def take_changes(self) -> dict[ReadingKey, float]:
        """Return the values that changed since the last call."""
        changed = self._changed
        self._changed = set()
        return {key: self._values[key] for key in changed}

    def put_back(self, changes: Mapping[ReadingKey, float]) -> None:
        """Add changes that could not be saved to the next ones."""
        self._changed |= changes.keys()

    def publish(self, changes: Mapping[ReadingKey, float], now_s: float) -> None:
        """Show changes that are saved."""
        known = {_series(key) for key in self._published}
        counted = [key for key in changes if key[0] != m.REQUESTS_REJECTED.name]
        for series in {_series(key) for key in counted} - known:
            self._shown_from_s[series] = now_s + NEW_SERIES_S
        self._published.update(changes)

    def _shown(self, now_s: float) -> Iterator[tuple[ReadingKey, float]]:
        self._shown_from_s = {each: s for each, s in self._shown_from_s.items() if s > now_s}
        for key, value in self._published.items():
            yield key, 0.0 if _series(key) in self._shown_from_s else value

    def readings(self, now_s: float) -> Iterator[Reading]:
        buckets: dict[tuple[str, ...], list[float]] = {}
        for (name, labels), value in self._shown(now_s):
            if name == m.REQUEST_ENERGY.name:
                continue
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

    def native_buckets(self, now_s: float) -> Iterator[NativeBuckets]:
        """Yield the energies of requests in the buckets of native histograms, by labels."""
        counts: dict[tuple[str, ...], dict[int, int]] = {}
        for (name, labels), value in self._shown(now_s):
            if name == m.REQUEST_ENERGY.name and value:
                counts.setdefault(labels[:-1], {})[int(labels[-1])] = round(value)
        for labels, of_labels in counts.items():
            zero = of_labels.pop(_ZERO, 0)
            extra = _extra(labels[2:])
            yield NativeBuckets(
                m.REQUEST_ENERGY, labels[:2], extra, NATIVE_SCHEMA, ZERO_J, zero, of_labels
            )


def _series(key: ReadingKey) -> ReadingKey:
    """Return the name and labels of a counter without the number of its bucket."""
    name, labels = key
    return name, labels[:-1] if name in (
        m.REQUEST_ENERGY.name,
        m.REQUEST_ENERGY_BUCKET.name,
    ) else labels


def _extra(chosen: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, _, value in (each.partition("=") for each in chosen))
