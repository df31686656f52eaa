"""The runs of an experiment, with what a sweep needs beside a run's own report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from analyzer.joining import joined
from analyzer.series import RunFrames, last, of
from analyzer.sources import runs as stored
from analyzer.sources.error import SourceError
from analyzer.sources.source import Source
from exporter.contract import metrics as m

_NAMED = 8
_NEAR_S = 60.0
_LEFT_OUT = (m.GPU_POWER,)
_MORE = (m.GPU_CLOCK_EVENT_SECONDS, m.GPU_TEMPERATURE, m.GPU_CLOCK, m.GPU_UTILIZATION, m.GPU_MEMORY_USED)


def seen(source: Source, experiment: str, since_s: float, now_s: float) -> dict[str, tuple[float, float]]:
    """The runs with that label `experiment`, or else `plan`, the oldest first, each with its first and last scrape.

    Raises SourceError where none has it.
    """
    span_s = now_s - since_s, now_s + stored.AHEAD_S
    for label in ("label_experiment", "label_plan"):
        rows = of(source.fetch([m.RUN_INFO], {label: experiment}, *span_s), m.RUN_INFO)
        if len(rows):
            times = rows.groupby("run_id", observed=True)["t"].agg(["min", "max"]).sort_values(["max", "min"])
            return {str(run_id): (float(first), float(newest)) for run_id, first, newest in times.itertuples()}
    every = last(source.fetch([m.RUN_INFO], {}, *span_s), m.RUN_INFO)
    names = sorted({row.labels["label_experiment"] for row in every if "label_experiment" in row.labels})
    there = f"there are {', '.join(names[:_NAMED])}" if names else "no run has that label; make some: workloads sweep"
    raise SourceError(f"no run with experiment={experiment} at {source.name}", f"{there}; see --since")


def with_throttling(source: Source, found: RunFrames) -> RunFrames:
    """With its GPUs' clocks, clock events, temperatures and use of memory.

    Of a long run also with all samples of power and utilization: those that were left kept every peak, and a percentile
    or a mean of them would be of the peaks.
    """
    begins = last(found.ledger, m.RUN_START, run_id=found.run_id)
    ends_s = [row.value for row in last(found.ledger, m.RUN_END, run_id=found.run_id)] or [row.t for row in begins]
    span_s = min(row.value for row in begins) - _NEAR_S, max(ends_s) + _NEAR_S
    wheres = [{"instance": instance} if instance else {} for instance in sorted({row.instance for row in begins})]
    long = bool(found.exact)
    more = [source.fetch((*_MORE, *_LEFT_OUT) if long else _MORE, where, *span_s) for where in wheres]
    return replace(found, raw=joined([found.raw, *(_but_known(frame, long=long) for frame in more)]))


def _but_known(frame: pd.DataFrame, *, long: bool) -> pd.DataFrame:
    """Without what a run's report has already, and what nobody asks for."""
    wanted = {
        m.GPU_CLOCK: ("domain", ["sm"]),
        m.GPU_TEMPERATURE: ("sensor", ["gpu"]),
        m.GPU_UTILIZATION: ("engine", ["memory", "gpu"] if long else ["memory"]),
    }
    kept = np.ones(len(frame), dtype=bool)
    for metric, (label, texts) in wanted.items():
        if label in frame:
            kept &= ((frame["metric"] != metric.name) | frame[label].isin(texts)).to_numpy(dtype=bool)
    return frame[kept]
