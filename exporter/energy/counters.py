"""Joules between two looks at an energy counter, which may wrap, begin anew or read wrongly (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from exporter.contract.metrics import Metric
from exporter.model import Reading

MAX_DEVICE_W = 4_000.0
"""More than any device draws, where its own limit is not known."""
_SLACK_S = 1.0
"""A counter may be behind by the longest time between two of its updates."""


def counter_step(
    before_j: float, now_j: float, range_j: float | None, elapsed_s: float, most_w: float = MAX_DEVICE_W
) -> float | None:
    """Joules between two looks at a counter; None for a step that no device could have made in the time.

    One that has a range wraps there. One that has none fell because its driver was loaded anew: it counts from 0, so
    what it shows is energy since then.
    """
    step_j = now_j - before_j
    if step_j < 0:
        step_j = now_j if range_j is None else step_j + range_j
    return step_j if is_plausible(step_j, elapsed_s, most_w) else None


def is_plausible(joules: float, elapsed_s: float, most_w: float = MAX_DEVICE_W) -> bool:
    return 0 <= joules <= most_w * (elapsed_s + _SLACK_S)


MAX_SERIES = 5_000
"""More than a node of 64 GPUs has; beyond, those that were not read for the longest time are forgotten."""

NO_RAW_VALUE = -1.0
"""The raw count of what we alone count, and would not find anywhere again: it is never forgotten."""

SeriesKey = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""Metric, label values, and extra labels."""


class CounterTotal(NamedTuple):
    """`raw` is what was last read; it falls where the one who counts began anew."""

    total: float
    raw: float


class MonotonicCounters:
    """Raw counter readings to counters that start at 0 in a fresh state folder and never fall."""

    def __init__(self, known: dict[SeriesKey, CounterTotal] | None = None) -> None:
        self.known = dict(known or {})
        self.changed: set[SeriesKey] = set()

    def take(self, readings: Iterable[Reading], *, ours: bool) -> Iterator[Reading]:
        """The readings, with counters in place of raw counters.

        What is first read of a series counts where it is `ours`; else it was counted before us, and is nothing.
        """
        for reading in readings:
            if reading.metric.kind == "counter":
                value = self._rise(series_key(reading), reading.value, 0.0 if ours else reading.value)
                yield reading._replace(value=value)
            else:
                yield reading
        self._forget()

    def _forget(self) -> None:
        many = len(self.known) - MAX_SERIES
        if many > 0:
            for oldest in list(islice((s for s, risen in self.known.items() if risen.raw != NO_RAW_VALUE), many)):
                del self.known[oldest]
                self.changed.add(oldest)

    def add(self, metric: Metric, labels: tuple[str, ...], amount: float) -> None:
        """Counts what is counted nowhere else; `shown` gives it."""
        series = metric.name, labels, ()
        before = self.known.pop(series, CounterTotal(0.0, NO_RAW_VALUE))
        self.known[series] = CounterTotal(before.total + amount, NO_RAW_VALUE)
        self.changed.add(series)

    def shown(self, metric: Metric) -> Iterator[Reading]:
        for name, labels, extra in self.known:
            if name == metric.name:
                yield Reading(metric, labels, self.known[name, labels, extra].total, extra)

    def take_changed(self) -> dict[SeriesKey, CounterTotal | None]:
        """Those that changed since the last call; None for one that is forgotten."""
        changed, self.changed = self.changed, set()
        return {series: self.known.get(series) for series in changed}

    def _rise(self, series: SeriesKey, raw: float, first: float) -> float:
        known = self.known.pop(series, None)  # and put back last: the first is the one not read for the longest time
        before = known or CounterTotal(0.0, first)
        risen = CounterTotal(before.total + (raw - before.raw if raw >= before.raw else raw), raw)
        self.known[series] = risen
        if risen != known:
            self.changed.add(series)
        return risen.total


def series_key(reading: Reading) -> SeriesKey:
    return reading.metric.name, tuple(reading.labels), reading.extra
