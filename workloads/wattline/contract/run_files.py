"""Files that the runner and its jobs write beside a run: events.jsonl and metrics.yml.

`events.jsonl` has one JSON event per line, in the order of writing; each has `t`, the Unix time in
seconds. Runner and job append whole lines to the same file. Work is by unit; a latency is in
seconds. `metrics.yml` has the exporter's run (`wattline.contract.run`), the exit code and
`total_energy_joules` by component.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

from wattline.contract.api import Outcome
from wattline.contract.json_values import (
    as_amounts,
    as_duration_s,
    as_index,
    as_labels,
    as_number,
    as_object,
    as_outcome,
    as_text,
    as_texts,
    as_whole,
    optional,
)

EVENTS_FILE = "events.jsonl"
METRICS_FILE = "metrics.yml"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEvent:
    """Event of the runner, with all inputs that are needed to repeat the run."""

    event: ClassVar[str] = "start"
    t: float
    run_id: str
    workload: str
    labels: dict[str, str]
    gpus: list[str]
    command: list[str]
    config: dict[str, Any]
    """Options of a built-in job with their defaults; empty for other commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEvent:
    """Event of the job: the phase starts at `t`."""

    event: ClassVar[str] = "phase"
    t: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationEvent:
    """Event of the job: a step, batch, kernel or request that ended at `t`; `values` has further
    measurements.
    """

    event: ClassVar[str] = "iteration"
    t: float
    contributor: str
    index: int
    """Number of the iteration, from 0 for each contributor."""
    phase: str | None = None
    latency_seconds: float
    work: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """Event of the runner, with the work of the whole run and the results that the job measured."""

    event: ClassVar[str] = "end"
    t: float
    outcome: Outcome
    exit_code: int
    duration_seconds: float | None = None
    """Duration by the exporter; None where it could not be reached."""
    work: dict[str, float] = field(default_factory=dict)
    results: dict[str, float] = field(default_factory=dict)


RecordEvent: TypeAlias = StartEvent | PhaseEvent | IterationEvent | EndEvent
_EVENTS: Mapping[str, type[RecordEvent]] = {
    kind.event: kind for kind in (StartEvent, PhaseEvent, IterationEvent, EndEvent)
}


def parse_event(line: str | bytes) -> RecordEvent:
    """Return the event of a line of events.jsonl. Raises ValueError, which names the field."""
    try:
        document = json.loads(line)
    except RecursionError as error:
        raise ValueError("the event: too deeply nested") from error
    if not isinstance(document, dict):
        raise ValueError("the event: expected a JSON object")  # noqa: TRY004  # invalid content
    named = document.pop("event", None)
    kind = _EVENTS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ValueError(f"event: expected {', '.join(_EVENTS)}")
    values: dict[str, Any] = {}
    for one in fields(kind):
        if one.name in document:
            values[one.name] = _CHECKS[one.name](one.name, document.pop(one.name))
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{one.name}: field required")
    if document:
        raise ValueError(f"{next(iter(document))}: unknown field of the event {kind.event}")
    return kind(**values)


_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "t": as_number,
    "run_id": as_text,
    "workload": as_text,
    "labels": as_labels,
    "gpus": as_texts,
    "command": as_texts,
    "config": as_object,
    "name": as_text,
    "contributor": as_text,
    "index": as_index,
    "phase": optional(as_text),
    "latency_seconds": as_duration_s,
    "work": as_amounts,
    "values": as_amounts,
    "outcome": as_outcome,
    "exit_code": as_whole,
    "duration_seconds": optional(as_duration_s),
    "results": as_amounts,
}
