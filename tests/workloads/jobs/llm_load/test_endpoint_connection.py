"""Connections that a server closes, though it said that it keeps them: llama.cpp does so after each stream."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.fakes import openai_server as says
from tests.fakes.openai_server import OpenAiServer
from tests.fakes.web_api import serve
from workloads.jobs.llm_load import endpoint
from workloads.jobs.llm_load.endpoint import EndpointError, RequestTarget
from workloads.jobs.llm_load.prompts import Prompt, Request


@dataclass
class Closing(OpenAiServer):
    """Answers the first `kept` requests of a connection, of `open_connections` alone, and hangs up at any other."""

    kept: int = 1
    open_connections: int = 1_000
    asked: dict[int, int] = field(default_factory=dict)
    """How many requests came over each connection, by its port at the client."""

    async def complete(self, request):
        _, port = request.transport.get_extra_info("peername")
        self.asked[port] = self.asked.get(port, 0) + 1
        if self.asked[port] > self.kept or len(self.asked) > self.open_connections:
            request.transport.abort()
            raise asyncio.CancelledError
        return await super().complete(request)


def answers(count, **closing):
    """To requests one after the other, and how many came over each connection."""

    async def asked():
        server = Closing(script=lambda _: says.answer(2), **closing)
        async with serve(server) as running, endpoint.open_session(None) as session:
            target = RequestTarget(f"{running.url}/v1", "chat", "tiny", {}, 30.0)
            found = [await endpoint.send_request(session, target, Request(Prompt("hello"), 8)) for _ in range(count)]
        return found, list(server.asked.values())

    return asyncio.run(asked())


def test_send_request_closed_connection_is_retried():
    found, asked = answers(3)

    assert [(answer.failure, answer.tokens) for answer in found] == [(None, 2)] * 3
    assert asked == [2, 2, 1]


def test_send_request_kept_connection_is_reused():
    assert answers(3, kept=3)[1] == [3]


def test_send_request_new_connection_closed_is_not_retried():
    found, asked = answers(1, kept=0)

    assert found[0].failure.kind == "connection"
    assert asked == [1]


def test_send_request_failed_retry_is_connection_failure():
    found, asked = answers(2, open_connections=1)

    assert [answer.failure and answer.failure.kind for answer in found] == [None, "connection"]
    assert asked == [2, 1]


def test_list_models_loading_server_is_quoted():
    async def listed():
        models = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
        server = OpenAiServer(models=models, models_status=503)
        async with serve(server) as running, endpoint.open_session(None) as session:
            await endpoint.list_models(session, f"{running.url}/v1")

    with pytest.raises(EndpointError, match="answers 503: Loading model; is the server still loading its model"):
        asyncio.run(listed())
