"""Reader of gpu-tune's training_stats.csv and inference_stats.csv: one row and power sample per
batch.

Runs are appended to each other. A run is a sequence of rows with one power cap; its first batch
ended with its first sample, so it is outside of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.core.streaming import median
from wattline_analyzer.importers.content import (
    ALL_GPUS,
    FileContent,
    FileRun,
    ReadOptions,
    UnreadableError,
)
from wattline_analyzer.importers.file_format import FileFormat, FileHead
from wattline_analyzer.importers.quantities import (
    GPU_POWER_W,
    NODE_POWER_W,
    NUMBER,
    RATIO,
    TEMPERATURE_CELSIUS,
    Commas,
    Gauge,
    GaugeColumns,
    Quantity,
)
from wattline_analyzer.importers.spool import StoredSamples
from wattline_analyzer.importers.text import Cells, read_columns, take_rows

GPU_TUNE_FORMAT = "gpu-tune"
_COLUMNS = {"timestamp", "tokens_per_sec", "max_watt"}
_PAUSE_FACTOR = 10
"""Pause, in usual spacings, from which on another run of the same cap begins."""


_GAUGES = {
    "temperature": Gauge(m.GPU_TEMPERATURE, {"sensor": "gpu"}, TEMPERATURE_CELSIUS),
    "gpu_utilization": Gauge(m.GPU_UTILIZATION, {"engine": "gpu"}, RATIO),
    "power_limit": Gauge(m.GPU_POWER_LIMIT, {"kind": "enforced"}, GPU_POWER_W),
}
"""Columns of GPU 0."""
_ALL_POWER = "total_power_draw"


@dataclass(frozen=True, slots=True)
class _Batch:
    """Row of a batch; None for an absent number."""

    t_s: float
    cap_w: float | None
    iteration: float | None
    tokens_per_s: float | None
    loss: float | None


@dataclass(slots=True)
class _Batches:
    """Run: its first and last batch, and their number."""

    first: _Batch
    last: _Batch
    count: int = 1


def is_gpu_tune(head: FileHead) -> bool:
    return head.columns >= _COLUMNS


def read_gpu_tune(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    content = FileContent(path, GPU_TUNE_FORMAT, options)
    units = read_columns(path)
    power = next((name for name in (_ALL_POWER, "power_draw") if name in units), None)
    if power is None or not units.keys() >= _COLUMNS:
        raise UnreadableError(
            f"cannot import {path}: no columns timestamp, tokens_per_sec, max_watt and "
            "total_power_draw in line 1"
        )
    index, quantity = (ALL_GPUS, NODE_POWER_W) if power == _ALL_POWER else ("0", GPU_POWER_W)
    if index != ALL_GPUS:
        content.notes.append(
            f"{path} has the power of GPU 0 only: the energy of other GPUs is not included"
        )
    of_power = GaugeColumns(content, {power: Gauge(m.GPU_POWER, {}, quantity)}, units)
    of_gpu_0 = GaugeColumns(content, _GAUGES, units)
    commas = Commas(content)
    usual_s = _usual_spacing_s(content)
    runs = list[_Batches]()

    def take(cells: Cells) -> None:
        t_s = content.times.parse(cells["timestamp"])
        power_w = of_power.parse(cells)
        if not power_w:
            raise ValueError(f"no {power}")
        values = of_gpu_0.parse(cells)
        of_power.add(index, "", t_s, power_w)
        of_gpu_0.add("0", "", t_s, values)
        numbers = (
            _number(commas.without(cells, name), NUMBER)
            for name in ("iteration", "tokens_per_sec", "loss")
        )
        batch = _Batch(t_s, _number(commas.without(cells, "max_watt"), GPU_POWER_W), *numbers)
        if runs and not _is_another(runs[-1].last, batch, usual_s):
            runs[-1].last = batch
            runs[-1].count += 1
        else:
            runs.append(_Batches(batch, batch))

    take_rows(content, take)
    content.runs += [_run(path, run, index) for run in runs]
    return content


def _number(text: str, quantity: Quantity) -> float | None:
    """Return the number of a cell, None for another text: a callback of the user may write any."""
    try:
        return quantity.parse(text)
    except ValueError:
        return None


def _usual_spacing_s(content: FileContent) -> float:
    """Return the median time between two rows; 0 if it is unknown."""
    scan = FileContent(content.path, content.form, content.options)
    times = StoredSamples(content.options.spool)
    take_rows(scan, lambda cells: times.add(scan.times.parse(cells["timestamp"]), 0.0))

    def rises() -> Iterator[FloatArray]:
        for part in times.parts():
            spacings_s = np.diff(part.t)
            yield spacings_s[spacings_s > 0]

    return median(rises) or 0.0


def _is_another(before: _Batch, batch: _Batch, usual_s: float) -> bool:
    pause_s = batch.t_s - before.t_s
    iteration = 1.0 if batch.iteration is None else batch.iteration
    return (
        batch.cap_w != before.cap_w
        or iteration <= (before.iteration or 0.0)
        or pause_s < 0
        or pause_s > _PAUSE_FACTOR * usual_s
    )


def _run(path: Path, run: _Batches, gpu: str) -> FileRun:
    last = run.last
    cap_w = run.first.cap_w
    tokens = _tokens(run)
    results = {"tokens_per_second": last.tokens_per_s, "loss": last.loss}
    workload = "training" if "training" in path.name or last.loss is not None else "inference"
    return FileRun(
        name=f"{workload}-{cap_w:g}w" if cap_w is not None else workload,
        workload=workload,
        start_s=run.first.t_s,
        end_s=last.t_s,
        labels={} if cap_w is None else {"power_limit_watts": f"{cap_w:g}"},
        work={"steps": float(run.count - 1)} | ({} if tokens is None else {"tokens": tokens}),
        results={name: value for name, value in results.items() if value is not None},
        gpus=(gpu,),
        caveats=() if gpu == ALL_GPUS else ("gpu0_only",),
    )


def _tokens(run: _Batches) -> float | None:
    """Return the tokens from the first row to the last, None if they are unknown.

    `tokens_per_sec` counts from the start of the program, an unknown time d before the first row,
    which follows from batches of equal size. A file of Wattline has no rate in its first row, which
    is the start.
    """
    first = run.first
    last = run.last
    elapsed_s = run.last.t_s - run.first.t_s
    if last.tokens_per_s is None or last.tokens_per_s <= 0 or elapsed_s <= 0:
        return None
    if first.tokens_per_s is None:
        return last.tokens_per_s * elapsed_s
    n_first = first.iteration or 1.0
    n_last = last.iteration or float(run.count)
    denominator = n_last * first.tokens_per_s - n_first * last.tokens_per_s
    if first.tokens_per_s <= 0 or denominator <= 0 or n_last <= n_first:
        return None
    d_s = n_first * last.tokens_per_s * elapsed_s / denominator
    return (n_last - n_first) / n_first * first.tokens_per_s * d_s


FORMATS = (FileFormat(GPU_TUNE_FORMAT, is_gpu_tune, read_gpu_tune),)
