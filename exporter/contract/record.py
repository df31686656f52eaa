"""Files that the runner and its jobs write for a run: `events.jsonl` and `metrics.yml`.

`events.jsonl` has one JSON event per line, in the order of writing; each has `t`, the Unix time in seconds. Runner and
job append whole lines to the same file. Work is by unit; a latency is in seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, TypeAdapter

from exporter.contract.run import Outcome

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
    """Event of the job: a step, batch, kernel or request that ended at `t`; `values` has further measurements."""

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


RecordEvent = Annotated[StartEvent | PhaseEvent | IterationEvent | EndEvent, Field(discriminator="event")]
RECORD_EVENT: TypeAdapter[RecordEvent] = TypeAdapter(RecordEvent)
"""`EVENT.validate_json(line)`; raises pydantic's ValidationError."""
