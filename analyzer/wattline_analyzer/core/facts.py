"""Facts: the newest sample of each series in a time range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from wattline.contract.metrics import Metric
from wattline.contract.run_series import SeriesRow
from wattline_analyzer.core.samples import Series


@dataclass(frozen=True, slots=True)
class Fact:
    """Newest sample of a series in a time range: its `value` at `t`, in Unix seconds.

    `labels` are those that are not empty, without `instance` and `job`. `first_s` is the time of
    the first sample in the range, `lowest` and `highest` are the limits of all values there.
    """

    metric: Metric
    instance: str
    labels: Mapping[str, str]
    t: float
    value: float
    first_s: float
    lowest: float
    highest: float

    @property
    def row(self) -> SeriesRow:
        """The fact as a row of the contract, from which a run is read."""
        return SeriesRow(self.metric, self.labels, self.value)

    def followed_by(self, later: Fact) -> Fact:
        """Return the fact of both ranges of the series; `later` is newer or as new."""
        return replace(
            later,
            first_s=min(self.first_s, later.first_s),
            lowest=min(self.lowest, later.lowest),
            highest=max(self.highest, later.highest),
        )


def fact_of_row(row: SeriesRow, instance: str, t: float) -> Fact:
    """Return the fact of a series with one sample."""
    return Fact(row.metric, instance, row.labels, t, row.value, t, row.value, row.value)


def newest_facts(metrics: Sequence[Metric], parts: Iterable[Iterable[Series]]) -> list[Fact]:
    """Return the fact of each series, in the order of time; samples that are not finite are left
    out.

    `parts` are samples of these metrics in time order. A series is identified by instance and the
    metric's own labels, so that two jobs that scrape one exporter give one series.
    """
    by_name = {metric.name: metric for metric in metrics}
    found: dict[tuple[str, ...], Fact] = {}
    for series in chain.from_iterable(parts):
        labels = series[0]
        metric = by_name[labels["__name__"]]
        own = (labels.get(name, "") for name in metric.labels)
        identity = (metric.name, labels.get("instance", ""), *own)
        known = found.get(identity)
        fact = _fact(metric, series)
        if fact is None:
            continue
        if known is None:
            found[identity] = fact
        elif fact.t < known.t:
            found[identity] = fact.followed_by(known)
        else:
            del found[identity]  # facts of the same time have the order of their newest samples
            found[identity] = known.followed_by(fact)
    return sorted(found.values(), key=lambda fact: fact.t)


def _fact(metric: Metric, series: Series) -> Fact | None:
    labels, t, value = series
    finite = np.isfinite(value)
    if not finite.all():
        t = t[finite]
        value = value[finite]
    if not len(t):
        return None
    named = {
        name: text
        for name, text in labels.items()
        if text and name not in ("__name__", "instance", "job")
    }
    return Fact(
        metric=metric,
        instance=labels.get("instance", ""),
        labels=named,
        t=float(t[-1]),
        value=float(value[-1]),
        first_s=float(t[0]),
        lowest=float(value.min()),
        highest=float(value.max()),
    )
