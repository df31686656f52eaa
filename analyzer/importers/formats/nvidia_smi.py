"""Logs of `nvidia-smi --query-gpu=timestamp,index,uuid,power.draw,… --format=csv [-l]`, with units or without."""

from __future__ import annotations

from pathlib import Path

from analyzer.importers.content import ONLY_GPU, Content, Reading, UnreadableError, short
from analyzer.importers.text import guarded, header, moment_s, number, rows
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

FORM = "nvidia-smi"
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


def is_it(columns: list[str]) -> bool:
    names = [_name(column) for column in columns]
    return "timestamp" in names and any(name in names for name in _POWER)


def read(path: Path, reading: Reading) -> Content:
    """Raises UnreadableError."""
    content = Content(path, FORM)
    names = [_name(column) for column in header(path)]
    power = next((name for name in _POWER if name in names), None)
    if power is None or "timestamp" not in names:
        raise UnreadableError(f"{path}:1: no columns timestamp and power.draw; log with --query-gpu=timestamp,…")
    if not {"index", "uuid", "gpu_uuid"} & set(names):
        content.notes.append(
            f"{path} has neither index nor uuid, so all of its lines are taken for one GPU; "
            "of several, log --query-gpu=timestamp,index,uuid,power.draw"
        )
    for line, cells in rows(path):
        named = {_name(column): cell for column, cell in cells.items()}
        if named.get("timestamp") != "timestamp":  # logs that were appended to each other repeat it
            guarded(content.bad, line, lambda named=named: _line(content, named, power, reading))  # type: ignore[misc]  # a default binds the loop's value
    return content


def _name(column: str) -> str:
    """`power.draw [W]` is `power.draw`."""
    return column.partition("[")[0].strip().lower()


def _line(content: Content, cells: dict[str, str], power: str, reading: Reading) -> None:
    t_s = moment_s(cells["timestamp"], reading.zone)
    uuid = cells.get("uuid") or cells.get("gpu_uuid") or ""
    index = cells.get("index") or (short(uuid) if uuid else ONLY_GPU)
    where = {"gpu": index, "uuid": uuid}
    found: list[tuple[Metric, dict[str, str], float]] = []
    power_w = number(cells[power])
    if power_w is not None:
        found.append((m.GPU_POWER, {}, power_w))
    for name, (metric, more, factor) in _GAUGES.items():
        value = number(cells[name]) if name in cells else None
        if value is not None:
            found.append((metric, more, value * factor))
    if "enforced.power.limit" not in cells and (limit_w := number(cells.get("power.limit", ""))) is not None:
        found.append((m.GPU_POWER_LIMIT, {"kind": "enforced"}, limit_w))
    for metric, more, value in found:
        content.tracks.add(metric, where | more, t_s, value)
    info = {label: cells[name] for name, label in _INFO.items() if cells.get(name)}
    if info:
        content.gpu_info.setdefault(index, {}).update(info)
