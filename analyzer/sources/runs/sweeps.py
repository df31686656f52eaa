"""Runs of a sweep, with the samples that a sweep needs in addition to a report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from analyzer.model.samples import RunFrames, joined, last, of
from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.downsample import plan_buckets
from analyzer.sources.fetch import SeriesRequest, fetch_random_samples, fetch_signals, fetch_states
from analyzer.sources.runs import load as stored
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

_NAMED = 8
_NEAR_S = 60.0
_MORE: tuple[tuple[Metric, dict[str, str]], ...] = (
    (m.GPU_CLOCK_EVENT_SECONDS, {}),
    (m.GPU_TEMPERATURE, {"sensor": "gpu"}),
    (m.GPU_CLOCK, {"domain": "sm"}),
    (m.GPU_UTILIZATION, {"engine": "memory"}),
    (m.GPU_MEMORY_USED, {}),
)
_OF_LONG: tuple[tuple[Metric, dict[str, str]], ...] = ((m.GPU_POWER, {}), (m.GPU_UTILIZATION, {"engine": "gpu"}))
_JUDGED = (m.GPU_POWER, m.GPU_UTILIZATION, m.GPU_CLOCK)


def find_sweep_runs(
    source: SampleSource, experiment: str, since_s: float, now_s: float
) -> dict[str, tuple[float, float]]:
    """Return the runs of an experiment or plan, oldest first, each with its first and last scrape.

    Raises FetchError if there are none.
    """
    span_s = now_s - since_s, now_s + stored.AHEAD_S
    for label in ("label_experiment", "label_plan"):
        rows = of(fetch_states(source, SeriesRequest([m.RUN_INFO], {label: experiment}, span_s)), m.RUN_INFO)
        if len(rows):
            times = rows.groupby("run_id", observed=True)["t"].agg(["min", "max"]).sort_values(["max", "min"])
            return {str(run_id): (float(first), float(newest)) for run_id, first, newest in times.itertuples()}
    every = last(fetch_states(source, SeriesRequest([m.RUN_INFO], {}, span_s)), m.RUN_INFO)
    names = sorted({row.labels["label_experiment"] for row in every if "label_experiment" in row.labels})
    hint = f"known experiments: {', '.join(names[:_NAMED])}" if names else "run a sweep with: workloads sweep"
    raise FetchError(f"no run with experiment={experiment} at {source.name}", f"{hint}; see --since")


def with_throttling_samples(source: SampleSource, found: RunFrames) -> RunFrames:
    """Add the GPUs' clocks, clock events, temperatures and memory use.

    For a long run also replace power and utilization: their downsampled series keep every peak, which would bias
    percentiles and means.
    """
    begins = last(found.ledger, m.RUN_START, run_id=found.run_id)
    ends_s = [row.value for row in last(found.ledger, m.RUN_END, run_id=found.run_id)] or [row.t for row in begins]
    edges_s = min(row.value for row in begins), max(ends_s)
    span_s = edges_s[0] - _NEAR_S, edges_s[1] + _NEAR_S
    wheres = [{"instance": instance} if instance else {} for instance in sorted({row.instance for row in begins})]
    if not found.exact:
        more = [_wanted(source.fetch([metric for metric, _ in _MORE], where, *span_s)) for where in wheres]
        return replace(found, raw=joined([found.raw, *more]))
    kept = found.raw[~found.raw["metric"].isin([m.GPU_POWER.name, m.GPU_UTILIZATION.name])]
    return replace(found, raw=joined([kept, *(_of_long(source, where, span_s, edges_s) for where in wheres)]))


def _of_long(
    source: SampleSource, where: dict[str, str], span_s: tuple[float, float], edges_s: tuple[float, float]
) -> pd.DataFrame:
    """Return peaks of temperature and memory, and random samples of quantities with percentiles or means."""
    planned = plan_buckets(*span_s, edges_s)
    parts = []
    for metric, labels in (*_MORE, *_OF_LONG):
        request = SeriesRequest([metric], where | labels, span_s)
        parts.append(
            fetch_random_samples(source, request) if metric in _JUDGED else fetch_signals(source, request, planned)[0]
        )
    return joined(parts)


def _wanted(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame without series of other label values."""
    kept = np.ones(len(frame), dtype=bool)
    for metric, labels in _MORE:
        for label, text in labels.items():
            if label in frame:
                kept &= ((frame["metric"] != metric.name) | (frame[label] == text)).to_numpy(dtype=bool)
    return frame[kept]
