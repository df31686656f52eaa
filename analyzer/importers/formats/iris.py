"""iris-gpubench's folder: timeseries.csv, and metrics.yml beside it.

Its own energy is by the nominal interval, not by the timestamps (known to be 3.2 times too low where the loop was
slower than --interval), so it is kept as what the file claims, and the energy is taken from the series.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from analyzer.importers.content import Content, FileRun, Reading, UnreadableError
from analyzer.importers.text import content_of, finite, guarded, header, moment_s, number, rows
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric
from exporter.contract.record import METRICS_FILE

FORM = "iris-gpubench"
SERIES_FILE = "timeseries.csv"
_GAUGES: dict[str, tuple[Metric, dict[str, str], float]] = {
    "power": (m.GPU_POWER, {}, 1),
    "utilization": (m.GPU_UTILIZATION, {"engine": "gpu"}, 0.01),
    "temperature": (m.GPU_TEMPERATURE, {"sensor": "gpu"}, 1),
    "memory": (m.GPU_MEMORY_USED, {}, 2**20),
    "clk_speed": (m.GPU_CLOCK, {"domain": "sm"}, 1e6),
    "mem_clk_speed": (m.GPU_CLOCK, {"domain": "memory"}, 1e6),
}
_JOULES_PER_KWH = 3.6e6


def is_it(columns: list[str]) -> bool:
    return {"timestamp", "gpu_index", "power"} <= set(columns)


def read(path: Path, reading: Reading) -> Content:
    """Of timeseries.csv. Raises UnreadableError."""
    content = Content(path, FORM)
    if not is_it(header(path)):
        raise UnreadableError(f"{path}:1: no columns timestamp, gpu_index and power")
    for line, cells in rows(path):

        def take(cells: dict[str, str] = cells) -> None:
            t_s, where = moment_s(cells["timestamp"], reading.zone), {"gpu": cells["gpu_index"], "uuid": ""}
            values = {name: number(cells[name]) for name in _GAUGES if name in cells}
            for name, value in values.items():
                metric, more, factor = _GAUGES[name]
                if value is not None:
                    content.tracks.add(metric, where | more, t_s, value * factor)

        guarded(content.bad, line, take)
    times = [t_s for samples in content.tracks.found.values() for t_s, _ in samples]
    if times:
        content.runs.append(_run(content, _metrics(path.with_name(METRICS_FILE)), (min(times), max(times)), reading))
    return content


def _metrics(path: Path) -> dict[str, Any]:
    """Empty where there is none."""
    if not path.exists():
        return {}
    import yaml

    try:
        found = yaml.safe_load(content_of(path))
    except yaml.YAMLError as error:
        raise UnreadableError(f"{path}: no YAML: {' '.join(str(error).split())[:200]}") from error
    return found if isinstance(found, dict) else {}


def _run(content: Content, metrics: dict[str, Any], seen: tuple[float, float], reading: Reading) -> FileRun:
    numbers = finite(metrics)
    start_s, end_s = seen
    if "start_time" in metrics and "elapsed_time" in numbers:
        start_s = min(moment_s(str(metrics["start_time"]), reading.zone), start_s)
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
    for (metric, labels), samples in list(content.tracks.found.items()):
        where = dict(labels)
        if metric is m.GPU_POWER:
            if name:
                content.gpu_info.setdefault(where["gpu"], {})["name"] = name
            limit_w = numbers.get("max_power_limit")
            if limit_w is not None and math.isfinite(limit_w):
                content.tracks.add(m.GPU_POWER_LIMIT, where | {"kind": "enforced"}, samples[0][0], limit_w)
                content.tracks.add(m.GPU_POWER_LIMIT, where | {"kind": "enforced"}, samples[-1][0], limit_w)
    workload = str(metrics.get("benchmark", "benchmark"))
    return FileRun(workload, workload, start_s, end_s, {}, {}, results, caveats=caveats)
