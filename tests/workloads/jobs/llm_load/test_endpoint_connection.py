"""Connections that a server closes despite keep-alive, as llama.cpp does after each stream."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.fakes import openai_server as sse
from tests.fakes.openai_server import OpenAiServer
from tests.fakes.web_api import serve
from wattline_workloads.jobs.llm_load import endpoint
from wattline_workloads.jobs.llm_load.endpoint import EndpointError, RequestTarget
from wattline_workloads.jobs.llm_load.generator import Prompt, Request


@dataclass
class ClosingServer(OpenAiServer):
    """Server that answers `kept` requests per connection on at most `open_connections`, and closes
    all others.
    """

    kept: int = 1
    open_connections: int = 1_000
    request_counts: dict[int, int] = field(default_factory=dict)
    """Number of requests per connection, by the client's port."""

    async def complete(self, request):
        _, port = request.transport.get_extra_info("peername")
        self.request_counts[port] = self.request_counts.get(port, 0) + 1
        if (
            self.request_counts[port] > self.kept
            or len(self.request_counts) > self.open_connections
        ):
            request.transport.abort()
            raise asyncio.CancelledError
        return await super().complete(request)


def send_requests(count, **closing):
    """Send requests in sequence; return their outcomes and the number of requests per
    connection.
    """

    async def request_counts():
        server = ClosingServer(script=lambda _: sse.answer(2), **closing)
        async with serve(server) as running, endpoint.open_session(None) as session:
            target = RequestTarget(f"{running.url}/v1", "chat", "tiny", {}, 30.0)
            outcomes = [
                await endpoint.send_request(session, target, Request(Prompt("hello"), 8))
                for _ in range(count)
            ]
        return outcomes, list(server.request_counts.values())

    return asyncio.run(request_counts())


def test_send_request_closed_connection_is_retried():
    outcomes, request_counts = send_requests(3)

    assert [(answer.failure, answer.tokens) for answer in outcomes] == [(None, 2)] * 3
    assert request_counts == [2, 2, 1]


def test_send_request_kept_connection_is_reused():
    assert send_requests(3, kept=3)[1] == [3]


def test_send_request_new_connection_closed_is_not_retried():
    outcomes, request_counts = send_requests(1, kept=0)

    assert outcomes[0].failure.kind == "connection"
    assert request_counts == [1]


def test_send_request_failed_retry_is_connection_failure():
    outcomes, request_counts = send_requests(2, open_connections=1)

    assert [answer.failure and answer.failure.kind for answer in outcomes] == [None, "connection"]
    assert request_counts == [2, 1]


def test_list_models_loading_server_is_quoted():
    async def list_models():
        models = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
        server = OpenAiServer(models=models, models_status=503)
        async with serve(server) as running, endpoint.open_session(None) as session:
            await endpoint.list_models(session, f"{running.url}/v1")

    with pytest.raises(
        EndpointError,
        match="returned HTTP 503: Loading model; try again when the server has loaded",
    ):
        asyncio.run(list_models())
