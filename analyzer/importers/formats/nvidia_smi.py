"""Reader of logs of `nvidia-smi --query-gpu=timestamp,index,uuid,power.draw,… --format=csv`."""

from __future__ import annotations

from pathlib import Path

from analyzer.importers.content import ONLY_GPU, FileContent, ReadOptions, UnreadableError, short_uuid
from analyzer.importers.text import collect_bad_line, csv_header, csv_rows, parse_number
from analyzer.model.time_text import parse_moment
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

NVIDIA_SMI_FORMAT = "nvidia-smi"
_POWER = ("power.draw.instant", "power.draw", "power.draw.average")
_GAUGES: dict[str, tuple[Metric, dict[str, str], float]] = {
    "enforced.power.limit": (m.GPU_POWER_LIMIT, {"kind": "enforced"}, 1),
    "power.limit": (m.GPU_POWER_LIMIT, {"kind": "requested"}, 1),
    "power.max_limit": (m.GPU_POWER_LIMIT, {"kind": "max"}, 1),
    "utilization.gpu": (m.GPU_UTILIZATION, {"engine": "gpu"}, 0.01),
    "utilization.memory": (m.GPU_UTILIZATION, {"engine": "memory"}, 0.01),
    "temperature.gpu": (m.GPU_TEMPERATURE, {"sensor": "gpu"}, 1),
    "temperature.memory": (m.GPU_TEMPERATURE, {"sensor": "memory"}, 1),
    "clocks.current.sm": (m.GPU_CLOCK, {"domain": "sm"}, 1e6),
    "clocks.sm": (m.GPU_CLOCK, {"domain": "sm"}, 1e6),
    "clocks.current.memory": (m.GPU_CLOCK, {"domain": "memory"}, 1e6),
    "clocks.mem": (m.GPU_CLOCK, {"domain": "memory"}, 1e6),
    "memory.used": (m.GPU_MEMORY_USED, {}, 2**20),
    "memory.total": (m.GPU_MEMORY_TOTAL, {}, 2**20),
    "fan.speed": (m.GPU_FAN, {}, 0.01),
}
_INFO = {"name": "name", "gpu_name": "name", "driver_version": "driver_version", "pci.bus_id": "pci_bus_id"}


def is_nvidia_smi(columns: list[str]) -> bool:
    names = [_name(column) for column in columns]
    return "timestamp" in names and any(name in names for name in _POWER)


def read_nvidia_smi(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    content = FileContent(path, NVIDIA_SMI_FORMAT)
    names = [_name(column) for column in csv_header(path)]
    power = next((name for name in _POWER if name in names), None)
    if power is None or "timestamp" not in names:
        raise UnreadableError(
            f"cannot import {path}: no columns timestamp and power.draw in line 1; log with "
            "--query-gpu=timestamp,index,uuid,power.draw"
        )
    if not {"index", "uuid", "gpu_uuid"} & set(names):
        content.notes.append(
            f"{path} has neither index nor uuid: all lines are assumed to be of one GPU; "
            "to log several GPUs, use --query-gpu=timestamp,index,uuid,power.draw"
        )
    for line, cells in csv_rows(path):
        named = {_name(column): cell for column, cell in cells.items()}
        if named.get("timestamp") != "timestamp":  # logs appended to each other repeat the header
            with collect_bad_line(content.bad, line):
                _line(content, named, power, options)
    return content


def _name(column: str) -> str:
    """Return a column's name without its unit: `power.draw` for `power.draw [W]`."""
    return column.partition("[")[0].strip().lower()


def _line(content: FileContent, cells: dict[str, str], power: str, options: ReadOptions) -> None:
    t_s = parse_moment(cells["timestamp"], options.zone)
    uuid = cells.get("uuid") or cells.get("gpu_uuid") or ""
    index = cells.get("index") or (short_uuid(uuid) if uuid else ONLY_GPU)
    where = {"gpu": index, "uuid": uuid}
    found: list[tuple[Metric, dict[str, str], float]] = []
    power_w = parse_number(cells[power])
    if power_w is not None:
        found.append((m.GPU_POWER, {}, power_w))
    for name, (metric, more, factor) in _GAUGES.items():
        value = parse_number(cells[name]) if name in cells else None
        if value is not None:
            found.append((metric, more, value * factor))
    if "enforced.power.limit" not in cells and (limit_w := parse_number(cells.get("power.limit", ""))) is not None:
        found.append((m.GPU_POWER_LIMIT, {"kind": "enforced"}, limit_w))
    for metric, more, value in found:
        content.series.add(metric, where | more, t_s, value)
    info = {label: cells[name] for name, label in _INFO.items() if cells.get(name)}
    if info:
        content.gpu_info.setdefault(index, {}).update(info)
