"""AIPowerMeter's power_metrics.json: JSON lines with RAPL's watts and each GPU's.

A domain that the machine lacks stands there as -1 and is left out; psys holds the package, so it is never added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.importers.content import ALL_GPUS, Content, FileRun, Reading
from analyzer.importers.text import guarded, json_lines, moment_s
from exporter.contract import metrics as m

FORM = "aipowermeter"
FILE = "power_metrics.json"
_EACH_GPU = ("per_gpu_power_draw", "per_gpu_nvidia_power")
_ALL_GPUS = ("nvidia_draw_absolute", "nvidia_power")
_CPU = {"intel_power": "package", "total_dram_power": "dram"}


def read(path: Path, reading: Reading) -> Content:
    content = Content(path, FORM)
    for line, record in json_lines(path, content.bad):
        guarded(content.bad, line, lambda record=record: _take(content, record, reading))  # type: ignore[misc]  # a default binds the loop's value
    times = [t_s for samples in content.tracks.found.values() for t_s, _ in samples]
    if times:
        name = path.parent.name or "power"
        content.runs.append(FileRun(name, name, min(times), max(times)))
    return content


def _take(content: Content, record: dict[str, Any], reading: Reading) -> None:
    t_s, metrics = moment_s(record["date"], reading.zone), record["metrics"]
    cpu, gpu = metrics.get("cpu") or {}, metrics.get("gpu") or {}
    powers_w = {zone: value for name, zone in _CPU.items() if (value := _watts(cpu, name)) is not None}
    each: Mapping[str, Any] = next((gpu[name] for name in _EACH_GPU if isinstance(gpu.get(name), Mapping)), {})
    gpus_w = {index: value for index in each if (value := _watts(each, index)) is not None}
    if not gpus_w:
        whole_w = next((value for name in _ALL_GPUS if (value := _watts(gpu, name)) is not None), None)
        gpus_w = {} if whole_w is None else {ALL_GPUS: whole_w}
    for zone, value in powers_w.items():
        content.tracks.add(m.CPU_POWER, {"package": "0", "zone": zone}, t_s, value)
    for index, value in gpus_w.items():
        content.tracks.add(m.GPU_POWER, {"gpu": index, "uuid": ""}, t_s, value)


def _watts(values: Mapping[str, Any], name: str) -> float | None:
    """None for what is not there, and for the -1 that stands for it."""
    value = values.get(name)
    known = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return float(value) if known else None  # type: ignore[arg-type]  # known says so
