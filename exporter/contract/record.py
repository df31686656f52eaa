"""What the runner and its jobs write beside a run: the lines of `events.jsonl`, and `metrics.yml`.

`events.jsonl` is JSON, one event a line, in the order in which they were written; every line has `t`, the Unix time in
seconds. Runner and job append to the same file, whole lines at a time. Work is by unit; a latency is in seconds.
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


class Start(_Event):
    """By the runner: all that is needed to do the same again."""

    event: Literal["start"] = "start"
    run_id: str
    workload: str
    labels: dict[str, str]
    gpus: list[str]
    command: list[str]
    config: dict[str, Any]
    """The job's options with their defaults; empty for a command that is not ours."""


class Phase(_Event):
    """By the job: from `t` on it is in this phase."""

    event: Literal["phase"] = "phase"
    name: str


class Iteration(_Event):
    """By the job: one step, batch, kernel or request, which ended at `t`; what more it measured is in `values`."""

    event: Literal["iteration"] = "iteration"
    contributor: str
    index: NonNegativeInt
    """From 0 on, for each contributor."""
    phase: str | None = None
    latency_seconds: NonNegativeFloat
    work: dict[str, float] = Field(default_factory=dict)
    values: dict[str, float] = Field(default_factory=dict)


class End(_Event):
    """By the runner; `work` are totals of the whole run, `results` what the job measured."""

    event: Literal["end"] = "end"
    outcome: Outcome
    exit_code: int
    duration_seconds: float | None = None
    """None where the exporter could not be told of the end."""
    work: dict[str, float] = Field(default_factory=dict)
    results: dict[str, float] = Field(default_factory=dict)


Event = Annotated[Start | Phase | Iteration | End, Field(discriminator="event")]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""`EVENT.validate_json(line)`; raises pydantic's ValidationError."""
