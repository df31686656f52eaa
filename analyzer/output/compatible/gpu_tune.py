"""A run as gpu-tune's training_stats.csv or inference_stats.csv: a row a scrape, in its columns and units. Pure.

Its own readings are those of one GPU, the run's first; `total_power_draw` is that of all. Tokens a second are those
since the begin, as its own are, and energy per token is power by tokens a second.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from analyzer.model.report import Report
from analyzer.model.samples import FloatArray
from analyzer.output.compatible import rows as compatible_rows
from analyzer.output.compatible.rows import text

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
TRAINING = ("timestamp", "epoch", "iteration", "batch", "loss", "tokens_per_sec", *_READINGS, *_TAIL)
_TOKENS = ("trained_tokens", "generated_tokens", "tokens")
_STEPS = "steps"


def is_training(workload: str, results: Mapping[str, float]) -> bool:
    return "train" in workload or "loss" in results


def tokens_unit(units: Mapping[str, float]) -> str | None:
    """The unit of work that is tokens made or learnt; those of prompts and padding are none."""
    return next((unit for unit in _TOKENS if units.get(unit)), None)


def files(report: Report, frame: pd.DataFrame) -> dict[str, bytes]:
    """Empty where the run has no GPU whose power is known."""
    at_s = compatible_rows.times(report, frame)
    if not len(at_s):
        return {}
    training = is_training(report.workload, report.results)
    columns = _columns(report, frame, at_s)
    names = TRAINING if training else INFERENCE
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(names)
    for row, t_s in enumerate(at_s):
        cells = {name: text(float(values[row])) for name, values in columns.items()}
        cells["timestamp"] = compatible_rows.local(float(t_s)).isoformat(timespec="microseconds")
        if row == len(at_s) - 1 and "loss" in report.results:  # the run's own result, which is known at its end
            cells["loss"] = text(report.results["loss"], 9)
        writer.writerow([cells.get(name, "") for name in names])
    return {"training_stats.csv" if training else "inference_stats.csv": target.getvalue().encode()}


def _columns(report: Report, frame: pd.DataFrame, at_s: FloatArray) -> dict[str, FloatArray]:
    gpus = [compatible_rows.readings(frame, device, at_s) for device in report.gpus]
    total_w = np.sum([readings["power_w"] for readings in gpus], axis=0)
    rate = _tokens_per_second(report, frame, at_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token_j = np.where(rate > 0, total_w / rate, np.nan)
    found = {name: gpus[0][reading] for name, reading in _READINGS.items()}
    found |= {"tokens_per_sec": rate, "total_power_draw": total_w, "energy_per_token": per_token_j}
    cap = report.labels.get("power_limit_watts", "")
    found["max_watt"] = np.full(len(at_s), float(cap)) if _is_number(cap) else gpus[0]["power_limit_w"]
    steps = compatible_rows.work(report, frame, _STEPS, at_s)
    if np.isfinite(steps).all() and (np.diff(steps) > 0).all():
        found["iteration"] = steps
    return found


def _is_number(cap: str) -> bool:
    try:
        return math.isfinite(float(cap))
    except ValueError:
        return False


def _tokens_per_second(report: Report, frame: pd.DataFrame, at_s: FloatArray) -> FloatArray:
    unit = tokens_unit({work.unit: work.amount for work in report.work})
    if unit is None:
        return np.full(len(at_s), np.nan)
    since_s = at_s - report.started_at_s
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(since_s > 0, compatible_rows.work(report, frame, unit, at_s) / since_s, np.nan)
