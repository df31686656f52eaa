"""Each scrape of a run's GPUs and of its work, nothing thinned: what files of other tools have a row for."""

from __future__ import annotations

import pandas as pd

from analyzer.model.samples import RunFrames, joined, last
from analyzer.sources.base import Source
from exporter.contract import metrics as m

_NEAR_S = 60.0
_WANTED = (
    *(m.GPU_POWER, m.GPU_POWER_LIMIT, m.GPU_UTILIZATION, m.GPU_MEMORY_USED, m.GPU_MEMORY_TOTAL, m.GPU_TEMPERATURE),
    *(m.GPU_TEMPERATURE_LIMIT, m.GPU_CLOCK, m.GPU_CLOCK_MAX, m.GPU_FAN),
)


def every_scrape(source: Source, frames: RunFrames) -> pd.DataFrame:
    """A tidy frame of the run and a minute around it. Raises SourceError."""
    begins = last(frames.ledger, m.RUN_START, run_id=frames.run_id)
    ends_s = [row.value for row in last(frames.ledger, m.RUN_END, run_id=frames.run_id)]
    start_s = min(row.value for row in begins) - _NEAR_S
    end_s = max(ends_s or [row.t for row in begins]) + _NEAR_S
    parts = [source.fetch([m.RUN_WORK], {"run_id": frames.run_id}, start_s, end_s)]
    for instance in sorted({row.instance for row in begins}):
        where = {"instance": instance} if instance else {}
        parts.append(source.fetch(_WANTED, where, start_s, end_s))
    return joined(parts)
