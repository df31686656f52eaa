"""ASGI middleware in a real uvicorn server, whose answers follow the request."""

import asyncio
import hashlib
import json
import threading
import time

import pytest
import requests

from tests.polling import eventually
from tests.servers import free_port
from wattline.client.api import Api, RejectedRequestError
from wattline.contract.api import NO_GPU_FOUND
from wattline.integrations.asgi import EnergyMiddleware
from wattline.integrations.served_requests import ANSWER_ENERGY, Served, ServedRequests

uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn")
fastapi = pytest.importorskip("fastapi", reason="needs fastapi")

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
ROLE = {
    "id": "chat-2",
    "model": "tiny",
    "choices": [{"delta": {"role": "assistant", "content": ""}}],
}
TEXT = {"id": "chat-2", "model": "tiny", "choices": [{"delta": {"content": "a"}}]}
KEY = "secret-key"


def application(reporter=None):
    """Server with a JSON answer, and streams with and without usage; each waits for 0.2 s before
    its first text.
    """
    from fastapi.responses import JSONResponse, StreamingResponse

    app = fastapi.FastAPI()

    async def events(documents, first=ROLE):
        yield f"data: {json.dumps(first)}\n\n"
        await asyncio.sleep(0.2)
        for document in documents:
            yield f"data: {json.dumps(document)}\n\n"
        await asyncio.sleep(0.2)
        yield "data: [DONE]\n\n"

    @app.post("/v1/chat/completions")
    async def chat(body: dict):
        if not body.get("stream"):
            return JSONResponse({"id": "chat-1", "model": "tiny", "choices": [], "usage": USAGE})
        last = (
            [{"id": "chat-2", "choices": [], "usage": USAGE}] if body.get("stream_options") else []
        )
        return StreamingResponse(events([TEXT, TEXT, *last]), media_type="text/event-stream")

    @app.post("/v1/responses")
    async def respond():
        created = {"type": "response.created", "response": {"id": "resp-1", "usage": None}}
        done = {
            "type": "response.completed",
            "response": {"usage": {"input_tokens": 7, "output_tokens": 2}},
        }
        text = {"type": "response.output_text.delta", "delta": "a"}
        return StreamingResponse(events([text, done], created), media_type="text/event-stream")

    @app.post("/v1/completions")
    async def fail():
        return JSONResponse({"error": {"message": "too long"}}, status_code=400)

    return EnergyMiddleware(app, reporter)


@pytest.fixture
def serve(exporter, monkeypatch):
    """Return a function that starts the server and returns its address."""
    monkeypatch.setenv("WATTLINE_EXPORTER", exporter.address)
    for name in ("WATTLINE_RUN_ID", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    started = []

    def start(reporter=None, wrap=lambda app: app):
        port = free_port()
        server = uvicorn.Server(
            uvicorn.Config(wrap(application(reporter)), "127.0.0.1", port, log_level="warning")
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        started.append((server, thread))
        eventually(lambda: server.started, "the server starts")
        return f"http://127.0.0.1:{port}"

    yield start
    for server, thread in started:
        server.should_exit = True
        thread.join(30)


def post(address, path="/v1/chat/completions", **body):
    return requests.post(
        address + path, json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=30
    )


def served(exporter, request_id):
    eventually(lambda: request_id in exporter.api.served, f"request {request_id} is reported")
    return exporter.api.served[request_id]


def test_json_answer_is_reported_with_its_usage_and_labels(exporter, serve):
    address, before = serve(), time.time()
    answer = post(address, model="tiny", user="ann")
    after = time.time()
    request = served(exporter, "chat-1")

    assert answer.json()["usage"] == USAGE
    assert before <= request["started_at"] <= request["ended_at"] <= after + 0.01
    assert (request["prompt_tokens"], request["cached_tokens"], request["generated_tokens"]) == (
        11,
        8,
        3,
    )
    assert "first_token_at" not in request
    key = hashlib.sha256(KEY.encode()).hexdigest()[:16]
    assert request["labels"] == {
        "model": "tiny",
        "user": "ann",
        "route": "/v1/chat/completions",
        "api_key": key,
    }
    assert KEY not in str(exporter.api.requests)


def test_stream_has_its_first_token_after_the_role_and_before_its_end(exporter, serve):
    answer = post(serve(), stream=True, stream_options={"include_usage": True})
    request = served(exporter, "chat-2")

    assert answer.text.count("data: ") == 5
    assert request["generated_tokens"] == 3
    assert request["first_token_at"] - request["started_at"] >= 0.2
    assert request["ended_at"] - request["first_token_at"] >= 0.2


def test_stream_of_responses_api_is_reported(exporter, serve):
    post(serve(), "/v1/responses", stream=True)
    request = served(exporter, "resp-1")

    assert (request["prompt_tokens"], request["generated_tokens"]) == (7, 2)
    assert request["first_token_at"] - request["started_at"] >= 0.2


def test_answers_without_usage_are_counted_and_logged_once(exporter, serve, capfd):
    address = serve()
    for _ in range(2):
        assert post(address, stream=True).text.endswith("data: [DONE]\n\n")
    post(address)
    served(exporter, "chat-1")

    assert (
        "cannot measure requests whose answers have no usage; let clients" in capfd.readouterr().err
    )
    assert list(exporter.api.served) == ["chat-1"]


def test_failed_request_is_not_reported(exporter, serve):
    address = serve()
    assert post(address, "/v1/completions").status_code == 400
    post(address)
    served(exporter, "chat-1")

    assert list(exporter.api.served) == ["chat-1"]


def test_own_run_starts_with_the_server_and_ends_with_it(exporter, serve):
    serve()
    eventually(lambda: exporter.api.runs, "a run")
    assert exporter.api.only_run.workload == "llm-server"
    assert exporter.api.only_run.state == "running"


def test_server_without_exporter_answers(closed_address, serve, monkeypatch, capfd):
    monkeypatch.setenv("WATTLINE_EXPORTER", closed_address)
    monkeypatch.setenv(ANSWER_ENERGY, "1")
    address = serve()
    answer = post(address)

    assert answer.json()["usage"] == USAGE
    assert "Wattline-Energy" not in answer.headers
    eventually(lambda: "this run is not measured" in capfd.readouterr().err, "a message")


def test_requests_wait_for_the_run_that_the_environment_names(exporter, serve, monkeypatch, capfd):
    monkeypatch.setenv("WATTLINE_RUN_ID", "later")
    address = serve(ServedRequests("a server", retry_s=0.1))
    post(address)
    logged = eventually(lambda: capfd.readouterr().err, "a message")

    Api(exporter.address).post("/runs", {"workload": "llm-server", "run_id": "later"})
    assert served(exporter, "chat-1")["prompt_tokens"] == 11
    assert "the exporter has no run 'later'; correct WATTLINE_RUN_ID" in logged
    assert "are measured as run" not in logged


def test_energy_is_added_to_json_answers_and_streams(exporter, serve, monkeypatch):
    monkeypatch.setenv(ANSWER_ENERGY, "1")
    exporter.api.energies = {
        "state": "provisional",
        "energy_joules": 12.5,
        "energy_uncertainty_joules": 12.5,
    }
    reporter = ServedRequests("a server")
    address = serve(reporter)
    eventually(lambda: reporter.run_id, "a run")

    text = (
        '{{"id": "{}", "state": "provisional", "energy_joules": 12.5, '
        '"energy_uncertainty_joules": 12.5}}'
    )
    assert post(address).headers["Wattline-Energy"] == text.format("chat-1")
    stream = post(address, stream=True, stream_options={"include_usage": True}).text
    assert stream.endswith(f"\n\n: energy {text.format('chat-2')}\n\n")


def test_inner_one_of_two_middlewares_does_nothing(exporter, serve, monkeypatch):
    """So do `add_middleware` and `wattline.integrations.serve` together."""
    monkeypatch.setenv(ANSWER_ENERGY, "1")
    exporter.api.energies = {
        "state": "provisional",
        "energy_joules": 12.5,
        "energy_uncertainty_joules": 12.5,
    }
    inner, outer = ServedRequests("inner"), ServedRequests("outer")
    address = serve(inner, lambda app: EnergyMiddleware(app, outer))
    eventually(lambda: outer.run_id, "a run")

    stream = post(address, stream=True, stream_options={"include_usage": True}).text
    assert stream.count(": energy {") == 1
    served(exporter, "chat-2")
    assert exporter.api.only_run.labels == {"server": "outer"}
    assert inner.run_id is None


def test_answer_does_not_wait_for_an_exporter_that_hangs(exporter, serve, monkeypatch):
    answered = threading.Event()

    class Hanging(ServedRequests):
        def energy(self, _):
            answered.wait(60)
            return {}

    monkeypatch.setenv(ANSWER_ENERGY, "1")
    reporter = Hanging("a server")
    address = serve(reporter)
    eventually(lambda: reporter.run_id, "a run")
    try:
        assert post(address).json()["usage"] == USAGE
    finally:
        answered.set()


def test_energy_is_not_that_of_another_run(exporter, monkeypatch):
    api = Api(exporter.address)
    exporter.api.energies = {"energy_joules": 12.5}
    monkeypatch.setenv("WATTLINE_EXPORTER", exporter.address)
    servers = []
    for run_id in ("first", "second"):
        api.post("/runs", {"workload": "llm-server", "run_id": run_id})
        monkeypatch.setenv("WATTLINE_RUN_ID", run_id)
        servers.append(ServedRequests("a server"))
        servers[-1].start()
        eventually(lambda: servers[-1].run_id, "a run")
    first, second = servers
    second.add(Served("same", started_at=1, ended_at=2, prompt_tokens=1, generated_tokens=1))

    second.flush(5.0)
    assert second.energy("same")["energy_joules"] == 12.5
    with pytest.raises(RejectedRequestError, match="there is no /api/v1/requests/same"):
        first.energy("same")
    first.close()
    second.close()


def test_server_without_gpu_is_logged_while_it_runs(exporter, monkeypatch, capfd):
    Api(exporter.address).post("/runs", {"workload": "llm-server", "run_id": "first", "gpus": []})
    exporter.api.change("first", notes=(NO_GPU_FOUND,))
    monkeypatch.setenv("WATTLINE_EXPORTER", exporter.address)
    monkeypatch.setenv("WATTLINE_RUN_ID", "first")
    reporter = ServedRequests("a server", gpu_within_s=0.0)
    reporter.start()
    logged = []

    def message():
        logged.append(capfd.readouterr().err)
        return (
            "requests of a server have no energy: no process of the run was found on a GPU"
            in "".join(logged)
        )

    eventually(message, "a message")
    reporter.close()
