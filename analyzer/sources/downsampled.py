"""Long stretches of time, fetched part by part and thinned at once, so that memory does not grow with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.model.samples import Exact, Series, tidy
from analyzer.sources.base import PartedSource, Source
from analyzer.sources.downsample import Drawn, How, Key, Plan, Thinned, key
from analyzer.sources.downsample_states import Group
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

Place = tuple[str, str]
"""Instance and UUID of a GPU."""
_CARBON = {metric.name for metric in (m.CARBON_INTENSITY, m.CARBON_INTENSITY_TIMESTAMP, m.CARBON_FETCHED_TIMESTAMP)}
_READ = {m.SOURCE_UP.name, m.SOURCE_READ_TIMESTAMP.name}
_AGES = {m.RUN_DURATION, m.RUN_PHASE_SECONDS, m.GPU_CLOCK_EVENT_SECONDS}


@dataclass(frozen=True, slots=True)
class Asked:
    metrics: Sequence[Metric]
    matchers: Mapping[str, str]
    span_s: tuple[float, float]


def states(source: Source, asked: Asked, edges_s: Sequence[float] = ()) -> pd.DataFrame:
    """Series that hardly ever change; everything within ten minutes of `edges_s` stays. Raises SourceError."""
    groups: defaultdict[tuple[str, str], Group] = defaultdict(lambda: Group(edges_s, _is_moving))
    for part in parts(source, asked):
        by_group: defaultdict[tuple[str, str], list[Series]] = defaultdict(list)
        for one in part:
            by_group[one[0].get("instance", ""), _group(one[0])].append(one)
        for name, series in by_group.items():
            groups[name].add(series)
    return tidy(one for group in groups.values() for one in group.result())


def signals(
    source: Source, asked: Asked, planned: Plan, window_s: tuple[float, float] | None = None
) -> tuple[pd.DataFrame, dict[Place, Exact]]:
    """Gauges, counters and ages; and of those that were thinned what is exact of `window_s`. Raises SourceError."""
    known = {metric.name: metric for metric in asked.metrics}
    labels: dict[tuple[str, ...], Mapping[str, str]] = {}
    found: dict[tuple[str, ...], Thinned] = {}
    for part in parts(source, asked):
        by_series: defaultdict[tuple[str, ...], list[Series]] = defaultdict(list)
        for one in part:
            metric = known[one[0]["__name__"]]
            where = (metric.name, *(one[0].get(name, "") for name in ("instance", *metric.labels)))
            by_series[where].append(one)
            labels.setdefault(where, one[0])
            if where not in found:
                found[where] = Thinned(_how(metric), planned, window_s)
        for where, series in by_series.items():
            found[where].add(np.concatenate([t for _, t, _ in series]), np.concatenate([v for _, _, v in series]))
    results = {where: one.result() for where, one in found.items()}
    exact = {_place(labels[where]): taken for where, (_, _, taken) in results.items() if taken}
    return tidy((labels[where], t, value) for where, (t, value, _) in results.items()), exact


def drawn(source: Source, asked: Asked) -> pd.DataFrame:
    """Gauges for their percentiles and means: of a long series samples that are drawn at random. Raises SourceError."""
    labels: dict[Key, Mapping[str, str]] = {}
    found: dict[Key, Drawn] = {}
    for part in parts(source, asked):
        for own, t, value in part:
            labels.setdefault(key(own), own)
            found.setdefault(key(own), Drawn()).add(t, value)
    return tidy((labels[known], *one.result()) for known, one in found.items())


def _place(labels: Mapping[str, str]) -> Place:
    return labels.get("instance", ""), labels.get("uuid", "")


def _how(metric: Metric) -> How:
    if metric in _AGES:
        return "age"
    return "counter" if metric.kind == "counter" else "gauge"


def _group(labels: Mapping[str, str]) -> str:
    """What is shown at the same scrapes, and is read together."""
    name = labels["__name__"]
    if name in _CARBON or (name == m.SOURCE_UP.name and labels.get("source", "").startswith("carbon")):
        return "carbon"
    return "source" if name in _READ else name


def _is_moving(labels: Mapping[str, str]) -> bool:
    return labels["__name__"] == m.SOURCE_READ_TIMESTAMP.name


def parts(source: Source, asked: Asked) -> Iterator[list[Series]]:
    """All samples, in the order of time. Raises SourceError."""
    if isinstance(source, PartedSource):
        yield from source.parts(asked.metrics, asked.matchers, *asked.span_s)
    else:
        yield _split(source.fetch(asked.metrics, asked.matchers, *asked.span_s))


def _split(frame: pd.DataFrame) -> list[Series]:
    texts = [name for name in frame.columns if name not in ("t", "value")]
    found: list[Series] = []
    for values, rows in frame.groupby(texts, observed=True, sort=False):
        labels = {name: str(text) for name, text in zip(texts, values, strict=True) if text}
        labels["__name__"] = labels.pop("metric")
        found.append((labels, rows["t"].to_numpy(np.float64), rows["value"].to_numpy(np.float64)))
    return found
