"""Names, units and labels of other exporters' metrics.

A label of the exporter that collides with a label of the scrape is stored as `exported_NAME`; the
tables name NAME.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric


@dataclass(frozen=True, slots=True)
class Foreign:
    """Series of another exporter: its value times `scale` is `metric` in Wattline's unit.

    `labels` are added Wattline labels, `only` are the exporter's labels that a series must have.
    """

    name: str
    metric: Metric
    scale: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schema:
    """Exporter; of several series for one metric of a device, the first one in `series` is used.

    `refresh_s` is its default interval of sensor reads, 0 for reads at each scrape; `late_s` is the
    additional age of a value. `uuid`, `index`, `package` and `node` are labels that name a GPU, a
    CPU package and the node; the first present one is used. `info` maps Wattline's labels to the
    exporter's.
    """

    name: str
    series: tuple[Foreign, ...]
    refresh_s: float = 0.0
    late_s: float = 0.5
    uuid: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    package: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    info: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cpu_method: str = "rapl"
    wraps: bool = False
    """CPU counters are raw registers, which restart at 0 after their range."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Series under the exporter's names, to fetch from a source."""
        return tuple(
            _own(name, kind)
            for name, kind in {one.name: one.metric.kind for one in self.series}.items()
        )

    @property
    def marks(self) -> tuple[Metric, ...]:
        """Metrics of power and energy, whose presence shows the exporter."""
        powers = {one.name for one in self.series if one.metric in _POWERS}
        return tuple(metric for metric in self.metrics if metric.name in powers)


def _own(name: str, kind: Literal["gauge", "counter", "histogram"]) -> Metric:
    return Metric(name, kind, (), "")


_POWERS = (m.GPU_POWER, m.GPU_ENERGY, m.CPU_ENERGY, m.CPU_POWER)
NODE_LABELS = ("node", "nodename", "kubernetes_node")
"""Common labels of scrape configurations for the node."""
_ENFORCED = {"kind": "enforced"}
_BUSY = {"engine": "gpu"}
_SENSOR = {"sensor": "gpu"}
_SM = {"domain": "sm"}
_MEMORY = {"domain": "memory"}
_PACKAGE = {"zone": "package"}
_DRAM = {"zone": "dram"}
_MIB = 1_048_576.0

WATTLINE = Schema(
    "wattline",
    (
        Foreign(m.GPU_POWER.name, m.GPU_POWER),
        Foreign(m.GPU_ENERGY.name, m.GPU_ENERGY),
        Foreign(m.GPU_POWER_LIMIT.name, m.GPU_POWER_LIMIT, labels=_ENFORCED, only=_ENFORCED),
        Foreign(m.GPU_UTILIZATION.name, m.GPU_UTILIZATION, labels=_BUSY, only=_BUSY),
        Foreign(m.GPU_TEMPERATURE.name, m.GPU_TEMPERATURE, labels=_SENSOR, only=_SENSOR),
        Foreign(m.GPU_CLOCK.name, m.GPU_CLOCK, labels=_SM, only=_SM),
        Foreign(m.GPU_CLOCK.name, m.GPU_CLOCK, labels=_MEMORY, only=_MEMORY),
        Foreign(m.GPU_MEMORY_USED.name, m.GPU_MEMORY_USED),
        Foreign(m.GPU_INFO.name, m.GPU_INFO),
        Foreign(m.CPU_ENERGY.name, m.CPU_ENERGY, labels=_PACKAGE, only=_PACKAGE),
        Foreign(m.CPU_ENERGY.name, m.CPU_ENERGY, labels=_DRAM, only=_DRAM),
        Foreign(m.CPU_POWER.name, m.CPU_POWER, labels=_PACKAGE, only=_PACKAGE),
    ),
    late_s=1.4,
    uuid=("uuid",),
    index=("gpu",),
    package=("package",),
    info={name: (name,) for name in ("name", "architecture", "pci_bus_id", "driver_version")},
)

# https://github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv; collects every 30 s (-c 30000)
DCGM = Schema(
    "dcgm-exporter",
    (
        Foreign("DCGM_FI_DEV_POWER_USAGE", m.GPU_POWER),
        Foreign(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", m.GPU_ENERGY, 1e-3
        ),  # in mJ since the driver was loaded
        Foreign("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", m.GPU_POWER_LIMIT, labels=_ENFORCED),
        Foreign("DCGM_FI_DEV_POWER_MGMT_LIMIT", m.GPU_POWER_LIMIT, labels=_ENFORCED),
        Foreign("DCGM_FI_DEV_GPU_UTIL", m.GPU_UTILIZATION, 0.01, _BUSY),
        Foreign("DCGM_FI_DEV_GPU_TEMP", m.GPU_TEMPERATURE, labels=_SENSOR),
        Foreign("DCGM_FI_DEV_SM_CLOCK", m.GPU_CLOCK, 1e6, _SM),
        Foreign("DCGM_FI_DEV_MEM_CLOCK", m.GPU_CLOCK, 1e6, _MEMORY),
        Foreign("DCGM_FI_DEV_FB_USED", m.GPU_MEMORY_USED, _MIB),
    ),
    refresh_s=30.0,
    uuid=("UUID",),
    index=("gpu",),
    node=("Hostname", "hostname"),  # until May 2026 and since then
    info={
        "name": ("modelName",),
        "pci_bus_id": ("pci_bus_id",),
        "driver_version": ("DCGM_FI_DRIVER_VERSION",),
    },
)

# https://github.com/utkuozdemir/nvidia_gpu_exporter, docs/METRICS.md; collects at each scrape
NVIDIA_GPU = Schema(
    "nvidia-gpu-exporter",
    (
        Foreign("nvidia_smi_power_draw_instant_watts", m.GPU_POWER),
        Foreign("nvidia_smi_power_draw_watts", m.GPU_POWER),
        Foreign("nvidia_smi_energy_joules_total", m.GPU_ENERGY),  # with its NVML backend only
        Foreign("nvidia_smi_enforced_power_limit_watts", m.GPU_POWER_LIMIT, labels=_ENFORCED),
        Foreign("nvidia_smi_utilization_gpu_ratio", m.GPU_UTILIZATION, labels=_BUSY),
        Foreign("nvidia_smi_temperature_gpu", m.GPU_TEMPERATURE, labels=_SENSOR),
        Foreign("nvidia_smi_clocks_current_sm_clock_hz", m.GPU_CLOCK, labels=_SM),
        Foreign("nvidia_smi_clocks_current_memory_clock_hz", m.GPU_CLOCK, labels=_MEMORY),
        Foreign("nvidia_smi_memory_used_bytes", m.GPU_MEMORY_USED),
        Foreign("nvidia_smi_gpu_info", m.GPU_INFO),
    ),
    uuid=("uuid",),
    index=("index",),
    info={"name": ("name",), "pci_bus_id": ("pci_bus_id",), "driver_version": ("driver_version",)},
)

# https://github.com/sustainable-computing-io/kepler, docs/user/metrics.md and EP-003; every 5 s
KEPLER = Schema(
    "kepler",
    (
        Foreign("kepler_node_gpu_joules_total", m.GPU_ENERGY),
        Foreign("kepler_node_gpu_watts", m.GPU_POWER),
        Foreign("kepler_node_gpu_info", m.GPU_INFO),
        Foreign("kepler_node_cpu_joules_total", m.CPU_ENERGY, labels=_PACKAGE, only=_PACKAGE),
        Foreign("kepler_node_cpu_joules_total", m.CPU_ENERGY, labels=_DRAM, only=_DRAM),
        Foreign("kepler_node_cpu_watts", m.CPU_POWER, labels=_PACKAGE, only=_PACKAGE),
    ),
    refresh_s=5.0,
    uuid=("gpu_uuid",),
    index=("gpu",),
    package=("path",),
    node=("node_name",),
    info={"name": ("gpu_name",)},
    cpu_method="kepler",
)

NODE_EXPORTER = (
    Schema(  # https://github.com/prometheus/node_exporter, collector/rapl_linux.go; at each scrape
        "node-exporter",
        (
            Foreign("node_rapl_package_joules_total", m.CPU_ENERGY, labels=_PACKAGE),
            Foreign("node_rapl_dram_joules_total", m.CPU_ENERGY, labels=_DRAM),
            Foreign(
                "node_rapl_joules_total",
                m.CPU_ENERGY,
                labels=_PACKAGE,
                only={"rapl_zone": "package"},
            ),
            Foreign(
                "node_rapl_joules_total", m.CPU_ENERGY, labels=_DRAM, only={"rapl_zone": "dram"}
            ),
        ),
        package=("index",),
        wraps=True,
    )
)

# https://github.com/lablup/all-smi, API.md; every 3 s; its label gpu is the model's name
ALL_SMI = Schema(
    "all-smi",
    (
        Foreign("all_smi_gpu_energy_hw_millijoules_total", m.GPU_ENERGY, 1e-3),
        Foreign("all_smi_energy_consumed_joules_total", m.GPU_ENERGY, only={"scope": "gpu"}),
        Foreign(
            "all_smi_energy_consumed_joules_total",
            m.CPU_ENERGY,
            labels=_PACKAGE,
            only={"scope": "cpu"},
        ),
        Foreign("all_smi_gpu_power_consumption_watts", m.GPU_POWER),
        Foreign("all_smi_gpu_power_limit_current_watts", m.GPU_POWER_LIMIT, labels=_ENFORCED),
        Foreign("all_smi_gpu_utilization", m.GPU_UTILIZATION, 0.01, _BUSY),
        Foreign("all_smi_gpu_temperature_celsius", m.GPU_TEMPERATURE, labels=_SENSOR),
        Foreign("all_smi_gpu_frequency_mhz", m.GPU_CLOCK, 1e6, _SM),
        Foreign("all_smi_gpu_memory_used_bytes", m.GPU_MEMORY_USED),
        Foreign("all_smi_cpu_power_consumption_watts", m.CPU_POWER, labels=_PACKAGE),
    ),
    refresh_s=3.0,
    uuid=("gpu_uuid",),
    index=("gpu_index",),
    node=("host", "hostname"),
    info={"name": ("gpu_name", "gpu")},
    cpu_method="all-smi",
)

SCHEMAS = (WATTLINE, DCGM, NVIDIA_GPU, KEPLER, NODE_EXPORTER, ALL_SMI)
"""Exporters in order of preference for a device of several exporters; an energy counter has
precedence.
"""
BY_NAME: Mapping[str, Schema] = {schema.name: schema for schema in SCHEMAS}
