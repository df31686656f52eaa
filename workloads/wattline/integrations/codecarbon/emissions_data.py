"""Record of a tracked run, with the columns of CodeCarbon 3.3's `emissions.csv`."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAN = math.nan


@dataclass
class EmissionsData:
    """Durations in seconds, energies in kWh, powers in W, emissions in kg CO2eq; NaN where a value
    is unknown.
    """

    timestamp: str
    project_name: str
    run_id: str
    experiment_id: str
    duration: float
    emissions: float
    emissions_rate: float
    cpu_power: float
    gpu_power: float
    ram_power: float
    cpu_energy: float
    gpu_energy: float
    ram_energy: float
    energy_consumed: float
    water_consumed: float
    country_name: str
    country_iso_code: str
    region: str
    cloud_provider: str
    cloud_region: str
    os: str
    python_version: str
    codecarbon_version: str
    cpu_count: float
    cpu_model: str
    gpu_count: float
    gpu_model: str
    longitude: float
    latitude: float
    ram_total_size: float
    tracking_mode: str
    cpu_utilization_percent: float = NAN
    gpu_utilization_percent: float = NAN
    ram_utilization_percent: float = NAN
    ram_used_gb: float = NAN
    on_cloud: str = "N"
    pue: float = 1.0
    wue: float = 0.0

    @property
    def values(self) -> OrderedDict[str, Any]:
        return OrderedDict(dataclasses.asdict(self))


@dataclass
class TaskEmissionsData:
    """Record of a task, with the fields of `EmissionsData`."""

    task_name: str
    data: EmissionsData

    @property
    def values(self) -> OrderedDict[str, Any]:
        left_out = ("experiment_id", "pue", "wue")
        fields = {name: value for name, value in self.data.values.items() if name not in left_out}
        return OrderedDict({"task_name": self.task_name, **fields})


def write_row(path: Path, data: EmissionsData, *, updates: bool) -> None:
    """Append the record to a CSV file, or replace the row of its run with `updates`.

    A file with other columns is renamed to `NAME.bak` first. Raises OSError.
    """
    rows = _read(path)
    if rows and sorted(rows[0]) != sorted(data.values):
        path.rename(path.with_name(f"{path.name}.bak"))
        rows = []
    if updates:
        rows = [row for row in rows if row["run_id"] != data.run_id]
    _write(path, [*rows, _texts(data.values)], list(rows[0]) if rows else list(data.values))


def write_tasks(path: Path, tasks: Sequence[TaskEmissionsData]) -> None:
    """Write one row for each task. Raises OSError."""
    if tasks:
        _write(path, [_texts(task.values) for task in tasks], list(tasks[0].values))


def _texts(values: OrderedDict[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items()}


def _text(value: float | str) -> str:
    """Return the text of a cell, empty for NaN."""
    return "" if isinstance(value, float) and math.isnan(value) else str(value)


def _read(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: Sequence[dict[str, str]], columns: Sequence[str]) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)
