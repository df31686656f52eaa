"""Files that the runner and its jobs write beside a run: events.jsonl and metrics.yml.

`events.jsonl` has one JSON event per line, in the order of writing; each has `t`, the Unix time in
seconds. Runner and job append whole lines to the same file. Work is by unit; a latency is in
seconds. `metrics.yml` has the exporter's run (`wattline.contract.run`), the exit code and
`total_energy_joules` by component.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias, cast, get_args

from wattline.contract.api import Outcome

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


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: expected a number")  # noqa: TRY004  # invalid content
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{name}: the number is too large") from error


def _duration_s(name: str, value: object) -> float:
    seconds = _number(name, value)
    if seconds < 0 or math.isnan(seconds):
        raise ValueError(f"{name}: expected a number of at least 0")
    return seconds


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: expected a whole number")  # noqa: TRY004  # invalid content
    return value


def _index(name: str, value: object) -> int:
    index = _whole(name, value)
    if index < 0:
        raise ValueError(f"{name}: expected a number of at least 0")
    return index


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected text")  # noqa: TRY004  # invalid content
    return value


def _texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: expected a list")  # noqa: TRY004  # invalid content
    return [_text(f"{name}.{index}", one) for index, one in enumerate(value)]


def _object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object")  # noqa: TRY004  # invalid content
    return value


def _labels(name: str, value: object) -> dict[str, str]:
    return {key: _text(f"{name}.{key}", one) for key, one in _object(name, value).items()}


def _amounts(name: str, value: object) -> dict[str, float]:
    return {key: _number(f"{name}.{key}", one) for key, one in _object(name, value).items()}


def _outcome(name: str, value: object) -> Outcome:
    if value not in get_args(Outcome):
        raise ValueError(f"{name}: expected {', '.join(get_args(Outcome))}")
    return cast("Outcome", value)


def _optional(check: Callable[[str, object], Any]) -> Callable[[str, object], Any]:
    return lambda name, value: None if value is None else check(name, value)


_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "t": _number,
    "run_id": _text,
    "workload": _text,
    "labels": _labels,
    "gpus": _texts,
    "command": _texts,
    "config": _object,
    "name": _text,
    "contributor": _text,
    "index": _index,
    "phase": _optional(_text),
    "latency_seconds": _duration_s,
    "work": _amounts,
    "values": _amounts,
    "outcome": _outcome,
    "exit_code": _whole,
    "duration_seconds": _optional(_duration_s),
    "results": _amounts,
}
