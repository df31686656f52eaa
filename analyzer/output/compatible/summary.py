"""A sweep as gpu-tune's training_summary.csv and inference_summary.csv: a row a power cap, means over its runs. Pure.

Its columns and units; but energy is that of all GPUs, and time that of a run, without what lay between the runs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from analyzer.output.compatible.gpu_tune import is_training, tokens_unit
from analyzer.output.compatible.rows import MIB, text
from analyzer.studies.sweep import Sweep, SweepRun

_COLUMNS: dict[str, Callable[[SweepRun], float | None]] = {
    "tokens_per_sec": lambda run: _tokens(run)[0],
    "temperature": lambda run: run.temperature_celsius,
    "memory_used": lambda run: None if run.memory_used_bytes is None else run.memory_used_bytes / MIB,
    "power_draw": lambda run: run.mean_power_w,
    "gpu_utilization": lambda run: None if run.utilization is None else 100 * run.utilization,
    "memory_utilization": lambda run: None if run.memory_utilization is None else 100 * run.memory_utilization,
    "power_limit": lambda run: run.limit_w,
    "total_power_draw": lambda run: None if run.mean_power_w is None else run.mean_power_w * len(run.gpus),
    "energy_per_token": lambda run: _tokens(run)[1],
    "total_time_min": lambda run: run.duration_s / 60,
    "energy_consumption_watt_min": lambda run: run.energy.value / 60,
}


def files(sweeps: Sequence[Sweep]) -> dict[str, bytes]:
    """Of several sweeps of the same kind each has a file of its own; one without power caps has none."""
    found: dict[str, bytes] = {}
    for sweep in sweeps:
        caps_w = sorted({run.setting.power_limit_w for run in sweep.runs if run.setting.power_limit_w is not None})
        if caps_w:
            kind = "training" if _is_training(sweep) else "inference"
            names = (f"{kind}_summary{f'_{again}' if again > 1 else ''}.csv" for again in range(1, len(sweeps) + 1))
            found[next(name for name in names if name not in found)] = _summary(sweep, caps_w).encode()
    return found


def _is_training(sweep: Sweep) -> bool:
    return any(is_training(run.workload, run.results) for run in sweep.runs)


def _summary(sweep: Sweep, caps_w: Iterable[float]) -> str:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(["max_watt", *_COLUMNS])
    for cap_w in caps_w:
        runs = [run for run in sweep.runs if run.setting.power_limit_w == cap_w]
        means = ([value for run in runs if (value := read(run)) is not None] for read in _COLUMNS.values())
        writer.writerow([text(cap_w), *(text(float(np.mean(known)) if known else None) for known in means)])
    return target.getvalue()


def _tokens(run: SweepRun) -> tuple[float | None, float | None]:
    """Tokens a second and joules a token."""
    unit = tokens_unit({unit: work.amount for unit, work in run.work.items()})
    if unit is None:
        return None, None
    work = run.work[unit]
    return work.per_second, work.energy_per_unit.value if work.energy_per_unit else None
