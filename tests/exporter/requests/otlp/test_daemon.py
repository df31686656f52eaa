"""Traces at a real exporter: its option, its access rules, and the runs of requests."""

import time

import pytest
import requests

from tests.daemon import daemon
from tests.exporter.api import sleeper
from tests.exporter.requests.otlp.receiver_node import PROTOBUF
from tests.exporter.requests.otlp.senders import VLLM, emit, encoded, http_exporter, provider


def begin(exporter, run_id):
    assert exporter.post("/api/v1/runs", {"workload": "llm", "run_id": run_id})[0] == 201


def spans(count):
    """Emit spans of requests that lasted the last 50 ms."""

    def send(tracer):
        for index in range(count):
            attributes = {
                **VLLM,
                "gen_ai.latency.e2e": 0.05,
                "gen_ai.request.id": f"chatcmpl-{index}",
            }
            attributes["gen_ai.latency.time_to_first_token"] = 0.01
            emit(tracer, "llm_request", attributes, start=time.time() - 0.05, seconds=0.05)

    return send


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("otlp")
    with daemon(
        folder,
        "--simulate",
        "1xH200",
        "--no-collector.rapl",
        "--no-collector.host",
        "--otlp.traces",
    ) as running:
        begin(running, "server-1")
        begin(running, "server-2")
        yield running


COUNTED = "wattline_otlp_spans_total"


def test_spans_of_the_sdk_become_requests_of_the_run(exporter):
    before = exporter.value(COUNTED, outcome="accepted")
    with provider(http_exporter(exporter.url), {"wattline.run_id": "server-1"}) as tracer:
        spans(20)(tracer)

    status, view = exporter.get("/api/v1/requests/chatcmpl-7")
    assert (status in (200, 202), view["run_id"]) == (True, "server-1")
    exporter.wait_for_metric(lambda value: value == before + 20, COUNTED, outcome="accepted")


def test_process_of_a_run_names_it(exporter):
    child = sleeper()
    try:
        assert exporter.post("/api/v1/runs/server-2/processes", {"pids": [child.pid]})[0] == 200
        body = encoded(spans(1), {"vllm.process_id": str(child.pid)})
        body = body.replace(b"chatcmpl-0", b"of-child-0")

        answer = requests.post(f"{exporter.url}/v1/traces", data=body, headers=PROTOBUF, timeout=30)

        assert (answer.status_code, answer.content) == (200, b"")
        assert exporter.get("/api/v1/requests/of-child-0")[1]["run_id"] == "server-2"
    finally:
        child.kill()
        child.wait()


def test_traces_need_the_option(start):
    with start() as exporter:
        answer = requests.post(f"{exporter.url}/v1/traces", data=b"", headers=PROTOBUF, timeout=30)
        assert COUNTED not in exporter.text()

    assert answer.status_code == 404


def test_traces_need_the_token_of_the_run_api(start, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)

    with start("--otlp.traces", "--web.api-token-file", str(secret)) as exporter:
        statuses = [
            requests.post(
                f"{exporter.url}/v1/traces", data=b"", headers={**PROTOBUF, **more}, timeout=30
            ).status_code
            for more in ({}, {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"})
        ]

    assert statuses == [401, 200]
