"""Every metric that Wattline exports: the one place where their names stand.

`python -m exporter.contract.metrics` prints METRICS.md, which a test holds against the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `labels` are always there, `optional` ones not in each series.

    `label_…` labels of a run come on top where `open_labels` is set.
    """

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str
    open_labels: bool = False
    optional: tuple[str, ...] = ()

    def selector(self, **labels: str) -> str:
        """The metric as PromQL: `GPU_POWER.selector(gpu="0")` is `wattline_gpu_power_watts{gpu="0"}`."""
        if not labels:
            return self.name
        inner = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
        return f"{self.name}{{{inner}}}"


def escape(value: str) -> str:
    """A label value as it stands between quotes in PromQL and in the exposition format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_GPU = ("gpu", "uuid")
_RUN_DEVICE = ("run_id", "component", "device")
_CARBON = ("region", "provider", "basis", "quality")
_PROCESS = (*_GPU, "name")

GPU_INFO = Metric(
    "wattline_gpu_info",
    "gauge",
    (*_GPU, "name", "architecture", "pci_bus_id", "driver_version"),
    "A GPU of this node; join on uuid.",
)
GPU_UP = Metric(
    "wattline_gpu_up", "gauge", _GPU, "1 while the card answers; stays, at 0, when its other series vanish."
)
GPU_POWER = Metric(
    "wattline_gpu_power_watts", "gauge", _GPU, "The most instantaneous board power that the driver gives."
)
GPU_ENERGY = Metric(
    "wattline_gpu_energy_joules_total",
    "counter",
    _GPU,
    "The energy to use: from NVML's counter, or the integral of power where there is none.",
)
GPU_INTEGRATED_ENERGY = Metric(
    "wattline_gpu_integrated_energy_joules_total",
    "counter",
    _GPU,
    "The cross-check: integral of the driver's averaged power where there is one, else of the instantaneous.",
)
GPU_ENERGY_METHOD = Metric(
    "wattline_gpu_energy_method_info",
    "gauge",
    (*_GPU, "method"),
    "What feeds wattline_gpu_energy_joules_total: counter or integral.",
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
GPU_MEMORY_USED = Metric("wattline_gpu_memory_used_bytes", "gauge", _GPU, "Memory in use on the board.")
GPU_MEMORY_TOTAL = Metric("wattline_gpu_memory_total_bytes", "gauge", _GPU, "Memory of the board.")
GPU_TEMPERATURE = Metric("wattline_gpu_temperature_celsius", "gauge", (*_GPU, "sensor"), "Temperature by sensor.")
GPU_TEMPERATURE_LIMIT = Metric(
    "wattline_gpu_temperature_limit_celsius",
    "gauge",
    (*_GPU, "sensor", "kind"),
    "Temperature at which the card acts: slowdown, shutdown, max_operating; margin: how far it is from that.",
)
GPU_CLOCK = Metric("wattline_gpu_clock_hertz", "gauge", (*_GPU, "domain"), "Clock frequency by domain.")
GPU_CLOCK_MAX = Metric("wattline_gpu_clock_max_hertz", "gauge", (*_GPU, "domain"), "Highest clock by domain.")
GPU_CLOCK_EVENT_SECONDS = Metric(
    "wattline_gpu_clock_event_seconds_total",
    "counter",
    (*_GPU, "reason"),
    "Time for which the reason held the clocks down.",
)
GPU_PERFORMANCE_STATE = Metric(
    "wattline_gpu_performance_state", "gauge", _GPU, "P-state: 0 is the fastest, 15 the slowest."
)
GPU_FAN = Metric("wattline_gpu_fan_ratio", "gauge", _GPU, "Fan speed as a share of the greatest, of the fastest fan.")
GPU_PCIE_BYTES = Metric(
    "wattline_gpu_pcie_bytes_total",
    "counter",
    (*_GPU, "direction"),
    "Bytes over PCIe by direction, tx (from the GPU) and rx; absent where the driver does not count them.",
)
GPU_ECC_ERRORS = Metric(
    "wattline_gpu_ecc_errors_total", "counter", (*_GPU, "type"), "ECC errors by type: corrected, uncorrected."
)
GPU_XID_ERRORS = Metric("wattline_gpu_xid_errors_total", "counter", (*_GPU, "xid"), "XID errors by their number.")
GPU_ENERGY_SUSPECT = Metric(
    "wattline_gpu_energy_suspect",
    "gauge",
    (*_GPU, "reason"),
    "1 while the energy is not to be trusted: frozen, implausible (a jump; for a minute), disagrees (counter and "
    "integral, judged over a minute or more), aliasing (no counter, and a sensor that sees a part of the time).",
)
GPU_MIG_INFO = Metric(
    "wattline_gpu_mig_info",
    "gauge",
    (*_GPU, "parent_uuid", "profile", "gpu_instance", "compute_instance"),
    "A MIG instance; power and energy are the parent's only.",
)
GPU_POD_INFO = Metric(
    "wattline_gpu_pod_info",
    "gauge",
    (*_GPU, "namespace", "pod", "container"),
    "The container to which the kubelet has given the GPU, or the MIG instance.",
)
GPU_PROCESS_MEMORY = Metric(
    "wattline_gpu_process_memory_bytes",
    "gauge",
    _PROCESS,
    "GPU memory of the processes of that name, or cgroup; the 50 largest.",
    optional=("pid",),
)
GPU_PROCESS_UTILIZATION = Metric(
    "wattline_gpu_process_utilization_ratio",
    "gauge",
    _PROCESS,
    "Share of time in which kernels of the processes ran, 0 to 1.",
    optional=("pid",),
)

CPU_ENERGY = Metric(
    "wattline_cpu_energy_joules_total",
    "counter",
    ("package", "zone"),
    "RAPL, unwrapped. Zones overlap: never sum over zone.",
)
CPU_POWER = Metric(
    "wattline_cpu_power_watts", "gauge", ("package", "zone"), "Mean power since the last reading. Zones overlap."
)
CPU_ENERGY_METHOD = Metric(
    "wattline_cpu_energy_method_info",
    "gauge",
    ("package", "method"),
    "Where the CPU's energy comes from: rapl, perf, hwmon, or model, which is an estimate.",
)
HWMON_POWER = Metric(
    "wattline_hwmon_power_watts", "gauge", ("chip", "sensor"), "Power by the board's sensors. They overlap: never add."
)
HWMON_ENERGY = Metric(
    "wattline_hwmon_energy_joules_total",
    "counter",
    ("chip", "sensor"),
    "Integral of wattline_hwmon_power_watts. Sensors overlap each other, the CPU and the GPU: never add.",
)

HOST_CPU_UTILIZATION = Metric(
    "wattline_host_cpu_utilization_ratio", "gauge", (), "Share of all CPUs' time that was not idle, 0 to 1."
)
HOST_MEMORY_USED = Metric("wattline_host_memory_used_bytes", "gauge", (), "Memory that is not available to new work.")
HOST_MEMORY_TOTAL = Metric("wattline_host_memory_total_bytes", "gauge", (), "Memory of the node.")
HOST_PROCESS_CPU = Metric(
    "wattline_host_process_cpu_seconds_total",
    "counter",
    ("name",),
    "CPU time of the processes of that name, or cgroup; the 50 largest.",
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
    "gCO2eq per kWh of the slot now.",
)
CARBON_INTENSITY_TIMESTAMP = Metric(
    "wattline_carbon_intensity_timestamp_seconds", "gauge", _CARBON, "Start of the slot that is in force."
)
CARBON_FORECAST = Metric(
    "wattline_carbon_intensity_forecast_grams_per_kilowatt_hour",
    "gauge",
    ("region", "provider", "basis", "horizon_hours"),
    "gCO2eq per kWh of the slot in force so many hours from now, 1 to 48, where the provider forecasts.",
)
CARBON_FETCHED_TIMESTAMP = Metric(
    "wattline_carbon_intensity_fetched_timestamp_seconds",
    "gauge",
    ("provider", "basis"),
    "Unix time at which the provider last answered; what is in force is as old as that.",
)
EMISSIONS = Metric(
    "wattline_emissions_grams_total",
    "counter",
    ("component", "device", "basis", "quality"),
    "gCO2eq: each joule times the intensity of its own time; absent where no region is set.",
)

RUN_INFO = Metric(
    "wattline_run_info", "gauge", ("run_id", "workload"), "A run and its labels, as label_NAME.", open_labels=True
)
RUN_GPU_INFO = Metric("wattline_run_gpu_info", "gauge", ("run_id", *_GPU), "A GPU of the run.")
RUN_START = Metric("wattline_run_start_timestamp_seconds", "gauge", ("run_id",), "Unix time at which the run began.")
RUN_END = Metric(
    "wattline_run_end_timestamp_seconds", "gauge", ("run_id",), "Unix time at which the run ended; absent before."
)
RUN_DURATION = Metric(
    "wattline_run_duration_seconds", "gauge", ("run_id",), "Length of the run, from a clock that no one sets."
)
RUN_OUTCOME = Metric(
    "wattline_run_outcome_info", "gauge", ("run_id", "outcome"), "How the run ended: ok, failed, interrupted."
)
RUN_ENERGY = Metric(
    "wattline_run_energy_joules_total",
    "counter",
    _RUN_DEVICE,
    "Energy of the whole device between the run's begin and end; never sum over run_id.",
)
RUN_ATTRIBUTED_ENERGY = Metric(
    "wattline_run_attributed_energy_joules_total",
    "counter",
    (*_RUN_DEVICE, "policy"),
    'The run\'s share of the device; what belongs to no run is run_id="". Sum over run_id, within one policy: '
    "idle_apart leaves the idle power to no run, idle_shared gives it to those who hold the device, in equal parts.",
)
IDLE_POWER = Metric(
    "wattline_idle_power_watts",
    "gauge",
    ("component", "device"),
    "Least mean power over 10 s in which nothing ran on the device: the idle part that attribution sets apart.",
)
RUN_ENERGY_UNCERTAINTY = Metric(
    "wattline_run_energy_uncertainty_joules",
    "gauge",
    _RUN_DEVICE,
    "Half of the interval that holds the true value of wattline_run_energy_joules_total with 95 %.",
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
    "The cross-check for the run: wattline_gpu_integrated_energy_joules_total between its begin and end.",
)
RUN_POWER_MAX = Metric(
    "wattline_run_power_max_watts", "gauge", ("run_id", *_GPU), "Highest power read while the run was on."
)
RUN_EMISSIONS = Metric(
    "wattline_run_emissions_grams_total",
    "counter",
    ("run_id", "component", "basis", "quality"),
    "gCO2eq of the run's energy, each joule at the intensity of its own slot.",
)
RUN_WORK = Metric(
    "wattline_run_work_total", "counter", ("run_id", "unit"), "Work that the run has done; never sum over unit."
)
RUN_RESULT = Metric(
    "wattline_run_result", "gauge", ("run_id", "name"), "What the job measured itself; the unit is in the name."
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
    "Half of the interval that holds the phase's energy with 95 %, once the run has ended.",
)
RUN_PHASE_WORK = Metric(
    "wattline_run_phase_work_total",
    "counter",
    ("run_id", "phase", "unit"),
    "Work that was reported while the phase was on, that of the run's end apart; never sum over unit.",
)

SOURCE_UP = Metric("wattline_source_up", "gauge", ("source",), "1 where the last read succeeded and is not late.")
SOURCE_READ_TIMESTAMP = Metric(
    "wattline_source_read_timestamp_seconds", "gauge", ("source",), "Unix time of the source's last successful read."
)
SOURCE_READS = Metric(
    "wattline_source_reads_total", "counter", ("source", "outcome"), "Reads by outcome: ok, failed, late."
)
SOURCE_READ_SECONDS = Metric(
    "wattline_source_read_seconds_total", "counter", ("source", "outcome"), "Time that the reads took."
)
SOURCE_RESTARTS = Metric(
    "wattline_source_restarts_total", "counter", ("source",), "How often the source's process was replaced."
)
PROCESS_CPU = Metric(
    "wattline_process_cpu_seconds_total", "counter", ("role",), "CPU time of Wattline's own processes."
)
PROCESS_MEMORY = Metric(
    "wattline_process_memory_bytes", "gauge", ("role",), "Resident memory of Wattline's own processes."
)
STATE_UP = Metric("wattline_state_up", "gauge", (), "1 where the state folder could be written to the last time.")
PUSH_UP = Metric(
    "wattline_push_up", "gauge", (), "1 where the server of --push.url answered the last time, 0 where it did not."
)
PUSH_TIMESTAMP = Metric(
    "wattline_push_timestamp_seconds", "gauge", (), "Unix time of the newest sample that the server is done with."
)
PUSH_SAMPLES = Metric(
    "wattline_push_samples_total",
    "counter",
    ("outcome",),
    "Samples pushed by outcome: accepted; refused, and not sent again; dropped, being older than the history is kept.",
)
BUILD_INFO = Metric("wattline_build_info", "gauge", ("version",), "The version that runs.")

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
