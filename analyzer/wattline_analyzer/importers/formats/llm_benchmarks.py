"""Readers of the results of LLM benchmarks: AIPerf, ML.ENERGY and `vllm bench serve`.

Each metric of AIPerf carries its unit, which decides the meaning of its numbers; its times are
local times without a time zone. The run of ML.ENERGY is the steady state, whose times are in
prometheus.json. Zeus measured its energy with the GPUs' counters. Only the tokens of the steady
state count.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from wattline.figures import JOULES_PER_KWH, JOULES_PER_WH
from wattline_analyzer.core.run_report import GPUS_WITHOUT_ENERGY, WHOLE_SECONDS
from wattline_analyzer.core.times import parse_compact_date, parse_moment
from wattline_analyzer.importers.content import (
    ALL_GPUS,
    FileContent,
    FileEnergy,
    FileRun,
    ReadOptions,
    UnreadableError,
)
from wattline_analyzer.importers.file_format import FileFormat, FileHead
from wattline_analyzer.importers.text import (
    finite_numbers,
    parse_json_objects,
    read_json_object,
    read_text,
)

AIPERF_FORMAT = "aiperf"
AIPERF_FILE = "profile_export_aiperf.json"
_SECONDS = {
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "milliseconds": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
}
_JOULES = {"mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": JOULES_PER_WH, "kWh": JOULES_PER_KWH}
_LATENCIES = {
    "time_to_first_token": "ttft_seconds",
    "inter_token_latency": "itl_seconds",
    "request_latency": "latency_seconds",
}
_STATISTICS = {"avg": "mean", "p50": "p50", "p90": "p90", "p99": "p99"}
ML_ENERGY_FORMAT = "ml-energy"
TIMES_FILE = "prometheus.json"
_STEADY_STATE = {"steady_state_energy", "steady_state_duration"}
VLLM_BENCH_FORMAT = "vllm-bench"
_VLLM_FIELDS = {"date", "duration", "completed", "total_input_tokens", "total_output_tokens"}
_VLLM_WORK = {
    "requests": "completed",
    "prompt_tokens": "total_input_tokens",
    "generated_tokens": "total_output_tokens",
}
_VLLM_LATENCIES = {"ttft": "ttft_seconds", "itl": "itl_seconds", "e2el": "latency_seconds"}
_VLLM_STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
_VLLM_LABELS = {
    "model_id": "model",
    **{name: name for name in ("backend", "request_rate", "max_concurrency")},
}
_LABELS = {
    "model_id": "model",
    "gpu_model": "gpu_model",
    "num_gpus": "num_gpus",
    "max_num_seqs": "max_num_seqs",
}


def is_aiperf(head: FileHead) -> bool:
    return "request_latency" in head.document and "start_time" in head.document


def read_aiperf(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    document = read_json_object(path)
    try:
        start_s, end_s = (
            parse_moment(str(document[name]), options.zone) for name in ("start_time", "end_time")
        )
    except (KeyError, ValueError) as error:
        raise UnreadableError(
            f"cannot import {path}: start_time and end_time cannot be read ({error}); check that "
            f"it is {AIPERF_FILE}"
        ) from error
    content = FileContent(path, AIPERF_FORMAT, options)
    energies = _energies(document, content)
    run = FileRun(
        name=str(document.get("benchmark_id") or "aiperf")[:40],
        workload="aiperf",
        start_s=start_s,
        end_s=end_s,
        labels={"aiperf_version": str(document.get("aiperf_version", ""))}
        if "aiperf_version" in document
        else {},
        work=_work(document),
        results=_results(document, content),
        energies=energies,
        outcome="interrupted" if document.get("was_cancelled") else "ok",
    )
    content.runs.append(run)
    return content


def _work(document: dict[str, Any]) -> dict[str, float]:
    """Return totals: the `avg` of a count is the count, lengths per request have a `sum`.

    The tokens are those of the server's `usage` if all requests have it, else counted by AIPerf's
    tokenizer.
    """
    requests = _value(document, "request_count", "avg")
    found = {
        "requests": requests,
        "generated_tokens": _usage(document, "usage_completion_tokens", requests)
        or _value(document, "total_output_tokens", "avg")
        or _value(document, "output_token_count", "sum")
        or _value(document, "output_sequence_length", "sum"),
        "prompt_tokens": _usage(document, "usage_prompt_tokens", requests)
        or _value(document, "input_sequence_length", "sum"),
    }
    return {unit: amount for unit, amount in found.items() if amount is not None}


def _usage(document: dict[str, Any], metric: str, requests: float | None) -> float | None:
    return (
        _value(document, metric, "sum") if _value(document, metric, "count") == requests else None
    )


def _value(document: dict[str, Any], metric: str, statistic: str) -> float | None:
    block = document.get(metric)
    return finite_numbers(block).get(statistic) if isinstance(block, dict) else None


def _results(document: dict[str, Any], content: FileContent) -> dict[str, float]:
    found: dict[str, float] = {}
    for metric, name in _LATENCIES.items():
        block = document.get(metric)
        if not isinstance(block, dict) or not block:
            continue
        factor = _SECONDS.get(str(block.get("unit")))
        if factor is None:
            content.notes.append(
                f"{content.path}: left out {metric}: unknown unit {str(block.get('unit'))[:20]!r}"
            )
            continue
        for statistic, suffix in _STATISTICS.items():
            value = _value(document, metric, statistic)
            if value is not None:
                found[f"{name}_{suffix}"] = value * factor
    return found


def _energies(document: dict[str, Any], content: FileContent) -> tuple[FileEnergy, ...]:
    """Return the energy of each GPU if the telemetry has its counter's increase, else their sum.

    A GPU that two endpoints export is counted once. Of two GPUs with one index, each is named by
    its endpoint.
    """
    gpus = _telemetry(document)
    names = Counter(
        name
        for _, name in {(gpu.get("gpu_uuid") or endpoint, name) for endpoint, name, gpu in gpus}
    )
    found: dict[str, FileEnergy] = {}
    missing: list[str] = []
    for endpoint, name, gpu in gpus:
        index = f"{endpoint}/{name}" if names[name] > 1 else name
        energy_j = _counter_increase_j(gpu)
        device = str(gpu.get("gpu_uuid") or index)
        if device in found:
            content.notes.append(
                f"{content.path}: GPU {device} is in two endpoints; its energy is counted once"
            )
        elif energy_j is None:
            missing.append(device)
        else:
            found[device] = FileEnergy("gpu", device, energy_j, index=index)
    missing = [device for device in missing if device not in found]
    whole = document.get("nvidia_total_gpu_energy") or document.get("total_gpu_energy") or {}
    whole_j = _joules(whole) if isinstance(whole, dict) else None
    if whole_j is not None and (missing or not found):
        return (FileEnergy("gpu", ALL_GPUS, whole_j),)
    if not found:
        content.notes.append(
            f"{content.path} has no GPU energy (--gpu-telemetry): also import a power log of that "
            "time"
        )
    elif missing:
        content.notes.append(
            f"{content.path} has no energy of GPU {', '.join(missing)}: that of the run is higher"
        )
        content.caveats.append(GPUS_WITHOUT_ENERGY)
    return tuple(found.values())


def _telemetry(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return endpoint, index or else name, and content of each GPU."""
    telemetry = document.get("telemetry_data") or {}
    endpoints = telemetry.get("endpoints") or {} if isinstance(telemetry, dict) else {}
    return [
        (endpoint, str(gpu.get("gpu_index", key)), gpu)
        for endpoint, content in endpoints.items()
        for key, gpu in (content.get("gpus") or {}).items()
    ]


def _counter_increase_j(gpu: dict[str, Any]) -> float | None:
    metrics = gpu.get("metrics") or {}
    block = metrics.get("nvidia_energy_consumption") or metrics.get("energy_consumption") or {}
    return (
        None if {"min", "max"} & set(block) else _joules(block)
    )  # with min or max it is the counter's value


def _joules(block: dict[str, Any]) -> float | None:
    factor = _JOULES.get(str(block.get("unit")))
    value = finite_numbers(block).get("avg")
    return value * factor if factor is not None and value is not None else None


def is_ml_energy(head: FileHead) -> bool:
    return head.document.keys() >= _STEADY_STATE


def read_ml_energy(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    document = read_json_object(path)
    times_path = path.with_name(TIMES_FILE)
    numbers = finite_numbers(document)
    if not numbers.keys() >= _STEADY_STATE:
        raise UnreadableError(
            f"cannot import {path}: no steady_state_energy and steady_state_duration; "
            "check that it is results.json of an LLM"
        )
    times = finite_numbers(read_json_object(times_path)) if times_path.exists() else {}
    if not {"steady_state_start_time", "steady_state_end_time"} <= set(times):
        raise UnreadableError(
            f"cannot import {path}: its time is unknown; put {TIMES_FILE} with "
            "steady_state_start_time in its folder"
        )
    energy_j = numbers["steady_state_energy"]
    per_token_j = numbers.get("steady_state_energy_per_token", 0.0)
    content = FileContent(path, ML_ENERGY_FORMAT, options)
    content.runs.append(
        FileRun(
            name=f"ml-energy-{document.get('model_id', 'llm')}",
            workload="ml-energy",
            start_s=times["steady_state_start_time"],
            end_s=times["steady_state_end_time"],
            labels={
                label: str(document[name]) for name, label in _LABELS.items() if name in document
            },
            work={"generated_tokens": energy_j / per_token_j} if per_token_j > 0 else {},
            results={"tokens_per_second": numbers["output_throughput"]}
            if "output_throughput" in numbers
            else {},
            energies=(FileEnergy("gpu", ALL_GPUS, energy_j),),
            duration_s=numbers["steady_state_duration"],
        )
    )
    return content


def is_vllm_bench(head: FileHead) -> bool:
    return head.document.keys() >= _VLLM_FIELDS


def read_vllm_bench(path: Path, options: ReadOptions) -> FileContent:
    """Read a file of --save-result or --append-result, a run for each object. Raises
    UnreadableError.
    """
    content = FileContent(path, VLLM_BENCH_FORMAT, options)
    try:
        content.runs += [
            _vllm_run(document, content) for document in parse_json_objects(read_text(path))
        ]
    except (KeyError, ValueError) as error:
        cause = f"no {error}" if isinstance(error, KeyError) else error
        raise UnreadableError(
            f"cannot import {path}: {cause}; give the file of vllm bench serve --save-result"
        ) from error
    content.notes.append(f"{path} has no GPU energy: also import a power log of that time")
    return content


def _vllm_run(document: dict[str, Any], content: FileContent) -> FileRun:
    """Return the run; its file is written right after its end. Raises KeyError and ValueError."""
    numbers = finite_numbers(document)
    end_s = parse_compact_date(str(document["date"]), content.options.zone)
    duration_s = numbers["duration"]
    if failed := numbers.get("failed"):
        content.notes.append(
            f"{content.path}: failed requests of {document['date']}: {failed:.0f}; they are not in "
            "the work of the run"
        )
    return FileRun(
        name=f"vllm-bench-{document['date']}",
        workload="vllm-bench",
        start_s=end_s - duration_s,
        end_s=end_s,
        labels={
            label: str(document[name])
            for name, label in _VLLM_LABELS.items()
            if document.get(name) is not None
        },
        work={unit: numbers[name] for unit, name in _VLLM_WORK.items()},
        results={
            f"{result}_{suffix}": numbers[f"{statistic}_{metric}_ms"] / 1_000
            for metric, result in _VLLM_LATENCIES.items()
            for statistic, suffix in _VLLM_STATISTICS.items()
            if f"{statistic}_{metric}_ms" in numbers
        },
        duration_s=duration_s,
        caveats=(WHOLE_SECONDS,),
    )


FORMATS = (
    FileFormat(AIPERF_FORMAT, is_aiperf, read_aiperf),
    FileFormat(ML_ENERGY_FORMAT, is_ml_energy, read_ml_energy, companions=(TIMES_FILE,)),
    FileFormat(VLLM_BENCH_FORMAT, is_vllm_bench, read_vllm_bench),
)
