"""Runs of a study with the samples it needs: variability, tenants, sweeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.downsample import plan_buckets
from wattline_analyzer.core.fetch import SeriesRequest, fetch_random_samples, fetch_signals
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.sample_table import SampleTable, join_tables
from wattline_analyzer.core.sources.base import SampleSource

_NEAR_S = 60.0
_MORE: tuple[tuple[Metric, dict[str, str]], ...] = (
    (m.GPU_CLOCK_EVENT_SECONDS, {}),
    (m.GPU_TEMPERATURE, {"sensor": "gpu"}),
    (m.GPU_CLOCK, {"domain": "sm"}),
    (m.GPU_UTILIZATION, {"engine": "memory"}),
    (m.GPU_MEMORY_USED, {}),
)
_OF_LONG: tuple[tuple[Metric, dict[str, str]], ...] = (
    (m.GPU_POWER, {}),
    (m.GPU_UTILIZATION, {"engine": "gpu"}),
)
_JUDGED = (m.GPU_POWER, m.GPU_UTILIZATION, m.GPU_CLOCK)


def with_throttling_samples(source: SampleSource, recorded: RecordedRun) -> RecordedRun:
    """Add the GPUs' clocks, clock events, temperatures and memory use.

    For a long run also replace power and utilization: their downsampled series keep every peak,
    which would bias percentiles and means.
    """
    edges_s = recorded.scrapes.span_s
    span_s = edges_s[0] - _NEAR_S, edges_s[1] + _NEAR_S
    wheres = [{"instance": instance} if instance else {} for instance in recorded.scrapes.instances]
    if not recorded.exact:
        more = [
            _wanted(source.fetch([metric for metric, _ in _MORE], where, *span_s))
            for where in wheres
        ]
        return replace(recorded, raw=join_tables([recorded.raw, *more]))
    kept = recorded.raw.take(
        ~recorded.raw.where("metric", [m.GPU_POWER.name, m.GPU_UTILIZATION.name])
    )
    return replace(
        recorded,
        raw=join_tables([kept, *(_of_long(source, where, span_s, edges_s) for where in wheres)]),
    )


def _of_long(
    source: SampleSource,
    where: dict[str, str],
    span_s: tuple[float, float],
    edges_s: tuple[float, float],
) -> SampleTable:
    """Return peaks of temperature and memory, and random samples of quantities with percentiles or
    means.
    """
    planned = plan_buckets(*span_s, edges_s)
    parts = []
    for metric, labels in (*_MORE, *_OF_LONG):
        request = SeriesRequest([metric], where | labels, *span_s)
        parts.append(
            fetch_random_samples(source, request)
            if metric in _JUDGED
            else fetch_signals(source, request, planned)
        )
    return join_tables(parts)


def _wanted(table: SampleTable) -> SampleTable:
    """Return the table without series of other label values."""
    kept = np.ones(len(table), dtype=bool)
    for metric, labels in _MORE:
        for label, text in labels.items():
            kept &= ~table.where("metric", [metric.name]) | table.where(label, [text])
    return table.take(kept)
