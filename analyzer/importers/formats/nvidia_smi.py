"""Reader of logs of `nvidia-smi --query-gpu=timestamp,index,uuid,power.draw,… --format=csv`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analyzer.importers.content import ONLY_GPU, FileContent, ReadOptions, UnreadableError, short_uuid
from analyzer.importers.quantities import (
    CLOCK_HZ,
    GPU_POWER_W,
    MEMORY_BYTES,
    RATIO,
    TEMPERATURE_CELSIUS,
    Quantity,
    split_column,
)
from analyzer.importers.text import collect_bad_line, csv_header, csv_rows, refuse_surplus
from analyzer.model.report import GPUS_BY_ORDER, POWER_COLUMN_NOTE
from analyzer.model.time_text import parse_moment
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

NVIDIA_SMI_FORMAT = "nvidia-smi"
_POWER = ("power.draw.instant", "power.draw", "power.draw.average")
_GAUGES: dict[str, tuple[Metric, dict[str, str], Quantity]] = {
    "enforced.power.limit": (m.GPU_POWER_LIMIT, {"kind": "enforced"}, GPU_POWER_W),
    "power.limit": (m.GPU_POWER_LIMIT, {"kind": "requested"}, GPU_POWER_W),
    "power.max_limit": (m.GPU_POWER_LIMIT, {"kind": "max"}, GPU_POWER_W),
    "utilization.gpu": (m.GPU_UTILIZATION, {"engine": "gpu"}, RATIO),
    "utilization.memory": (m.GPU_UTILIZATION, {"engine": "memory"}, RATIO),
    "temperature.gpu": (m.GPU_TEMPERATURE, {"sensor": "gpu"}, TEMPERATURE_CELSIUS),
    "temperature.memory": (m.GPU_TEMPERATURE, {"sensor": "memory"}, TEMPERATURE_CELSIUS),
    "clocks.current.sm": (m.GPU_CLOCK, {"domain": "sm"}, CLOCK_HZ),
    "clocks.sm": (m.GPU_CLOCK, {"domain": "sm"}, CLOCK_HZ),
    "clocks.current.memory": (m.GPU_CLOCK, {"domain": "memory"}, CLOCK_HZ),
    "clocks.mem": (m.GPU_CLOCK, {"domain": "memory"}, CLOCK_HZ),
    "memory.used": (m.GPU_MEMORY_USED, {}, MEMORY_BYTES),
    "memory.total": (m.GPU_MEMORY_TOTAL, {}, MEMORY_BYTES),
    "fan.speed": (m.GPU_FAN, {}, RATIO),
}
_LIMITS = ("power.max_limit", "enforced.power.limit", "power.limit")
_MOST_OVER_LIMIT = 2.0
"""Ratio of power to its limit above which a reading is implausible: short peaks exceed a limit by less."""
_SAME_QUERY_SHARE = 0.1
"""Spacing of two lines of one query, relative to the usual spacing of lines, up to which they belong together."""
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
    content.caveats.append(f"{POWER_COLUMN_NOTE}{power}")
    rows: list[tuple[int, dict[str, str]]] = []
    units: dict[str, str] = {}
    for line, cells in csv_rows(path):
        units = units or dict(map(split_column, cells))
        named = {split_column(column)[0]: cell for column, cell in cells.items()}
        if named.get("timestamp") != "timestamp":  # logs appended to each other repeat the header
            rows.append((line, named))
    if not {"index", "uuid", "gpu_uuid"} & set(names):
        rows = _with_order_as_index(content, rows, options)
    for line, named in rows:
        with collect_bad_line(content.bad, line):
            refuse_surplus(named)
            _line(content, named, units, power, options)
    return content


def _with_order_as_index(
    content: FileContent, rows: list[tuple[int, dict[str, str]]], options: ReadOptions
) -> list[tuple[int, dict[str, str]]]:
    """Return the rows with an index if each query wrote several lines. Raises UnreadableError if their number varies.

    nvidia-smi writes one line for each GPU, in the order of their indices. Lines with times of whole seconds may be of
    one GPU, so they are refused.
    """
    times_s = []
    for _, named in rows:
        try:
            times_s.append(parse_moment(named["timestamp"], options.zone))
        except (KeyError, ValueError):
            times_s.append(float("nan"))
    spacings_s = np.diff(np.array(times_s))
    longest_s = float(np.quantile(spacings_s[spacings_s > 0], 0.9)) if (spacings_s > 0).any() else 0.0
    firsts = [0, *(np.flatnonzero(~(np.abs(spacings_s) <= _SAME_QUERY_SHARE * longest_s)) + 1).tolist()]
    sizes = np.diff([*firsts, len(rows)])[:-1]
    if not len(sizes) or np.median(sizes) == 1:
        content.notes.append(
            f"{content.path} has neither index nor uuid: all lines are of one GPU; "
            "to log several GPUs, use --query-gpu=timestamp,index,uuid,power.draw"
        )
        return rows
    if sizes.min() != sizes.max() or all(t_s == int(t_s) for t_s in times_s if np.isfinite(t_s)):
        raise UnreadableError(
            f"cannot import {content.path}: {sizes.min()} to {sizes.max()} lines have the same time, so it may have "
            "several GPUs, but no index and no uuid; log with --query-gpu=timestamp,index,uuid,power.draw"
        )
    count = int(sizes.max())
    content.caveats.append(GPUS_BY_ORDER)
    content.notes.append(f"{content.path} has no index: each time has {count} lines, one for each GPU in order")
    at_query = np.searchsorted(firsts, np.arange(len(rows)), side="right") - 1
    return [
        (line, named | {"index": str(number - firsts[query])})
        for number, ((line, named), query) in enumerate(zip(rows, at_query, strict=True))
    ]


def _name(column: str) -> str:
    """Return a column's name without its unit: `power.draw` for `power.draw [W]`."""
    return split_column(column)[0]


def _line(content: FileContent, cells: dict[str, str], units: dict[str, str], power: str, options: ReadOptions) -> None:
    t_s = parse_moment(cells["timestamp"], options.zone)
    uuid = cells.get("uuid") or cells.get("gpu_uuid") or ""
    index = cells.get("index") or (short_uuid(uuid) if uuid else ONLY_GPU)
    where = {"gpu": index, "uuid": uuid}
    found: list[tuple[Metric, dict[str, str], float]] = []
    power_w = GPU_POWER_W.parse(cells[power], units.get(power, ""))
    values = {
        name: value
        for name, (_, _, quantity) in _GAUGES.items()
        if name in cells and (value := quantity.parse(cells[name], units.get(name, ""))) is not None
    }
    limit_w = max((values[name] for name in _LIMITS if values.get(name)), default=None)
    if power_w is not None and limit_w is not None and power_w > _MOST_OVER_LIMIT * limit_w:
        raise ValueError(f"implausible power: {power_w:g} W is more than twice the power limit of {limit_w:g} W")
    if power_w is not None:
        found.append((m.GPU_POWER, {}, power_w))
    found += [(_GAUGES[name][0], _GAUGES[name][1], value) for name, value in values.items()]
    if "enforced.power.limit" not in cells and (requested_w := values.get("power.limit")) is not None:
        found.append((m.GPU_POWER_LIMIT, {"kind": "enforced"}, requested_w))
    for metric, more, value in found:
        content.series.add(metric, where | more, t_s, value)
    info = {label: cells[name] for name, label in _INFO.items() if cells.get(name)}
    if info:
        content.gpu_info.setdefault(index, {}).update(info)
