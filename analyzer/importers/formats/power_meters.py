"""Readers of power logs: CSV of wall meters, smart plugs and PDUs, and AIPowerMeter's power_metrics.json.

AIPowerMeter writes JSON lines with RAPL and GPU power. An absent RAPL domain is -1 and is left out; psys contains the
package, so it is never added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.importers.content import ALL_GPUS, FileContent, FileRun, ReadOptions, UnreadableError
from analyzer.importers.text import collect_bad_line, csv_header, csv_rows, parse_number, read_json_lines
from analyzer.model.time_text import parse_moment
from exporter.contract import metrics as m

WALL_METER_FORMAT = "wall-meter"
CHIP = "wall-meter"
"""Label `chip` of the meter's power, which is never added to the power of the node's sensors."""
_TIMES = ("time", "timestamp", "date", "datetime", "unixtime", "unix_time", "t")
_POWERS = {"watts": 1.0, "watt": 1.0, "power": 1.0, "power_w": 1.0, "power [w]": 1.0, "power (w)": 1.0, "w": 1.0}
_POWERS |= {"power_mw": 1e-3, "power (mw)": 1e-3, "power_kw": 1e3, "power (kw)": 1e3}
AIPOWERMETER_FORMAT = "aipowermeter"
AIPOWERMETER_FILE = "power_metrics.json"
_EACH_GPU = ("per_gpu_power_draw", "per_gpu_nvidia_power")
_ALL_GPUS = ("nvidia_draw_absolute", "nvidia_power")
_CPU = {"intel_power": "package", "total_dram_power": "dram"}


def is_wall_meter(columns: list[str]) -> bool:
    return bool(_column(columns, _TIMES) and _column(columns, _POWERS))


def read_wall_meter(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    content = FileContent(path, WALL_METER_FORMAT)
    columns = csv_header(path)
    time, power = _column(columns, _TIMES), _column(columns, _POWERS)
    if not time or not power:
        raise UnreadableError(f"cannot import {path}: no columns time and watts in line 1; rename its columns")
    factor, where = _POWERS[power.lower()], {"chip": CHIP, "sensor": path.stem}
    for line, cells in csv_rows(path):
        with collect_bad_line(content.bad, line):
            power_w = parse_number(cells[power])
            if power_w is not None:
                content.series.add(m.HWMON_POWER, where, parse_moment(cells[time], options.zone), power_w * factor)
    return content


def _column(columns: list[str], names: tuple[str, ...] | dict[str, float]) -> str | None:
    return next((column for column in columns if column.lower() in names), None)


def read_aipowermeter(path: Path, options: ReadOptions) -> FileContent:
    content = FileContent(path, AIPOWERMETER_FORMAT)
    for line, record in read_json_lines(path, content.bad):
        with collect_bad_line(content.bad, line):
            _take(content, record, options)
    times = [t_s for samples in content.series.found.values() for t_s, _ in samples]
    if times:
        name = path.parent.name or "power"
        content.runs.append(FileRun(name, name, min(times), max(times)))
    return content


def _take(content: FileContent, record: dict[str, Any], options: ReadOptions) -> None:
    t_s, metrics = parse_moment(record["date"], options.zone), record["metrics"]
    cpu, gpu = metrics.get("cpu") or {}, metrics.get("gpu") or {}
    powers_w = {zone: value for name, zone in _CPU.items() if (value := _watts(cpu, name)) is not None}
    each: Mapping[str, Any] = next((gpu[name] for name in _EACH_GPU if isinstance(gpu.get(name), Mapping)), {})
    gpus_w = {index: value for index in each if (value := _watts(each, index)) is not None}
    if not gpus_w:
        whole_w = next((value for name in _ALL_GPUS if (value := _watts(gpu, name)) is not None), None)
        gpus_w = {} if whole_w is None else {ALL_GPUS: whole_w}
    for zone, value in powers_w.items():
        content.series.add(m.CPU_POWER, {"package": "0", "zone": zone}, t_s, value)
    for index, value in gpus_w.items():
        content.series.add(m.GPU_POWER, {"gpu": index, "uuid": ""}, t_s, value)


def _watts(values: Mapping[str, Any], name: str) -> float | None:
    """Return the value, None if it is absent or the mark -1."""
    value = values.get(name)
    known = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return float(value) if known else None  # type: ignore[arg-type]  # known says so
