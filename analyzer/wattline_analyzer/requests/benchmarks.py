"""Requests in the result files of benchmarks: AIPerf's profile_export.jsonl, and `vllm bench
serve`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.times import SystemZone, parse_compact_date

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_VLLM_DETAILS = ("start_times", "ttfts", "itls", "input_lens", "output_lens")
_WRITTEN_S = (-1.5, 10.0)
"""Earliest and latest time from the end of the last request to the date of the file, whose seconds
are cut off.
"""


def is_aiperf_record(fields: Any) -> bool:
    return (
        isinstance(fields, Mapping)
        and "metrics" in fields
        and "request_start_ns" in (fields.get("metadata") or {})
    )


def aiperf_request(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a request; None for one that failed, was cancelled, or belongs to the
    warm-up.

    The tokens are those of the server's `usage` where the record has them, else counted by AIPerf's
    tokenizer.
    """
    metadata = record["metadata"]
    metrics = record["metrics"] or {}
    phase = metadata.get("benchmark_phase", "profiling")
    if record.get("error") or metadata.get("was_cancelled") or phase != "profiling":
        return None
    started_ns = metadata["request_start_ns"]
    first_s = _metric(metrics, "time_to_first_token", _SECONDS)
    return {
        "id": metadata.get("x_request_id"),
        "started_at": started_ns / 1e9,
        "first_token_at": None if first_s is None else (started_ns + round(first_s * 1e9)) / 1e9,
        "ended_at": metadata["request_end_ns"] / 1e9,
        "prompt_tokens": _first_metric(metrics, "usage_prompt_tokens", "input_sequence_length"),
        "cached_tokens": _metric(metrics, "usage_prompt_cache_read_tokens"),
        "generated_tokens": _first_metric(
            metrics, "usage_completion_tokens", "output_sequence_length"
        ),
    }


def is_vllm_result(fields: Any) -> bool:
    return isinstance(fields, Mapping) and {"date", "duration", "total_input_tokens"} <= set(fields)


def vllm_requests(
    result: Mapping[str, Any], name: str, offset_s: float | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the fields of each request that succeeded, from a result with --save-detailed.

    The times of the result are seconds since the boot of its machine; `offset_s` is the Unix time
    of the boot, by default of this machine. Raises FetchError if the date of the result contradicts
    it.
    """
    if missing := [each for each in _VLLM_DETAILS if each not in result]:
        raise FetchError(
            f"{name}: this result of vllm bench serve has no {missing[0]}",
            "run vllm bench serve with --save-result --save-detailed",
        )
    offset_s = (
        time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) if offset_s is None else offset_s
    )
    count = len(result["start_times"])
    latencies = (
        result.get("latencies") or [None] * count
    )  # the sum of the others for a server that streams
    details = zip(
        *(result[each] for each in _VLLM_DETAILS),
        latencies,
        result.get("errors") or [""] * count,
        strict=True,
    )
    requests = [
        {
            "id": f"{result['date']}-{number}",
            "started_at": start_s + offset_s,
            "first_token_at": start_s + offset_s + first_s,
            "ended_at": start_s
            + offset_s
            + (first_s + sum(between_s) if latency_s is None else latency_s),
            "prompt_tokens": prompt,
            "generated_tokens": generated,
            "labels": {"model": str(result.get("model_id", ""))},
        }
        for number, (start_s, first_s, between_s, prompt, generated, latency_s, error) in enumerate(
            details
        )
        if not error
    ]
    if not requests:
        raise FetchError(
            f"{name}: no request of this benchmark succeeded", "check its server, and repeat it"
        )
    written_s = parse_compact_date(str(result["date"]), SystemZone()) - max(
        one["ended_at"] for one in requests
    )
    if not _WRITTEN_S[0] <= written_s <= _WRITTEN_S[1]:
        raise FetchError(
            f"{name}: its times are of another clock than this machine's, {abs(written_s):.0f} s "
            "from its date",
            "read it on the machine that ran vllm bench serve, before a restart, or let the server "
            "send OTLP traces",
        )
    yield from requests


def _first_metric(metrics: Mapping[str, Any], *names: str) -> float | None:
    """Return the value of the first metric that the record has."""
    return next((value for name in names if (value := _metric(metrics, name)) is not None), None)


def _metric(
    metrics: Mapping[str, Any], name: str, units: Mapping[str, float] | None = None
) -> float | None:
    """Return the value of a metric, times the factor of its unit."""
    block = metrics.get(name)
    if not isinstance(block, Mapping) or not isinstance(block.get("value"), int | float):
        return None
    factor = 1.0 if units is None else units.get(str(block.get("unit")))
    return None if factor is None else float(block["value"]) * factor
