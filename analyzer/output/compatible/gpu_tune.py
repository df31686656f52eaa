"""Files of gpu-tune: statistics of a run, one row per scrape, and summaries of sweeps, one row per power limit.

Readings are of the first GPU, `total_power_draw` is of all. As in gpu-tune, tokens per second count from the start of
the run, and energy per token is power over tokens per second. Summaries have means over runs; their energy covers
all GPUs, and their time the runs without pauses between them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from analyzer.model.devices import SIMULATED_REMARK
from analyzer.model.report import Report
from analyzer.model.sample_table import SampleTable
from analyzer.model.samples import FloatArray
from analyzer.output.compatible import rows as compatible_rows
from analyzer.output.compatible.rows import MIB, text
from analyzer.studies.sweep import Sweep, SweepRun

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
        if row == len(at_s) - 1 and "loss" in report.results:  # a result of the run, known at its end
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
    found["max_watt"] = np.full(len(at_s), float(cap)) if _is_number(cap) else gpus[0]["power_limit_w"]
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
        return np.where(since_s > 0, compatible_rows.work(report, table, unit, at_s) / since_s, np.nan)


_SUMMARY_COLUMNS: dict[str, Callable[[SweepRun], float | None]] = {
    "tokens_per_sec": lambda run: _token_figures(run)[0],
    "temperature": lambda run: run.temperature_celsius,
    "memory_used": lambda run: None if run.memory_used_bytes is None else run.memory_used_bytes / MIB,
    "power_draw": lambda run: run.mean_power_w,
    "gpu_utilization": lambda run: None if run.utilization is None else 100 * run.utilization,
    "memory_utilization": lambda run: None if run.memory_utilization is None else 100 * run.memory_utilization,
    "power_limit": lambda run: run.limit_w,
    "total_power_draw": lambda run: None if run.mean_power_w is None else run.mean_power_w * len(run.gpus),
    "energy_per_token": lambda run: _token_figures(run)[1],
    "total_time_min": lambda run: run.duration_s / 60,
    "energy_consumption_watt_min": lambda run: run.energy.value / 60,
}


def sweep_files(sweeps: Sequence[Sweep]) -> dict[str, bytes]:
    """Return one file per sweep with power limits, and the remarks that they have no field for."""
    found: dict[str, bytes] = {}
    for sweep in sweeps:
        caps_w = sorted({run.setting.power_limit_w for run in sweep.runs if run.setting.power_limit_w is not None})
        if caps_w:
            kind = "training" if _is_training_sweep(sweep) else "inference"
            names = (f"{kind}_summary{f'_{again}' if again > 1 else ''}.csv" for again in range(1, len(sweeps) + 1))
            found[next(name for name in names if name not in found)] = _summary(sweep, caps_w).encode()
    if found and any(run.simulated for sweep in sweeps for run in sweep.runs):
        found[REMARKS_FILE] = f"{SIMULATED_REMARK}.\n".encode()
    return found


def _is_training_sweep(sweep: Sweep) -> bool:
    return any(is_training(run.workload, run.results) for run in sweep.runs)


def _summary(sweep: Sweep, caps_w: Iterable[float]) -> str:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(["max_watt", *_SUMMARY_COLUMNS])
    for cap_w in caps_w:
        runs = [run for run in sweep.runs if run.setting.power_limit_w == cap_w]
        means = ([value for run in runs if (value := read(run)) is not None] for read in _SUMMARY_COLUMNS.values())
        writer.writerow([text(cap_w), *(text(float(np.mean(known)) if known else None) for known in means)])
    return target.getvalue()


def _token_figures(run: SweepRun) -> tuple[float | None, float | None]:
    """Return tokens per second and joules per token."""
    unit = tokens_unit({unit: work.amount for unit, work in run.work.items()})
    if unit is None:
        return None, None
    work = run.work[unit]
    return work.per_second, work.energy_per_unit.value if work.energy_per_unit else None
