"""Reader of gpu-tune's training_stats.csv and inference_stats.csv: one row and power sample per batch.

Runs are appended to each other. A run is a sequence of rows with one power cap; its first batch ended with its first
sample, so it is outside of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analyzer.importers.content import ALL_GPUS, FileContent, FileRun, ReadOptions, UnreadableError
from analyzer.importers.quantities import GPU_POWER_W, NODE_POWER_W
from analyzer.importers.text import collect_bad_line, csv_header, csv_rows, parse_number
from analyzer.model.time_text import parse_moment
from exporter.contract import metrics as m

GPU_TUNE_FORMAT = "gpu-tune"
_PAUSE_FACTOR = 10
"""Pause, in usual spacings, from which on another run of the same cap begins."""


@dataclass(frozen=True, slots=True)
class _Batch:
    line: int
    t_s: float
    cells: dict[str, float]


def is_gpu_tune(columns: list[str]) -> bool:
    return {"timestamp", "tokens_per_sec", "max_watt"} <= set(columns)


def read_gpu_tune(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    content = FileContent(path, GPU_TUNE_FORMAT)
    columns = csv_header(path)
    power = next((name for name in ("total_power_draw", "power_draw") if name in columns), None)
    if power is None or not is_gpu_tune(columns):
        raise UnreadableError(
            f"cannot import {path}: no columns timestamp, tokens_per_sec, max_watt and total_power_draw in line 1"
        )
    if power == "power_draw":
        content.notes.append(f"{path} has the power of GPU 0 only: the energy of other GPUs is not included")
    batches: list[_Batch] = []
    for line, cells in csv_rows(path):
        with collect_bad_line(content.bad, line):
            batches.append(_batch(line, cells, power, options))
    gpu = ALL_GPUS if power == "total_power_draw" else "0"
    for group in _runs(batches):
        content.runs.append(_run(path, group, gpu))
        for batch in group:
            _track(content, batch, gpu, power)
    return content


def _batch(line: int, cells: dict[str, str], power: str, options: ReadOptions) -> _Batch:
    t_s = parse_moment(cells["timestamp"], options.zone)
    values = {name: parse_number(text) for name, text in cells.items() if name != "timestamp" and _is_number(text)}
    if values.get(power) is None:
        raise ValueError(f"no {power}")
    values[power] = (NODE_POWER_W if power == "total_power_draw" else GPU_POWER_W).parse(cells[power])
    return _Batch(line, t_s, {name: value for name, value in values.items() if value is not None})


def _is_number(text: str) -> bool:
    """Return whether a cell holds a number: a callback of the user may write any text."""
    try:
        return parse_number(text) is not None
    except ValueError:
        return False


def _runs(batches: list[_Batch]) -> list[list[_Batch]]:
    groups: list[list[_Batch]] = []
    spacings_s = np.diff([batch.t_s for batch in batches])
    usual_s = float(np.median(spacings_s[spacings_s > 0])) if (spacings_s > 0).any() else 0.0
    for batch in batches:
        if not groups or _is_another(groups[-1][-1], batch, usual_s):
            groups.append([])
        groups[-1].append(batch)
    return groups


def _is_another(before: _Batch, batch: _Batch, usual_s: float) -> bool:
    pause_s = batch.t_s - before.t_s
    return (
        batch.cells.get("max_watt") != before.cells.get("max_watt")
        or batch.cells.get("iteration", 1.0) <= before.cells.get("iteration", 0.0)
        or pause_s < 0
        or pause_s > _PAUSE_FACTOR * usual_s
    )


def _run(path: Path, batches: list[_Batch], gpu: str) -> FileRun:
    last, cap_w = batches[-1].cells, batches[0].cells.get("max_watt")
    labels = {}
    if cap_w is not None:
        labels["power_limit_watts"] = f"{cap_w:g}"
    results = {"tokens_per_second": last["tokens_per_sec"]} if "tokens_per_sec" in last else {}
    if "loss" in last:
        results["loss"] = last["loss"]
    workload = "training" if "training" in path.name or "loss" in last else "inference"
    return FileRun(
        name=f"{workload}-{cap_w:g}w" if cap_w is not None else workload,
        workload=workload,
        start_s=batches[0].t_s,
        end_s=batches[-1].t_s,
        labels=labels,
        work={"steps": float(len(batches) - 1)},
        results=results,
        gpus=(gpu,),
        caveats=() if gpu == ALL_GPUS else ("gpu0_only",),
    )


def _track(content: FileContent, batch: _Batch, gpu: str, power: str) -> None:
    where, cells, t_s = {"gpu": gpu, "uuid": ""}, batch.cells, batch.t_s
    content.series.add(m.GPU_POWER, where, t_s, cells[power])
    of_gpu_0 = {"gpu": "0", "uuid": ""}
    if "temperature" in cells:
        content.series.add(m.GPU_TEMPERATURE, of_gpu_0 | {"sensor": "gpu"}, t_s, cells["temperature"])
    if "gpu_utilization" in cells:
        content.series.add(m.GPU_UTILIZATION, of_gpu_0 | {"engine": "gpu"}, t_s, cells["gpu_utilization"] / 100)
    if "power_limit" in cells:
        content.series.add(m.GPU_POWER_LIMIT, of_gpu_0 | {"kind": "enforced"}, t_s, cells["power_limit"])
