"""Job `llm-server` against llama.cpp's server, if installed, with a tiny random model.

The server closes a connection after each stream despite keep-alive and counts cached prompt tokens
separately. In its model a byte is a token, and the context has 1,024 tokens.
"""

import re
import shutil
import subprocess
import time
import urllib.request

import pytest

from tests.fakes import tiny_gguf
from tests.polling import eventually
from tests.servers import free_port

COUNTERS = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
IGNORE_EOS = ("--extra-body", '{"ignore_eos": true}')


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Start a server; return its address and process."""
    binary = shutil.which("llama-server") or pytest.skip(
        "llama-server is not installed: llama.cpp, llama.cpp-tools"
    )
    folder = tmp_path_factory.mktemp("llama")
    tiny_gguf.write(folder / "tiny.gguf")
    started = []

    def started_server():
        port = free_port()
        model_arguments = [
            "-m",
            str(folder / "tiny.gguf"),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        size_arguments = ["--parallel", "4", "--ctx-size", "4096", "--threads", "1", "--metrics"]
        with (folder / f"{port}.log").open("wb") as log:
            process = subprocess.Popen(
                [binary, *model_arguments, *size_arguments], stdout=log, stderr=log
            )
        started.append(process)
        address = f"http://127.0.0.1:{port}"
        eventually(
            lambda: _is_ready(address), "a ready llama-server", (folder / f"{port}.log").read_text
        )
        return address, process

    yield started_server
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def llama(start):
    return start()[0]


def _is_ready(address):
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def read_counters(address):
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        counters = dict(re.findall(r"^llamacpp:(\S+) (\S+)$", answer.read().decode(), re.MULTILINE))
    return [float(counters[name]) for name in COUNTERS]


@pytest.mark.parametrize(
    "load",
    [
        (
            "--concurrency",
            "6",
            "--requests",
            "30",
            "--prompt-tokens",
            "8:24",
            "--max-tokens",
            "4:32",
        ),
        (
            "--api",
            "completions",
            "--requests",
            "12",
            "--prompt-tokens",
            "8",
            "--max-tokens",
            "16",
            *IGNORE_EOS,
        ),
        ("--rate", "20", "--duration", "1.5", "--prompt-tokens", "8", "--max-tokens", "8"),
    ],
    ids=["chats", "completions", "open loop"],
)
def test_llama_cpp_tokens_equal_counters_of_server(exporter, llama, load):
    before = read_counters(llama)
    done = exporter.workloads("job", "llm-server", "--url", llama, *load)
    computed, cached, generated = (
        now - then for now, then in zip(read_counters(llama), before, strict=True)
    )

    run = exporter.api.only_run
    assert done.returncode == 0, done.stderr
    assert run.results["requests_failed"] == 0
    assert run.work["generated_tokens"] == generated > 0
    assert run.work["prompt_tokens"] == computed + cached
    assert run.work["cached_tokens"] == cached
    requests = exporter.api.served.values()
    assert len(requests) == run.work["requests"]
    assert sum(one["generated_tokens"] for one in requests) == generated
    assert sum(one["prompt_tokens"] - one["cached_tokens"] for one in requests) == computed
    assert all(one["started_at"] < one["first_token_at"] <= one["ended_at"] for one in requests)


def test_llama_cpp_too_long_prompt_quotes_server(exporter, llama):
    done = exporter.workloads(
        "job", "llm-server", "--url", llama, "--requests", "2", "--prompt-tokens", "1000"
    )

    assert done.returncode == 1
    assert "tokens) exceeds the available context size" in done.stderr
    assert "--prompt-tokens and --max-tokens set lengths" in done.stderr


def test_llama_cpp_killed_server_fails_remaining_requests(exporter, start):
    address, process = start()
    load = (
        "--concurrency",
        "2",
        "--requests",
        "12",
        "--prompt-tokens",
        "8",
        "--max-tokens",
        "900",
        *IGNORE_EOS,
    )
    with exporter.start(
        "-m", "wattline_workloads", "job", "llm-server", "--url", address, *load
    ) as job:
        eventually(lambda: exporter.api.runs and exporter.api.only_run.work.get("requests", 0) >= 1)
        time.sleep(0.2)
        process.kill()
        _, errors = job.communicate(timeout=120)

    run = exporter.api.only_run
    assert run.work["requests"] + run.work["requests_failed"] == 12
    assert run.work["generated_tokens"] == 900 * run.work["requests"]
    assert run.results["requests_failed_connection"] > 0
    assert "Traceback" not in errors
