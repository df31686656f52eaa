"""Reader of iris-gpubench's folder: timeseries.csv and metrics.yml.

The file's own energy uses the nominal interval instead of the timestamps (3.2 times too low in a
known case), so it is kept only as a claimed value; the run's energy comes from the series.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattline.contract import metrics as m
from wattline.contract.run_files import EVENTS_FILE, METRICS_FILE
from wattline.figures import JOULES_PER_KWH
from wattline_analyzer.core.run_report import CLAIMED_ENERGY
from wattline_analyzer.core.times import parse_moment
from wattline_analyzer.importers.content import FileContent, FileRun, ReadOptions, UnreadableError
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
from wattline_analyzer.importers.text import (
    Cells,
    finite_numbers,
    read_columns,
    read_yaml_object,
    take_rows,
)

IRIS_FORMAT = "iris-gpubench"
SERIES_FILE = "timeseries.csv"
_COLUMNS = {"timestamp", "gpu_index", "power"}
_GAUGES = {
    "power": Gauge(m.GPU_POWER, {}, GPU_POWER_W),
    "utilization": Gauge(m.GPU_UTILIZATION, {"engine": "gpu"}, RATIO),
    "temperature": Gauge(m.GPU_TEMPERATURE, {"sensor": "gpu"}, TEMPERATURE_CELSIUS),
    "memory": Gauge(m.GPU_MEMORY_USED, {}, MEMORY_BYTES),
    "clk_speed": Gauge(m.GPU_CLOCK, {"domain": "sm"}, CLOCK_HZ),
    "mem_clk_speed": Gauge(m.GPU_CLOCK, {"domain": "memory"}, CLOCK_HZ),
}
_MIB = 2.0**20


def is_iris(head: FileHead) -> bool:
    return head.columns >= _COLUMNS


def read_iris(path: Path, options: ReadOptions) -> FileContent:
    """Read timeseries.csv, and metrics.yml if it exists. Raises UnreadableError."""
    content = FileContent(path, IRIS_FORMAT, options)
    units = read_columns(path)
    if not units.keys() >= _COLUMNS:
        raise UnreadableError(
            f"cannot import {path}: no columns timestamp, gpu_index and power in line 1"
        )
    gauges = GaugeColumns(content, _GAUGES, units)

    def take(cells: Cells) -> None:
        t_s = content.times.parse(cells["timestamp"])
        gauges.add(cells["gpu_index"], "", t_s, gauges.parse(cells))

    take_rows(content, take)
    if content.series:
        ends_s = [end_s for series in content.series.values() for end_s in series.ends_s]
        metrics_path = path.with_name(METRICS_FILE)
        metrics = read_yaml_object(metrics_path)
        try:
            content.runs.append(_run(content, metrics, (min(ends_s), max(ends_s)), options))
        except ValueError as error:
            raise UnreadableError(
                f"cannot import {metrics_path}: {error}; correct this value or remove it"
            ) from error
    return content


def is_iris_totals(path: Path) -> bool:
    """Return True for a metrics.yml of iris-gpubench without the samples."""
    alone = not any(path.with_name(name).exists() for name in (SERIES_FILE, EVENTS_FILE))
    return (
        alone and {"elapsed_time", "total_energy"} <= finite_numbers(read_yaml_object(path)).keys()
    )


def read_iris_totals(path: Path, options: ReadOptions) -> FileContent:
    """Read metrics.yml without samples: a run without energy, with the file's total as a result.

    Raises UnreadableError.
    """
    content = FileContent(path, IRIS_FORMAT, options)
    metrics = read_yaml_object(path)
    numbers = finite_numbers(metrics)
    try:
        start_s = _start_s(metrics, options)
    except ValueError as error:
        raise UnreadableError(
            f"cannot import {path}: {error}; write start_datetime as 2026-11-20 10:00:00"
        ) from error
    if start_s is None:
        raise UnreadableError(f"cannot import {path}: no start_datetime; add the time of its start")
    workload = str(metrics.get("benchmark", "benchmark"))
    end_s = start_s + numbers["elapsed_time"]
    content.runs.append(FileRun(workload, workload, start_s, end_s, {}, {}, _results(numbers)))
    content.lines = len(metrics)
    content.notes.append(
        f"{path} has totals without samples: its energy cannot be checked, and is the result "
        f"{CLAIMED_ENERGY}"
    )
    return content


def _start_s(metrics: dict[str, Any], options: ReadOptions) -> float | None:
    """Return the start in Unix seconds, None if it is unknown. Raises ValueError."""
    text = next(
        (str(metrics[name]) for name in ("start_time", "start_datetime") if name in metrics), None
    )
    return None if text is None else parse_moment(text, options.zone)


def _results(numbers: dict[str, float]) -> dict[str, float]:
    results = {
        f"iris_{name}": value
        for name, value in numbers.items()
        if name in ("score", "av_util", "av_temp")
    }
    if "total_energy" in numbers:
        results[CLAIMED_ENERGY] = numbers["total_energy"] * JOULES_PER_KWH
    if "total_carbon" in numbers:
        results["claimed_emissions_grams"] = numbers["total_carbon"]
    return results


def _run(
    content: FileContent,
    metrics: dict[str, Any],
    sampled_s: tuple[float, float],
    options: ReadOptions,
) -> FileRun:
    numbers = finite_numbers(metrics)
    start_s, end_s = sampled_s
    began_s = _start_s(metrics, options)
    if began_s is not None and "elapsed_time" in numbers:
        start_s = min(began_s, start_s)
        end_s = max(start_s + numbers["elapsed_time"], end_s)
    results = _results(numbers)
    caveats = ("nominal_time",) if "total_energy" in numbers else ()
    name = str(metrics.get("name", ""))
    for where, power in [
        (dict(labels), one)
        for (metric, labels), one in content.series.items()
        if metric is m.GPU_POWER
    ]:
        if name:
            content.gpu_info.setdefault(where["gpu"], {})["name"] = name
        for t_s in power.ends_s if "max_power_limit" in numbers else ():
            limit = content.samples(m.GPU_POWER_LIMIT, where | {"kind": "enforced"})
            limit.add(t_s, GPU_POWER_W.checked(numbers["max_power_limit"]))
        for t_s in power.ends_s if "total_mem" in numbers else ():
            total = content.samples(m.GPU_MEMORY_TOTAL, where)
            total.add(t_s, MEMORY_BYTES.checked(numbers["total_mem"] * _MIB))
    workload = str(metrics.get("benchmark", "benchmark"))
    return FileRun(workload, workload, start_s, end_s, {}, {}, results, caveats=caveats)


FORMATS = (FileFormat(IRIS_FORMAT, is_iris, read_iris, companions=(METRICS_FILE,)),)
