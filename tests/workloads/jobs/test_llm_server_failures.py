"""Failures of single requests, of all requests, and of the endpoint of the job `llm-server`."""

from tests.fakes import openai_server as sse
from tests.fakes.openai_server import DONE, Script


def test_llm_server_failures_are_counted_by_kind(server_job, server):
    kinds = [
        sse.answer(2),
        Script(
            [b'{"error": {"message": "slow down"}}'], status=429, content_type="application/json"
        ),
        Script([sse.text("a")]),
        Script([sse.event({"error": {"message": "no memory"}}), DONE]),
    ]
    server.script = lambda number: kinds[number % 4]
    done = server_job("--url", server.url, "--requests", "8")

    assert done.returncode == 0
    assert server_job.run.work == {
        "requests": 2,
        "requests_failed": 6,
        "prompt_tokens": 6,
        "generated_tokens": 4,
    }
    assert server_job.run.results["error_ratio"] == 6 / 8
    assert {
        name: server_job.run.results[f"requests_failed_{name}"]
        for name in ("http_429", "cut_off", "in_stream")
    } == {
        "http_429": 2,
        "cut_off": 2,
        "in_stream": 2,
    }
    assert len(server_job.iterations) == 8
    assert sum(event["values"].get("failed", 0) for event in server_job.iterations) == 6
    assert "6 of 8 requests failed" in done.stderr
    assert "2 http_429 (slow down)" in done.stderr


def test_llm_server_all_requests_failed_is_one_line_error(server_job, server):
    server.script = lambda _: Script([b'{"error": {"message": "bad key"}}'], status=401)
    done = server_job("--url", server.url, "--requests", "3")

    assert done.returncode == 1
    assert server_job.run.outcome == "failed"
    assert server_job.run.results["error_ratio"] == 1
    assert (
        "none of the 3 requests succeeded: 3 http_401 (bad key); set OPENAI_API_KEY" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_llm_server_failed_warm_up_measures_nothing(server_job, server):
    server.script = lambda _: Script([b"broken"], status=500)
    done = server_job("--url", server.url, "--requests", "3", "--warmup", "2")

    assert done.returncode == 1
    assert len(server.requests) == 2
    assert "none of the 2 warm-up requests succeeded: 2 http_500 (broken)" in done.stderr


def test_llm_server_unreachable_endpoint_is_one_line_error(server_job, closed_address):
    done = server_job("--url", closed_address, "--model", "tiny")

    assert done.returncode == 1
    assert "Connection refused; start the server, or correct --url" in done.stderr
    assert "Traceback" not in done.stderr


def test_llm_server_no_listed_model_requires_option(server_job, server):
    server.models = {"data": []}
    done = server_job("--url", server.url)

    assert done.returncode == 1
    assert "lists no model; give --model" in done.stderr


def test_llm_server_hanging_request_times_out(server_job, server):
    server.script = lambda number: sse.answer(2) if number else Script([600.0])
    server_job("--url", server.url, "--requests", "2", "--timeout", "3")

    assert server_job.run.results["requests_failed_timeout"] == 1
    assert server_job.run.work["requests"] == 1


def test_llm_server_duration_without_requests_fails(server_job, server):
    done = server_job("--url", server.url, "--rate", "0.0001", "--duration", "0.1")

    assert done.returncode == 1
    assert "a longer one or a higher --rate" in done.stderr
