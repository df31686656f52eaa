"""vLLM's plugin and the middleware in a real vLLM on the CPU, with a tiny random model.

`WATTLINE_VLLM_PYTHON` is the Python of an environment with vLLM and Wattline, by default this one.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from tests.fakes.run_api import RunApi, reported_requests, run_api_server
from tests.fakes.tiny_llama import save_llama
from tests.polling import eventually
from tests.servers import free_port
from tests.workloads.programs import plain_environment

PYTHON = os.environ.get("WATTLINE_VLLM_PYTHON") or (sys.executable if find_spec("vllm") else None)
pytestmark = pytest.mark.skipif(
    not PYTHON or not find_spec("transformers"),
    reason="needs vLLM (WATTLINE_VLLM_PYTHON) and transformers",
)
READY_WITHIN_S = 300.0
OPTIONS = (
    "--enforce-eager --dtype float32 --max-model-len 1024 --max-num-seqs 4 "
    "--served-model-name tiny --host 127.0.0.1"
)
CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
LONG = "a prompt that is longer than two blocks of the prefix cache, " * 5
REQUESTS = [
    ("hello", 8, True),
    ("one more", 3, False),
    (LONG, 5, True),
    ("more", 20, True),
    (LONG, 4, False),
]


@pytest.fixture(scope="module")
def api():
    return RunApi()


@pytest.fixture(scope="module")
def vllm(api, tmp_path_factory):
    """Address of a server with the plugin and the middleware."""
    folder, port = tmp_path_factory.mktemp("vllm"), free_port()
    save_llama(folder / "tiny")
    module = "vllm.entrypoints.openai.api_server"
    middleware = ("--middleware", "wattline.integrations.asgi.EnergyMiddleware")
    command = [
        PYTHON,
        "-m",
        module,
        "--model",
        str(folder / "tiny"),
        "--port",
        str(port),
        *OPTIONS.split(),
        *middleware,
    ]
    address, log = f"http://127.0.0.1:{port}", folder / "log"
    with run_api_server(api) as exporter, log.open("wb") as output:
        environment = plain_environment() | CPU | {"WATTLINE_EXPORTER": exporter}
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            eventually(
                lambda: is_ready(address, process), "a ready vLLM", log.read_text, READY_WITHIN_S
            )
            yield address
        finally:
            process.terminate()
            process.wait(60)


def is_ready(address, process):
    assert process.poll() is None, "vLLM has ended"
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def ask(address, prompt, max_tokens, *, stream):
    """Return the id and the usage of the answer, and the Unix times around it."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
    }
    body |= {"ignore_eos": True, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    before = time.time()
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read().decode()
    after = time.time()
    lines = [
        line.removeprefix("data: ")
        for line in text.splitlines()
        if line and not line.endswith("[DONE]")
    ]
    document = json.loads(lines[-1])
    return document["id"], document["usage"], before, after


def counter(address, name):
    """Return the sum of one of vLLM's metrics over its labels."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        values = re.findall(
            rf"^vllm:{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.MULTILINE
        )
    return sum(map(float, values))


@pytest.fixture(scope="module")
def answered(vllm, api):
    """Answers of requests that run at the same time, then one whose prompt is in the cache."""
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(ask, vllm, prompt, tokens, stream=stream)
            for prompt, tokens, stream in REQUESTS
        ]
        answers = [one.result() for one in asked]
    answers.append(ask(vllm, LONG, 2, stream=True))
    reports = 2 * len(answers)
    eventually(
        lambda: len(reported(api)) == reports, "reports of all requests", lambda: str(api.requests)
    )
    return answers


def reported(api, *, by_middleware=None):
    """Return the reported requests, by plugin or middleware: only the middleware knows the
    route.
    """
    requests = [one for body in api.bodies("/requests") for one in reported_requests(body)]
    return [
        one
        for one in requests
        if by_middleware is None or ("route" in one["labels"]) == by_middleware
    ]


def test_vllm_plugin_tokens_equal_counters_of_server(vllm, api, answered):
    requests = reported(api, by_middleware=False)

    assert len(requests) == counter(vllm, "request_success_total") == len(REQUESTS) + 1
    assert sum(one["prompt_tokens"] for one in requests) == counter(vllm, "prompt_tokens_total")
    assert (
        sum(one["generated_tokens"] for one in requests)
        == counter(vllm, "generation_tokens_total")
        == 42
    )
    assert (
        sum(one["cached_tokens"] for one in requests)
        == counter(vllm, "prompt_tokens_cached_total")
        >= 256
    )
    assert {one["labels"]["model"] for one in requests} == {"tiny"}


def test_vllm_plugin_spans_equal_histograms_of_server(vllm, api, answered):
    requests = reported(api, by_middleware=False)
    latency_s = sum(one["ended_at"] - one["started_at"] for one in requests)
    decode_s = sum(one["ended_at"] - one["first_token_at"] for one in requests)

    assert latency_s == pytest.approx(counter(vllm, "e2e_request_latency_seconds_sum"), abs=1e-5)
    assert decode_s == pytest.approx(counter(vllm, "request_decode_time_seconds_sum"), abs=1e-5)


@pytest.mark.parametrize("by_middleware", [False, True])
def test_vllm_requests_equal_usage_of_their_answers(api, answered, by_middleware):
    requests = {one["id"]: one for one in reported(api, by_middleware=by_middleware)}

    assert len(requests) == len(answered)
    for request_id, usage, before, after in answered:
        one = requests[request_id]
        assert (one["prompt_tokens"], one["generated_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
        assert (
            before
            <= one["started_at"]
            <= one.get("first_token_at", one["ended_at"])
            <= one["ended_at"]
            <= after
        )
