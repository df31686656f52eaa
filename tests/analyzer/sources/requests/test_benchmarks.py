"""Requests of `vllm bench serve --save-result --save-detailed`."""

from datetime import datetime

import pytest

from analyzer.sources.base import FetchError
from analyzer.sources.requests.benchmarks import vllm_requests

BOOTED_S = 1_700_000_000.0
ENDED_S = BOOTED_S + 1_004.0
"""End of the last request: 1,002.5 s after the start of the machine, and 1.5 s long."""


def result(**changes):
    """Return a result with three requests, of which one failed; its file is written 0.7 s after the last one."""
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
    assert (first["prompt_tokens"], first["generated_tokens"], first["labels"]) == (20, 3, {"model": "llama"})
    assert last["ended_at"] == ENDED_S


def test_vllm_request_without_streaming_ends_after_its_latency():
    [first, last] = vllm_requests(result(latencies=[0.9, 0.0, 1.5], itls=[[], [], []]), "bench.json", BOOTED_S)

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
