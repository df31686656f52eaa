"""Reader of events.jsonl of multi-tenant inference under MPS: work and latencies.

The path is data/EXPERIMENT/TENANT/events.jsonl. The file holds no power; a power log of the node gives the energy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analyzer.importers.content import BadLine, FileContent, FileRun, ReadOptions
from analyzer.importers.text import finite_numbers, read_json_lines

FORM = "tenant-events"
_KEPT = ("batch_size", "seq_len", "device", "num_warmup")


def is_tenant_events(first: dict[str, Any]) -> bool:
    return first.get("type") in ("run_start", "iteration")


def read_tenant_events(path: Path, _options: ReadOptions) -> FileContent:
    content = FileContent(path, FORM)
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
    content.runs.append(_run(path, start, end, iterations))
    return content


def _run(path: Path, start: dict[str, Any], end: dict[str, Any], iterations: int) -> FileRun:
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
    )
