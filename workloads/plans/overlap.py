"""Time in which all tenants of a step ran, and the work of each."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from exporter.contract.run import EVENTS_FILE, RECORD_EVENT, EndEvent, IterationEvent, RecordEvent, StartEvent

_LONGEST_END_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Overlap:
    """Interval in Unix seconds from the last tenant's start (or the barrier's release) to the first tenant's end."""

    begin: float
    end: float


def read_events(folder: Path) -> list[RecordEvent]:
    """Return the valid events of the run's `events.jsonl`."""
    try:
        lines = (folder / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found: list[RecordEvent] = []
    for line in lines:
        try:
            found.append(RECORD_EVENT.validate_json(line))
        except ValidationError:  # a truncated line
            continue
    return found


def read_end_event(folder: Path) -> EndEvent | None:
    """Return the run's end event, which comes last; None if it is missing."""
    try:
        with (folder / EVENTS_FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_END_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValidationError):  # a partly read line
            event = RECORD_EVENT.validate_json(line)
            if isinstance(event, EndEvent):
                return event
    return None


def find_overlap(tenants: Sequence[Sequence[RecordEvent]], released_at: float | None) -> Overlap | None:
    """Return the overlap, None if the tenants never ran together."""
    begins = [event.t for events in tenants for event in events if isinstance(event, StartEvent)]
    ends = [_end(events) for events in tenants]
    if len(begins) < len(tenants) or any(end is None for end in ends):
        return None
    begin = max(*begins, released_at or 0.0)
    end = min(end for end in ends if end is not None)
    return Overlap(begin, end) if end > begin else None


def overlap_share(overlap: Overlap, tenant: Sequence[RecordEvent]) -> dict[str, Any]:
    """Return a tenant's journal fields; iterations count if they end within the overlap."""
    within = [event for event in tenant if isinstance(event, IterationEvent) and overlap.begin < event.t <= overlap.end]
    seconds = overlap.end - overlap.begin
    found: dict[str, Any] = {"begin": overlap.begin, "end": overlap.end, "seconds": seconds, "iterations": len(within)}
    if within:
        found["latency_seconds_mean"] = statistics.fmean(event.latency_seconds for event in within)
        found["work"] = _work(within)
    return found


def _work(within: Sequence[IterationEvent]) -> Mapping[str, float]:
    units = {unit for event in within for unit in event.work}
    return {unit: sum(event.work.get(unit, 0.0) for event in within) for unit in sorted(units)}


def _end(events: Sequence[RecordEvent]) -> float | None:
    """Return the end of the last iteration, since a job's clean-up may be slow; else the run's end."""
    iterations = [event.t for event in events if isinstance(event, IterationEvent)]
    ends = [event.t for event in events if isinstance(event, EndEvent)]
    return max(iterations, default=None) or max(ends, default=None)
