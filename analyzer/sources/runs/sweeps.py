"""The runs of an experiment, with what a sweep needs beside a run's own report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from analyzer.model.samples import RunFrames, joined, last, of
from analyzer.sources.base import Source
from analyzer.sources.downsample import plan
from analyzer.sources.downsampled import Asked, drawn, signals, states
from analyzer.sources.error import SourceError
from analyzer.sources.runs import runs as stored
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


def seen(source: Source, experiment: str, since_s: float, now_s: float) -> dict[str, tuple[float, float]]:
    """The runs with that label `experiment`, or else `plan`, the oldest first, each with its first and last scrape.

    Raises SourceError where none has it.
    """
    span_s = now_s - since_s, now_s + stored.AHEAD_S
    for label in ("label_experiment", "label_plan"):
        rows = of(states(source, Asked([m.RUN_INFO], {label: experiment}, span_s)), m.RUN_INFO)
        if len(rows):
            times = rows.groupby("run_id", observed=True)["t"].agg(["min", "max"]).sort_values(["max", "min"])
            return {str(run_id): (float(first), float(newest)) for run_id, first, newest in times.itertuples()}
    every = last(states(source, Asked([m.RUN_INFO], {}, span_s)), m.RUN_INFO)
    names = sorted({row.labels["label_experiment"] for row in every if "label_experiment" in row.labels})
    there = f"there are {', '.join(names[:_NAMED])}" if names else "no run has that label; make some: workloads sweep"
    raise SourceError(f"no run with experiment={experiment} at {source.name}", f"{there}; see --since")


def with_throttling(source: Source, found: RunFrames) -> RunFrames:
    """With its GPUs' clocks, clock events, temperatures and use of memory.

    Of a long run also with power and utilization anew: the samples that were left of them kept every peak, and a
    percentile or a mean of them would be of the peaks.
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
    source: Source, where: dict[str, str], span_s: tuple[float, float], edges_s: tuple[float, float]
) -> pd.DataFrame:
    """Peaks of temperature and memory; of what is judged by its percentiles or its mean, samples drawn at random."""
    planned = plan(*span_s, edges_s)
    parts = []
    for metric, labels in (*_MORE, *_OF_LONG):
        asked = Asked([metric], where | labels, span_s)
        parts.append(drawn(source, asked) if metric in _JUDGED else signals(source, asked, planned)[0])
    return joined(parts)


def _wanted(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the series of these metrics that nobody asks for."""
    kept = np.ones(len(frame), dtype=bool)
    for metric, labels in _MORE:
        for label, text in labels.items():
            if label in frame:
                kept &= ((frame["metric"] != metric.name) | (frame[label] == text)).to_numpy(dtype=bool)
    return frame[kept]
