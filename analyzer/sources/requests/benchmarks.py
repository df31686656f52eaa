"""Requests in the result files of benchmarks: AIPerf's profile_export.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analyzer.sources.base import FetchError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_VLLM_FIELDS = {"ttfts", "input_lens", "output_lens"}


def is_aiperf_record(fields: Any) -> bool:
    return isinstance(fields, Mapping) and "metrics" in fields and "request_start_ns" in (fields.get("metadata") or {})


def aiperf_request(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a request; None for one that failed, was cancelled, or belongs to the warm-up."""
    metadata, metrics = record["metadata"], record["metrics"] or {}
    phase = metadata.get("benchmark_phase", "profiling")
    if record.get("error") or metadata.get("was_cancelled") or phase != "profiling":
        return None
    started_s = metadata["request_start_ns"] * 1e-9
    first_s = _metric(metrics, "time_to_first_token", _SECONDS)
    return {
        "id": metadata.get("x_request_id"),
        "started_at": started_s,
        "first_token_at": None if first_s is None else started_s + first_s,
        "ended_at": metadata["request_end_ns"] * 1e-9,
        "prompt_tokens": _metric(metrics, "input_sequence_length"),
        "generated_tokens": _metric(metrics, "output_sequence_length"),
    }


def refuse_without_times(document: Any, name: str) -> None:
    """Raise FetchError for a result of `vllm bench serve`, whose times have an unknown origin."""
    if isinstance(document, Mapping) and set(document) >= _VLLM_FIELDS:
        raise FetchError(
            f"{name} is a result of vllm bench serve: its requests have no times of day",
            "let the server report them by OTLP traces, or load it with workloads job llm-server",
        )


def _metric(metrics: Mapping[str, Any], name: str, units: Mapping[str, float] | None = None) -> float | None:
    """Return the value of a metric, times the factor of its unit."""
    block = metrics.get(name)
    if not isinstance(block, Mapping) or not isinstance(block.get("value"), int | float):
        return None
    factor = 1.0 if units is None else units.get(str(block.get("unit")))
    return None if factor is None else float(block["value"]) * factor
