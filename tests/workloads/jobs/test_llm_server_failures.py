"""What fails under the job `llm-server`: single requests, all of them, the endpoint itself."""

from tests.fakes import openai_server as says
from tests.fakes.openai_server import DONE, Script


def test_llm_server_failures_are_counted_by_kind(load, server):
    kinds = [
        says.answer(2),
        Script([b'{"error": {"message": "slow down"}}'], status=429, content_type="application/json"),
        Script([says.text("a")]),
        Script([says.event({"error": {"message": "no memory"}}), DONE]),
    ]
    server.script = lambda number: kinds[number % 4]
    done = load("--url", server.url, "--requests", "8")

    assert done.returncode == 0
    assert load.run.work == {"requests": 2, "requests_failed": 6, "prompt_tokens": 6, "generated_tokens": 4}
    assert load.run.results["error_ratio"] == 6 / 8
    assert {name: load.run.results[f"requests_failed_{name}"] for name in ("http_429", "cut_off", "in_stream")} == {
        "http_429": 2,
        "cut_off": 2,
        "in_stream": 2,
    }
    assert len(load.iterations) == 8
    assert sum(event["values"].get("failed", 0) for event in load.iterations) == 6
    assert "6 of 8 requests failed" in done.stderr
    assert "2 http_429 (slow down)" in done.stderr


def test_llm_server_all_requests_failed_is_one_line_error(load, server):
    server.script = lambda _: Script([b'{"error": {"message": "bad key"}}'], status=401)
    done = load("--url", server.url, "--requests", "3")

    assert done.returncode == 1
    assert load.run.outcome == "failed"
    assert load.run.results["error_ratio"] == 1
    assert "none of the 3 requests succeeded: 3 http_401 (bad key); set OPENAI_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr


def test_llm_server_failed_warm_up_measures_nothing(load, server):
    server.script = lambda _: Script([b"broken"], status=500)
    done = load("--url", server.url, "--requests", "3", "--warmup", "2")

    assert done.returncode == 1
    assert len(server.seen) == 2
    assert "none of the 2 warm-up requests succeeded: 2 http_500 (broken)" in done.stderr


def test_llm_server_unreachable_endpoint_is_one_line_error(load, nowhere):
    done = load("--url", nowhere, "--model", "tiny")

    assert done.returncode == 1
    assert "Connection refused; is the server up, and --url its address?" in done.stderr
    assert "Traceback" not in done.stderr


def test_llm_server_no_listed_model_requires_option(load, server):
    server.models = {"data": []}
    done = load("--url", server.url)

    assert done.returncode == 1
    assert "lists no model; give --model" in done.stderr


def test_llm_server_hanging_request_times_out(load, server):
    server.script = lambda number: says.answer(2) if number else Script([600.0])
    load("--url", server.url, "--requests", "2", "--timeout", "3")

    assert load.run.results["requests_failed_timeout"] == 1
    assert load.run.work["requests"] == 1


def test_llm_server_duration_without_requests_fails(load, server):
    done = load("--url", server.url, "--rate", "0.0001", "--duration", "0.1")

    assert done.returncode == 1
    assert "a longer one or a higher --rate" in done.stderr
