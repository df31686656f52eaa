"""Reader of logs of `nvidia-smi --query-gpu=timestamp,index,uuid,power.draw,… --format=csv`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattline.contract import metrics as m
from wattline_analyzer.core.run_report import GPUS_BY_ORDER, POWER_COLUMN_NOTE
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.importers.content import (
    ONLY_GPU,
    FileContent,
    ReadOptions,
    UnreadableError,
    short_uuid,
)
from wattline_analyzer.importers.file_format import FileFormat, FileHead
from wattline_analyzer.importers.quantities import (
    CLOCK_HZ,
    GPU_POWER_W,
    MEMORY_BYTES,
    RATIO,
    TEMPERATURE_CELSIUS,
    Gauge,
    GaugeColumns,
)
from wattline_analyzer.importers.text import Cells, read_columns, take_rows

NVIDIA_SMI_FORMAT = "nvidia-smi"
_POWER = ("power.draw.instant", "power.draw", "power.draw.average")
_GAUGES = {
    "enforced.power.limit": Gauge(m.GPU_POWER_LIMIT, {"kind": "enforced"}, GPU_POWER_W),
    "power.limit": Gauge(m.GPU_POWER_LIMIT, {"kind": "requested"}, GPU_POWER_W),
    "power.max_limit": Gauge(m.GPU_POWER_LIMIT, {"kind": "max"}, GPU_POWER_W),
    "utilization.gpu": Gauge(m.GPU_UTILIZATION, {"engine": "gpu"}, RATIO),
    "utilization.memory": Gauge(m.GPU_UTILIZATION, {"engine": "memory"}, RATIO),
    "temperature.gpu": Gauge(m.GPU_TEMPERATURE, {"sensor": "gpu"}, TEMPERATURE_CELSIUS),
    "temperature.memory": Gauge(m.GPU_TEMPERATURE, {"sensor": "memory"}, TEMPERATURE_CELSIUS),
    "clocks.current.sm": Gauge(m.GPU_CLOCK, {"domain": "sm"}, CLOCK_HZ),
    "clocks.sm": Gauge(m.GPU_CLOCK, {"domain": "sm"}, CLOCK_HZ),
    "clocks.current.memory": Gauge(m.GPU_CLOCK, {"domain": "memory"}, CLOCK_HZ),
    "clocks.mem": Gauge(m.GPU_CLOCK, {"domain": "memory"}, CLOCK_HZ),
    "memory.used": Gauge(m.GPU_MEMORY_USED, {}, MEMORY_BYTES),
    "memory.total": Gauge(m.GPU_MEMORY_TOTAL, {}, MEMORY_BYTES),
    "fan.speed": Gauge(m.GPU_FAN, {}, RATIO),
}
_LIMITS = ("power.max_limit", "enforced.power.limit", "power.limit")
_MOST_OVER_LIMIT = 2.0
"""Ratio of power to its limit above which a reading is implausible: short peaks exceed a limit by
less.
"""
_SAME_QUERY_SHARE = 0.1
"""Spacing of two lines of one query, relative to the usual spacing of queries, up to which they
belong together.
"""
_BETWEEN_QUERIES = (0.98, 0.9)
"""Quantiles of the spacing of lines that are the usual spacing of queries: of many GPUs, and of a
log with pauses.
"""
_FEWEST_QUERIES = 3
_FIRST_LINES = 20_000
"""Lines from which the number of GPUs of a log without an index is found."""
_INFO = {
    "name": "name",
    "gpu_name": "name",
    "driver_version": "driver_version",
    "pci.bus_id": "pci_bus_id",
}
_WITH_INDEX = "log with --query-gpu=timestamp,index,uuid,power.draw"


def is_nvidia_smi(head: FileHead) -> bool:
    return "timestamp" in head.columns and any(name in head.columns for name in _POWER)


def read_nvidia_smi(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    content = FileContent(path, NVIDIA_SMI_FORMAT, options)
    units = read_columns(path)
    power = next((name for name in _POWER if name in units), None)
    if power is None or "timestamp" not in units:
        raise UnreadableError(
            f"cannot import {path}: no columns timestamp and power.draw in line 1; {_WITH_INDEX}"
        )
    content.caveats.append(f"{POWER_COLUMN_NOTE}{power}")
    gauges = GaugeColumns(content, {power: Gauge(m.GPU_POWER, {}, GPU_POWER_W), **_GAUGES}, units)
    index_of = None if {"index", "uuid", "gpu_uuid"} & set(units) else _order_in_query(content)
    infos = [name for name in _INFO if name in units]

    def take(cells: Cells) -> None:
        t_s = content.times.parse(cells["timestamp"])
        uuid = cells.get("uuid") or cells.get("gpu_uuid") or ""
        index = (
            index_of(t_s)
            if index_of
            else cells.get("index") or (short_uuid(uuid) if uuid else ONLY_GPU)
        )
        values = gauges.parse(cells)
        limit_w = max((values[name] for name in _LIMITS if values.get(name)), default=None)
        if limit_w is not None and values.get(power, 0.0) > _MOST_OVER_LIMIT * limit_w:
            raise ValueError(
                f"implausible power: {values[power]:g} W is more than twice the power limit of "
                f"{limit_w:g} W"
            )
        if "power.limit" in values and "enforced.power.limit" not in units:
            values["enforced.power.limit"] = values["power.limit"]
        gauges.add(index, uuid, t_s, values)
        for name in infos:
            if cells.get(name):
                content.gpu_info.setdefault(index, {})[_INFO[name]] = cells[name]

    take_rows(content, take)
    return content


def _order_in_query(content: FileContent) -> Callable[[float], str] | None:
    """Return a function that gives each line its position in its query, None if all lines are of
    one GPU.

    nvidia-smi writes one line for each GPU, in the order of their indices. Lines with times of
    whole seconds may be of one GPU, so they are refused. Raises UnreadableError if the number of
    lines varies.
    """
    times_s: list[float] = []
    first_lines = FileContent(content.path, content.form, content.options)
    take_rows(
        first_lines,
        lambda cells: times_s.append(first_lines.times.parse(cells["timestamp"])),
        most=_FIRST_LINES,
    )
    for quantile in _BETWEEN_QUERIES:
        same_s, sizes = _queries(np.diff(times_s), quantile)
        if len(sizes) >= _FEWEST_QUERIES and sizes.min() == sizes.max() > 1:
            break
    if not len(sizes) or np.median(sizes) == 1:
        content.notes.append(
            f"{content.path} has neither index nor uuid: all lines are of one GPU; if there are "
            f"several, {_WITH_INDEX}"
        )
        return None
    count = int(sizes.max())
    if sizes.min() != count or all(t_s == int(t_s) for t_s in times_s):
        raise _unnamed_gpus(content.path, int(sizes.min()), count)
    content.caveats.append(GPUS_BY_ORDER)
    content.notes.append(
        f"{content.path} has no index: each time has {count} lines, one for each GPU in order"
    )
    latest_s = float("nan")
    position = count - 1

    def position_of(t_s: float) -> str:
        nonlocal latest_s, position
        is_same = abs(t_s - latest_s) <= same_s
        if is_same != (position < count - 1):
            raise _unnamed_gpus(content.path, *sorted((position + 1 + is_same, count)))
        latest_s = t_s
        position = position + 1 if is_same else 0
        return str(position)

    return position_of


def _queries(spacings_s: FloatArray, quantile: float) -> tuple[float, npt.NDArray[np.intp]]:
    """Return the longest spacing of lines of one query, and the numbers of lines of the complete
    queries.
    """
    longest_s = (
        float(np.quantile(spacings_s[spacings_s > 0], quantile)) if (spacings_s > 0).any() else 0.0
    )
    same_s = _SAME_QUERY_SHARE * longest_s
    ends = np.flatnonzero(np.abs(spacings_s) > same_s) + 1
    return same_s, np.diff([0, *ends])


def _unnamed_gpus(path: Path, fewest: int, most: int) -> UnreadableError:
    number = str(most) if fewest == most else f"{fewest} to {most}"
    return UnreadableError(
        f"cannot import {path}: {number} lines have the same time, so it may have several GPUs, "
        "but no index "
        f"and no uuid; {_WITH_INDEX}"
    )


FORMATS = (FileFormat(NVIDIA_SMI_FORMAT, is_nvidia_smi, read_nvidia_smi),)
