"""Readers of events.jsonl: run folders of `workloads`, and multi-tenant inference under MPS.

`workloads` also writes metrics.yml. The path of a tenant's events is data/EXPERIMENT/TENANT/events.jsonl; they hold no
power, so a power log of the node gives the energy.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analyzer.importers.content import (
    BadLine,
    FileContent,
    FileEnergy,
    FilePhase,
    FileRun,
    ReadOptions,
    UnreadableError,
)
from analyzer.importers.text import finite_numbers, read_json_lines, read_text
from exporter.contract.run import (
    METRICS_FILE,
    RECORD_EVENT,
    EndEvent,
    IterationEvent,
    PhaseEvent,
    RecordEvent,
    StartEvent,
)

RUN_RECORD_FORMAT = "wattline"
TENANT_EVENTS_FORMAT = "tenant-events"
_KEPT = ("batch_size", "seq_len", "device", "num_warmup")


def is_run_record(first: dict[str, Any]) -> bool:
    return first.get("event") in ("start", "phase", "iteration", "end")


def read_run_record(path: Path, _options: ReadOptions) -> FileContent:
    """Read events.jsonl, and metrics.yml with the exporter's figures if it exists. Raises UnreadableError."""
    content = FileContent(path, RUN_RECORD_FORMAT)
    events: list[RecordEvent] = []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        try:
            events += [RECORD_EVENT.validate_json(text)] if text.strip() else []
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            content.bad.append(BadLine(line, f"{where or 'the event'}: {first['msg']}"))
    start = next((event for event in events if isinstance(event, StartEvent)), None)
    end = next((event for event in events if isinstance(event, EndEvent)), None)
    if start is None or end is None:
        content.bad.append(
            BadLine(0, "no start and end: the run did not begin, is still running, or its runner was killed")
        )
        return content
    if any(
        amount < 0 for event in events if isinstance(event, IterationEvent | EndEvent) for amount in event.work.values()
    ):
        content.bad.append(BadLine(0, "work: an amount is negative"))
        return content
    metrics_path = path.with_name(METRICS_FILE)
    try:
        content.runs.append(_run(start, end, events, _metrics(metrics_path)))
    except ValueError as error:
        raise UnreadableError(
            f"cannot read {metrics_path}: {error}; write it again with workloads run --out"
        ) from error
    return content


def _metrics(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    import yaml

    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise UnreadableError(f"cannot read {path}: not YAML: {' '.join(str(error).split())[:200]}") from error
    return document if isinstance(document, dict) else {}


def _run(start: StartEvent, end: EndEvent, events: list[RecordEvent], metrics: dict[str, Any]) -> FileRun:
    started_s, ended_s = (finite_numbers(metrics).get(name) for name in ("started_at", "ended_at"))
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
    """Return the ledger's energies with their uncertainties. Raises ValueError."""
    energies, halves = (_joules(metrics, name) for name in ("energy_joules", "energy_uncertainty_joules"))
    return tuple(
        FileEnergy(component, device, energy_j, halves.get(component, {}).get(device))
        for component, devices in energies.items()
        for device, energy_j in devices.items()
    )


def _joules(metrics: dict[str, Any], name: str) -> dict[str, dict[str, float]]:
    """Return joules by component and device. Raises ValueError."""
    found = metrics.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(devices, dict) for devices in found.values()):
        raise ValueError(f"{name}: expected joules by component and device")
    joules = {str(component): finite_numbers(devices) for component, devices in found.items()}
    if any(value < 0 for devices in joules.values() for value in devices.values()):
        raise ValueError(f"{name}: a value is negative")
    return joules


def _phases(events: list[RecordEvent], end_s: float) -> list[FilePhase]:
    """Return the phases, each until the next one starts; iterations name the phase of their work."""
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


def is_tenant_events(first: dict[str, Any]) -> bool:
    return first.get("type") in ("run_start", "iteration")


def read_tenant_events(path: Path, _options: ReadOptions) -> FileContent:
    content = FileContent(path, TENANT_EVENTS_FORMAT)
    found: dict[str, dict[str, Any]] = {}
    iterations = 0
    for line, record in read_json_lines(path, content.bad):
        match record.get("type"):
            case "iteration":
                iterations += 1
            case "run_start" | "run_end" | "time_elapsed" as kind:
                if kind in found:
                    content.bad.append(BadLine(line, f"second {kind}: runs were appended to each other"))
                found.setdefault(kind, record)
            case other:
                content.bad.append(BadLine(line, f"unknown event type {str(other)[:40]!r}"))
    start, end = found.get("run_start", {}), found.get("run_end", {})
    if not isinstance(start.get("timestamp"), int | float) or not isinstance(end.get("timestamp"), int | float):
        content.bad.append(BadLine(0, "no run_start and run_end with a timestamp: the time of the run is unknown"))
        return content
    content.runs.append(_tenant_run(path, start, end, iterations))
    return content


def _tenant_run(path: Path, start: dict[str, Any], end: dict[str, Any], iterations: int) -> FileRun:
    experiment, tenant = path.parent.parent.name, path.parent.name
    numbers = finite_numbers(end)
    results = {
        f"latency_seconds_{kind}": numbers[f"{name}_ms"] / 1_000
        for kind, name in (("mean", "avg"), ("p50", "p50"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99"))
        if f"{name}_ms" in numbers
    }
    work = {"steps": float(iterations)}
    if "tokens_processed" in numbers:
        work["prompt_tokens"] = numbers["tokens_processed"]
    labels = {name: str(start[name]) for name in _KEPT if name in start}
    return FileRun(
        name=f"{experiment}-{tenant}",
        workload=str(start.get("model_name", tenant)),
        start_s=float(start["timestamp"]),
        end_s=float(end["timestamp"]),
        labels={"experiment": experiment, "tenant": tenant, **labels},
        work=work,
        results=results,
        phases=(FilePhase("measure", float(start["timestamp"]), float(end["timestamp"]), work),),
    )
