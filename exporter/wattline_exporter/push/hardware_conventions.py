"""Hardware metrics of OpenTelemetry's semantic conventions, and the metrics from which they are
made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric


@dataclass(frozen=True, slots=True)
class HardwareMetric:
    """Metric of https://opentelemetry.io/docs/specs/semconv/hardware/ that repeats a metric of the
    exporter.
    """

    metric: Metric
    name: str
    instrument: Literal["counter", "updowncounter", "gauge"]
    unit: str
    attributes: Mapping[str, str]
    """Templates of the values, with the labels of the series."""
    values: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    """Further attributes by label and value; a series with another value is left out."""


_GPU = {"hw.id": "{uuid}", "hw.name": "GPU {gpu}", "hw.type": "gpu"}
_CPU = {"hw.id": "cpu-{package}/{zone}", "hw.name": "CPU {package} {zone}"}
_ZONES = {"zone": {"package": {"hw.type": "cpu"}, "dram": {"hw.type": "memory"}}}
_TASKS = {
    name: {"hw.gpu.task": task}
    for name, task in (("gpu", "general"), ("encoder", "encoder"), ("decoder", "decoder"))
}
_DIRECTIONS = {
    "tx": {"network.io.direction": "transmit"},
    "rx": {"network.io.direction": "receive"},
}
_ERRORS = {name: {"error.type": name} for name in ("corrected", "uncorrected")}
_SENSOR = {
    "hw.id": "{uuid}/{sensor}",
    "hw.name": "GPU {gpu} {sensor}",
    "hw.parent": "{uuid}",
    "hw.sensor_location": "{sensor}",
}

HARDWARE_METRICS = (
    HardwareMetric(m.GPU_ENERGY, "hw.energy", "counter", "J", _GPU),
    HardwareMetric(m.GPU_POWER, "hw.power", "gauge", "W", _GPU),
    HardwareMetric(m.CPU_ENERGY, "hw.energy", "counter", "J", _CPU, _ZONES),
    HardwareMetric(m.CPU_POWER, "hw.power", "gauge", "W", _CPU, _ZONES),
    HardwareMetric(m.GPU_UTILIZATION, "hw.gpu.utilization", "gauge", "1", _GPU, {"engine": _TASKS}),
    HardwareMetric(m.GPU_MEMORY_USED, "hw.gpu.memory.usage", "updowncounter", "By", _GPU),
    HardwareMetric(m.GPU_MEMORY_TOTAL, "hw.gpu.memory.limit", "updowncounter", "By", _GPU),
    HardwareMetric(
        m.GPU_PCIE_BYTES, "hw.gpu.io", "counter", "By", _GPU, {"direction": _DIRECTIONS}
    ),
    HardwareMetric(m.GPU_ECC_ERRORS, "hw.errors", "counter", "{error}", _GPU, {"type": _ERRORS}),
    HardwareMetric(m.GPU_TEMPERATURE, "hw.temperature", "gauge", "Cel", _SENSOR),
)


def conventions_table() -> str:
    """Return the table of the documentation."""
    rows = [
        f"| `{one.metric.name}`{_condition(one)} | `{one.name}` | {one.instrument} | {one.unit} | "
        f"{_attributes(one)} |"
        for one in HARDWARE_METRICS
    ]
    return "\n".join(
        [
            "| metric | OpenTelemetry | instrument | unit | attributes |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def _condition(one: HardwareMetric) -> str:
    return "".join(f", {label} {', '.join(names)}" for label, names in one.values.items())


def _attributes(one: HardwareMetric) -> str:
    constant = [f"`{name}={text}`" for name, text in one.attributes.items()]
    by_value: dict[str, list[str]] = {}
    for names in one.values.values():
        for attributes in names.values():
            for name, value in attributes.items():
                by_value.setdefault(name, []).append(value)
    return ", ".join(
        constant
        + [f"`{name}={'|'.join(values)}`".replace("|", "\\|") for name, values in by_value.items()]
    )
