"""What only the page's charts show of a run: temperature, clocks, utilization and memory of its GPUs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analyzer.model.samples import RunFrames, joined
from analyzer.sources.base import Source
from analyzer.sources.downsample import Plan
from analyzer.sources.downsampled import Asked, signals
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

_BUCKETS = 800
"""Of a long series; each keeps its lowest and its highest value."""
_WANTED: tuple[tuple[Metric, dict[str, str]], ...] = (
    (m.GPU_TEMPERATURE, {"sensor": "gpu"}),
    (m.GPU_CLOCK, {"domain": "sm"}),
    (m.GPU_CLOCK, {"domain": "memory"}),
    (m.GPU_UTILIZATION, {"engine": "gpu"}),
    (m.GPU_UTILIZATION, {"engine": "memory"}),
    (m.GPU_MEMORY_USED, {}),
)


def sensors(source: Source, frames: RunFrames) -> pd.DataFrame:
    """A tidy frame of the time that `frames.raw` covers, long series thinned. Raises SourceError."""
    times = frames.raw["t"]
    if not len(times):
        return frames.raw
    span_s = float(times.min()), float(times.max())
    fine = Plan(np.linspace(*span_s, _BUCKETS), ())
    parts = []
    for instance in sorted(str(instance) for instance in frames.raw["instance"].unique()):
        where = {"instance": instance} if instance else {}
        for metric, labels in _WANTED:
            parts.append(signals(source, Asked([metric], {**where, **labels}, span_s), fine)[0])
    return joined(parts)
