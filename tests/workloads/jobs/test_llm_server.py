"""The job `llm-server` as a process, against a scripted server: what it reports."""

import pytest

from tests.fakes import openai_server as says
from tests.fakes.openai_server import DONE, OpenAiServer, Script
from tests.fakes.web_api import serve_beside


def test_llm_server_request_is_work_and_event(load, server):
    server.script = lambda number: says.answer(number + 1, prompt=10)
    done = load("--url", server.url, "--requests", "6", "--concurrency", "2")

    assert done.returncode == 0, done.stderr
    assert (load.run.workload, load.run.outcome) == ("llm-server", "ok")
    assert load.run.work == {"requests": 6, "prompt_tokens": 60, "generated_tokens": 1 + 2 + 3 + 4 + 5 + 6}
    assert sorted(event["work"]["generated_tokens"] for event in load.iterations) == [1, 2, 3, 4, 5, 6]
    assert {event["phase"] for event in load.iterations} == {"measure"}
    assert load.run.results["error_ratio"] == 0
    assert "6 requests answered" in done.stderr
    assert done.stdout == ""


def test_llm_server_latencies_match_scripted_server(load, server):
    server.script = lambda _: says.answer(3, first_s=0.4, gap_s=0.3)
    load("--url", server.url, "--model", "tiny", "--requests", "4", "--concurrency", "4")
    results = load.run.results

    assert 0.4 <= results["ttft_seconds_p50"] <= results["ttft_seconds_p99"]
    assert results["e2e_seconds_p50"] >= 0.4 + 2 * 0.3
    assert results["ttft_seconds_p50"] < results["e2e_seconds_p50"]
    assert results["ttft_seconds_mean"] + 2 * results["itl_seconds_mean"] >= 0.4 + 2 * 0.3
    assert results["itl_seconds_mean"] <= results["tpot_seconds_mean"] + 1e-9
    took_s = sorted(event["latency_seconds"] for event in load.iterations)
    server_took_s = sorted(seen.written_s[-1] - seen.received_s for seen in server.seen)
    assert all(ours_s >= its_s for ours_s, its_s in zip(took_s, server_took_s, strict=True))


def test_llm_server_open_loop_latency_includes_queueing(load):
    """The server takes 0.3 s for each and one at a time: request n is due at 0.1 n and answered after 0.3 (n + 1)."""
    with serve_beside(OpenAiServer(script=lambda _: says.answer(1, first_s=0.3), slots=1)) as slow:
        load("--url", slow.url, "--rate", "10", "--arrivals", "fixed", "--requests", "8")

    latencies_s = [event["latency_seconds"] for event in load.iterations]
    assert sum(latencies_s) >= 0.3 * 36 - 0.1 * 28 - 0.01  # a request on its own takes 0.3 s: 8 of them 2.4 s
    assert load.run.results["ttft_seconds_mean"] >= 1 - 0.01
    assert load.run.results["concurrency_mean"] > 1


def test_llm_server_goodput_is_share_within_slo(load, server):
    """A third of the answers takes 2 s, the others take none; the objective lies far from both."""
    server.script = lambda number: says.answer(2, first_s=2.0 if number % 3 == 0 else 0.0)
    load("--url", server.url, "--requests", "6", "--concurrency", "6", "--slo", "e2e=1.9,tpot=60")
    slow = sum(event["latency_seconds"] > 1.9 for event in load.iterations)

    assert slow >= 2
    assert load.run.results["goodput_ratio"] == pytest.approx((6 - slow) / 6)


def test_llm_server_warm_up_is_sent_but_not_measured(load, server):
    server.script = lambda number: Script([b"no"], status=500) if number == 0 else says.answer(2, prompt=3)
    load("--url", server.url, "--requests", "3", "--warmup", "2")

    assert len(server.seen) == 5
    assert load.run.work == {"requests": 3, "prompt_tokens": 9, "generated_tokens": 6}
    assert load.run.results["requests_failed"] == 0
    assert [event["name"] for event in load.events if event["event"] == "phase"] == ["warmup", "measure", "rest"]
    assert [body["name"] for body in load.exporter.api.bodies("/phase")] == ["warmup", "measure", "rest"]


def test_llm_server_answers_without_usage_are_reported(load, server):
    server.script = lambda _: Script([says.text("a"), says.finish(), DONE])
    done = load("--url", server.url, "--requests", "2")

    assert load.run.work == {"requests": 2}
    assert load.run.results["requests_without_usage"] == 2
    assert "2 of 2 answers came without usage" in done.stderr


def test_llm_server_cached_and_reasoning_tokens_are_work(load, server):
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    server.script = lambda _: Script([says.text("a"), says.finish(), says.usage(7, 5, **details), DONE])
    load("--url", server.url, "--requests", "3")

    assert load.run.work == {
        "requests": 3,
        "prompt_tokens": 21,
        "generated_tokens": 15,
        "cached_tokens": 12,
        "reasoning_tokens": 6,
    }
