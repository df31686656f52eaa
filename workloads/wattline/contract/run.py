"""Runs: bodies of the run API, and files that the runner and its jobs write.

`events.jsonl` has one JSON event per line, in the order of writing; each has `t`, the Unix time in
seconds. Runner and job append whole lines to the same file. Work is by unit; a latency is in
seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    StringConstraints,
    TypeAdapter,
)

RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
LABEL_NAME_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
TEXT_PATTERN = r"^[^\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]*$"
"""Text without control characters other than tab and newline: Prometheus rejects a scrape with a
NUL, terminals interpret ESC, and bidirectional ones change the order of the characters that a
terminal shows.
"""
UNIT_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"
_PATTERN_TEXTS = {
    RUN_ID_PATTERN: "expected 1 to 64 letters, digits, '.', '_' or '-', the first one a letter or "
    "digit",
    LABEL_NAME_PATTERN: "expected letters, digits and '_', the first one no digit",
    TEXT_PATTERN: "expected text without control characters (bidirectional ones included)",
    UNIT_PATTERN: "expected 1 to 64 letters, digits and '_', the first one no digit",
}
MAX_LABELS = 16
MAX_RESULTS = 64
MAX_UNITS = 16
MAX_CONTRIBUTORS = 4096
MAX_PROCESSES = 4096
MAX_RUNS_LISTED = 1_000
MAX_RECENT_PHASES = 50
"""Phase changes allowed within RECENT_S: each one marks the energy of every device several times.
"""
RECENT_S = 5.0
DEFAULT_LEASE_S = 24 * 3_600.0

_MISMATCH = "string_pattern_mismatch"

Outcome = Literal["ok", "failed", "interrupted", "unknown"]
"""Outcome of a run. `unknown`: nothing reported how a discovered run ended."""
RunId = Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=TEXT_PATTERN)]
CgroupName = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=TEXT_PATTERN)]
LabelName = Annotated[str, StringConstraints(pattern=LABEL_NAME_PATTERN, max_length=64)]
LabelValue = Annotated[str, StringConstraints(max_length=128, pattern=TEXT_PATTERN)]
Unit = Annotated[str, StringConstraints(pattern=UNIT_PATTERN)]
Amount = Annotated[float, Field(ge=0, le=1e300, allow_inf_nan=False)]
Pid = Annotated[int, Field(ge=1)]


def error_reason(error_type: str, message: str, context: dict[str, Any]) -> str:
    """Return the reason of a validation error, with words instead of a pattern."""
    return (
        _PATTERN_TEXTS.get(context.get("pattern", ""), message)
        if error_type == _MISMATCH
        else message
    )


def unknown_gpu(name: str, available: list[str]) -> str:
    """Return the message for a GPU that the exporter does not have."""
    if not available:
        return (
            f"no GPU {name!r}: the exporter has no GPU; see exporter check, or simulate GPUs: "
            "exporter serve --simulate 2xH200"
        )
    return f"no GPU {name!r} on this node; available: {', '.join(available)}"


class Body(BaseModel):
    """Request body. Unknown fields, and strings in place of numbers, are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


NO_GPU_FOUND = (
    "no process of the run was found on a GPU, so no GPU is counted; "
    'name the GPUs with --gpus 0, in Python with wattline.run(gpus="0")'
)
ESTIMATED_PACKAGE = (
    "package {}: its energy is estimated from utilization (--cpu.power-model), not measured"
)
"""Note of a run whose GPUs are those that its processes use."""


class BeginRequest(Body):
    """Start of a run, with `gpus` by UUID or index.

    Without `gpus`, the run has all GPUs of the node; with an empty list, those on which its
    processes run. `cgroup` is a path within the hierarchy, or `slurm:JOB[.STEP]`, `container:ID` or
    `pod:UID`; `pid_namespace` is as in `ProcessesRequest`.
    """

    workload: Text
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=MAX_LABELS)] = {}
    gpus: Annotated[list[Text], Field(max_length=1024)] | None = None
    pids: Annotated[list[Pid], Field(max_length=MAX_PROCESSES)] = []
    pid_namespace: Annotated[int, Field(ge=0)] | None = None
    cgroup: CgroupName | None = None
    run_id: RunId | None = None
    lease_seconds: Annotated[float, Field(gt=0, le=366 * 86_400)] = DEFAULT_LEASE_S


class ProcessesRequest(Body):
    """Processes of a run. `pid_namespace` is the inode of the client's `/proc/self/ns/pid`.

    In another PID namespace than the exporter's, the same number denotes another process.
    """

    pids: Annotated[list[Pid], Field(max_length=MAX_PROCESSES)] = []
    pid_namespace: Annotated[int, Field(ge=0)] | None = None
    cgroup: CgroupName | None = None


class WorkRequest(BaseModel):
    """Work of a contributor: one field per unit, with its total so far, which never falls."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[Unit, Amount] = Field(init=False)
    contributor: Annotated[str, StringConstraints(max_length=128, pattern=TEXT_PATTERN)] = ""

    @property
    def amounts(self) -> dict[str, float]:
        return dict(self.__pydantic_extra__)


class PhaseRequest(Body):
    name: Text


class EndRequest(Body):
    """End of a run. `work` holds the totals of the contributor that ends it (""), as in
    `WorkRequest`.

    `ended_at` is the Unix time of the end, for a client that reports it late; without it the run
    ends now.
    """

    outcome: Outcome = "ok"
    ended_at: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    work: Annotated[dict[Unit, Amount], Field(max_length=MAX_UNITS)] = {}
    results: Annotated[
        dict[Unit, Annotated[float, Field(allow_inf_nan=False)]], Field(max_length=MAX_RESULTS)
    ] = {}


class PhaseView(BaseModel):
    name: str
    started_at: float
    duration_seconds: float
    energy_joules: dict[str, float]
    """Energy by component."""
    energy_uncertainty_joules: dict[str, float] = {}
    """Half-width of the 95 % confidence interval, by component, once the run has ended."""
    work: dict[str, float] = {}
    """Work reported during the phase."""
    last_started_at: float | None = None
    """Unix time at which the run last entered the phase."""


class RunGpu(BaseModel):
    gpu: str
    uuid: str
    name: str
    architecture: str = ""


class Gpus(BaseModel):
    """GPUs that respond now, by index."""

    gpus: list[RunGpu]
    simulation: str | None = None
    """Path of the state file of simulated GPUs (see `wattline_exporter.simulation`)."""


class Emissions(BaseModel):
    component: str
    basis: str
    quality: str
    grams: float


class EnergyPerUnit(BaseModel):
    """Energy per unit of work over `phases`, over the whole run if there are none; see
    `wattline.contract.work`.

    `joules` is the energy of all devices of `component`. On devices that others used as well,
    `joules` is the run's attributed share, and `whole_device_joules` the energy of the whole
    devices.
    """

    unit: str
    name: str
    """Words of the unit for an amount of one: `generated token`."""
    component: str
    joules: float
    phases: list[str] = []
    whole_device_joules: float | None = None


class RunView(BaseModel):
    """State of a run. Times are in Unix seconds, energies in joules by component and device."""

    run_id: str
    workload: str
    labels: dict[str, str]
    gpus: list[RunGpu]
    state: Literal["running", "ended"]
    outcome: Outcome | None
    started_at: float
    ended_at: float | None
    duration_seconds: float
    phases: list[PhaseView]
    work: dict[str, float]
    work_unit: str | None = None
    """Primary unit of work: the one that the job declared, else the first one that it reported."""
    work_reported_at: float | None = None
    """Unix time of the latest report of work; None without one, and for runs of older exporters."""
    results: dict[str, float]
    settled_until: float | None = None
    """Unix time up to which seconds and energies of `phases` of a running run count, about six
    seconds ago: later marks may still change. Energy, work and duration are up to now, and so are
    `emissions_grams` of the answer to GET of one run; in lists they are up to this time. None once
    the run has ended.
    """
    energy_joules: dict[str, dict[str, float]]
    energy_uncertainty_joules: dict[str, dict[str, float]]
    """Half-widths of the 95 % confidence intervals of `energy_joules`, once the run has ended."""
    energy_sensor_limits_joules: dict[str, dict[str, tuple[float, float]]] = {}
    """Least and most by which the true energy differs from `energy_joules` by the accuracy of the
    GPUs' sensors, which the interval does not include; none for simulated GPUs.
    """
    integrated_energy_joules: dict[str, float]
    """Integrated power as a cross-check, by GPU UUID."""
    emissions_grams: list[Emissions]
    covered_ratio: dict[str, dict[str, float]]
    notes: list[str]
    attributed_energy_joules: dict[str, dict[str, float]] = {}
    """The run's share of devices that others used as well, by policy idle_shared; see
    `wattline.contract.work`.
    """
    energy_before_use_joules: dict[str, dict[str, float]] = {}
    """Energy from the run's start to its first use of a GPU that nothing else used then; it is not
    attributed.
    """
    energy_per_unit: list[EnergyPerUnit] = []
    """Energy per unit of work, the primary unit first, once the run has ended."""
    simulation: str | None = None
    """Path of the state file of simulated GPUs (see `wattline_exporter.simulation`)."""


class Problem(BaseModel):
    """Error body by RFC 9457, sent as `application/problem+json`."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


EVENTS_FILE = "events.jsonl"
METRICS_FILE = "metrics.yml"


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    t: float


class StartEvent(_Event):
    """Event of the runner, with all inputs that are needed to repeat the run."""

    event: Literal["start"] = "start"
    run_id: str
    workload: str
    labels: dict[str, str]
    gpus: list[str]
    command: list[str]
    config: dict[str, Any]
    """Options of a built-in job with their defaults; empty for other commands."""


class PhaseEvent(_Event):
    """Event of the job: the phase starts at `t`."""

    event: Literal["phase"] = "phase"
    name: str


class IterationEvent(_Event):
    """Event of the job: a step, batch, kernel or request that ended at `t`; `values` has further
    measurements.
    """

    event: Literal["iteration"] = "iteration"
    contributor: str
    index: NonNegativeInt
    """Number of the iteration, from 0 for each contributor."""
    phase: str | None = None
    latency_seconds: NonNegativeFloat
    work: dict[str, float] = Field(default_factory=dict)
    values: dict[str, float] = Field(default_factory=dict)


class EndEvent(_Event):
    """Event of the runner, with the work of the whole run and the results that the job measured."""

    event: Literal["end"] = "end"
    outcome: Outcome
    exit_code: int
    duration_seconds: float | None = None
    """Duration by the exporter; None where it could not be reached."""
    work: dict[str, float] = Field(default_factory=dict)
    results: dict[str, float] = Field(default_factory=dict)


RecordEvent = Annotated[
    StartEvent | PhaseEvent | IterationEvent | EndEvent, Field(discriminator="event")
]
RECORD_EVENT: TypeAdapter[RecordEvent] = TypeAdapter(RecordEvent)
"""`RECORD_EVENT.validate_json(line)` parses a line; it raises pydantic's ValidationError."""
