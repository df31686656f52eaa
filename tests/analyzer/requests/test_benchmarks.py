"""Requests of `vllm bench serve --save-result --save-detailed` and of AIPerf's
`profile_export.jsonl`.
"""

import json
from datetime import datetime

import pytest

from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.requests.benchmarks import aiperf_request, vllm_requests
from wattline_analyzer.requests.file import read_requests

BOOTED_S = 1_700_000_000.0
ENDED_S = BOOTED_S + 1_004.0
"""End of the last request: 1,002.5 s after the start of the machine, and 1.5 s long."""


def result(**changes):
    """Return a result with three requests, of which one failed; its file is written 0.7 s after the
    last one.
    """
    return {
        "date": datetime.fromtimestamp(ENDED_S + 0.7).strftime("%Y%m%d-%H%M%S"),  # noqa: DTZ006  # as vLLM does
        "duration": 4.0,
        "total_input_tokens": 60,
        "model_id": "llama",
        "start_times": [1_000.0, 1_001.0, 1_002.5],
        "ttfts": [0.5, 0.0, 0.25],
        "itls": [[0.1, 0.2], [], [1.0, 0.25]],
        "input_lens": [20, 30, 40],
        "output_lens": [3, 0, 3],
        "errors": ["", "connection refused", ""],
        **changes,
    }


def test_vllm_requests_have_times_of_day_and_tokens():
    first, last = vllm_requests(result(), "bench.json", BOOTED_S)

    assert first["started_at"] == BOOTED_S + 1_000.0
    assert first["first_token_at"] == pytest.approx(BOOTED_S + 1_000.5)
    assert first["ended_at"] == pytest.approx(BOOTED_S + 1_000.8)
    assert (first["prompt_tokens"], first["generated_tokens"], first["labels"]) == (
        20,
        3,
        {"model": "llama"},
    )
    assert last["ended_at"] == ENDED_S


def test_vllm_request_without_streaming_ends_after_its_latency():
    [first, last] = vllm_requests(
        result(latencies=[0.9, 0.0, 1.5], itls=[[], [], []]), "bench.json", BOOTED_S
    )

    assert first["ended_at"] == pytest.approx(BOOTED_S + 1_000.9)
    assert last["ended_at"] == ENDED_S


@pytest.mark.parametrize("error_s", [-60.0, 60.0])
def test_vllm_times_of_another_machine_are_refused(error_s):
    with pytest.raises(FetchError, match="its times are of another clock than this machine's"):
        list(vllm_requests(result(), "bench.json", BOOTED_S + error_s))


def test_vllm_result_without_details_is_refused_with_the_option():
    summary = result()
    del summary["start_times"]

    with pytest.raises(FetchError, match="has no start_times") as error:
        list(vllm_requests(summary, "bench.json", BOOTED_S))
    assert "--save-detailed" in error.value.remedy


def test_vllm_result_of_failed_requests_is_refused():
    with pytest.raises(FetchError, match="no request of this benchmark succeeded"):
        list(vllm_requests(result(errors=["timeout"] * 3), "bench.json", BOOTED_S))


def aiperf_record(latency_ms, **metrics):
    """Return a record of AIPerf 0.13.0 of a request from 1,795,612,280.413674942 s."""
    started_ns = 1_795_612_280_413_674_942
    lengths = {"input_sequence_length": (49, "tokens"), "output_sequence_length": (745, "tokens")}
    return {
        "metadata": {
            "x_request_id": "a6a9",
            "request_start_ns": started_ns,
            "request_end_ns": started_ns + round(latency_ms * 1e6),
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            name: {"value": value, "unit": unit}
            for name, (value, unit) in (lengths | metrics).items()
        },
        "error": None,
    }


def test_aiperf_first_token_at_the_end_is_not_after_it(tmp_path):
    """The client receives the whole stream at once, as on a busy machine."""
    path = tmp_path / "profile_export.jsonl"
    latencies_ms = [round(779.131326 + number * 0.987654, 6) for number in range(200)]
    records = [aiperf_record(each, time_to_first_token=(each, "ms")) for each in latencies_ms]
    for number, record in enumerate(records):
        record["metadata"]["x_request_id"] = str(number)
    path.write_text("\n".join(map(json.dumps, records)))

    table = read_requests([path])

    assert table.untimed is not None
    assert table.untimed.all()


def test_aiperf_tokens_are_those_of_the_server_if_it_reports_them():
    usage = {"usage_prompt_tokens": (52, "tokens"), "usage_completion_tokens": (400, "tokens")}
    cached = {"usage_prompt_cache_read_tokens": (16, "tokens")}

    counted, reported = (
        aiperf_request(aiperf_record(700.0)),
        aiperf_request(aiperf_record(700.0, **usage, **cached)),
    )

    names = ("prompt_tokens", "cached_tokens", "generated_tokens")
    assert [counted[name] for name in names] == [49, None, 745]
    assert [reported[name] for name in names] == [52, 16, 400]
