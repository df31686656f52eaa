"""Summaries of gpu-tune: one row per power limit of a sweep."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from wattline_analyzer.core.devices import SIMULATED_REMARK
from wattline_analyzer.recommend.sweep import Sweep, SweepRun
from wattline_analyzer.report.compatible.gpu_tune import REMARKS_FILE, is_training, tokens_unit
from wattline_analyzer.report.compatible.rows import MIB, text

_SUMMARY_COLUMNS: dict[str, Callable[[SweepRun], float | None]] = {
    "tokens_per_sec": lambda run: _token_figures(run)[0],
    "temperature": lambda run: run.temperature_celsius,
    "memory_used": lambda run: (
        None if run.memory_used_bytes is None else run.memory_used_bytes / MIB
    ),
    "power_draw": lambda run: run.mean_power_w,
    "gpu_utilization": lambda run: None if run.utilization is None else 100 * run.utilization,
    "memory_utilization": lambda run: (
        None if run.memory_utilization is None else 100 * run.memory_utilization
    ),
    "power_limit": lambda run: run.limit_w,
    "total_power_draw": lambda run: (
        None if run.mean_power_w is None else run.mean_power_w * len(run.gpus)
    ),
    "energy_per_token": lambda run: _token_figures(run)[1],
    "total_time_min": lambda run: run.duration_s / 60,
    "energy_consumption_watt_min": lambda run: run.energy.number / 60,
}


def sweep_files(sweeps: Sequence[Sweep]) -> dict[str, bytes]:
    """Return one file per sweep with power limits, and the remarks that they have no field for."""
    found: dict[str, bytes] = {}
    for sweep in sweeps:
        caps_w = sorted(
            {
                run.setting.power_limit_w
                for run in sweep.runs
                if run.setting.power_limit_w is not None
            }
        )
        if caps_w:
            kind = "training" if _is_training_sweep(sweep) else "inference"
            names = (
                f"{kind}_summary{f'_{again}' if again > 1 else ''}.csv"
                for again in range(1, len(sweeps) + 1)
            )
            found[next(name for name in names if name not in found)] = _summary(
                sweep, caps_w
            ).encode()
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
        means = (
            [value for run in runs if (value := read(run)) is not None]
            for read in _SUMMARY_COLUMNS.values()
        )
        writer.writerow(
            [text(cap_w), *(text(float(np.mean(known)) if known else None) for known in means)]
        )
    return target.getvalue()


def _token_figures(run: SweepRun) -> tuple[float | None, float | None]:
    """Return tokens per second and joules per token."""
    unit = tokens_unit({unit: work.amount for unit, work in run.work.items()})
    if unit is None:
        return None, None
    work = run.work[unit]
    return work.per_second, work.energy_per_unit.value if work.energy_per_unit else None
