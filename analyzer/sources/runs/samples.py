"""The raw samples of a run's node: states, power, counters, and the other runs that were on beside it."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analyzer.model.samples import Exact, Row, joined, of
from analyzer.model.timeline import Window
from analyzer.sources import downsampled as thinned
from analyzer.sources.base import Source
from analyzer.sources.downsample import plan
from analyzer.sources.downsampled import Asked, Place
from exporter.contract import metrics as m

LEDGER_S = 60.0
_STATES = (
    *(m.GPU_INFO, m.GPU_ENERGY_METHOD, m.CPU_ENERGY_METHOD, m.GPU_ENERGY_SUSPECT),
    *(m.SOURCE_UP, m.SOURCE_READ_TIMESTAMP),
)
_CARBON = (m.CARBON_INTENSITY, m.CARBON_INTENSITY_TIMESTAMP, m.CARBON_FETCHED_TIMESTAMP)


def raw(
    source: Source, row: Row, window: Window | None, span_s: tuple[float, float]
) -> tuple[pd.DataFrame, dict[Place, Exact]]:
    """What there is in `span_s`, and what is exact of GPUs' power where that was thinned. Raises SourceError.

    `row` is where and when the run was last scraped, `window` when it was on there.
    """
    where = {"instance": row.instance} if row.instance else {}
    on_s = (window.start_s, window.end_s) if window else None
    edges_s = on_s or ()
    about = [thinned.states(source, Asked([*_STATES, *_CARBON], where, span_s), edges_s)]
    if not span_s[0] <= row.t <= span_s[1]:  # the clocks disagree, or the run has long ended
        about.append(source.fetch(_STATES, where, row.t - LEDGER_S, row.t))
    about.append(thinned.states(source, Asked([m.GPU_POWER_LIMIT], {**where, "kind": "enforced"}, span_s), edges_s))
    power, exact = thinned.signals(source, Asked([m.GPU_POWER], where, span_s), plan(*span_s, edges_s), on_s)
    planned = plan(*span_s, edges_s, [*_slots_s(about[0]), *_stretches_s(exact.values())])
    more = [
        thinned.signals(source, Asked([metric], {**where, **labels}, span_s), planned)[0]
        for metric, labels in (
            (m.GPU_ENERGY, {}),
            (m.GPU_UTILIZATION, {"engine": "gpu"}),
            (m.CPU_POWER, {"zone": "package"}),
        )
    ]
    return joined([*about, power, *more]), exact


def others(source: Source, row: Row, span_s: tuple[float, float]) -> pd.DataFrame:
    """Begin, end and GPUs of all runs that were on there in `span_s`. Raises SourceError."""
    where = {"instance": row.instance} if row.instance else {}
    return thinned.states(source, Asked([m.RUN_START, m.RUN_END, m.RUN_GPU_INFO], where, span_s))


def _slots_s(about: pd.DataFrame) -> set[float]:
    """The moments at which one carbon intensity gave way to another."""
    begins = of(about, m.CARBON_INTENSITY_TIMESTAMP)
    return {*begins["value"].tolist(), *begins["t"].tolist()}


def _stretches_s(exact: Iterable[Exact]) -> set[float]:
    """A sensor is stuck only where load and counter say otherwise in just that time."""
    return {edge_s for taken in exact for same in taken.stretches for edge_s in (same.start_s, same.end_s)}
