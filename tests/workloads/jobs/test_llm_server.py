"""Job `llm-server` against a scripted server: its results."""

import pytest

from tests.fakes import openai_server as sse
from tests.fakes.openai_server import DONE, OpenAiServer, Script
from tests.fakes.web_api import serve_in_thread


def test_llm_server_request_is_work_and_event(server_job, server):
    server.script = lambda number: sse.answer(number + 1, prompt=10)
    done = server_job("--url", server.url, "--requests", "6", "--concurrency", "2")

    assert done.returncode == 0, done.stderr
    assert (server_job.run.workload, server_job.run.outcome) == ("llm-server", "ok")
    assert server_job.run.work == {
        "requests": 6,
        "prompt_tokens": 60,
        "generated_tokens": 1 + 2 + 3 + 4 + 5 + 6,
    }
    assert sorted(event["work"]["generated_tokens"] for event in server_job.iterations) == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    assert {event["phase"] for event in server_job.iterations} == {"measure"}
    assert server_job.run.results["error_ratio"] == 0
    assert "6 requests answered" in done.stderr
    assert done.stdout == ""


def test_llm_server_latencies_match_scripted_server(server_job, server):
    server.script = lambda _: sse.answer(3, first_s=0.4, gap_s=0.3)
    server_job("--url", server.url, "--model", "tiny", "--requests", "4", "--concurrency", "4")
    results = server_job.run.results

    assert 0.4 <= results["ttft_seconds_p50"] <= results["ttft_seconds_p99"]
    assert results["e2e_seconds_p50"] >= 0.4 + 2 * 0.3
    assert results["ttft_seconds_p50"] < results["e2e_seconds_p50"]
    assert results["ttft_seconds_mean"] + 2 * results["itl_seconds_mean"] >= 0.4 + 2 * 0.3
    assert results["itl_seconds_mean"] <= results["tpot_seconds_mean"] + 1e-9
    client_times_s = sorted(event["latency_seconds"] for event in server_job.iterations)
    server_times_s = sorted(seen.written_s[-1] - seen.received_s for seen in server.requests)
    assert all(
        client_s >= server_s
        for client_s, server_s in zip(client_times_s, server_times_s, strict=True)
    )


def test_llm_server_open_loop_latency_includes_queueing(server_job):
    """Use a server that takes 0.3 s for one request at a time: request n, due at 0.1 n, is answered
    at 0.3 (n + 1).
    """
    with serve_in_thread(
        OpenAiServer(script=lambda _: sse.answer(1, first_s=0.3), slots=1)
    ) as slow:
        server_job("--url", slow.url, "--rate", "10", "--arrivals", "fixed", "--requests", "8")

    latencies_s = [event["latency_seconds"] for event in server_job.iterations]
    assert (
        sum(latencies_s) >= 0.3 * 36 - 0.1 * 28 - 0.01
    )  # without the queue 8 requests take 2.4 s in total
    assert server_job.run.results["ttft_seconds_mean"] >= 1 - 0.01
    assert server_job.run.results["concurrency_mean"] > 1


def test_llm_server_goodput_is_share_within_slo(server_job, server):
    """Let a third of the answers take 2 s and the others 0 s; the objective is far from both."""
    server.script = lambda number: sse.answer(2, first_s=2.0 if number % 3 == 0 else 0.0)
    server_job(
        "--url", server.url, "--requests", "6", "--concurrency", "6", "--slo", "e2e=1.9,tpot=60"
    )
    slow = sum(event["latency_seconds"] > 1.9 for event in server_job.iterations)

    assert slow >= 2
    assert server_job.run.results["goodput_ratio"] == pytest.approx((6 - slow) / 6)


def test_llm_server_warm_up_is_sent_but_not_measured(server_job, server):
    server.script = lambda number: (
        Script([b"no"], status=500) if number == 0 else sse.answer(2, prompt=3)
    )
    server_job("--url", server.url, "--requests", "3", "--warmup", "2")

    assert len(server.requests) == 5
    assert server_job.run.work == {"requests": 3, "prompt_tokens": 9, "generated_tokens": 6}
    assert server_job.run.results["requests_failed"] == 0
    assert [event["name"] for event in server_job.events if event["event"] == "phase"] == [
        "warmup",
        "measure",
        "rest",
    ]
    assert [body["name"] for body in server_job.exporter.api.bodies("/phase")] == [
        "warmup",
        "measure",
        "rest",
    ]


def test_llm_server_answers_without_usage_are_reported(server_job, server):
    server.script = lambda _: Script([sse.text("a"), sse.finish(), DONE])
    done = server_job("--url", server.url, "--requests", "2")

    assert server_job.run.work == {"requests": 2}
    assert server_job.run.results["requests_without_usage"] == 2
    assert "2 of 2 answers came without usage" in done.stderr


def test_llm_server_cached_and_reasoning_tokens_are_work(server_job, server):
    details = {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    server.script = lambda _: Script(
        [sse.text("a"), sse.finish(), sse.usage(7, 5, **details), DONE]
    )
    server_job("--url", server.url, "--requests", "3")

    assert server_job.run.work == {
        "requests": 3,
        "prompt_tokens": 21,
        "generated_tokens": 15,
        "cached_tokens": 12,
        "reasoning_tokens": 6,
    }
