"""The folder that `workloads` writes beside a run: events.jsonl, and metrics.yml with the exporter's own figures."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analyzer.importers.content import BadLine, Content, FileEnergy, FilePhase, FileRun, Reading, UnreadableError
from analyzer.importers.text import content_of, finite
from exporter.contract.record import (
    METRICS_FILE,
    RECORD_EVENT,
    EndEvent,
    IterationEvent,
    PhaseEvent,
    RecordEvent,
    StartEvent,
)

FORM = "wattline"


def is_it(first: dict[str, Any]) -> bool:
    return first.get("event") in ("start", "phase", "iteration", "end")


def read(path: Path, _reading: Reading) -> Content:
    """Of events.jsonl. Raises UnreadableError."""
    content = Content(path, FORM)
    events: list[RecordEvent] = []
    for line, text in enumerate(content_of(path).splitlines(), 1):
        try:
            events += [RECORD_EVENT.validate_json(text)] if text.strip() else []
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            content.bad.append(BadLine(line, f"{where or 'the event'}: {first['msg']}"))
    start = next((event for event in events if isinstance(event, StartEvent)), None)
    end = next((event for event in events if isinstance(event, EndEvent)), None)
    if start is None or end is None:
        content.bad.append(BadLine(0, "no start and end: the run did not begin, is on still, or its runner was killed"))
        return content
    content.runs.append(_run(start, end, events, _metrics(path.with_name(METRICS_FILE))))
    return content


def _metrics(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    import yaml

    try:
        found = yaml.safe_load(content_of(path))
    except yaml.YAMLError as error:
        raise UnreadableError(f"{path}: no YAML: {' '.join(str(error).split())[:200]}") from error
    return found if isinstance(found, dict) else {}


def _run(start: StartEvent, end: EndEvent, events: list[RecordEvent], metrics: dict[str, Any]) -> FileRun:
    started_s, ended_s = (finite(metrics).get(name) for name in ("started_at", "ended_at"))
    begin_s = start.t if started_s is None else started_s
    final_s = end.t if ended_s is None else ended_s
    return FileRun(
        name=start.run_id,
        workload=start.workload,
        start_s=begin_s,
        end_s=final_s,
        labels=start.labels,
        work=end.work,
        results=end.results,
        energies=_energies(metrics),
        phases=tuple(_phases(events, final_s)),
        gpus=tuple(start.gpus),
        outcome=end.outcome,
        duration_s=end.duration_seconds,
    )


def _energies(metrics: dict[str, Any]) -> tuple[FileEnergy, ...]:
    """The ledger's, with its intervals."""
    energies, halves = metrics.get("energy_joules") or {}, metrics.get("energy_uncertainty_joules") or {}
    return tuple(
        FileEnergy(component, device, energy_j, finite(halves.get(component) or {}).get(device))
        for component, devices in energies.items()
        for device, energy_j in finite(devices).items()
    )


def _phases(events: list[RecordEvent], end_s: float) -> list[FilePhase]:
    """Each from when it was named to the next; work by the phase that the iteration names."""
    named = [event for event in events if isinstance(event, PhaseEvent)]
    work: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in events:
        if isinstance(event, IterationEvent) and event.phase is not None:
            for unit, amount in event.work.items():
                work[event.phase][unit] += amount
    ends_s = [*(phase.t for phase in named[1:]), end_s][: len(named)]
    return [
        FilePhase(phase.name, phase.t, max(until_s, phase.t), work.pop(phase.name, {}))
        for phase, until_s in zip(named, ends_s, strict=True)
    ]
