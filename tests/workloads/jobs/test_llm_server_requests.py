"""Model, key, prompts and fields that the job `llm-server` sends."""

import pytest

from tests.fakes import openai_server as sse
from tests.fakes.openai_server import Script
from tests.fakes.run_api import reported_requests
from wattline_analyzer.requests.file import read_requests


def test_llm_server_without_model_uses_first_listed(server_job, server):
    done = server_job("--url", f"{server.url}/v1/", "--requests", "1")

    assert server.requests[0].body["model"] == "tiny"
    assert "using model tiny" in done.stderr


def test_llm_server_key_file_is_sent_and_never_written(server_job, server, tmp_path):
    server.script = lambda n: (
        sse.answer(1) if n else Script([b'{"error": {"message": "no: sk-file"}}'], status=400)
    )
    path = tmp_path / "key"
    path.write_text("sk-file\n")
    done = server_job(
        "--url",
        server.url,
        "--requests",
        "2",
        "--api-key-file",
        str(path),
        OPENAI_API_KEY="sk-environment",
    )

    assert [seen.headers["Authorization"] for seen in server.requests] == ["Bearer sk-file"] * 2
    written = [each.read_text() for each in server_job.out.glob("*/*")]
    assert len(written) == 2
    assert not [text for text in (*written, done.stderr) if "sk-" in text]


def test_llm_server_key_of_environment_is_sent(server_job, server):
    server_job("--url", server.url, "--requests", "1", OPENAI_API_KEY="sk-environment")

    assert server.requests[0].headers["Authorization"] == "Bearer sk-environment"


def test_llm_server_prompt_file_sets_prompts_and_lengths(server_job, server, tmp_path):
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
    server_job("--url", server.url, "--requests", "3", *options)

    assert [(seen.body["prompt"], seen.body["max_tokens"]) for seen in server.requests] == [
        ("one", 5),
        ("two", 7),
        ("one", 5),
    ]
    assert all(
        seen.body["ignore_eos"] is True and seen.path == "/v1/completions"
        for seen in server.requests
    )
    config = server_job.events[0]["config"]
    assert (config["prompts"], config["max_tokens"], config["slo"]) == (str(path), "7", None)


def test_llm_server_messages_require_chat_api(server_job, server, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    done = server_job("--url", server.url, "--api", "completions", "--prompts", str(path))

    assert done.returncode == 2
    assert "use --api chat" in done.stderr
    assert server.requests == []


def test_llm_server_unreadable_prompts_fail_before_run(server_job):
    done = server_job("--url", "http://localhost", "--prompts", "/gone.txt")

    assert (done.returncode, server_job.exporter.api.runs) == (2, {})
    assert "cannot read /gone.txt" in done.stderr


def test_llm_server_reported_requests_have_the_ids_of_its_folder(server_job, server):
    """The second of four requests fails: it has no energy, and the others keep their numbers."""
    server.script = lambda n: Script([b"{}"], status=500) if n == 1 else sse.answer(3)
    server_job("--url", server.url, "--requests", "4", "--concurrency", "1")

    api = server_job.exporter.api
    reported = [one["id"] for body in api.bodies("/requests") for one in reported_requests(body)]
    [folder] = server_job.out.iterdir()
    assert len(reported) == 3
    assert reported == read_requests([folder]).ids


def test_llm_server_late_end_of_body_keeps_recorded_times(server_job, server):
    """The body ends 0.3 s after its last event, as with a gateway that adds to the stream."""
    server.script = lambda _: Script([*sse.answer(3).steps, 0.3])
    server_job("--url", server.url, "--requests", "2", "--concurrency", "1")

    reported = [
        one
        for body in server_job.exporter.api.bodies("/requests")
        for one in reported_requests(body)
    ]
    [folder] = server_job.out.iterdir()
    spans = read_requests([folder]).spans
    for name, times_s in (("started_at", spans.arrived_s), ("ended_at", spans.ended_s)):
        assert times_s.tolist() == pytest.approx([one[name] for one in reported], abs=1e-5)
