"""Readings of a usage window from raw samples, of an exporter, its history or a server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from wattline.contract import metrics as m
from wattline.counter_arrays import counter_steps
from wattline_analyzer.core.samples import FloatArray, Series
from wattline_analyzer.core.sources.base import SampleSource
from wattline_analyzer.core.sources.open import missing_data_remedy
from wattline_analyzer.usage.facts import (
    COUNTERS,
    DEVICE_NAMES,
    HIDDEN_S,
    INFOS,
    NOT_RUNS,
    REACH_S,
    RUN_COUNTERS,
    RUN_SERIES,
    Edges,
    Readings,
    SeriesKey,
    UsageRequest,
    end_tolerance_s,
    key_of,
    no_samples,
    node_names,
)

_METRICS = tuple(
    dict.fromkeys((*COUNTERS, *INFOS, *RUN_SERIES, m.GPU_POD_INFO, m.CARBON_INTENSITY))
)


def read_samples(source: SampleSource, request: UsageRequest) -> Readings:
    """Return the readings of a source without queries. Raises FetchError."""
    raw = RawReadings(source.name, request.start_s, request.end_s, request.policy)
    for part in source.parts(_METRICS, {}, request.start_s - REACH_S, request.end_s):
        raw.add(part)
    found = raw.result()
    if not any(key.name in DEVICE_NAMES for key in found.edges):
        remedy = missing_data_remedy(source)
        raise no_samples(source.name, request.start_s, request.end_s, remedy)
    return found


@dataclass(slots=True, eq=False)
class _Samples:
    """One series, read part by part."""

    edges: Edges
    is_counter: bool
    counted: float | None = None
    """Latest value that is not late."""
    count: int = 0
    total: float = 0.0

    def add(self, t: FloatArray, value: FloatArray, start_s: float) -> None:
        edges = self.edges
        split = int(np.searchsorted(t, start_s, side="right"))
        if split:
            edges.before = self.counted = float(value[split - 1])
        t = t[split:]
        value = value[split:]
        if not len(t):
            return
        if not self.count:
            edges.first = float(value[0])
            edges.first_s = float(t[0])
            edges.rise = 0.0
        edges.last = float(value[-1])
        edges.last_s = float(t[-1])
        is_soon = t <= edges.first_s + HIDDEN_S
        if is_soon.any():
            edges.soon = float(value[is_soon][-1])
        if self.is_counter:
            self._count(value)
        self.count += len(value)
        self.total += float(value.sum())

    def _count(self, value: FloatArray) -> None:
        earlier = float(value[0]) if self.counted is None else self.counted
        # without limits of the rate, the times make no difference
        steps = counter_steps(np.arange(len(value) + 1.0), np.append(earlier, value))
        self.edges.rise = (self.edges.rise or 0.0) + float(steps.increase[1:].sum())
        self.edges.fell |= len(steps.kept) < len(value) + 1 or bool(steps.restarted.any())
        newest = int(steps.kept[-1])
        self.counted = float(value[newest - 1]) if newest else earlier


class RawReadings:
    """Readings from raw samples that come in parts, in the order of time."""

    def __init__(self, name: str, start_s: float, end_s: float, policy: str = "") -> None:
        self._name = name
        self._start_s = start_s
        self._end_s = end_s
        self._policies = ("", policy, "idle_shared")
        self._found: dict[SeriesKey, _Samples] = {}

    def add(self, part: Iterable[Series]) -> None:
        for labels, t, value in part:
            if labels.get("policy", "") not in self._policies and self._policies[1]:
                continue
            key = key_of(labels)
            known = self._found.get(key)
            if known is None:
                is_counter = key.metric.kind == "counter"
                known = self._found[key] = _Samples(Edges(labels, float(value[-1])), is_counter)
            known.edges.labels = {**known.edges.labels, **labels}
            known.add(t, value, self._start_s)

    def result(self) -> Readings:
        found = Readings(self._name, self._start_s, self._end_s)
        within = {key: one for key, one in self._found.items() if one.count}
        self._add_edge_times(found, within)
        names = node_names({key: one.edges for key, one in within.items()})
        known = {node for instance, node in names.items() if instance not in found.first_s}
        for key, one in within.items():
            edges = one.edges
            if key.name == m.CARBON_INTENSITY.name:
                found.intensities[key] = one.total / one.count
            elif key.name == m.GPU_POD_INFO.name:
                found.pods.append((edges.labels, edges.first_s, edges.last_s))
            else:
                is_first = edges.first_s == found.first_s.get(key.instance)
                if edges.before is None and is_first and names.get(key.instance) not in known:
                    edges.before = edges.first
                if _is_of_run(key):
                    edges.rise = None
                found.edges[key] = edges
        return found

    def _add_edge_times(self, found: Readings, within: Mapping[SeriesKey, _Samples]) -> None:
        """Add the times of first and last samples of addresses without one at an edge."""
        by_instance: defaultdict[str, list[Edges]] = defaultdict(list)
        for key, one in within.items():
            if key.name in DEVICE_NAMES:
                by_instance[key.instance].append(one.edges)
        latest_s = self._end_s - end_tolerance_s(self._end_s - self._start_s)
        for instance, devices in by_instance.items():
            if all(one.before is None for one in devices):
                found.first_s[instance] = min(one.first_s for one in devices)
            last_s = max(one.last_s for one in devices)
            if last_s <= latest_s:
                found.last_s[instance] = last_s


def _is_of_run(key: SeriesKey) -> bool:
    return key.metric in RUN_COUNTERS and key.own[0] not in NOT_RUNS
