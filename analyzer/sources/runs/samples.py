"""Raw samples of a run's node: states, power, counters, other runs, charts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from analyzer.model.samples import Exact, Row, RunFrames, join_frames, rows_of
from analyzer.model.timeline import Window
from analyzer.sources import fetch as thinned
from analyzer.sources.base import SampleSource
from analyzer.sources.downsample import DownsamplePlan, plan_buckets
from analyzer.sources.fetch import Place, SeriesRequest, fetch_signals
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

LEDGER_S = 60.0
_STATES = (
    *(m.GPU_INFO, m.GPU_ENERGY_METHOD, m.CPU_ENERGY_METHOD, m.GPU_ENERGY_SUSPECT),
    *(m.SOURCE_UP, m.SOURCE_READ_TIMESTAMP),
)
_CARBON = (m.CARBON_INTENSITY, m.CARBON_INTENSITY_TIMESTAMP, m.CARBON_FETCHED_TIMESTAMP)


def fetch_raw(
    source: SampleSource, row: Row, window: Window | None, span_s: tuple[float, float]
) -> tuple[pd.DataFrame, dict[Place, Exact]]:
    """Return the samples in `span_s`, and exact values of GPU power where it was downsampled. Raises FetchError.

    `row` is the run's last scrape at the node, `window` the run's time there.
    """
    where = {"instance": row.instance} if row.instance else {}
    on_s = (window.start_s, window.end_s) if window else None
    edges_s = on_s or ()
    about = [thinned.fetch_states(source, SeriesRequest([*_STATES, *_CARBON], where, span_s), edges_s)]
    if not span_s[0] <= row.t <= span_s[1]:  # the clocks disagree, or the run has long ended
        about.append(source.fetch(_STATES, where, row.t - LEDGER_S, row.t))
    about.append(
        thinned.fetch_states(source, SeriesRequest([m.GPU_POWER_LIMIT], {**where, "kind": "enforced"}, span_s), edges_s)
    )
    power, exact = thinned.fetch_signals(
        source, SeriesRequest([m.GPU_POWER], where, span_s), plan_buckets(*span_s, edges_s), on_s
    )
    planned = plan_buckets(*span_s, edges_s, [*_slots_s(about[0]), *_stretches_s(exact.values())])
    more = [
        thinned.fetch_signals(source, SeriesRequest([metric], {**where, **labels}, span_s), planned)[0]
        for metric, labels in (
            (m.GPU_ENERGY, {}),
            (m.GPU_UTILIZATION, {"engine": "gpu"}),
            (m.CPU_POWER, {"zone": "package"}),
        )
    ]
    return join_frames([*about, power, *more]), exact


def fetch_other_runs(source: SampleSource, row: Row, span_s: tuple[float, float]) -> pd.DataFrame:
    """Return start, end and GPUs of all runs at the node in `span_s`. Raises FetchError."""
    where = {"instance": row.instance} if row.instance else {}
    return thinned.fetch_states(source, SeriesRequest([m.RUN_START, m.RUN_END, m.RUN_GPU_INFO], where, span_s))


def _slots_s(about: pd.DataFrame) -> set[float]:
    """Return the times at which the carbon intensity changed."""
    begins = rows_of(about, m.CARBON_INTENSITY_TIMESTAMP)
    return {*begins["value"].tolist(), *begins["t"].tolist()}


def _stretches_s(exact: Iterable[Exact]) -> set[float]:
    """Return the edges of stretches of constant power: load and counter there show whether a sensor is stuck."""
    return {edge_s for one in exact for same in one.stretches for edge_s in (same.start_s, same.end_s)}


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


def fetch_chart_samples(source: SampleSource, frames: RunFrames) -> pd.DataFrame:
    """Return GPU sensors for charts over the time of `frames.raw`, long series downsampled. Raises FetchError."""
    times = frames.raw["t"]
    if not len(times):
        return frames.raw
    span_s = float(times.min()), float(times.max())
    fine = DownsamplePlan(np.linspace(*span_s, _BUCKETS), ())
    parts = []
    for instance in sorted(str(instance) for instance in frames.raw["instance"].unique()):
        where = {"instance": instance} if instance else {}
        for metric, labels in _WANTED:
            parts.append(fetch_signals(source, SeriesRequest([metric], {**where, **labels}, span_s), fine)[0])
    return join_frames(parts)
