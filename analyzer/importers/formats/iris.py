"""Reader of iris-gpubench's folder: timeseries.csv and metrics.yml.

The file's own energy uses the nominal interval instead of the timestamps (3.2 times too low in a known case), so it is
kept only as a claimed value; the run's energy comes from the series.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from analyzer.importers.content import FileContent, FileRun, ReadOptions, UnreadableError
from analyzer.importers.quantities import (
    CLOCK_HZ,
    GPU_POWER_W,
    MEMORY_BYTES,
    RATIO,
    TEMPERATURE_CELSIUS,
    Quantity,
)
from analyzer.importers.text import (
    collect_bad_line,
    csv_header,
    csv_rows,
    finite_numbers,
    read_text,
)
from analyzer.model.time_text import parse_moment
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric
from exporter.contract.run import METRICS_FILE

IRIS_FORMAT = "iris-gpubench"
SERIES_FILE = "timeseries.csv"
_GAUGES: dict[str, tuple[Metric, dict[str, str], Quantity]] = {
    "power": (m.GPU_POWER, {}, GPU_POWER_W),
    "utilization": (m.GPU_UTILIZATION, {"engine": "gpu"}, RATIO),
    "temperature": (m.GPU_TEMPERATURE, {"sensor": "gpu"}, TEMPERATURE_CELSIUS),
    "memory": (m.GPU_MEMORY_USED, {}, MEMORY_BYTES),
    "clk_speed": (m.GPU_CLOCK, {"domain": "sm"}, CLOCK_HZ),
    "mem_clk_speed": (m.GPU_CLOCK, {"domain": "memory"}, CLOCK_HZ),
}
_JOULES_PER_KWH = 3.6e6


def is_iris(columns: list[str]) -> bool:
    return {"timestamp", "gpu_index", "power"} <= set(columns)


def read_iris(path: Path, options: ReadOptions) -> FileContent:
    """Read timeseries.csv, and metrics.yml if it exists. Raises UnreadableError."""
    content = FileContent(path, IRIS_FORMAT)
    if not is_iris(csv_header(path)):
        raise UnreadableError(f"cannot import {path}: no columns timestamp, gpu_index and power in line 1")
    for line, cells in csv_rows(path):
        with collect_bad_line(content.bad, line):
            t_s, where = parse_moment(cells["timestamp"], options.zone), {"gpu": cells["gpu_index"], "uuid": ""}
            values = {name: of[2].parse(cells[name]) for name, of in _GAUGES.items() if name in cells}
            for name, value in values.items():
                metric, more, _ = _GAUGES[name]
                if value is not None:
                    content.series.add(metric, where | more, t_s, value)
    times = [t_s for samples in content.series.found.values() for t_s, _ in samples]
    if times:
        content.runs.append(_run(content, _metrics(path.with_name(METRICS_FILE)), (min(times), max(times)), options))
    return content


def _metrics(path: Path) -> dict[str, Any]:
    """Return the content of metrics.yml, empty if it does not exist."""
    if not path.exists():
        return {}
    import yaml

    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise UnreadableError(f"cannot read {path}: not YAML: {' '.join(str(error).split())[:200]}") from error
    return document if isinstance(document, dict) else {}


def _run(
    content: FileContent, metrics: dict[str, Any], sampled_s: tuple[float, float], options: ReadOptions
) -> FileRun:
    numbers = finite_numbers(metrics)
    start_s, end_s = sampled_s
    if "start_time" in metrics and "elapsed_time" in numbers:
        start_s = min(parse_moment(str(metrics["start_time"]), options.zone), start_s)
        end_s = max(start_s + numbers["elapsed_time"], end_s)
    results = {f"iris_{name}": value for name, value in numbers.items() if name in ("score", "av_util", "av_temp")}
    caveats: tuple[str, ...] = ()
    if "total_energy" in numbers:
        claimed_j = numbers["total_energy"] * _JOULES_PER_KWH
        results["claimed_energy_joules"] = claimed_j
        caveats = ("nominal_time",)
    if "total_carbon" in numbers:
        results["claimed_emissions_grams"] = numbers["total_carbon"]
    name = str(metrics.get("name", ""))
    for (metric, labels), samples in list(content.series.found.items()):
        where = dict(labels)
        if metric is m.GPU_POWER:
            if name:
                content.gpu_info.setdefault(where["gpu"], {})["name"] = name
            limit_w = numbers.get("max_power_limit")
            if limit_w is not None and math.isfinite(limit_w):
                content.series.add(m.GPU_POWER_LIMIT, where | {"kind": "enforced"}, samples[0][0], limit_w)
                content.series.add(m.GPU_POWER_LIMIT, where | {"kind": "enforced"}, samples[-1][0], limit_w)
    workload = str(metrics.get("benchmark", "benchmark"))
    return FileRun(workload, workload, start_s, end_s, {}, {}, results, caveats=caveats)
