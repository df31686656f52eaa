"""From the figures of a range to frames as those of a run that was tagged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.importers import ledger
from analyzer.importers.assemble import AssembledRun
from analyzer.importers.content import FileRun
from analyzer.importers.gpus import Gpu
from analyzer.model.samples import Samples, Series, joined, tidy
from analyzer.sources.untagged.device_energy import Figure
from analyzer.sources.untagged.request import Asked
from analyzer.sources.untagged.tokens import Served
from exporter.contract import metrics as m

WORKLOAD = "untagged"
_SHOWN_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Framed:
    ledger: pd.DataFrame
    raw: pd.DataFrame


def framed(figures: Sequence[Figure], asked: Asked, served: Served | None) -> Framed:
    rows = list(_rows(figures, asked, served))
    of_run = [(node, row) for node, row in rows if row[0].name.startswith("wattline_run_")]
    of_node = [(node, row) for node, row in rows if not row[0].name.startswith("wattline_run_")]
    at_s = asked.end_s + _SHOWN_AFTER_S
    series = [one for figure in figures for one in _series(figure, asked)]
    return Framed(_frame(of_run, at_s), joined([tidy(series), _frame(of_node, at_s)]))


def _rows(figures: Sequence[Figure], asked: Asked, served: Served | None) -> Iterable[tuple[str, ledger.Row]]:
    """By instance. Work is that of the range as a whole, and stands on its first node alone."""
    about = {"schema": "+".join(dict.fromkeys(figure.meter.schema.name for figure in figures))}
    if asked.tokens:
        about["tokens"] = asked.tokens
    for node in sorted({figure.meter.node for figure in figures}):
        mine = [figure for figure in figures if figure.meter.node == node]
        told = FileRun(
            asked.run_id,
            WORKLOAD,
            asked.start_s,
            asked.end_s,
            work=served.work if served else {},
            results=served.results if served else {},
            outcome=None,
        )
        served = None
        gpus = tuple(
            Gpu(meter.index, meter.device, meter.info)
            for meter in (figure.meter for figure in mine)
            if meter.component == "gpu"
        )
        energies = tuple(figure.energy for figure in mine)
        run = AssembledRun(asked.run_id, told, (), (), gpus, energies, {}, None)
        yield from ((node, row) for row in ledger.rows(run, about))


def _frame(rows: Iterable[tuple[str, ledger.Row]], at_s: float) -> pd.DataFrame:
    return tidy(
        ({"__name__": metric.name, "instance": node, **labels}, np.array([at_s]), np.array([value]))
        for node, (metric, labels, value) in rows
    )


def _series(figure: Figure, asked: Asked) -> Iterable[Series]:
    """Without a utilization a steady load would pass for idle: the power around the range is left out then."""
    meter = figure.meter
    own = {"gpu": meter.index, "uuid": meter.device} if meter.component == "gpu" else {"package": meter.device}
    for (name, labels), samples in meter.series.items():
        shown = samples
        if name == m.GPU_POWER.name and not meter.has_utilization:
            shown = _touching(samples, asked.start_s, asked.end_s)
        if name != m.GPU_INFO.name:
            yield {"__name__": name, "instance": meter.node, **own, **dict(labels)}, shown.t, shown.value


def _touching(samples: Samples, start_s: float, end_s: float) -> Samples:
    """The samples in the range, the last before it and the first after."""
    first = max(int(np.searchsorted(samples.t, start_s)) - 1, 0)
    after = int(np.searchsorted(samples.t, end_s, side="right")) + 1
    return Samples(samples.t[first:after], samples.value[first:after])
