"""A run, and the bodies of the run API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
LABEL_NAME_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
TEXT_PATTERN = r"^[^\x00-\x08\x0b-\x1f\x7f]*$"
"""No control characters but tab and newline: Prometheus refuses a whole scrape for a NUL, and a terminal obeys ESC."""
UNIT_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"
MAX_RUNNING = 64
MAX_LABELS = 16
MAX_RESULTS = 64
MAX_PHASES = 16
MAX_UNITS = 16
MAX_CONTRIBUTORS = 4096
MAX_PROCESSES = 4096
MAX_RECENT_PHASES = 50
"""So many changes of phase in RECENT_S: each is a mark on every device, taken anew until it is as good as it gets."""
RECENT_S = 5.0
DEFAULT_LEASE_S = 24 * 3_600.0

Outcome = Literal["ok", "failed", "interrupted"]
RunId = Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=TEXT_PATTERN)]
CgroupName = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=TEXT_PATTERN)]
LabelName = Annotated[str, StringConstraints(pattern=LABEL_NAME_PATTERN, max_length=64)]
LabelValue = Annotated[str, StringConstraints(max_length=128, pattern=TEXT_PATTERN)]
Unit = Annotated[str, StringConstraints(pattern=UNIT_PATTERN)]
Amount = Annotated[float, Field(ge=0, le=1e300, allow_inf_nan=False)]
Pid = Annotated[int, Field(ge=1)]


class Body(BaseModel):
    """A request's body: unknown fields are an error, and a number is a number, never a text that looks like one."""

    model_config = ConfigDict(extra="forbid", strict=True)


class BeginRequest(Body):
    """`gpus` by UUID or index.

    None is every GPU of the node; an empty list is those on which the run's processes are seen. `cgroup` (v2) is a path
    below the hierarchy, or `slurm:JOB[.STEP]`, `container:ID` or `pod:UID`.
    """

    workload: Text
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=MAX_LABELS)] = {}
    gpus: Annotated[list[Text], Field(max_length=1024)] | None = None
    pids: Annotated[list[Pid], Field(max_length=MAX_PROCESSES)] = []
    cgroup: CgroupName | None = None
    run_id: RunId | None = None
    lease_seconds: Annotated[float, Field(gt=0, le=366 * 86_400)] = DEFAULT_LEASE_S


class ProcessesRequest(Body):
    """`pid_namespace` is the inode of the client's `/proc/self/ns/pid`: of another one than the exporter's, a number is
    somebody else's process.
    """

    pids: Annotated[list[Pid], Field(max_length=MAX_PROCESSES)] = []
    pid_namespace: Annotated[int, Field(ge=0)] | None = None
    cgroup: CgroupName | None = None


class WorkRequest(BaseModel):
    """`contributor` and one field a unit: the totals of that contributor so far, never falling."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[Unit, Amount] = Field(init=False)
    contributor: Annotated[str, StringConstraints(max_length=128, pattern=TEXT_PATTERN)] = ""

    @property
    def amounts(self) -> dict[str, float]:
        return dict(self.__pydantic_extra__)


class PhaseRequest(Body):
    name: Text


class EndRequest(Body):
    """`work` is that of the contributor who ends the run (""), the totals so far as in `WorkRequest`."""

    outcome: Outcome = "ok"
    work: Annotated[dict[Unit, Amount], Field(max_length=MAX_UNITS)] = {}
    results: Annotated[dict[Unit, Annotated[float, Field(allow_inf_nan=False)]], Field(max_length=MAX_RESULTS)] = {}


class Phase(BaseModel):
    name: str
    started_at: float
    duration_seconds: float
    energy_joules: dict[str, float]
    """By component."""
    energy_uncertainty_joules: dict[str, float] = {}
    """Half of the interval that holds the truth with 95 %, by component, once the run has ended."""
    work: dict[str, float] = {}
    """What was reported while the phase was on."""


class RunGpu(BaseModel):
    gpu: str
    uuid: str
    name: str


class Gpus(BaseModel):
    """The GPUs that answer now, by index."""

    gpus: list[RunGpu]
    simulation: str | None = None
    """Path of the simulated GPUs' state file, where the GPUs are simulated (see `simulation.py`)."""


class Emissions(BaseModel):
    component: str
    basis: str
    quality: str
    grams: float


class Run(BaseModel):
    """A run as the exporter knows it. Times are Unix seconds, energies joules, each by component and device."""

    run_id: str
    workload: str
    labels: dict[str, str]
    gpus: list[RunGpu]
    state: Literal["running", "ended"]
    outcome: Outcome | None
    started_at: float
    ended_at: float | None
    duration_seconds: float
    phases: list[Phase]
    work: dict[str, float]
    results: dict[str, float]
    energy_joules: dict[str, dict[str, float]]
    energy_uncertainty_joules: dict[str, dict[str, float]]
    """Half of the interval that holds the truth with 95 %; the shape of `energy_joules`, once the run has ended."""
    integrated_energy_joules: dict[str, float]
    """The cross-check, by GPU's UUID."""
    emissions_grams: list[Emissions]
    covered_ratio: dict[str, dict[str, float]]
    notes: list[str]
    simulation: str | None = None
    """Path of the simulated GPUs' state file, where the GPUs are simulated (see `simulation.py`)."""


class Problem(BaseModel):
    """RFC 9457, sent as `application/problem+json`."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
