"""The runs of an experiment, with what a sweep needs beside a run's own report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pandas as pd

from analyzer.series import RunFrames, last
from analyzer.sources import runs as stored
from analyzer.sources.error import SourceError
from analyzer.sources.source import Source
from exporter.contract import metrics as m

_NAMED = 8
_NEAR_S = 60.0


def ids(source: Source, experiment: str, since_s: float, now_s: float) -> list[str]:
    """The runs with that label `experiment`, or else `plan`, the oldest first. Raises SourceError where none has it."""
    for label in ("label_experiment", "label_plan"):
        rows = last(
            source.fetch([m.RUN_INFO], {label: experiment}, now_s - since_s, now_s + stored.AHEAD_S), m.RUN_INFO
        )
        if rows:
            return list(dict.fromkeys(row.labels["run_id"] for row in sorted(rows, key=lambda row: row.t)))
    every = last(source.fetch([m.RUN_INFO], {}, now_s - since_s, now_s + stored.AHEAD_S), m.RUN_INFO)
    names = sorted({row.labels["label_experiment"] for row in every if "label_experiment" in row.labels})
    there = f"there are {', '.join(names[:_NAMED])}" if names else "no run has that label; make some: workloads sweep"
    raise SourceError(f"no run with experiment={experiment} at {source.name}", f"{there}; see --since")


def frames(
    source: Source, run_ids: Sequence[str], since_s: float, clock: stored.Clock, say: Callable[[str], None]
) -> Iterator[RunFrames]:
    """Each run with its GPUs' clocks, temperatures and clock events. Raises SourceError where one is not there."""
    for run_id in run_ids:
        found = stored.load(source, run_id, since_s, clock, say)
        begins_s = [row.value for row in last(found.ledger, m.RUN_START, run_id=run_id)]
        seen_s = [row.t for row in last(found.ledger, m.RUN_START, run_id=run_id)]
        ends_s = [row.value for row in last(found.ledger, m.RUN_END, run_id=run_id)] or seen_s
        start_s, end_s = min(begins_s) - _NEAR_S, max(ends_s) + _NEAR_S
        more = [
            source.fetch([m.GPU_CLOCK_EVENT_SECONDS], {}, start_s, end_s),
            source.fetch([m.GPU_TEMPERATURE], {"sensor": "gpu"}, start_s, end_s),
            source.fetch([m.GPU_CLOCK], {"domain": "sm"}, start_s, end_s),
        ]
        raw = pd.concat([found.raw, *(part for part in more if len(part))], ignore_index=True)
        texts = [name for name in raw.columns if name not in ("t", "value")]
        yield replace(found, raw=raw.assign(**{name: raw[name].fillna("") for name in texts}))
