"""Readers of events.jsonl: run folders of `workloads`, and multi-tenant inference under MPS.

`workloads` also writes metrics.yml. The path of a tenant's events is
data/EXPERIMENT/TENANT/events.jsonl; they hold no power, so a power log of the node gives the
energy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattline.contract.api import ESTIMATED_PACKAGE
from wattline.contract.run import Run
from wattline.contract.run_files import (
    METRICS_FILE,
    EndEvent,
    IterationEvent,
    PhaseEvent,
    RecordEvent,
    StartEvent,
    parse_event,
)
from wattline_analyzer.core.devices import ESTIMATE
from wattline_analyzer.core.run_report import GPUS_WITHOUT_ENERGY
from wattline_analyzer.importers.content import (
    FileContent,
    FileEnergy,
    FilePhase,
    FileRun,
    ReadOptions,
    UnreadableError,
)
from wattline_analyzer.importers.file_format import FileFormat, FileHead
from wattline_analyzer.importers.text import (
    finite_numbers,
    parse_json_object,
    read_yaml_object,
    take_lines,
)

RUN_RECORD_FORMAT = "wattline"
TENANT_EVENTS_FORMAT = "tenant-events"
_WorkByPhase = defaultdict[str, defaultdict[str, float]]
_KEPT = ("batch_size", "seq_len", "device", "num_warmup")


def is_run_record(head: FileHead) -> bool:
    return head.event.get("event") in ("start", "phase", "iteration", "end")


def read_run_record(path: Path, options: ReadOptions) -> FileContent:
    """Read events.jsonl, and metrics.yml with the exporter's figures if it exists. Raises
    UnreadableError.
    """
    content = FileContent(path, RUN_RECORD_FORMAT, options)
    starts: list[StartEvent] = []
    ends: list[EndEvent] = []
    phases: list[PhaseEvent] = []
    work: _WorkByPhase = defaultdict(lambda: defaultdict(float))

    def take(text: str) -> None:
        match _parse_event(text):
            case StartEvent() as event:
                starts.append(event)
            case EndEvent() as event:
                ends.append(event)
            case PhaseEvent() as event:
                phases.append(event)
            case IterationEvent(phase=str(phase)) as event:
                for unit, amount in event.work.items():
                    work[phase][unit] += amount

    take_lines(content, take)
    if not starts or not ends:
        if not content.bad.count:
            content.bad.add(
                0,
                "no start and end: the run did not begin, is still running, or its runner was "
                "killed",
            )
        return content
    metrics_path = path.with_name(METRICS_FILE)
    metrics = read_yaml_object(metrics_path)
    try:
        run = _run(starts[0], ends[0], metrics, phases, work)
    except ValueError as error:
        raise UnreadableError(
            f"cannot read {metrics_path}: {error}; write it again with workloads run --out"
        ) from error
    content.runs.append(run)
    content.gpu_info |= _gpu_info(run)
    return content


def _gpu_info(run: FileRun) -> dict[str, dict[str, str]]:
    """Return name and architecture by index."""
    gpus = run.record.gpus if run.record else ()
    return {gpu.gpu: {"name": gpu.name, "architecture": gpu.architecture} for gpu in gpus}


def _parse_event(text: str) -> RecordEvent:
    """Return the event of a line. Raises ValueError."""
    event = parse_event(text)
    if isinstance(event, IterationEvent | EndEvent) and any(
        amount < 0 for amount in event.work.values()
    ):
        raise ValueError("work: an amount is negative")
    return event


def _run(
    start: StartEvent,
    end: EndEvent,
    metrics: dict[str, Any],
    phases: list[PhaseEvent],
    work: _WorkByPhase,
) -> FileRun:
    begin_s, end_s = (
        finite_numbers(metrics).get(name, event.t)
        for name, event in (("started_at", start), ("ended_at", end))
    )
    record = _record(metrics)
    indices = {gpu.uuid: gpu.gpu for gpu in record.gpus} if record else {}
    energies = _energies(metrics, indices, record.notes if record else ())
    measured = {energy.device for energy in energies if energy.component == "gpu"}
    return FileRun(
        name=start.run_id,
        workload=start.workload,
        start_s=begin_s,
        end_s=end_s,
        labels=record.labels if record else start.labels,
        work=end.work,
        results=end.results,
        energies=energies,
        phases=tuple(_phases(phases, work, end_s)),
        gpus=tuple(start.gpus),
        outcome=end.outcome,
        duration_s=end.duration_seconds,
        caveats=(GPUS_WITHOUT_ENERGY,) if measured and set(start.gpus) - measured else (),
        record=record,
    )


def _record(metrics: Mapping[str, Any]) -> Run | None:
    """Return the exporter's run, None if the file has only a part of it. Raises RunFormatError."""
    if "run_id" not in metrics:
        return None
    return Run.parse({"state": "ended", **metrics})


def _energies(
    metrics: dict[str, Any], indices: Mapping[str, str], notes: Sequence[str]
) -> tuple[FileEnergy, ...]:
    """Return the ledger's energies with their uncertainties; `indices` belong to GPUs. Raises
    ValueError.

    The notes name the CPU packages whose energy was estimated.
    """

    def method(component: str, device: str) -> str:
        return (
            ESTIMATE
            if component == "cpu" and ESTIMATED_PACKAGE.format(device) in notes
            else "counter"
        )

    energies, halves = (
        _joules(metrics, name) for name in ("energy_joules", "energy_uncertainty_joules")
    )
    return tuple(
        FileEnergy(
            *(
                component,
                device,
                energy_j,
                halves.get(component, {}).get(device),
                indices.get(device, ""),
            ),
            method(component, device),
        )
        for component, devices in energies.items()
        for device, energy_j in devices.items()
    )


def _joules(metrics: dict[str, Any], name: str) -> dict[str, dict[str, float]]:
    """Return joules by component and device. Raises ValueError."""
    found = metrics.get(name) or {}
    if not isinstance(found, dict) or not all(
        isinstance(devices, dict) for devices in found.values()
    ):
        raise ValueError(f"{name}: expected joules by component and device")
    joules = {str(component): finite_numbers(devices) for component, devices in found.items()}
    if any(value < 0 for devices in joules.values() for value in devices.values()):
        raise ValueError(f"{name}: a value is negative")
    return joules


def _phases(named: list[PhaseEvent], work: _WorkByPhase, end_s: float) -> list[FilePhase]:
    """Return the phases, each until the next one starts, the first of a name with all work of that
    name.
    """
    ends_s = [*(phase.t for phase in named[1:]), end_s][: len(named)]
    return [
        FilePhase(phase.name, phase.t, max(until_s, phase.t), work.pop(phase.name, {}))
        for phase, until_s in zip(named, ends_s, strict=True)
    ]


def is_tenant_events(head: FileHead) -> bool:
    return head.event.get("type") in ("run_start", "iteration")


def read_tenant_events(path: Path, options: ReadOptions) -> FileContent:
    content = FileContent(path, TENANT_EVENTS_FORMAT, options)
    found: dict[str, dict[str, Any]] = {}
    iterations = 0

    def take(text: str) -> None:
        nonlocal iterations
        record = parse_json_object(text)
        kind = str(record.get("type"))
        if kind == "iteration":
            iterations += 1
            return
        if kind not in ("run_start", "run_end", "time_elapsed"):
            raise ValueError(f"unknown event type {kind[:40]!r}")
        if kind in found:
            raise ValueError(f"second {kind}: runs were appended to each other")
        found[kind] = record

    take_lines(content, take)
    start = found.get("run_start", {})
    end = found.get("run_end", {})
    if not isinstance(start.get("timestamp"), int | float) or not isinstance(
        end.get("timestamp"), int | float
    ):
        content.bad.add(
            0, "no run_start and run_end with a timestamp: the time of the run is unknown"
        )
        return content
    content.runs.append(_tenant_run(path, start, end, iterations))
    return content


def _tenant_run(path: Path, start: dict[str, Any], end: dict[str, Any], iterations: int) -> FileRun:
    experiment = path.parent.parent.name
    tenant = path.parent.name
    numbers = finite_numbers(end)
    results = {
        f"latency_seconds_{kind}": numbers[f"{name}_ms"] / 1_000
        for kind, name in (
            ("mean", "avg"),
            ("p50", "p50"),
            ("p90", "p90"),
            ("p95", "p95"),
            ("p99", "p99"),
        )
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


FORMATS = (
    FileFormat(RUN_RECORD_FORMAT, is_run_record, read_run_record, companions=(METRICS_FILE,)),
    FileFormat(TENANT_EVENTS_FORMAT, is_tenant_events, read_tenant_events),
)
