"""Counters that start at 0 in a fresh state folder and never fall, from raw counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from wattline.contract.metrics import Metric
from wattline.counters import CounterTotal
from wattline_exporter.sensors.readings import Reading

MAX_SERIES = 5_000
"""Series kept, more than a node of 64 GPUs has. Beyond, those not read for the longest time are
discarded.
"""
NO_RAW_VALUE = -1.0
"""Raw value of a series that only this process counts; such a series is never discarded."""

SeriesKey = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""Metric name, label values, and extra labels."""


class ExportedCounters:
    """Totals of raw counters by series, with those that changed since the last save."""

    def __init__(self, totals: dict[SeriesKey, CounterTotal] | None = None) -> None:
        self.totals = dict(totals or {})
        self.changed: set[SeriesKey] = set()

    def accumulate(self, readings: Iterable[Reading], *, from_zero: bool) -> Iterator[Reading]:
        """Yield the readings with totals in place of raw counter values.

        `from_zero`: the first raw value of a series counts, since it began with this process.
        Otherwise it is a baseline.
        """
        for reading in readings:
            if reading.metric.kind == "counter":
                value = self._add_raw(
                    _series_key(reading), reading.value, 0.0 if from_zero else reading.value
                )
                yield reading._replace(value=value)
            else:
                yield reading
        self._discard_oldest()

    def add(self, metric: Metric, labels: tuple[str, ...], amount: float) -> None:
        """Count events that no hardware counter counts; `readings` returns the totals."""
        series = metric.name, labels, ()
        before = self.totals.pop(series, CounterTotal(0.0, NO_RAW_VALUE))
        self.totals[series] = CounterTotal(before.total + amount, NO_RAW_VALUE)
        self.changed.add(series)

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge that continues after a restart; `readings` returns it."""
        series = metric.name, labels, ()
        self.totals[series] = CounterTotal(value, NO_RAW_VALUE)
        self.changed.add(series)

    def readings(self, metric: Metric) -> Iterator[Reading]:
        for name, labels, extra in self.totals:
            if name == metric.name:
                yield Reading(metric, labels, self.totals[name, labels, extra].total, extra)

    def take_changed(self) -> dict[SeriesKey, CounterTotal | None]:
        """Return the totals that changed since the last call, with None for those that were
        discarded.
        """
        changed = self.changed
        self.changed = set()
        return {series: self.totals.get(series) for series in changed}

    def _add_raw(self, series: SeriesKey, raw: float, baseline: float) -> float:
        # removed and inserted again at the end: the first series is the one not read for longest
        known = self.totals.pop(series, None)
        total = (known or CounterTotal(0.0, baseline)).after(raw)
        self.totals[series] = total
        if total != known:
            self.changed.add(series)
        return total.total

    def _discard_oldest(self) -> None:
        excess = len(self.totals) - MAX_SERIES
        if excess > 0:
            discardable = (
                series for series, total in self.totals.items() if total.raw != NO_RAW_VALUE
            )
            for oldest in list(islice(discardable, excess)):
                del self.totals[oldest]
                self.changed.add(oldest)


def _series_key(reading: Reading) -> SeriesKey:
    return reading.metric.name, tuple(reading.labels), reading.extra
