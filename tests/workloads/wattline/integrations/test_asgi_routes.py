"""Answers of other routes through the ASGI middleware, without a server: each part passes at once
and unchanged.
"""

import asyncio
import json
from types import SimpleNamespace

import pytest

from wattline.integrations.asgi import ROUTES, EnergyMiddleware
from wattline.integrations.served_requests import ANSWER_ENERGY

USAGE = {"prompt_tokens": 11, "completion_tokens": 3}
JSON, EVENTS = (b"content-type", b"application/json"), (b"content-type", b"text/event-stream")
LINES = (b"content-type", b"application/x-ndjson")
SGLANG = {"text": "a", "meta_info": {"id": "sgl-1", "prompt_tokens": 11, "completion_tokens": 3}}
OLLAMA = {
    "model": "tiny",
    "message": {"content": ""},
    "done": True,
    "prompt_eval_count": 11,
    "eval_count": 3,
}


class Reporter:
    """Reporter that keeps its requests."""

    run_id = "server"

    def __init__(self):
        self.served, self.without_usage = [], 0

    def add(self, served):
        self.served.append(served)

    def note_without_usage(self):
        self.without_usage += 1

    def flush(self, within_s):
        pass

    def energy(self, request_id):
        return {"id": request_id, "state": "provisional", "energy_joules": 1.0}


def exchange(path, *parts, headers=(JSON,), method="POST", request=(JSON, b"{}"), status=200):
    """Send a request to an application that answers with these parts; return the reporter and the
    timed parts.

    The application notes the number of messages that had been sent before each part.
    """
    reporter, sent, before = Reporter(), [], []

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        for number, part in enumerate(parts, 1):
            before.append(len(sent))
            await send(
                {"type": "http.response.body", "body": part, "more_body": number < len(parts)}
            )

    async def receive():
        return {"type": "http.request", "body": request[1], "more_body": False}

    async def send(message):
        sent.append(dict(message))

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [request[0]] if request[0] else [],
    }
    asyncio.run(EnergyMiddleware(app, reporter)(scope, receive, send))
    assert b"".join(each["body"] for each in sent[1:]) == b"".join(parts)
    return reporter, SimpleNamespace(sent=sent, before=before)


def dumped(document):
    return json.dumps(document).encode()


def lines(*documents):
    return [dumped(each) + b"\n" for each in documents]


@pytest.mark.parametrize(
    ("path", "parts", "header"),
    [
        ("/v1/rerank", [dumped({"id": "r", "results": [], "usage": {"total_tokens": 11}})], JSON),
        ("/pooling", [dumped({"data": [], "usage": {"prompt_tokens": 11}})], JSON),
        (
            "/v1/audio/transcriptions",
            [dumped({"text": "a", "usage": {"input_tokens": 11, "output_tokens": 3}})],
            JSON,
        ),
        ("/generate", [dumped(SGLANG)], JSON),
        ("/generate", [b"data: " + dumped(SGLANG) + b"\n\n", b"data: [DONE]\n\n"], EVENTS),
        ("/api/chat", lines({"message": {"content": "a"}, "done": False}, OLLAMA), LINES),
        ("/api/generate", [dumped(OLLAMA)], JSON),
    ],
)
def test_answer_of_any_route_with_tokens_is_reported(path, parts, header):
    reporter, passed = exchange(path, *parts, headers=[header])

    [served] = reporter.served
    assert served.prompt_tokens == 11
    assert served.labels["route"] == path
    assert (served.first_token_at is not None) == (header != JSON)
    assert passed.before == list(range(1, len(parts) + 1)), "each part is sent at once"


@pytest.mark.parametrize(
    ("parts", "header", "status"),
    [
        ([dumped({"results": [1, 2]})], JSON, 200),
        ([dumped({"usage": {"disk_bytes": 7}})], JSON, 200),
        ([b'{"usage": {"prompt_tokens": 11'], JSON, 200),
        ([b"usage" * 10], (b"content-type", b"text/html"), 200),
        ([dumped({"usage": USAGE})], JSON, 500),
        ([b"data: a\n\n"] * 3, EVENTS, 200),
        ([b""], JSON, 200),
    ],
)
def test_other_answers_pass_and_are_not_counted(parts, header, status):
    reporter, passed = exchange("/items", *parts, headers=[header], status=status)

    assert (reporter.served, reporter.without_usage) == ([], 0)
    assert passed.before == list(range(1, len(parts) + 1))


def test_large_answer_of_another_route_is_not_read():
    filler = b" " * 600_000
    parts = [b'{"data": "', filler, filler, b'", "usage": ', dumped(USAGE), b"}"]

    assert exchange("/items", *parts)[0].served == []
    assert len(exchange("/v1/embeddings", *parts)[0].served) == 1
    assert len(exchange("/items", *parts[:2], *parts[3:])[0].served) == 1


def test_only_answers_of_known_routes_without_usage_are_counted(monkeypatch):
    monkeypatch.setenv(ROUTES, " /generate, ,/api/chat")

    counts = {
        path: exchange(path, b"{}")[0].without_usage
        for path in ("/generate", "/api/chat", "/other", "/v1/chat")
    }
    assert counts == {"/generate": 1, "/api/chat": 1, "/other": 0, "/v1/chat": 0}


def test_answer_of_another_route_does_not_wait_for_its_energy(monkeypatch):
    """Only answers of known routes have a header with their energy."""
    monkeypatch.setenv(ANSWER_ENERGY, "1")
    parts = [b'{"id": "a", "usage": ', dumped(USAGE), b"}"]
    reporter, other = exchange("/items", *parts)
    _, known = exchange("/v1/completions", *parts)

    assert len(reporter.served) == 1
    assert other.before == [1, 2, 3]
    assert known.before == [0, 0, 0]
    assert other.sent[0]["headers"] == [JSON]


def test_stream_with_a_length_gets_no_comment(monkeypatch):
    monkeypatch.setenv(ANSWER_ENERGY, "1")
    part = b"data: " + dumped({"id": "a", "choices": [], "usage": USAGE}) + b"\n\n"
    reporter, _ = exchange(
        "/v1/completions", part, headers=[EVENTS, (b"content-length", b"%d" % len(part))]
    )

    assert len(reporter.served) == 1


@pytest.mark.parametrize(
    ("header", "model"),
    [(JSON, "tiny"), ((b"content-type", b"multipart/form-data"), None), (None, None)],
)
def test_uploads_to_other_routes_are_not_kept(header, model):
    reporter, _ = exchange(
        "/items", dumped({"usage": USAGE}), request=(header, dumped({"model": "tiny"}))
    )

    assert reporter.served[0].labels.get("model") == model


def test_request_that_names_the_run_of_its_client_has_its_label():
    reporter, _ = exchange(
        "/v1/completions", dumped({"usage": USAGE}), request=((b"wattline-run", b"load-1"), b"{}")
    )

    assert reporter.served[0].labels["client_run"] == "load-1"


def test_other_methods_are_not_measured():
    reporter, _ = exchange("/v1/responses/resp-1", dumped({"usage": USAGE}), method="GET")

    assert reporter.served == []
