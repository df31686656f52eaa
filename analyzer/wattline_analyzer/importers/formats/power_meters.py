"""Readers of power logs: CSV of wall meters, smart plugs and PDUs, and AIPowerMeter's
power_metrics.json.

AIPowerMeter writes JSON lines with RAPL and GPU power. An absent RAPL domain is -1 and is left out;
psys contains the package, so it is never added.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from wattline.contract import metrics as m
from wattline_analyzer.importers.content import (
    ALL_GPUS,
    FileContent,
    FileRun,
    ReadOptions,
    UnreadableError,
)
from wattline_analyzer.importers.file_format import FileFormat, FileHead
from wattline_analyzer.importers.quantities import (
    CPU_POWER_W,
    GPU_POWER_W,
    NODE_POWER_W,
    Commas,
    Quantity,
)
from wattline_analyzer.importers.text import (
    Cells,
    parse_json_object,
    read_columns,
    take_lines,
    take_rows,
)

WALL_METER_FORMAT = "wall-meter"
CHIP = "wall-meter"
"""Label `chip` of the meter's power, which is never added to the power of the node's sensors."""
_TIMES = ("time", "timestamp", "date", "datetime", "unixtime", "unix_time", "t")
_POWERS = {
    "watts": "",
    "watt": "",
    "power": "",
    "w": "",
    "power_w": "W",
    "power_mw": "mW",
    "power_kw": "kW",
}
"""Units of the columns; a unit in brackets precedes."""
AIPOWERMETER_FORMAT = "aipowermeter"
AIPOWERMETER_FILE = "power_metrics.json"
_EACH_GPU = ("per_gpu_power_draw", "per_gpu_nvidia_power")
_ALL_GPUS = ("nvidia_draw_absolute", "nvidia_power")
_SEGMENT_END = "END OF RECORDING SEGMENT"
_ABSENT_W = -1
_CPU = {"intel_power": "package", "total_dram_power": "dram"}


def is_wall_meter(head: FileHead) -> bool:
    return bool(_column(head.columns, _TIMES) and _column(head.columns, _POWERS))


def read_wall_meter(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    content = FileContent(path, WALL_METER_FORMAT, options)
    units = read_columns(path)
    time = _column(units, _TIMES)
    power = _column(units, _POWERS)
    if not time or not power:
        raise UnreadableError(
            f"cannot import {path}: no columns time and watts in line 1; rename its columns"
        )
    commas = Commas(content)
    unit = units[power] or _POWERS[power]
    where = {"chip": CHIP, "sensor": path.stem}

    def take(cells: Cells) -> None:
        power_w = NODE_POWER_W.parse(commas.without(cells, power), unit)
        if power_w is None:
            content.without_power[""] += 1
        else:
            content.samples(m.HWMON_POWER, where).add(content.times.parse(cells[time]), power_w)

    take_rows(content, take)
    return content


def _column(columns: Collection[str], names: Collection[str]) -> str | None:
    return next((column for column in columns if column in names), None)


def is_aipowermeter(head: FileHead) -> bool:
    if head.path.name == AIPOWERMETER_FILE:
        return True
    return head.path.suffix == ".json" and "metrics" in head.first_object


def read_aipowermeter(path: Path, options: ReadOptions) -> FileContent:
    """Return the content with a run for each segment of recording, because nothing was recorded
    between two.
    """
    content = FileContent(path, AIPOWERMETER_FORMAT, options)
    segments: list[list[float]] = [[]]
    """First and last time of each segment."""

    def take(text: str) -> None:
        if _SEGMENT_END in text:
            segments.append([])
            return
        t_s = _take(content, parse_json_object(text))
        segments[-1][:] = min([*segments[-1], t_s]), max([*segments[-1], t_s])

    take_lines(content, take)
    name = path.parent.name or "power"
    for times in segments:
        if len(set(times)) > 1:
            content.runs.append(FileRun(name, name, times[0], times[-1]))
        elif times:
            content.notes.append(
                f"{path}: left out a segment with a single sample, which has no energy"
            )
    return content


def _take(content: FileContent, record: dict[str, Any]) -> float:
    """Add the powers of a record and return its time."""
    t_s = content.times.parse(record["date"])
    metrics = record["metrics"]
    cpu = metrics.get("cpu") or {}
    gpu = metrics.get("gpu") or {}
    powers_w = {
        zone: value
        for name, zone in _CPU.items()
        if (value := _watts(cpu, name, CPU_POWER_W)) is not None
    }
    each: Mapping[str, Any] = next(
        (gpu[name] for name in _EACH_GPU if isinstance(gpu.get(name), Mapping)), {}
    )
    gpus_w = {
        index: value for index in each if (value := _watts(each, index, GPU_POWER_W)) is not None
    }
    if not gpus_w:
        whole_w = next(
            (value for name in _ALL_GPUS if (value := _watts(gpu, name, NODE_POWER_W)) is not None),
            None,
        )
        gpus_w = {} if whole_w is None else {ALL_GPUS: whole_w}
    for index in [index for index in each if index not in gpus_w] or (
        [] if gpus_w or powers_w else [""]
    ):
        content.without_power[index] += 1
    for zone, value in powers_w.items():
        content.samples(m.CPU_POWER, {"package": "0", "zone": zone}).add(t_s, value)
    for index, value in gpus_w.items():
        content.samples(m.GPU_POWER, {"gpu": index, "uuid": ""}).add(t_s, value)
    return t_s


def _watts(values: Mapping[str, Any], name: str, quantity: Quantity) -> float | None:
    """Return the value, None if it is absent or the mark -1. Raises ValueError for an implausible
    one.
    """
    value = values.get(name)
    if isinstance(value, int | float) and math.isfinite(value) and value != _ABSENT_W:
        return quantity.checked(float(value))
    return None


FORMATS = (
    FileFormat(AIPOWERMETER_FORMAT, is_aipowermeter, read_aipowermeter),
    FileFormat(WALL_METER_FORMAT, is_wall_meter, read_wall_meter, is_general=True),
)
