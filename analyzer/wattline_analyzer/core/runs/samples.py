"""Raw samples of a run's node: states, power, counters, other runs, charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.downsample import DownsamplePlan, plan_buckets
from wattline_analyzer.core.facts import Fact
from wattline_analyzer.core.fetch import (
    Place,
    SeriesRequest,
    TimeRange,
    fetch_signals,
    signal_series,
    state_series,
)
from wattline_analyzer.core.sample_table import SampleTable, join_tables, table_of
from wattline_analyzer.core.samples import Exact, Series
from wattline_analyzer.core.sources.base import SampleSource

LEDGER_S = 60.0
_STATES = (
    *(m.GPU_INFO, m.GPU_ENERGY_METHOD, m.CPU_ENERGY_METHOD, m.GPU_ENERGY_SUSPECT),
    *(m.SOURCE_UP, m.SOURCE_READ_TIMESTAMP),
)
_CARBON = (m.CARBON_INTENSITY, m.CARBON_INTENSITY_TIMESTAMP, m.CARBON_FETCHED_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class NodeRequests:
    """Requests for the samples of a run's node in a time range; `last_scrape` is the run's
    there.
    """

    last_scrape: Fact
    span_s: tuple[float, float]

    @property
    def where(self) -> dict[str, str]:
        return {"instance": self.last_scrape.instance} if self.last_scrape.instance else {}

    @property
    def states(self) -> SeriesRequest:
        return self._request(*_STATES, *_CARBON)

    @property
    def late_states(self) -> SeriesRequest | None:
        """States at the last scrape, if that is out of the range: clocks disagree, or the run has
        long ended.
        """
        t_s = self.last_scrape.t
        if self.span_s[0] <= t_s <= self.span_s[1]:
            return None
        return SeriesRequest(_STATES, self.where, t_s - LEDGER_S, t_s)

    @property
    def limit(self) -> SeriesRequest:
        return self._request(m.GPU_POWER_LIMIT, kind="enforced")

    @property
    def power(self) -> SeriesRequest:
        return self._request(m.GPU_POWER)

    @property
    def more(self) -> tuple[SeriesRequest, ...]:
        """Signals whose downsampling depends on the samples of the states and the power."""
        return (
            self._request(m.GPU_ENERGY),
            self._request(m.GPU_UTILIZATION, engine="gpu"),
            self._request(m.CPU_POWER, zone="package"),
        )

    @property
    def runs(self) -> SeriesRequest:
        """Start, end and GPUs of all runs at the node."""
        return self._request(m.RUN_START, m.RUN_END, m.RUN_GPU_INFO)

    def __iter__(self) -> Iterator[SeriesRequest]:
        late = self.late_states
        return iter(
            [
                self.states,
                *([late] if late else []),
                self.limit,
                self.power,
                *self.more,
                self.runs,
            ]
        )

    def _request(self, *metrics: Metric, **labels: str) -> SeriesRequest:
        return SeriesRequest(metrics, {**self.where, **labels}, *self.span_s)


def fetch_raw(
    source: SampleSource, node: NodeRequests, run_s: TimeRange
) -> tuple[SampleTable, dict[Place, Exact]]:
    """Return the samples of a node, and exact values of GPU power where it was downsampled. Raises
    FetchError.

    `run_s` is the run's time at the node.
    """
    states = state_series(source, node.states, run_s)
    series = list(states)
    late = node.late_states
    if late:
        series += chain.from_iterable(source.parts(*late))
    series += state_series(source, node.limit, run_s)
    power, exact = signal_series(source, node.power, plan_buckets(*node.span_s, run_s), run_s)
    planned = plan_buckets(*node.span_s, run_s, [*_slots_s(states), *_stretches_s(exact.values())])
    more: list[Series] = []
    for request in node.more:
        found, _ = signal_series(source, request, planned)
        more += found
    return table_of([*series, *power, *more]), exact


def _slots_s(states: Iterable[Series]) -> set[float]:
    """Return the times at which the carbon intensity changed."""
    begins = [one for one in states if one[0]["__name__"] == m.CARBON_INTENSITY_TIMESTAMP.name]
    times = {t_s for _, *columns in begins for column in columns for t_s in column.tolist()}
    return {t_s for t_s in times if math.isfinite(t_s)}


def _stretches_s(exact: Iterable[Exact]) -> set[float]:
    """Return the edges of stretches of constant power: load and counter there show whether a sensor
    is stuck.
    """
    return {
        edge_s for one in exact for same in one.stretches for edge_s in (same.start_s, same.end_s)
    }


_BUCKETS = 800
"""Number of buckets of a long series; each keeps its lowest and its highest value."""
_WANTED: tuple[tuple[Metric, dict[str, str]], ...] = (
    (m.GPU_TEMPERATURE, {"sensor": "gpu"}),
    (m.GPU_CLOCK, {"domain": "sm"}),
    (m.GPU_CLOCK, {"domain": "memory"}),
    (m.GPU_UTILIZATION, {"engine": "gpu"}),
    (m.GPU_UTILIZATION, {"engine": "memory"}),
    (m.GPU_MEMORY_USED, {}),
)


def fetch_chart_samples(source: SampleSource, raw: SampleTable) -> SampleTable:
    """Return GPU sensors for charts over the time of the raw samples, long series downsampled.
    Raises FetchError.
    """
    if not len(raw):
        return raw
    span_s = float(raw.t.min()), float(raw.t.max())
    fine = DownsamplePlan(np.linspace(*span_s, _BUCKETS), ())
    parts = []
    for instance in raw.distinct("instance"):
        where = {"instance": instance} if instance else {}
        for metric, labels in _WANTED:
            parts.append(
                fetch_signals(source, SeriesRequest([metric], {**where, **labels}, *span_s), fine)
            )
    return join_tables(parts)
