"""Reader of AIPowerMeter's power_metrics.json: JSON lines with RAPL and GPU power.

An absent RAPL domain is -1 and is left out; psys contains the package, so it is never added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.importers.content import ALL_GPUS, FileContent, FileRun, ReadOptions
from analyzer.importers.text import collect_bad_line, read_json_lines
from analyzer.model.time_text import parse_moment
from exporter.contract import metrics as m

FORM = "aipowermeter"
FILE = "power_metrics.json"
_EACH_GPU = ("per_gpu_power_draw", "per_gpu_nvidia_power")
_ALL_GPUS = ("nvidia_draw_absolute", "nvidia_power")
_CPU = {"intel_power": "package", "total_dram_power": "dram"}


def read_aipowermeter(path: Path, options: ReadOptions) -> FileContent:
    content = FileContent(path, FORM)
    for line, record in read_json_lines(path, content.bad):
        with collect_bad_line(content.bad, line):
            _take(content, record, options)
    times = [t_s for samples in content.series.found.values() for t_s, _ in samples]
    if times:
        name = path.parent.name or "power"
        content.runs.append(FileRun(name, name, min(times), max(times)))
    return content


def _take(content: FileContent, record: dict[str, Any], options: ReadOptions) -> None:
    t_s, metrics = parse_moment(record["date"], options.zone), record["metrics"]
    cpu, gpu = metrics.get("cpu") or {}, metrics.get("gpu") or {}
    powers_w = {zone: value for name, zone in _CPU.items() if (value := _watts(cpu, name)) is not None}
    each: Mapping[str, Any] = next((gpu[name] for name in _EACH_GPU if isinstance(gpu.get(name), Mapping)), {})
    gpus_w = {index: value for index in each if (value := _watts(each, index)) is not None}
    if not gpus_w:
        whole_w = next((value for name in _ALL_GPUS if (value := _watts(gpu, name)) is not None), None)
        gpus_w = {} if whole_w is None else {ALL_GPUS: whole_w}
    for zone, value in powers_w.items():
        content.series.add(m.CPU_POWER, {"package": "0", "zone": zone}, t_s, value)
    for index, value in gpus_w.items():
        content.series.add(m.GPU_POWER, {"gpu": index, "uuid": ""}, t_s, value)


def _watts(values: Mapping[str, Any], name: str) -> float | None:
    """Return the value, None if it is absent or the mark -1."""
    value = values.get(name)
    known = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return float(value) if known else None  # type: ignore[arg-type]  # known says so
