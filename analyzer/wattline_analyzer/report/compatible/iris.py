"""Files of iris-gpubench: metrics.yml, formatted_metrics.txt and timeseries.csv.

Energy is taken from the ledger. As in iris-gpubench, averages are over the readings at which the
GPU was busy. Unknown values are null, and empty in the table.
"""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np
import yaml

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.figures import JOULES_PER_KWH
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable, last
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.report.compatible import rows as compatible_rows
from wattline_analyzer.report.compatible.rows import MIB, text
from wattline_analyzer.report.compatible.tool_format import ToolFormat

IRIS_TOOL = "iris-gpubench"
_SERIES = {
    "utilization": "utilization_percent",
    "power": "power_w",
    "temperature": "temperature_celsius",
    "memory": "memory_used_mib",
    "clk_speed": "graphics_clock_mhz",
    "mem_clk_speed": "memory_clock_mhz",
}
_AVERAGES = {
    "av_util": "utilization_percent",
    "av_power": "power_w",
    "av_temp": "temperature_celsius",
    "av_mem": "memory_used_mib",
    "av_clk_speed": "graphics_clock_mhz",
    "av_mem_clk_speed": "memory_clock_mhz",
}
_LIMITS = {"gpu_max": "max_operating", "slowdown": "slowdown", "shutdown": "shutdown"}
_MOMENT = "%Y-%m-%d %H:%M:%S"


def iris_files(report: Report, table: SampleTable) -> dict[str, bytes]:
    """Return the files of a run; empty without GPU power."""
    at_s = compatible_rows.times(report, table)
    if not len(at_s):
        return {}
    gpus = {
        device.label.rpartition(" ")[2]: compatible_rows.readings(table, device, at_s)
        for device in report.gpus
    }
    metrics = _metrics(report, table, list(gpus.values()))
    return {
        "metrics.yml": yaml.safe_dump(metrics, sort_keys=True, allow_unicode=True).encode(),
        "formatted_metrics.txt": _formatted(metrics).encode(),
        "timeseries.csv": _series(gpus, at_s).encode(),
    }


def _series(gpus: dict[str, dict[str, FloatArray]], at_s: FloatArray) -> str:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(["timestamp", "gpu_index", *_SERIES])
    for row, t_s in enumerate(at_s):
        moment = compatible_rows.local(float(t_s)).strftime(f"{_MOMENT}.%f")
        for index, readings in gpus.items():
            writer.writerow(
                [moment, index, *(text(float(readings[name][row])) for name in _SERIES.values())]
            )
    return target.getvalue()


def _metrics(
    report: Report, table: SampleTable, gpus: list[dict[str, FloatArray]]
) -> dict[str, Any]:
    energy_kwh = report.energy["gpu"].number / JOULES_PER_KWH if "gpu" in report.energy else None
    carbon_g = _carbon_g(report)
    start = compatible_rows.local(report.started_at_s)
    ended_at_s = report.ended_at_s
    slots = [slot.grams_per_kwh for slot in report.carbon_slots if slot.basis == "average"]
    mean = carbon_g / energy_kwh if carbon_g is not None and energy_kwh else None
    return {
        "benchmark": report.labels.get("image", report.workload),
        "score": report.results.get("score_seconds", report.results.get("time")),
        "elapsed_time": report.duration_s,
        "start_time": start,
        "start_datetime": start.strftime(_MOMENT),
        "end_datetime": None
        if ended_at_s is None
        else compatible_rows.local(ended_at_s).strftime(_MOMENT),
        "name": next((device.name for device in report.gpus if device.name), None),
        "device_count": len(report.gpus),
        "max_power_limit": report.gpus[0].power_limit_w,
        "total_mem": _of_first(report, table, m.GPU_MEMORY_TOTAL, 1 / MIB),
        "max_clk_speed": _of_first(report, table, m.GPU_CLOCK_MAX, 1e-6, domain="graphics"),
        "max_mem_clk_speed": _of_first(report, table, m.GPU_CLOCK_MAX, 1e-6, domain="memory"),
        **{
            f"temp_threshold_{name}": _of_first(
                report, table, m.GPU_TEMPERATURE_LIMIT, 1.0, sensor="gpu", kind=kind
            )
            for name, kind in _LIMITS.items()
        },
        "total_energy": energy_kwh,
        "total_carbon": carbon_g,
        "av_carbon_forecast": mean,
        "start_carbon_forecast": slots[0] if slots else mean,
        "end_carbon_forecast": slots[-1] if slots else mean,
        **_averages(gpus),
    }


def _carbon_g(report: Report) -> float | None:
    """Return the emissions of the GPUs by average intensity, from the exporter or the given
    intensity.
    """
    for basis in dict.fromkeys(one.basis for one in report.emissions if one.component == "gpu"):
        if basis != "marginal":
            found = [
                one.mass_g.number
                for one in report.emissions
                if (one.component, one.basis) == ("gpu", basis)
            ]
            return math.fsum(found)
    return None


def _of_first(
    report: Report, table: SampleTable, metric: Metric, factor: float, **labels: str
) -> float | None:
    first = report.gpus[0]
    rows = last(table, metric, instance=first.instance, uuid=first.device, **labels)
    return rows[-1].value * factor if rows else None


def _averages(gpus: list[dict[str, FloatArray]]) -> dict[str, float | None]:
    used = [readings["utilization_percent"] > 0 for readings in gpus]
    found: dict[str, float | None] = {}
    for key, name in _AVERAGES.items():
        values = np.concatenate(
            [readings[name][at] for readings, at in zip(gpus, used, strict=True)]
        )
        known = values[np.isfinite(values)]
        found[key] = float(known.mean()) if len(known) else None
    return found


def _formatted(document: dict[str, Any]) -> str:
    """Return the three titled tables of formatted_metrics.txt."""
    limit = document["max_power_limit"]
    memory = document["total_mem"]
    of_limit = "" if limit is None else f" (Power Limit: {limit:.0f})"
    of_memory = "" if memory is None else f" (Total Memory: {memory})"
    tables = {
        "GPU and Carbon Performance Results": {
            "Benchmark:": str(document["benchmark"]),
            **(
                {}
                if document["score"] is None
                else {"Benchmark Score (s)": _five(document["score"])}
            ),
            "Elapsed Monitor Time of Command (s)": _five(document["elapsed_time"]),
            "Total GPU Energy Consumed (kWh)": _five(document["total_energy"]),
            "Total GPU Carbon Emissions (gCO2)": _five(document["total_carbon"]),
        },
        "Carbon Information": {
            "Average Carbon Forecast (gCO2/kWh)": _five(document["av_carbon_forecast"], 1),
            "Carbon Forecast Start Time": document["start_datetime"] or "",
            "Carbon Forecast End Time": document["end_datetime"] or "",
        },
        "GPU Information": {
            "GPU Name": document["name"] or "",
            "Average GPU Util. (for >0.00% GPU Util.) (%)": _five(document["av_util"]),
            "Avg GPU Power (for >0.00% GPU Util.) (W)": (
                f"{_five(document['av_power'])}{of_limit}".strip()
            ),
            "Avg GPU Temperature (for >0.00% GPU Util.) (C)": _five(document["av_temp"]),
            "Avg GPU Memory (for >0.00% GPU Util.) (MiB)": (
                f"{_five(document['av_mem'])}{of_memory}".strip()
            ),
        },
    }
    return "\n".join(f"{title}\n\n{_grid(rows)}\n" for title, rows in tables.items())


def _five(value: float | None, digits: int = 5) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _grid(rows: dict[str, str]) -> str:
    every = {"Metric": "Value", **rows}
    widths = [max(len(name) for name in every), max(len(value) for value in every.values())]
    rule = f"+{'-' * (widths[0] + 2)}+{'-' * (widths[1] + 2)}+"
    lines = [rule]
    for number, (name, value) in enumerate(every.items()):
        lines += [
            f"| {name:<{widths[0]}} | {value:<{widths[1]}} |",
            rule.replace("-", "=") if number == 0 else rule,
        ]
    return "\n".join(lines)


FORMATS = (ToolFormat(IRIS_TOOL, iris_files, has_remarks=False),)
