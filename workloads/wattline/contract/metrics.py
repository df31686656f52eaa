"""Definitions of every exported metric.

`python -m wattline.contract.metrics` prints METRICS.md; a test compares it with the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric family. Every series has `labels`; some series also have `optional` labels.

    With `open_labels`, a series also has the `label_…` labels of its run. The three metrics of a
    histogram have its name as `family`; `METRICS` does not contain the histogram itself.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str
    open_labels: bool = False
    optional: tuple[str, ...] = ()
    family: str = ""
    """Histogram of the series, or empty."""

    def selector(self, **labels: str) -> str:
        """Return a PromQL selector: `GPU_POWER.selector(gpu="0")` is
        `wattline_gpu_power_watts{gpu="0"}`.
        """
        if not labels:
            return self.name
        inner = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
        return f"{self.name}{{{inner}}}"


def escape(value: str) -> str:
    """Escape a label value for the quotes of PromQL and the exposition format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _gauge(name: str, labels: tuple[str, ...], text: str, optional: tuple[str, ...] = ()) -> Metric:
    return Metric(name, "gauge", labels, text, optional=optional)


def _counter(
    name: str, labels: tuple[str, ...], text: str, optional: tuple[str, ...] = ()
) -> Metric:
    return Metric(name, "counter", labels, text, optional=optional)


def _histogram(name: str, labels: tuple[str, ...], text: str) -> tuple[Metric, ...]:
    """Return the family, and the metrics of its buckets, count and sum."""
    series = (
        (f"{name}_bucket", (*labels, "le")),
        (f"{name}_count", labels),
        (f"{name}_sum", labels),
    )
    return Metric(name, "histogram", labels, text), *(
        Metric(n, "counter", own, text, family=name) for n, own in series
    )


_GPU = ("gpu", "uuid")
_RUN_DEVICE = ("run_id", "component", "device")
_RUN_PHASE = ("run_id", "phase", "component")
_OWNER = ("kind", "owner", "account", "workload")
_REQUEST = ("model", "role")
_CARBON = ("region", "provider", "basis", "quality")
_MIG = (*_GPU, "parent_uuid", "profile", "gpu_instance", "compute_instance")
_GPU_INFO = (*_GPU, "device", "name", "architecture", "pci_bus_id", "driver_version")

# Formatted by hand, so that each metric takes two lines:
GPU_INFO = _gauge(
    "wattline_gpu_info",
    _GPU_INFO,
    "Information about a GPU; join on uuid, or on device for series of runs.",
)
GPU_UP = _gauge(
    "wattline_gpu_up", _GPU, "1 while the GPU responds, else 0; its other series are then absent."
)
GPU_POWER = _gauge(
    "wattline_gpu_power_watts",
    _GPU,
    "Instantaneous board power, or the closest to it that the driver reports.",
)
GPU_ENERGY = _counter(
    "wattline_gpu_energy_joules_total", _GPU, "Energy: NVML's counter, else the integral of power."
)
GPU_INTEGRATED_ENERGY = _counter(
    "wattline_gpu_integrated_energy_joules_total",
    _GPU,
    "Cross-check: integral of the driver's averaged power, else of the instantaneous power.",
)
GPU_ENERGY_METHOD = _gauge(
    "wattline_gpu_energy_method_info",
    (*_GPU, "method"),
    "Source of wattline_gpu_energy_joules_total: counter or integral.",
)
GPU_POWER_LIMIT = _gauge(
    "wattline_gpu_power_limit_watts",
    (*_GPU, "kind"),
    "Limits: enforced, requested, default, min, max.",
)
GPU_UTILIZATION = _gauge(
    "wattline_gpu_utilization_ratio",
    (*_GPU, "engine"),
    "Share of time in which the engine was busy.",
)
GPU_MEMORY_USED = _gauge("wattline_gpu_memory_used_bytes", _GPU, "Memory in use.")
GPU_MEMORY_TOTAL = _gauge("wattline_gpu_memory_total_bytes", _GPU, "Memory size.")
GPU_TEMPERATURE = _gauge("wattline_gpu_temperature_celsius", (*_GPU, "sensor"), "Temperature.")
GPU_TEMPERATURE_LIMIT = _gauge(
    "wattline_gpu_temperature_limit_celsius",
    (*_GPU, "sensor", "kind"),
    "Temperature limits by kind: slowdown, shutdown, max_operating; margin: distance to the limit.",
)
GPU_CLOCK = _gauge("wattline_gpu_clock_hertz", (*_GPU, "domain"), "Clock frequency.")
GPU_CLOCK_MAX = _gauge("wattline_gpu_clock_max_hertz", (*_GPU, "domain"), "Highest clock.")
GPU_CLOCK_EVENT_SECONDS = _counter(
    "wattline_gpu_clock_event_seconds_total",
    (*_GPU, "reason"),
    "Time in which this clock event reason reduced the clocks.",
)
GPU_PERFORMANCE_STATE = _gauge(
    "wattline_gpu_performance_state", _GPU, "P-state: 0 is the fastest, 15 the slowest."
)
GPU_FAN = _gauge(
    "wattline_gpu_fan_ratio", _GPU, "Speed of the fastest fan, relative to its maximum."
)
GPU_PCIE_BYTES = _counter(
    "wattline_gpu_pcie_bytes_total",
    (*_GPU, "direction"),
    "Bytes over PCIe, tx (from the GPU) and rx; absent if the driver counts none.",
)
GPU_ECC_ERRORS = _counter(
    "wattline_gpu_ecc_errors_total", (*_GPU, "type"), "ECC errors: corrected, uncorrected."
)
GPU_XID_ERRORS = _counter(
    "wattline_gpu_xid_errors_total",
    (*_GPU, "xid"),
    "XID errors by number; 48, 74, 79, 94, 95 and 119 start at 0, others absent.",
)
GPU_XID_TIMESTAMP = _gauge(
    "wattline_gpu_xid_timestamp_seconds", (*_GPU, "xid"), "Unix time of the latest XID error."
)
GPU_ENERGY_SUSPECT = _gauge(
    "wattline_gpu_energy_suspect",
    (*_GPU, "reason"),
    "1 while the energy is suspect: frozen, implausible (a jump; for one minute), disagrees "
    "(counter and "
    "integral, over a minute or more), aliasing (no counter, and a sensor that covers a part of "
    "the time), stuck (no "
    "counter, and a power that does not change while work runs).",
)
GPU_MIG_INFO = _gauge(
    "wattline_gpu_mig_info", _MIG, "MIG instance; only its parent GPU has power and energy."
)
GPU_POD_INFO = _gauge(
    "wattline_gpu_pod_info",
    (*_GPU, "namespace", "pod", "container"),
    "Container to which the kubelet assigned the GPU or MIG instance.",
)
POD_UNRESOLVED_DEVICES = _gauge(
    "wattline_gpu_pod_unresolved_devices",
    ("reason",),
    "GPUs of containers that are missing in wattline_gpu_pod_info: unknown_gpu, no_slice, no_api.",
)
GPU_PROCESS_MEMORY = _gauge(
    "wattline_gpu_process_memory_bytes",
    (*_GPU, "name"),
    "GPU memory of all processes with this name or cgroup; the 50 largest.",
    optional=("pid",),
)
GPU_PROCESS_UTILIZATION = _gauge(
    "wattline_gpu_process_utilization_ratio",
    (*_GPU, "name"),
    "Share of time in which their kernels ran, 0 to 1.",
    optional=("pid",),
)

CPU_ENERGY = _counter(
    "wattline_cpu_energy_joules_total",
    ("package", "zone"),
    "CPU energy from RAPL, unwrapped. Zones overlap: never sum over zone.",
)
CPU_POWER = _gauge(
    "wattline_cpu_power_watts",
    ("package", "zone"),
    "Mean power since the previous reading. Zones overlap.",
)
CPU_ENERGY_METHOD = _gauge(
    "wattline_cpu_energy_method_info",
    ("package", "method"),
    "Source of the CPU energy: rapl, perf, hwmon, or model (an estimate).",
)
HWMON_POWER = _gauge(
    "wattline_hwmon_power_watts",
    ("chip", "sensor"),
    "Power from the sensors of the board. They overlap: never add them.",
)
HWMON_ENERGY = _counter(
    "wattline_hwmon_energy_joules_total",
    ("chip", "sensor"),
    "Integral of wattline_hwmon_power_watts. Sensors overlap each other, the CPU and the GPU: "
    "never add them.",
)

HOST_CPU_UTILIZATION = _gauge(
    "wattline_host_cpu_utilization_ratio",
    (),
    "Share of the time of all CPUs that was not idle, 0 to 1.",
)
HOST_MEMORY_USED = _gauge(
    "wattline_host_memory_used_bytes", (), "Memory of the node that is not available."
)
HOST_MEMORY_TOTAL = _gauge("wattline_host_memory_total_bytes", (), "Memory of the node.")
HOST_PROCESS_CPU = _counter(
    "wattline_host_process_cpu_seconds_total",
    ("name",),
    "CPU time of all processes with this name or cgroup; the 50 largest.",
    optional=("pid",),
)
HOST_PROCESS_PSS = _gauge(
    "wattline_host_process_pss_bytes",
    ("name",),
    "Proportional set size, once a minute; not above 16 GiB.",
    optional=("pid",),
)
HOST_PROCESS_USS = _gauge(
    "wattline_host_process_uss_bytes",
    ("name",),
    "Unique set size, also once a minute.",
    optional=("pid",),
)

CARBON_INTENSITY = _gauge(
    "wattline_carbon_intensity_grams_per_kilowatt_hour",
    _CARBON,
    "Carbon intensity of the current slot, in CO2eq.",
)
CARBON_INTENSITY_TIMESTAMP = _gauge(
    "wattline_carbon_intensity_timestamp_seconds", _CARBON, "Start of the current slot."
)
CARBON_FORECAST = _gauge(
    "wattline_carbon_intensity_forecast_grams_per_kilowatt_hour",
    ("region", "provider", "basis", "horizon_hours"),
    "Forecast of it in horizon_hours from now (1 to 48).",
)
CARBON_FETCHED_TIMESTAMP = _gauge(
    "wattline_carbon_intensity_fetched_timestamp_seconds",
    ("provider", "basis"),
    "Unix time of the provider's latest response.",
)
CARBON_SLOTS_DROPPED = _counter(
    "wattline_carbon_slots_dropped_total",
    ("provider", "basis"),
    "Invalid slots in the provider's responses; they are not used.",
)
EMISSIONS = _counter(
    "wattline_emissions_grams_total",
    ("component", "device", "basis", "quality"),
    "Emissions in g CO2eq: each joule times the intensity of its slot; absent without a region.",
)

RUN_INFO = Metric(
    "wattline_run_info",
    "gauge",
    ("run_id", "workload"),
    "Run, with its labels as label_NAME.",
    open_labels=True,
)
RUN_GPU_INFO = _gauge("wattline_run_gpu_info", ("run_id", *_GPU), "GPU of the run.")
RUN_START = _gauge("wattline_run_start_timestamp_seconds", ("run_id",), "Start of the run.")
RUN_END = _gauge(
    "wattline_run_end_timestamp_seconds", ("run_id",), "End of the run; absent before."
)
RUN_DURATION = _gauge(
    "wattline_run_duration_seconds", ("run_id",), "Duration of the run, from a monotonic clock."
)
RUN_OUTCOME = _gauge(
    "wattline_run_outcome_info",
    ("run_id", "outcome"),
    "How the run ended: ok, failed, interrupted, unknown.",
)
RUN_ENERGY = _counter(
    "wattline_run_energy_joules_total",
    _RUN_DEVICE,
    "Energy of the whole device between the start and end of the run; never sum over run_id.",
)
RUN_ATTRIBUTED_ENERGY = _counter(
    "wattline_run_attributed_energy_joules_total",
    (*_RUN_DEVICE, "policy"),
    'Attributed share of the run; run_id="" is unattributed. Sum over run_id within one policy: '
    "idle_apart leaves "
    "idle power unattributed, idle_shared divides it equally among the runs that hold the device.",
)
RUN_ENERGY_BEFORE_USE = _gauge(
    "wattline_run_energy_before_use_joules",
    _RUN_DEVICE,
    "Energy from the start of the run to its first use of a GPU that nothing else used then; it is "
    "not attributed.",
)
IDLE_POWER = _gauge(
    "wattline_idle_power_watts",
    ("component", "device"),
    "Mean power on the lowest level on which nothing ran on the device for 10 s; used by "
    "attribution.",
)
RUN_ENERGY_UNCERTAINTY = _gauge(
    "wattline_run_energy_uncertainty_joules",
    _RUN_DEVICE,
    "Half-width of the 95 % confidence interval of wattline_run_energy_joules_total.",
)
RUN_COVERED_RATIO = _gauge(
    "wattline_run_covered_ratio",
    _RUN_DEVICE,
    "Share of the run in which the device was read without a gap, 0 to 1.",
)
RUN_INTEGRATED_ENERGY = _counter(
    "wattline_run_integrated_energy_joules_total",
    ("run_id", *_GPU),
    "Cross-check of the run: increase of wattline_gpu_integrated_energy_joules_total.",
)
RUN_POWER_MAX = _gauge(
    "wattline_run_power_max_watts", ("run_id", *_GPU), "Highest power reading during the run."
)
RUN_EMISSIONS = _counter(
    "wattline_run_emissions_grams_total",
    ("run_id", "component", "basis", "quality"),
    "Emissions in g CO2eq of the run's energy, each joule times the intensity of its time slot; "
    "while the run is open, "
    "without the last 6 s.",
)
RUN_EMISSIONS_COVERED_RATIO = _gauge(
    "wattline_run_emissions_covered_ratio",
    ("run_id", "component", "basis"),
    "Share of the energy for which a carbon intensity was known, below 1; missing if it is all.",
)
RUN_WORK = _counter(
    "wattline_run_work_total", ("run_id", "unit"), "Work of the run; never sum over unit."
)
RUN_WORK_UNIT = _gauge(
    "wattline_run_work_unit_info",
    ("run_id", "unit"),
    "Primary unit of work: declared by the job, else the first one reported.",
)
RUN_WORK_TIMESTAMP = _gauge(
    "wattline_run_work_timestamp_seconds", ("run_id",), "Latest report of work of the run."
)
RUN_RESULT = _gauge(
    "wattline_run_result",
    ("run_id", "name"),
    "Value that the job measured itself; the unit is in the name.",
)
RUN_REQUESTS_START = _gauge(
    "wattline_run_requests_start_timestamp_seconds",
    _RUN_DEVICE,
    "Unix time from which the run's requests have a part of the device's energy.",
)
RUN_PHASE_SECONDS = _counter(
    "wattline_run_phase_seconds_total",
    ("run_id", "phase"),
    "Time that the run spent in the phase; while the run is open, without the last 6 s.",
)
RUN_PHASE_START = _gauge(
    "wattline_run_phase_start_timestamp_seconds", ("run_id", "phase"), "Latest start of the phase."
)
RUN_PHASE_ENERGY = _counter(
    "wattline_run_phase_energy_joules_total",
    _RUN_PHASE,
    "Energy of the run's devices in the phase; while the run is open, without the last 6 s.",
)
RUN_PHASE_ENERGY_UNCERTAINTY = _gauge(
    "wattline_run_phase_energy_uncertainty_joules",
    _RUN_PHASE,
    "Half-width of the energy of the phase, once the run has ended.",
)
RUN_PHASE_WORK = _counter(
    "wattline_run_phase_work_total",
    ("run_id", "phase", "unit"),
    "Work reported during the phase, without the work reported at the end of the run; never sum "
    "over unit.",
)

OWNER_ENERGY = _counter(
    "wattline_owner_energy_joules_total",
    (*_OWNER, "component", "policy"),
    'Attributed energy by owner, without run_id; kind="none" is unattributed. Within one policy it '
    "adds up to the "
    "energy of the devices. A new series stays at 0 for 65 s, so that increase() counts all of it.",
)
OWNER_EMISSIONS = _counter(
    "wattline_owner_emissions_grams_total",
    (*_OWNER, "component", "basis", "quality"),
    "Emissions in g CO2eq by owner, divided as the energy by policy idle_shared, without run_id.",
)
OWNER_GPU_SECONDS = _counter(
    "wattline_owner_gpu_seconds_total",
    _OWNER,
    "Time for which GPUs were held, by owner; that of a shared GPU is divided equally among its "
    "holders.",
)

REQUEST_ENERGY, REQUEST_ENERGY_BUCKET, REQUEST_ENERGY_COUNT, REQUEST_ENERGY_SUM = _histogram(
    "wattline_request_energy_joules", _REQUEST, "Energy of each final request that has one."
)
REQUEST_ENERGY_TOTAL = _counter(
    "wattline_request_energy_joules_total", _REQUEST, "Energy of final requests."
)
REQUESTS = _counter(
    "wattline_requests_total",
    _REQUEST,
    "Final requests, also those without energy; --requests.labels adds labels.",
)
REQUESTS_REJECTED = _counter(
    "wattline_requests_rejected_total", ("reason",), "Reported requests that do not count."
)
DISCOVERY_UNRESOLVED = _gauge(
    "wattline_discovery_unresolved_processes",
    ("reason",),
    "Processes on GPUs without a known owner: not_visible, no_owner.",
)
DISCOVERY_SOURCE_UP = _gauge(
    "wattline_discovery_source_up", ("source",), "1 if the latest read succeeded."
)
RUNS_FOLDED = _counter(
    "wattline_runs_folded_total",
    (),
    'Discovered runs beyond --runs.max; their energy has run_id="(other)".',
)
OTLP_SPANS = _counter(
    "wattline_otlp_spans_total",
    ("outcome",),
    "OTLP spans: accepted, ignored (no request), duplicate, invalid, refused, no_run.",
)
SOURCE_UP = _gauge(
    "wattline_source_up", ("source",), "1 if the latest read succeeded and is not late."
)
SOURCE_READ_TIMESTAMP = _gauge(
    "wattline_source_read_timestamp_seconds", ("source",), "Latest successful read."
)
SOURCE_READS = _counter(
    "wattline_source_reads_total", ("source", "outcome"), "Reads: ok, failed, late."
)
SOURCE_READ_SECONDS = _counter(
    "wattline_source_read_seconds_total", ("source", "outcome"), "Duration of the reads."
)
SOURCE_RESTARTS = _counter(
    "wattline_source_restarts_total", ("source",), "Replacements of the source's process."
)
PROCESS_CPU = _counter(
    "wattline_process_cpu_seconds_total", ("role",), "CPU time of Wattline's own processes."
)
PROCESS_MEMORY = _gauge(
    "wattline_process_memory_bytes", ("role",), "Resident memory of Wattline's own processes."
)
STATE_UP = _gauge("wattline_state_up", (), "1 if the latest write to the state folder succeeded.")
STATE_FREE = _gauge("wattline_state_free_bytes", (), "Free space of the state folder's disk.")
STATE_USED = _gauge("wattline_state_used_bytes", (), "Size of the state folder.")
NODE_INFO = _gauge(
    "wattline_node_info",
    ("node", "machine_id", "simulated"),
    "Name of the node, from NODE_NAME or the host, and its machine ID; simulated: true, false. "
    "Join on instance.",
)
BUILD_INFO = _gauge("wattline_build_info", ("version",), "Version of the exporter, constant 1.")

METRICS: tuple[Metric, ...] = (
    GPU_INFO,
    GPU_UP,
    GPU_POWER,
    GPU_ENERGY,
    GPU_INTEGRATED_ENERGY,
    GPU_ENERGY_METHOD,
    GPU_POWER_LIMIT,
    GPU_UTILIZATION,
    GPU_MEMORY_USED,
    GPU_MEMORY_TOTAL,
    GPU_TEMPERATURE,
    GPU_TEMPERATURE_LIMIT,
    GPU_CLOCK,
    GPU_CLOCK_MAX,
    GPU_CLOCK_EVENT_SECONDS,
    GPU_PERFORMANCE_STATE,
    GPU_FAN,
    GPU_PCIE_BYTES,
    GPU_ECC_ERRORS,
    GPU_XID_ERRORS,
    GPU_XID_TIMESTAMP,
    GPU_ENERGY_SUSPECT,
    GPU_MIG_INFO,
    GPU_POD_INFO,
    POD_UNRESOLVED_DEVICES,
    GPU_PROCESS_MEMORY,
    GPU_PROCESS_UTILIZATION,
    CPU_ENERGY,
    CPU_POWER,
    CPU_ENERGY_METHOD,
    HWMON_POWER,
    HWMON_ENERGY,
    HOST_CPU_UTILIZATION,
    HOST_MEMORY_USED,
    HOST_MEMORY_TOTAL,
    HOST_PROCESS_CPU,
    HOST_PROCESS_PSS,
    HOST_PROCESS_USS,
    CARBON_INTENSITY,
    CARBON_INTENSITY_TIMESTAMP,
    CARBON_FORECAST,
    CARBON_FETCHED_TIMESTAMP,
    CARBON_SLOTS_DROPPED,
    EMISSIONS,
    RUN_INFO,
    RUN_GPU_INFO,
    RUN_START,
    RUN_END,
    RUN_DURATION,
    RUN_OUTCOME,
    RUN_ENERGY,
    RUN_ATTRIBUTED_ENERGY,
    RUN_ENERGY_BEFORE_USE,
    IDLE_POWER,
    RUN_ENERGY_UNCERTAINTY,
    RUN_COVERED_RATIO,
    RUN_INTEGRATED_ENERGY,
    RUN_POWER_MAX,
    RUN_EMISSIONS,
    RUN_EMISSIONS_COVERED_RATIO,
    RUN_WORK,
    RUN_WORK_UNIT,
    RUN_WORK_TIMESTAMP,
    RUN_RESULT,
    RUN_REQUESTS_START,
    RUN_PHASE_SECONDS,
    RUN_PHASE_START,
    RUN_PHASE_ENERGY,
    RUN_PHASE_ENERGY_UNCERTAINTY,
    RUN_PHASE_WORK,
    OWNER_ENERGY,
    OWNER_EMISSIONS,
    OWNER_GPU_SECONDS,
    REQUEST_ENERGY,
    REQUEST_ENERGY_TOTAL,
    REQUESTS,
    REQUESTS_REJECTED,
    DISCOVERY_UNRESOLVED,
    DISCOVERY_SOURCE_UP,
    RUNS_FOLDED,
    OTLP_SPANS,
    SOURCE_UP,
    SOURCE_READ_TIMESTAMP,
    SOURCE_READS,
    SOURCE_READ_SECONDS,
    SOURCE_RESTARTS,
    PROCESS_CPU,
    PROCESS_MEMORY,
    STATE_UP,
    STATE_FREE,
    STATE_USED,
    NODE_INFO,
    BUILD_INFO,
)


def markdown() -> str:
    """Return the text of METRICS.md."""
    rows = [f"| `{m.name}` | {m.kind} | {_labels(m)} | {m.help} |" for m in METRICS]
    return "\n".join(
        [
            "# Metrics",
            "",
            (
                "Generated from `workloads/wattline/contract/metrics.py` by `make metrics`; do not "
                "edit."
            ),
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _labels(metric: Metric) -> str:
    names = [*metric.labels, *(f"{name} (optional)" for name in metric.optional)]
    if metric.open_labels:
        names.append("label_…")
    return ", ".join(names) or "–"


if __name__ == "__main__":
    print(markdown(), end="")
