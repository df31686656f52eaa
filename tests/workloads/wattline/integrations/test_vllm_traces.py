"""OpenTelemetry traces of a real vLLM on the CPU: the requests of a run, and their joules.

The environment of `WATTLINE_VLLM_PYTHON` also needs opentelemetry-exporter-otlp-proto-http and
opentelemetry-semantic-conventions-ai.
"""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.daemon import begin, daemon, end
from tests.fakes.tiny_llama import save_llama
from tests.polling import eventually
from tests.servers import free_port
from tests.workloads.programs import plain_environment
from tests.workloads.wattline.integrations import test_vllm as server
from tests.workloads.wattline.integrations.test_vllm_energy import final
from wattline_exporter.simulation import Constant, clock_s

IMPORTS = "import opentelemetry.exporter.otlp.proto.http, opentelemetry.semconv_ai"


def _has_opentelemetry():
    return (
        bool(server.PYTHON)
        and subprocess.run([server.PYTHON, "-c", IMPORTS], check=False).returncode == 0
    )


pytestmark = [
    server.pytestmark,
    pytest.mark.skipif(
        not _has_opentelemetry(), reason=f"needs an environment with vLLM and: {IMPORTS}"
    ),
]
LOAD_S = 12.0
OPTIONS = ("--simulate", "1xH200", "--otlp.traces", "--no-collector.host", "--no-collector.rapl")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return the answers, the stored requests, their final energies, the true energy and vLLM's
    counters.
    """
    folder, port = tmp_path_factory.mktemp("traces"), free_port()
    save_llama(folder / "tiny")
    module, address = "vllm.entrypoints.openai.api_server", f"http://127.0.0.1:{port}"
    command = [server.PYTHON, "-m", module, "--model", str(folder / "tiny"), "--port", str(port)]
    with daemon(folder, *OPTIONS) as exporter, exporter.simulation() as simulation:
        environment = plain_environment() | server.CPU
        environment |= {
            "VLLM_PLUGINS": "none",  # the spans are the only reports
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_RESOURCE_ATTRIBUTES": "wattline.run_id=vllm-1",
            "OTEL_BSP_SCHEDULE_DELAY": "500",
        }
        traces = ("--otlp-traces-endpoint", f"{exporter.url}/v1/traces")
        with (folder / "vllm.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *server.OPTIONS.split(), *traces],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            eventually(
                lambda: server.is_ready(address, process),
                "vLLM",
                (folder / "vllm.log").read_text,
                server.READY_WITHIN_S,
            )
            simulation.set_load(0, Constant(400.0))
            begin(exporter, "llm-server", run_id="vllm-1", gpus=["0"])
            start_s = clock_s()
            answers = _load(address)
            truth_j = simulation.energy_j(0, start_s, clock_s())
            counters = {name: server.counter(address, name) for name in COUNTERS}
            energies = [final(exporter, request_id) for request_id, *_ in answers]
            end(exporter, "vllm-1")
            _, page = exporter.get("/api/v1/runs/vllm-1/requests?limit=1000")
        finally:
            process.terminate()
            process.wait(60)
    return answers, page["requests"], energies, truth_j, counters


COUNTERS = (
    "request_success_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "e2e_request_latency_seconds_sum",
    "time_to_first_token_seconds_sum",
)


def _load(address):
    """Return the answers of two users, each of which sends a request after the other."""
    end_s = time.monotonic() + LOAD_S

    def send(_):
        answers = []
        while time.monotonic() < end_s:
            answers.append(server.ask(address, "a prompt", 200, stream=True))
        return answers

    with ThreadPoolExecutor(2) as pool:
        return [answer for answered in pool.map(send, range(2)) for answer in answered]


def test_vllm_spans_equal_counters_of_server(served):
    _, requests, _, _, counters = served
    prompt, generated, latency_s, first_s = (
        sum(each["prompt_tokens"] for each in requests),
        sum(each["generated_tokens"] for each in requests),
        sum(each["ended_at"] - each["started_at"] for each in requests),
        sum(each["first_token_at"] - each["started_at"] for each in requests),
    )

    assert len(requests) == counters["request_success_total"] > 4
    assert prompt == counters["prompt_tokens_total"]
    assert generated == counters["generation_tokens_total"]
    assert latency_s == pytest.approx(counters["e2e_request_latency_seconds_sum"], abs=1e-4)
    assert first_s == pytest.approx(counters["time_to_first_token_seconds_sum"], abs=1e-4)


def test_vllm_spans_equal_usage_of_their_answers(served):
    answers, requests, *_ = served
    by_id = {each["id"]: each for each in requests}

    for request_id, usage, before, after in answers:
        one = by_id[request_id]
        assert (one["prompt_tokens"], one["generated_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
        assert before <= one["started_at"] <= one["first_token_at"] <= one["ended_at"] <= after


def test_vllm_spans_joules_add_up_to_the_true_energy(served):
    _, _, energies, truth_j, _ = served
    total_j = sum(one["energy_joules"] for one in energies)
    print(f"{len(energies)} requests: {total_j:.1f} J of {truth_j:.1f} J")

    assert total_j == pytest.approx(truth_j, rel=0.04)  # half a slot of 0.25 s at each edge of 12 s
