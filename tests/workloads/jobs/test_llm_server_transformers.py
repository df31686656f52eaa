"""Job `llm-server` against `transformers serve`, with a tiny random model on the CPU.

The stream of this server ends without [DONE]; its usage is always in the last chunk. It rejects
unknown fields and lists only the models in its cache. In its model a letter is a token.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec

import pytest

from tests.fakes.tiny_gpt2 import save_gpt2
from tests.servers import free_port

_NEEDED = ("torch", "transformers", "fastapi", "uvicorn", "openai")
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, _NEEDED)), reason=f"needs {', '.join(_NEEDED)}"
)
PROMPTS = ["hello", "a longer prompt", "one more"]
"""Texts of 5, 15 and 8 letters."""


@pytest.fixture(scope="module")
def transformers_server(tmp_path_factory):
    """Address of the server, and name of its model."""
    folder = tmp_path_factory.mktemp("transformers")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    model, port = folder / "tiny", free_port()
    save_gpt2(model)
    program = [
        sys.executable,
        "-m",
        "transformers.cli.transformers",
        "serve",
        str(model),
        "--device",
        "cpu",
    ]
    address, log = f"http://127.0.0.1:{port}", folder / "log"
    command = [*program, "--host", "127.0.0.1", "--port", str(port)]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process,
    ):
        try:
            _await(f"{address}/health", process, log)
            yield address, str(model)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _await(url, process, log):
    give_up_s = time.monotonic() + 120
    while time.monotonic() < give_up_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"transformers serve is not ready:\n{log.read_text()}")


def generated_tokens(transformers_server, prompt, max_tokens):
    """Return the number of generated tokens that the server reports without a stream."""
    address, model = transformers_server
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        usage = json.load(answer)["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    return usage["completion_tokens"]


def test_transformers_tokens_equal_usage_of_server(exporter, transformers_server, tmp_path):
    address, model = transformers_server
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    options = [
        "--url",
        address,
        "--model",
        model,
        "--prompts",
        str(path),
        "--max-tokens",
        "6",
        "--requests",
        "6",
    ]
    done = exporter.workloads("job", "llm-server", "--concurrency", "2", "--warmup", "3", *options)

    run = exporter.api.only_run
    expected = 2 * sum(generated_tokens(transformers_server, prompt, 6) for prompt in PROMPTS)
    assert done.returncode == 0, done.stderr
    assert run.work == {
        "requests": 6,
        "prompt_tokens": 2 * (5 + 15 + 8),
        "generated_tokens": expected,
    }
    assert run.results["requests_without_usage"] == 0
    assert 0 < run.results["ttft_seconds_p50"] <= run.results["e2e_seconds_p99"]
    assert run.results["tokens_per_chunk_mean"] == 1


def test_transformers_completions_are_counted(exporter, transformers_server, tmp_path):
    address, model = transformers_server
    path = tmp_path / "prompts.txt"
    path.write_text("hello")
    options = [
        "--url",
        address,
        "--model",
        model,
        "--api",
        "completions",
        "--prompts",
        str(path),
        "--max-tokens",
        "4",
    ]
    done = exporter.workloads("job", "llm-server", "--rate", "20", "--requests", "3", *options)

    assert done.returncode == 0, done.stderr
    assert exporter.api.only_run.work == {
        "requests": 3,
        "prompt_tokens": 15,
        "generated_tokens": 12,
    }


def test_transformers_rejected_field_quotes_server(exporter, transformers_server):
    address, model = transformers_server
    options = [
        "--url",
        address,
        "--model",
        model,
        "--requests",
        "2",
        "--extra-body",
        '{"ignore_eos": true}',
    ]
    done = exporter.workloads("job", "llm-server", *options)

    assert done.returncode == 1
    assert "http_422 (Unexpected fields in the request: {'ignore_eos'})" in done.stderr
    results = (
        exporter.api.only_run.results
    )  # the server may then close the connection of the other request
    assert results["requests_failed_http_422"] + results.get("requests_failed_connection", 0) == 2
