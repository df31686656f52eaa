"""Readers of power logs: CSV of wall meters, smart plugs and PDUs, and AIPowerMeter's power_metrics.json.

AIPowerMeter writes JSON lines with RAPL and GPU power. An absent RAPL domain is -1 and is left out; psys contains the
package, so it is never added.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.importers.content import ALL_GPUS, BadLine, FileContent, FileRun, ReadOptions, UnreadableError
from analyzer.importers.quantities import CPU_POWER_W, GPU_POWER_W, NODE_POWER_W, Quantity, split_column
from analyzer.importers.text import collect_bad_line, csv_header, csv_rows, read_json_lines, read_text, refuse_surplus
from analyzer.model.time_text import parse_moment
from exporter.contract import metrics as m

WALL_METER_FORMAT = "wall-meter"
CHIP = "wall-meter"
"""Label `chip` of the meter's power, which is never added to the power of the node's sensors."""
_TIMES = ("time", "timestamp", "date", "datetime", "unixtime", "unix_time", "t")
_POWERS = {"watts": "", "watt": "", "power": "", "w": "", "power_w": "W", "power_mw": "mW", "power_kw": "kW"}
"""Units of the columns; a unit in brackets precedes."""
AIPOWERMETER_FORMAT = "aipowermeter"
AIPOWERMETER_FILE = "power_metrics.json"
_EACH_GPU = ("per_gpu_power_draw", "per_gpu_nvidia_power")
_ALL_GPUS = ("nvidia_draw_absolute", "nvidia_power")
_SEGMENT_END = "END OF RECORDING SEGMENT"
_ABSENT_W = -1
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
    name, unit = split_column(power)
    unit, where = unit or _POWERS[name], {"chip": CHIP, "sensor": path.stem}
    for line, cells in csv_rows(path):
        with collect_bad_line(content.bad, line):
            refuse_surplus(cells)
            power_w = NODE_POWER_W.parse(cells[power], unit)
            if power_w is not None:
                content.series.add(m.HWMON_POWER, where, parse_moment(cells[time], options.zone), power_w)
    return content


def _column(columns: list[str], names: tuple[str, ...] | dict[str, str]) -> str | None:
    return next((column for column in columns if split_column(column)[0] in names), None)


def read_aipowermeter(path: Path, options: ReadOptions) -> FileContent:
    """Return the content with a run for each segment of recording, because nothing was recorded between two."""
    content = FileContent(path, AIPOWERMETER_FORMAT)
    ends = [number for number, text in enumerate(read_text(path).splitlines(), 1) if _SEGMENT_END in text]
    segments: list[list[float]] = [[] for _ in range(len(ends) + 1)]
    not_json: list[BadLine] = []
    for line, record in read_json_lines(path, not_json):
        with collect_bad_line(content.bad, line):
            segments[bisect(ends, line)].append(_take(content, record, options))
    content.bad += [bad for bad in not_json if bad.line not in ends]
    name = path.parent.name or "power"
    for times in segments:
        if len(times) > 1:
            content.runs.append(FileRun(name, name, min(times), max(times)))
        elif times:
            content.notes.append(f"{path}: left out a segment with a single sample, which has no energy")
    return content


def _take(content: FileContent, record: dict[str, Any], options: ReadOptions) -> float:
    """Add the powers of a record and return its time."""
    t_s, metrics = parse_moment(record["date"], options.zone), record["metrics"]
    cpu, gpu = metrics.get("cpu") or {}, metrics.get("gpu") or {}
    powers_w = {zone: value for name, zone in _CPU.items() if (value := _watts(cpu, name, CPU_POWER_W)) is not None}
    each: Mapping[str, Any] = next((gpu[name] for name in _EACH_GPU if isinstance(gpu.get(name), Mapping)), {})
    gpus_w = {index: value for index in each if (value := _watts(each, index, GPU_POWER_W)) is not None}
    if not gpus_w:
        whole_w = next((value for name in _ALL_GPUS if (value := _watts(gpu, name, NODE_POWER_W)) is not None), None)
        gpus_w = {} if whole_w is None else {ALL_GPUS: whole_w}
    for zone, value in powers_w.items():
        content.series.add(m.CPU_POWER, {"package": "0", "zone": zone}, t_s, value)
    for index, value in gpus_w.items():
        content.series.add(m.GPU_POWER, {"gpu": index, "uuid": ""}, t_s, value)
    return t_s


def _watts(values: Mapping[str, Any], name: str, quantity: Quantity) -> float | None:
    """Return the value, None if it is absent or the mark -1. Raises ValueError for an implausible one."""
    value = values.get(name)
    if isinstance(value, int | float) and math.isfinite(value) and value != _ABSENT_W:
        return quantity.checked(float(value))
    return None
