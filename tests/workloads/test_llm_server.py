"""The job `llm-server` as a process, against a scripted server."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.fakes import openai_server as says
from tests.fakes.openai_server import DONE, OpenAiServer, Script
from tests.fakes.web_api import serve_beside
from tests.waiting import eventually


class Load:
    """The job at a server that answers by `script`, and all that is known of it afterwards."""

    def __init__(self, exporter, out):
        self.exporter = exporter
        self.out = out

    def __call__(self, *options, **environment):
        return self.exporter.workloads("job", "llm-server", "--out", str(self.out), *options, **environment)

    @property
    def run(self):
        return self.exporter.api.only_run

    @property
    def events(self):
        return [json.loads(line) for line in next(self.out.glob("*/events.jsonl")).read_text().splitlines()]

    @property
    def iterations(self):
        return [event for event in self.events if event["event"] == "iteration"]


@pytest.fixture
def load(exporter, tmp_path):
    return Load(exporter, tmp_path / "out")


@pytest.fixture
def server():
    """Two tokens an answer, unless a test gives another script before it asks."""
    with serve_beside(OpenAiServer(script=lambda _: says.answer(2, prompt=3))) as running:
        yield running


def test_every_request_is_work_and_an_event(load, server):
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


def test_the_first_model_is_asked_where_none_is_named(load, server):
    done = load("--url", f"{server.url}/v1/", "--requests", "1")

    assert server.seen[0].body["model"] == "tiny"
    assert "asking tiny" in done.stderr


def test_latencies_are_those_that_the_server_scripted(load, server):
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


def test_the_times_of_an_open_loop_have_the_wait_for_the_others_in_them(load):
    """The server takes 0.3 s for each and one at a time: request n is due at 0.1 n and answered after 0.3 (n + 1)."""
    with serve_beside(OpenAiServer(script=lambda _: says.answer(1, first_s=0.3), slots=1)) as slow:
        load("--url", slow.url, "--rate", "10", "--arrivals", "fixed", "--requests", "8")

    latencies_s = [event["latency_seconds"] for event in load.iterations]
    assert sum(latencies_s) >= 0.3 * 36 - 0.1 * 28 - 0.01  # a request on its own takes 0.3 s: 8 of them 2.4 s
    assert load.run.results["ttft_seconds_mean"] >= 1 - 0.01
    assert load.run.results["concurrency_mean"] > 1


def test_goodput_counts_what_met_the_objective(load, server):
    """A third of the answers takes 2 s, the others take none; the objective lies far from both."""
    server.script = lambda number: says.answer(2, first_s=2.0 if number % 3 == 0 else 0.0)
    load("--url", server.url, "--requests", "6", "--concurrency", "6", "--slo", "e2e=1.9,tpot=60")
    slow = sum(event["latency_seconds"] > 1.9 for event in load.iterations)

    assert slow >= 2
    assert load.run.results["goodput_ratio"] == pytest.approx((6 - slow) / 6)


def test_the_warm_up_is_sent_but_not_measured(load, server):
    server.script = lambda number: Script([b"no"], status=500) if number == 0 else says.answer(2, prompt=3)
    load("--url", server.url, "--requests", "3", "--warmup", "2")

    assert len(server.seen) == 5
    assert load.run.work == {"requests": 3, "prompt_tokens": 9, "generated_tokens": 6}
    assert load.run.results["requests_failed"] == 0
    assert [event["name"] for event in load.events if event["event"] == "phase"] == ["warmup", "measure", "rest"]
    assert [body["name"] for body in load.exporter.api.bodies("/phase")] == ["warmup", "measure", "rest"]


def test_failures_are_counted_beside_the_answers(load, server):
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


def test_a_load_of_which_nothing_succeeds_fails_with_one_line(load, server):
    server.script = lambda _: Script([b'{"error": {"message": "bad key"}}'], status=401)
    done = load("--url", server.url, "--requests", "3")

    assert done.returncode == 1
    assert load.run.outcome == "failed"
    assert load.run.results["error_ratio"] == 1
    assert "none of the 3 requests succeeded: 3 http_401 (bad key); set OPENAI_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_warm_up_of_which_nothing_succeeds_measures_nothing(load, server):
    server.script = lambda _: Script([b"broken"], status=500)
    done = load("--url", server.url, "--requests", "3", "--warmup", "2")

    assert done.returncode == 1
    assert len(server.seen) == 2
    assert "none of the 2 warm-up requests succeeded: 2 http_500 (broken)" in done.stderr


def test_an_endpoint_that_is_not_there_is_one_line(load, nowhere):
    done = load("--url", nowhere, "--model", "tiny")

    assert done.returncode == 1
    assert "Connection refused; is the server up, and --url its address?" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_endpoint_without_models_asks_for_a_name(load, server):
    server.models = {"data": []}
    done = load("--url", server.url)

    assert done.returncode == 1
    assert "lists no model; give --model" in done.stderr


def test_answers_without_usage_are_said(load, server):
    server.script = lambda _: Script([says.text("a"), says.finish(), DONE])
    done = load("--url", server.url, "--requests", "2")

    assert load.run.work == {"requests": 2}
    assert load.run.results["requests_without_usage"] == 2
    assert "2 of 2 answers came without usage" in done.stderr


def test_cached_and_reasoning_tokens_are_work_where_the_server_tells(load, server):
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


def test_the_key_is_sent_and_written_nowhere(load, server, tmp_path):
    server.script = lambda n: says.answer(1) if n else Script([b'{"error": {"message": "no: sk-file"}}'], status=400)
    path = tmp_path / "key"
    path.write_text("sk-file\n")
    done = load("--url", server.url, "--requests", "2", "--api-key-file", str(path), OPENAI_API_KEY="sk-environment")

    assert [seen.headers["Authorization"] for seen in server.seen] == ["Bearer sk-file"] * 2
    written = [each.read_text() for each in load.out.glob("*/*")]
    assert len(written) == 2
    assert not [text for text in (*written, done.stderr) if "sk-" in text]


def test_the_key_of_the_environment_is_sent(load, server):
    load("--url", server.url, "--requests", "1", OPENAI_API_KEY="sk-environment")

    assert server.seen[0].headers["Authorization"] == "Bearer sk-environment"


def test_prompts_come_from_a_file_and_lengths_and_extra_fields_go_along(load, server, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "max_tokens": 5}\n{"prompt": "two"}\n')
    options = [
        "--api",
        "completions",
        "--prompts",
        str(path),
        "--max-tokens",
        "7",
        "--extra-body",
        '{"ignore_eos": true}',
    ]
    load("--url", server.url, "--requests", "3", *options)

    assert [(seen.body["prompt"], seen.body["max_tokens"]) for seen in server.seen] == [
        ("one", 5),
        ("two", 7),
        ("one", 5),
    ]
    assert all(seen.body["ignore_eos"] is True and seen.path == "/v1/completions" for seen in server.seen)
    config = load.events[0]["config"]
    assert (config["prompts"], config["max_tokens"], config["slo"]) == (str(path), "7", None)


def test_messages_are_for_a_chat(load, server, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    done = load("--url", server.url, "--api", "completions", "--prompts", str(path))

    assert done.returncode == 2
    assert "use --api chat" in done.stderr
    assert server.seen == []


def test_what_is_wrong_is_said_before_a_run_begins(load):
    done = load("--url", "http://localhost", "--prompts", "/gone.txt")

    assert (done.returncode, load.exporter.api.runs) == (2, {})
    assert "/gone.txt cannot be read" in done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_load_reports_what_it_measured(load, server, name):
    """Three answers come at once; the fourth and all after it never end."""
    server.script = lambda number: says.answer(2) if number < 3 else Script([says.text("a"), 600.0])
    arguments = ["-m", "workloads", "job", "llm-server", "--url", server.url, "--concurrency", "2"]
    with load.exporter.start(*arguments) as process:
        eventually(lambda: load.exporter.api.runs and load.run.work.get("requests") == 3)
        eventually(lambda: len(server.seen) == 5)
        process.send_signal(signal.Signals[name])
        _, errors = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.Signals[name]
    assert load.run.outcome == "interrupted"
    assert load.run.work["requests"] == 3
    assert load.run.results["requests_cancelled"] == 2
    assert load.run.results["requests_failed"] == 0
    assert load.run.results["e2e_seconds_p50"] > 0
    assert "2 requests in flight were cancelled" in errors
    assert "Traceback" not in errors
    assert "Unclosed" not in errors


def test_a_request_that_hangs_times_out(load, server):
    server.script = lambda number: says.answer(2) if number else Script([600.0])
    load("--url", server.url, "--requests", "2", "--timeout", "3")

    assert load.run.results["requests_failed_timeout"] == 1
    assert load.run.work["requests"] == 1


def test_a_duration_in_which_nothing_is_due_says_so(load, server):
    done = load("--url", server.url, "--rate", "0.0001", "--duration", "0.1")

    assert done.returncode == 1
    assert "a longer one or a higher --rate" in done.stderr


def test_tenants_begin_to_measure_together(load, server, tmp_path):
    """The other one never comes, so nothing but the warm-up is sent."""
    done = load("--url", server.url, "--warmup", "1", "--requests", "5", WATTLINE_BARRIER=f"{tmp_path}:2:0.3")

    assert done.returncode == 1
    assert len(server.seen) == 1
    assert "1 of 2 tenants were ready" in done.stderr


def test_progress_is_one_line_on_a_terminal(load, server):
    server.script = lambda _: says.answer(1, first_s=2.0)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "workloads", "job", "llm-server", "--url", server.url, "--requests", "1"]
    with subprocess.Popen(command, env=load.exporter.environment, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b"")).decode()
        process.wait(60)
    os.close(ours)

    measuring, _, summary = shown.rpartition("\r\x1b[K")
    assert "1 in flight, 0 tokens/s" in measuring
    assert "\n" not in measuring.partition("\r\x1b[Kmeasure: ")[2]
    assert summary.startswith("wattline: 1 requests answered")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other end is closed
        return b""
