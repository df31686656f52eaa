"""Files of gpu-tune: statistics of a run, one row per scrape, and summaries of sweeps, one row per
power limit.

Readings are of the first GPU, `total_power_draw` is of all. As in gpu-tune, tokens per second count
from the start of the run, and energy per token is power over tokens per second. Summaries have
means over runs; their energy covers all GPUs, and their time the runs without pauses between them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping

import numpy as np

from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.report.compatible import rows as compatible_rows
from wattline_analyzer.report.compatible.rows import text
from wattline_analyzer.report.compatible.tool_format import ToolFormat

GPU_TUNE_TOOL = "gpu-tune"
_READINGS = {
    "temperature": "temperature_celsius",
    "fan_speed": "fan_percent",
    "memory_used": "memory_used_mib",
    "power_draw": "power_w",
    "gpu_utilization": "utilization_percent",
    "memory_utilization": "memory_utilization_percent",
    "power_limit": "power_limit_w",
}
_TAIL = ("max_watt", "total_power_draw", "energy_per_token")
INFERENCE = ("timestamp", "tokens_per_sec", *_READINGS, *_TAIL)
TRAINING = (
    "timestamp",
    "epoch",
    "iteration",
    "batch",
    "loss",
    "tokens_per_sec",
    *_READINGS,
    *_TAIL,
)
_TOKENS = ("trained_tokens", "generated_tokens", "tokens")
_STEPS = "steps"
REMARKS_FILE = "REMARKS.txt"


def is_training(workload: str, results: Mapping[str, float]) -> bool:
    return "train" in workload or "loss" in results


def tokens_unit(units: Mapping[str, float]) -> str | None:
    """Return the unit of generated or trained tokens, without prompts and padding."""
    return next((unit for unit in _TOKENS if units.get(unit)), None)


def gpu_tune_files(report: Report, table: SampleTable) -> dict[str, bytes]:
    """Return the file of a run; empty without GPU power."""
    at_s = compatible_rows.times(report, table)
    if not len(at_s):
        return {}
    training = is_training(report.workload, report.results)
    columns = _columns(report, table, at_s)
    names = TRAINING if training else INFERENCE
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(names)
    for row, t_s in enumerate(at_s):
        cells = {name: text(float(values[row])) for name, values in columns.items()}
        cells["timestamp"] = compatible_rows.local(float(t_s)).isoformat(timespec="microseconds")
        if (
            row == len(at_s) - 1 and "loss" in report.results
        ):  # a result of the run, known at its end
            cells["loss"] = text(report.results["loss"], 9)
        writer.writerow([cells.get(name, "") for name in names])
    return {"training_stats.csv" if training else "inference_stats.csv": target.getvalue().encode()}


def _columns(report: Report, table: SampleTable, at_s: FloatArray) -> dict[str, FloatArray]:
    gpus = [compatible_rows.readings(table, device, at_s) for device in report.gpus]
    total_w = np.sum([readings["power_w"] for readings in gpus], axis=0)
    rate = _tokens_per_second(report, table, at_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token_j = np.where(rate > 0, total_w / rate, np.nan)
    found = {name: gpus[0][reading] for name, reading in _READINGS.items()}
    found |= {"tokens_per_sec": rate, "total_power_draw": total_w, "energy_per_token": per_token_j}
    cap = report.labels.get("power_limit_watts", "")
    found["max_watt"] = (
        np.full(len(at_s), float(cap)) if _is_number(cap) else gpus[0]["power_limit_w"]
    )
    steps = compatible_rows.work(report, table, _STEPS, at_s)
    if np.isfinite(steps).all() and (np.diff(steps) > 0).all():
        found["iteration"] = np.floor(steps)
    return found


def _is_number(cap: str) -> bool:
    try:
        return math.isfinite(float(cap))
    except ValueError:
        return False


def _tokens_per_second(report: Report, table: SampleTable, at_s: FloatArray) -> FloatArray:
    unit = tokens_unit({work.unit: work.amount for work in report.work})
    if unit is None:
        return np.full(len(at_s), np.nan)
    since_s = at_s - report.started_at_s
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            since_s > 0, compatible_rows.work(report, table, unit, at_s) / since_s, np.nan
        )


FORMATS = (ToolFormat(GPU_TUNE_TOOL, gpu_tune_files, has_remarks=False),)
