"""OpenTelemetry traces of a real LiteLLM proxy in front of llama.cpp: requests, and joules on a
simulated GPU.

`WATTLINE_LITELLM` is the program `litellm` of an environment with litellm[proxy], opentelemetry-sdk
and opentelemetry-exporter-otlp-proto-http.
"""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.daemon import begin, daemon, end
from tests.fakes import tiny_gguf
from tests.polling import eventually
from tests.servers import free_port
from tests.workloads.jobs.test_llm_server_llama_cpp import read_counters
from tests.workloads.programs import plain_environment
from tests.workloads.wattline.integrations.test_vllm_energy import final
from wattline_exporter.requests.division.pace import union
from wattline_exporter.simulation import Constant, clock_s

LITELLM = os.environ.get("WATTLINE_LITELLM") or shutil.which("litellm")
pytestmark = pytest.mark.skipif(
    not LITELLM or not shutil.which("llama-server"),
    reason="needs litellm (WATTLINE_LITELLM) and llama-server",
)
LOAD_S, READY_WITHIN_S = 10.0, 240.0
OPTIONS = ("--simulate", "1xH200", "--otlp.traces", "--no-collector.host", "--no-collector.rapl")


def _start(command, environment, folder, health):
    """Start a server; return its process when the address `health` reports that it is ready."""
    name = Path(command[0]).name
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )

    def is_ready():
        assert process.poll() is None, f"{name} has ended"
        try:
            with urllib.request.urlopen(health, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    eventually(is_ready, name, (folder / f"{name}.log").read_text, READY_WITHIN_S)
    return process


def _ask(address, user):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a prompt"}],
        "max_tokens": 300,
        "user": user,
    }
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-7f3a91c0d2"}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    before = time.time()
    with urllib.request.urlopen(request, timeout=120) as answer:
        document = json.load(answer)
    return document["id"], document["usage"], before, time.time()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return the answers, the stored requests, their final energies, the true energy, and
    llama.cpp's counters.
    """
    folder, port, proxy_port = tmp_path_factory.mktemp("litellm"), free_port(), free_port()
    tiny_gguf.write(folder / "tiny.gguf")
    llama, address = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{proxy_port}"
    server = [
        "llama-server",
        "-m",
        str(folder / "tiny.gguf"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    server += ["--parallel", "2", "--ctx-size", "2048", "--threads", "1", "--metrics"]
    parameters = {
        "model": "openai/tiny",
        "api_base": f"{llama}/v1",
        "api_key": "none",
        "extra_body": {"ignore_eos": True},
    }
    models = [{"model_name": "tiny", "litellm_params": parameters}]
    settings = {"model_list": models, "litellm_settings": {"callbacks": ["otel"]}}
    (folder / "config.yaml").write_text(
        json.dumps(settings | {"general_settings": {"master_key": "sk-7f3a91c0d2"}})
    )
    proxy = [
        LITELLM,
        "--config",
        str(folder / "config.yaml"),
        "--host",
        "127.0.0.1",
        "--port",
        str(proxy_port),
    ]
    processes = []
    with (
        daemon(folder, *OPTIONS, "--requests.labels", "user") as exporter,
        exporter.simulation() as simulation,
    ):
        environment = plain_environment() | {
            "OTEL_EXPORTER": "otlp_http",
            "OTEL_ENDPOINT": f"{exporter.url}/v1/traces",
            "OTEL_RESOURCE_ATTRIBUTES": "wattline.run_id=llama-1",
            "OTEL_BSP_SCHEDULE_DELAY": "500",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        try:
            processes.append(_start(server, environment, folder, f"{llama}/health"))
            processes.append(_start(proxy, environment, folder, f"{address}/health/liveliness"))
            _ask(address, "warm-up")  # before the run: it is rejected
            before = read_counters(llama)
            simulation.set_load(0, Constant(400.0))
            time.sleep(2.0)  # a request may begin at most 1 s before its run
            begin(exporter, "llm-server", run_id="llama-1", gpus=["0"])
            start_s, end_s = clock_s(), time.monotonic() + LOAD_S

            def send(user):
                answers = []
                while time.monotonic() < end_s:
                    answers.append(_ask(address, user))
                return answers

            with ThreadPoolExecutor(2) as pool:
                answers = [
                    answer for answered in pool.map(send, ("ann", "bob")) for answer in answered
                ]
            truth_j = simulation.energy_j(0, start_s, clock_s())
            counters = [now - then for now, then in zip(read_counters(llama), before, strict=True)]
            energies = [final(exporter, request_id) for request_id, *_ in answers]
            end(exporter, "llama-1")
            _, page = exporter.get("/api/v1/runs/llama-1/requests?limit=1000")
        finally:
            for process in processes:
                process.terminate()
                process.wait(60)
    return answers, page["requests"], energies, truth_j, counters


def test_litellm_spans_equal_counters_of_llama_cpp(served):
    answers, requests, _, _, (computed, cached, generated) = served

    assert len(requests) == len(answers) > 4
    assert sum(each["prompt_tokens"] for each in requests) == computed + cached
    assert sum(each["generated_tokens"] for each in requests) == generated
    assert {each["labels"]["user"] for each in requests} == {"ann", "bob"}


def test_litellm_spans_equal_usage_of_their_answers(served):
    answers, requests, *_ = served
    by_id = {each["id"]: each for each in requests}

    for request_id, usage, before, after in answers:
        one = by_id[request_id]
        assert (one["prompt_tokens"], one["generated_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
        assert before <= one["started_at"] <= one["ended_at"] <= after


def test_litellm_spans_joules_add_up_to_the_true_energy(served):
    """The GPU always has 400 W; between the spans of the proxy it has no request, which is the
    rest.
    """
    _, requests, energies, truth_j, _ = served
    begin_s, end_s = (
        np.array([each[name] for each in requests]) for name in ("started_at", "ended_at")
    )
    begins_s, ends_s = union(begin_s, end_s)
    during_j = 400.0 * float((ends_s - begins_s).sum())
    total_j = sum(one["energy_joules"] for one in energies)
    print(
        f"{len(energies)} requests: {total_j:.1f} J, {during_j:.1f} J during them, {truth_j:.1f} J "
        "in all"
    )

    assert 0.98 * during_j <= total_j <= 1.01 * truth_j
