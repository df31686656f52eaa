"""Definitions of every exported metric.

`python -m exporter.contract.metrics` prints METRICS.md; a test compares it with the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric family. Every series has `labels`; some series also have `optional` labels.

    With `open_labels`, a series also has the `label_…` labels of its run.
    """

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str
    open_labels: bool = False
    optional: tuple[str, ...] = ()

    def selector(self, **labels: str) -> str:
        """Return the metric as PromQL: `GPU_POWER.selector(gpu="0")` is `wattline_gpu_power_watts{gpu="0"}`."""
        if not labels:
            return self.name
        inner = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
        return f"{self.name}{{{inner}}}"


def escape(value: str) -> str:
    """Escape a label value for the quotes of PromQL and the exposition format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_GPU = ("gpu", "uuid")
_RUN_DEVICE = ("run_id", "component", "device")
_CARBON = ("region", "provider", "basis", "quality")
_PROCESS = (*_GPU, "name")

GPU_INFO = Metric(
    "wattline_gpu_info",
    "gauge",
    (*_GPU, "name", "architecture", "pci_bus_id", "driver_version"),
    "Information about a GPU of this node, constant 1; join on uuid.",
)
GPU_UP = Metric("wattline_gpu_up", "gauge", _GPU, "1 while the GPU responds, else 0; its other series are then absent.")
GPU_POWER = Metric(
    "wattline_gpu_power_watts",
    "gauge",
    _GPU,
    "Instantaneous board power, or the closest to it that the driver reports.",
)
GPU_ENERGY = Metric(
    "wattline_gpu_energy_joules_total",
    "counter",
    _GPU,
    "Energy: from NVML's counter, or the integral of power without a counter.",
)
GPU_INTEGRATED_ENERGY = Metric(
    "wattline_gpu_integrated_energy_joules_total",
    "counter",
    _GPU,
    "Cross-check: integral of the driver's averaged power, else of the instantaneous power.",
)
GPU_ENERGY_METHOD = Metric(
    "wattline_gpu_energy_method_info",
    "gauge",
    (*_GPU, "method"),
    "Source of wattline_gpu_energy_joules_total: counter or integral.",
)
GPU_POWER_LIMIT = Metric(
    "wattline_gpu_power_limit_watts",
    "gauge",
    (*_GPU, "kind"),
    "Power limits by kind: enforced, requested, default, min, max.",
)
GPU_UTILIZATION = Metric(
    "wattline_gpu_utilization_ratio", "gauge", (*_GPU, "engine"), "Share of time in which the engine was busy, 0 to 1."
)
GPU_MEMORY_USED = Metric("wattline_gpu_memory_used_bytes", "gauge", _GPU, "GPU memory in use.")
GPU_MEMORY_TOTAL = Metric("wattline_gpu_memory_total_bytes", "gauge", _GPU, "Size of the GPU memory.")
GPU_TEMPERATURE = Metric("wattline_gpu_temperature_celsius", "gauge", (*_GPU, "sensor"), "Temperature by sensor.")
GPU_TEMPERATURE_LIMIT = Metric(
    "wattline_gpu_temperature_limit_celsius",
    "gauge",
    (*_GPU, "sensor", "kind"),
    "Temperature limits by kind: slowdown, shutdown, max_operating; margin: distance to the limit.",
)
GPU_CLOCK = Metric("wattline_gpu_clock_hertz", "gauge", (*_GPU, "domain"), "Clock frequency by domain.")
GPU_CLOCK_MAX = Metric("wattline_gpu_clock_max_hertz", "gauge", (*_GPU, "domain"), "Highest clock by domain.")
GPU_CLOCK_EVENT_SECONDS = Metric(
    "wattline_gpu_clock_event_seconds_total",
    "counter",
    (*_GPU, "reason"),
    "Time in which this clock event reason reduced the clocks.",
)
GPU_PERFORMANCE_STATE = Metric(
    "wattline_gpu_performance_state", "gauge", _GPU, "P-state: 0 is the fastest, 15 the slowest."
)
GPU_FAN = Metric("wattline_gpu_fan_ratio", "gauge", _GPU, "Speed of the fastest fan, relative to its maximum.")
GPU_PCIE_BYTES = Metric(
    "wattline_gpu_pcie_bytes_total",
    "counter",
    (*_GPU, "direction"),
    "Bytes over PCIe by direction, tx (from the GPU) and rx; absent if the driver does not count them.",
)
GPU_ECC_ERRORS = Metric(
    "wattline_gpu_ecc_errors_total", "counter", (*_GPU, "type"), "ECC errors by type: corrected, uncorrected."
)
GPU_XID_ERRORS = Metric("wattline_gpu_xid_errors_total", "counter", (*_GPU, "xid"), "XID errors by number.")
GPU_ENERGY_SUSPECT = Metric(
    "wattline_gpu_energy_suspect",
    "gauge",
    (*_GPU, "reason"),
    "1 while the energy is suspect: frozen, implausible (a jump; for one minute), disagrees (counter and "
    "integral, over a minute or more), aliasing (no counter, and a sensor that covers a part of the time).",
)
GPU_MIG_INFO = Metric(
    "wattline_gpu_mig_info",
    "gauge",
    (*_GPU, "parent_uuid", "profile", "gpu_instance", "compute_instance"),
    "Information about a MIG instance; only the parent GPU has power and energy.",
)
GPU_POD_INFO = Metric(
    "wattline_gpu_pod_info",
    "gauge",
    (*_GPU, "namespace", "pod", "container"),
    "Container to which the kubelet assigned the GPU or MIG instance.",
)
GPU_PROCESS_MEMORY = Metric(
    "wattline_gpu_process_memory_bytes",
    "gauge",
    _PROCESS,
    "GPU memory of all processes with this name or cgroup; the 50 largest.",
    optional=("pid",),
)
GPU_PROCESS_UTILIZATION = Metric(
    "wattline_gpu_process_utilization_ratio",
    "gauge",
    _PROCESS,
    "Share of time in which kernels of these processes ran, 0 to 1.",
    optional=("pid",),
)

CPU_ENERGY = Metric(
    "wattline_cpu_energy_joules_total",
    "counter",
    ("package", "zone"),
    "CPU energy from RAPL, unwrapped. Zones overlap: never sum over zone.",
)
CPU_POWER = Metric(
    "wattline_cpu_power_watts", "gauge", ("package", "zone"), "Mean power since the previous reading. Zones overlap."
)
CPU_ENERGY_METHOD = Metric(
    "wattline_cpu_energy_method_info",
    "gauge",
    ("package", "method"),
    "Source of the CPU energy: rapl, perf, hwmon, or model (an estimate).",
)
HWMON_POWER = Metric(
    "wattline_hwmon_power_watts",
    "gauge",
    ("chip", "sensor"),
    "Power from the sensors of the board. They overlap: never add them.",
)
HWMON_ENERGY = Metric(
    "wattline_hwmon_energy_joules_total",
    "counter",
    ("chip", "sensor"),
    "Integral of wattline_hwmon_power_watts. Sensors overlap each other, the CPU and the GPU: never add them.",
)

HOST_CPU_UTILIZATION = Metric(
    "wattline_host_cpu_utilization_ratio", "gauge", (), "Share of the time of all CPUs that was not idle, 0 to 1."
)
HOST_MEMORY_USED = Metric("wattline_host_memory_used_bytes", "gauge", (), "Memory of the node that is not available.")
HOST_MEMORY_TOTAL = Metric("wattline_host_memory_total_bytes", "gauge", (), "Memory of the node.")
HOST_PROCESS_CPU = Metric(
    "wattline_host_process_cpu_seconds_total",
    "counter",
    ("name",),
    "CPU time of all processes with this name or cgroup; the 50 largest.",
    optional=("pid",),
)
HOST_PROCESS_PSS = Metric(
    "wattline_host_process_pss_bytes",
    "gauge",
    ("name",),
    "Proportional set size; once a minute, of processes up to 16 GiB.",
    optional=("pid",),
)
HOST_PROCESS_USS = Metric(
    "wattline_host_process_uss_bytes",
    "gauge",
    ("name",),
    "Unique set size; once a minute, of processes up to 16 GiB.",
    optional=("pid",),
)

CARBON_INTENSITY = Metric(
    "wattline_carbon_intensity_grams_per_kilowatt_hour",
    "gauge",
    _CARBON,
    "Carbon intensity of the current time slot, in g CO2eq per kWh.",
)
CARBON_INTENSITY_TIMESTAMP = Metric(
    "wattline_carbon_intensity_timestamp_seconds", "gauge", _CARBON, "Start of the current time slot."
)
CARBON_FORECAST = Metric(
    "wattline_carbon_intensity_forecast_grams_per_kilowatt_hour",
    "gauge",
    ("region", "provider", "basis", "horizon_hours"),
    "Forecast intensity in horizon_hours from now (1 to 48), in g CO2eq per kWh.",
)
CARBON_FETCHED_TIMESTAMP = Metric(
    "wattline_carbon_intensity_fetched_timestamp_seconds",
    "gauge",
    ("provider", "basis"),
    "Unix time of the provider's latest response.",
)
EMISSIONS = Metric(
    "wattline_emissions_grams_total",
    "counter",
    ("component", "device", "basis", "quality"),
    "Emissions in g CO2eq: each joule times the intensity of its time slot; absent without a region.",
)

RUN_INFO = Metric(
    "wattline_run_info",
    "gauge",
    ("run_id", "workload"),
    "Information about a run, with its labels as label_NAME.",
    open_labels=True,
)
RUN_GPU_INFO = Metric("wattline_run_gpu_info", "gauge", ("run_id", *_GPU), "Information about a GPU of the run.")
RUN_START = Metric("wattline_run_start_timestamp_seconds", "gauge", ("run_id",), "Unix time at which the run started.")
RUN_END = Metric(
    "wattline_run_end_timestamp_seconds", "gauge", ("run_id",), "Unix time at which the run ended; absent before."
)
RUN_DURATION = Metric(
    "wattline_run_duration_seconds", "gauge", ("run_id",), "Duration of the run, from a monotonic clock."
)
RUN_OUTCOME = Metric(
    "wattline_run_outcome_info", "gauge", ("run_id", "outcome"), "How the run ended: ok, failed, interrupted."
)
RUN_ENERGY = Metric(
    "wattline_run_energy_joules_total",
    "counter",
    _RUN_DEVICE,
    "Energy of the whole device between the start and end of the run; never sum over run_id.",
)
RUN_ATTRIBUTED_ENERGY = Metric(
    "wattline_run_attributed_energy_joules_total",
    "counter",
    (*_RUN_DEVICE, "policy"),
    'Attributed share of the run; run_id="" is unattributed. Sum over run_id within one policy: idle_apart leaves idle '
    "power unattributed, idle_shared divides it equally among the runs that hold the device.",
)
IDLE_POWER = Metric(
    "wattline_idle_power_watts",
    "gauge",
    ("component", "device"),
    "Lowest mean power over 10 s in which nothing ran on the device; used by attribution.",
)
RUN_ENERGY_UNCERTAINTY = Metric(
    "wattline_run_energy_uncertainty_joules",
    "gauge",
    _RUN_DEVICE,
    "Half-width of the 95 % confidence interval of wattline_run_energy_joules_total.",
)
RUN_COVERED_RATIO = Metric(
    "wattline_run_covered_ratio",
    "gauge",
    _RUN_DEVICE,
    "Share of the run in which the device was read without a gap, 0 to 1.",
)
RUN_INTEGRATED_ENERGY = Metric(
    "wattline_run_integrated_energy_joules_total",
    "counter",
    ("run_id", *_GPU),
    "Cross-check of the run: wattline_gpu_integrated_energy_joules_total from its start to its end.",
)
RUN_POWER_MAX = Metric(
    "wattline_run_power_max_watts", "gauge", ("run_id", *_GPU), "Highest power reading during the run."
)
RUN_EMISSIONS = Metric(
    "wattline_run_emissions_grams_total",
    "counter",
    ("run_id", "component", "basis", "quality"),
    "Emissions in g CO2eq of the run's energy, each joule times the intensity of its time slot.",
)
RUN_WORK = Metric("wattline_run_work_total", "counter", ("run_id", "unit"), "Work of the run; never sum over unit.")
RUN_RESULT = Metric(
    "wattline_run_result", "gauge", ("run_id", "name"), "Value that the job measured itself; the unit is in the name."
)
RUN_PHASE_SECONDS = Metric(
    "wattline_run_phase_seconds_total", "counter", ("run_id", "phase"), "Time that the run spent in the phase."
)
RUN_PHASE_ENERGY = Metric(
    "wattline_run_phase_energy_joules_total",
    "counter",
    ("run_id", "phase", "component"),
    "Energy of the run's devices in the phase.",
)
RUN_PHASE_ENERGY_UNCERTAINTY = Metric(
    "wattline_run_phase_energy_uncertainty_joules",
    "gauge",
    ("run_id", "phase", "component"),
    "Half-width of the 95 % confidence interval of the phase's energy, once the run has ended.",
)
RUN_PHASE_WORK = Metric(
    "wattline_run_phase_work_total",
    "counter",
    ("run_id", "phase", "unit"),
    "Work reported during the phase, without the work reported at the end of the run; never sum over unit.",
)

SOURCE_UP = Metric("wattline_source_up", "gauge", ("source",), "1 if the latest read succeeded and is not late.")
SOURCE_READ_TIMESTAMP = Metric(
    "wattline_source_read_timestamp_seconds", "gauge", ("source",), "Unix time of the source's last successful read."
)
SOURCE_READS = Metric(
    "wattline_source_reads_total", "counter", ("source", "outcome"), "Reads by outcome: ok, failed, late."
)
SOURCE_READ_SECONDS = Metric(
    "wattline_source_read_seconds_total", "counter", ("source", "outcome"), "Duration of the reads."
)
SOURCE_RESTARTS = Metric(
    "wattline_source_restarts_total", "counter", ("source",), "Number of replacements of the source's process."
)
PROCESS_CPU = Metric(
    "wattline_process_cpu_seconds_total", "counter", ("role",), "CPU time of Wattline's own processes."
)
PROCESS_MEMORY = Metric(
    "wattline_process_memory_bytes", "gauge", ("role",), "Resident memory of Wattline's own processes."
)
STATE_UP = Metric("wattline_state_up", "gauge", (), "1 if the latest write to the state folder succeeded.")
PUSH_UP = Metric(
    "wattline_push_up", "gauge", (), "1 if the server of --push.url responded to the latest request, else 0."
)
PUSH_TIMESTAMP = Metric(
    "wattline_push_timestamp_seconds",
    "gauge",
    (),
    "Unix time of the newest sample that the server has accepted or refused.",
)
PUSH_SAMPLES = Metric(
    "wattline_push_samples_total",
    "counter",
    ("outcome",),
    "Pushed samples by outcome: accepted; refused and not sent again; dropped, because the history no longer has them.",
)
BUILD_INFO = Metric("wattline_build_info", "gauge", ("version",), "Version of the exporter, constant 1.")

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def _labels(metric: Metric) -> str:
    names = [*metric.labels, *(f"{name} (optional)" for name in metric.optional)]
    if metric.open_labels:
        names.append("label_…")
    return ", ".join(names) or "–"


def markdown() -> str:
    rows = [f"| `{m.name}` | {m.kind} | {_labels(m)} | {m.help} |" for m in METRICS]
    return "\n".join(
        [
            "# Metrics",
            "",
            "Generated from `exporter/contract/metrics.py` by `make metrics`; do not edit.",
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    print(markdown(), end="")
