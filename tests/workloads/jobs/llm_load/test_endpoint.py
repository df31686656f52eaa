"""Single requests to a scripted server, and their failures."""

import asyncio
import time

import pytest

from tests.fakes import openai_server as sse
from tests.fakes.openai_server import CUT, DONE, OpenAiServer, Script
from tests.fakes.web_api import serve
from wattline_workloads.jobs.llm_load import endpoint
from wattline_workloads.jobs.llm_load.endpoint import EndpointError, RequestTarget
from wattline_workloads.jobs.llm_load.generator import Prompt, Request
from wattline_workloads.jobs.llm_load.stream import TokenUsage

REQUEST = Request(Prompt("hello"), 8)


def send(script, request=REQUEST, *, key=None, due_s=None, **target):
    """Send one request; return its outcome and the request as the server received it."""

    async def send_once():
        async with (
            serve(OpenAiServer(script=lambda _: script)) as server,
            endpoint.open_session(key) as session,
        ):
            options = {"api": "chat", "model": "tiny", "extra": {}, "timeout_s": 30.0} | target
            answer = await endpoint.send_request(
                session, RequestTarget(f"{server.url}/v1", **options), request, due_s
            )
        return answer, server.requests[-1]

    return asyncio.run(send_once())


def failure(*steps, **script):
    answer, _ = send(Script(steps, **script))
    assert answer.failure, "it did not fail"
    return answer.failure.kind, answer.failure.message


def test_send_request_times_match_server_clock():
    answer, received = send(sse.answer(3, first_s=0.3, gap_s=0.2))
    role_s, first_s, second_s, third_s, finish_s, *_ = received.written_s

    assert answer.failure is None
    assert answer.sent_s <= received.received_s <= role_s < first_s <= answer.first_s
    assert answer.ttft_s >= 0.3
    assert answer.ended_s >= finish_s
    assert answer.first_s + sum(answer.gaps_s) >= third_s > second_s
    assert len(answer.gaps_s) == 2


def test_send_request_tokens_are_from_usage_of_server():
    answer, _ = send(
        Script([sse.text("several tokens in one chunk"), sse.finish(), sse.usage(11, 6), DONE])
    )

    assert (answer.usage, answer.tokens, answer.chunks) == (TokenUsage(11, 6), 6, 1)


def test_send_request_without_usage_has_no_tokens():
    answer, _ = send(Script([sse.text("a"), sse.text("b"), sse.finish(), DONE]))

    assert answer.failure is None
    assert (answer.usage, answer.tokens, answer.tpot_s, answer.chunks) == (None, None, None, 2)


def test_send_request_repeated_usage_keeps_last():
    answer, _ = send(Script([sse.usage(5, 1), sse.text("a"), sse.usage(5, 2), sse.finish(), DONE]))

    assert answer.usage == TokenUsage(5, 2)


def test_send_request_finished_stream_needs_no_done():
    answer, _ = send(Script([sse.text("a"), sse.finish("stop"), sse.usage(1, 1)]))

    assert answer.failure is None


@pytest.mark.parametrize("end", [CUT, 60.0])
def test_send_request_finished_answer_ignores_connection_end(end):
    answer, _ = send(
        Script([sse.text("a"), sse.finish("stop"), sse.usage(1, 1), 0.1, end]), timeout_s=3.0
    )

    assert (answer.failure, answer.tokens) == (None, 1)
    assert answer.e2e_s < 3


def test_send_request_stream_cut_off_fails():
    assert failure(sse.text("a"))[0] == "cut_off"
    assert failure(sse.text("a"), 0.1, CUT)[0] == "cut_off"


def test_send_request_answer_without_text_has_no_ttft():
    answer, _ = send(Script([sse.role(), sse.finish("stop"), sse.usage(3, 1), DONE]))

    assert (answer.failure, answer.ttft_s, answer.tokens, answer.chunks) == (None, None, 1, 0)


def test_send_request_reasoning_counts_as_first_token():
    answer, received = send(
        Script([sse.delta(reasoning_content="hm"), 0.3, sse.text("a"), sse.finish(), DONE])
    )

    assert answer.chunks == 2
    assert (
        received.written_s[0]
        <= answer.first_s
        <= answer.first_s + answer.gaps_s[0]
        <= answer.ended_s
    )


def test_send_request_single_byte_chunks_are_joined():
    whole = sse.text("€😀") + sse.finish() + sse.usage(1, 2) + DONE
    whole = whole.replace(b"\\u20ac", "€".encode()).replace(b"\n", b"\r\n")
    pieces = [
        part for position in range(len(whole)) for part in (whole[position : position + 1], 0.0)
    ]
    answer, _ = send(Script([b": hello\r\n\r\n", *pieces]))

    assert (answer.failure, answer.tokens, answer.chunks) == (None, 2, 1)


def test_send_request_ends_at_done():
    answer, received = send(Script([sse.text("a"), DONE, 60.0]))

    assert answer.failure is None
    assert received.cancelled, "the server came to the end of its minute"


def test_send_request_error_event_fails_with_its_message():
    assert failure(sse.text("a"), sse.event({"error": {"message": "no memory"}}), DONE) == (
        "in_stream",
        "no memory",
    )


def test_send_request_finish_reason_abort_fails():
    assert failure(sse.text("a"), sse.finish("abort"), sse.usage(3, 1), DONE)[0] == "aborted"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (429, b'{"error": {"message": "slow down"}}', "slow down"),
        (422, b'{"detail": "Unexpected fields"}', "Unexpected fields"),
        (500, b"Internal Server Error", "Internal Server Error"),
        (503, b"", "Service Unavailable"),
        (307, b"", "Temporary Redirect"),
    ],
)
def test_send_request_error_status_is_failure_kind(status, body, message):
    kind_and_message = failure(
        body,
        status=status,
        content_type="application/json",
        headers={"Location": "http://127.0.0.1:9/"},
    )

    assert kind_and_message == (f"http_{status}", message)


def test_send_request_json_without_stream_fails():
    kind, _ = failure(
        b'{"choices": [{"message": {"content": "a"}}]}', content_type="application/json"
    )

    assert kind == "not_streamed"


def test_send_request_malformed_answer_fails():
    assert failure(b"data: <html>\n\n")[0] == "malformed"
    assert failure(b"data: \xff\n\n")[0] == "malformed"
    assert failure(b"<html></html>", content_type="text/html") == (
        "malformed",
        "no event in a response of type text/html",
    )


def test_send_request_timeout_fails():
    answer, _ = send(Script([sse.text("a"), 60.0]), timeout_s=0.5)

    assert answer.failure.kind == "timeout"
    assert answer.e2e_s >= 0.5


def test_send_request_connection_refused_fails():
    async def refused():
        async with endpoint.open_session(None) as session:
            return await endpoint.send_request(
                session, RequestTarget("http://127.0.0.1:9/v1", "chat", "tiny", {}, 30.0), REQUEST
            )

    answer = asyncio.run(refused())

    assert (answer.failure.kind, answer.failure.message) == (
        "connection",
        "127.0.0.1:9: Connection refused",
    )


def test_send_request_times_count_from_due_time():
    due_s = time.monotonic() - 5
    answer, _ = send(sse.answer(1), due_s=due_s)

    assert answer.ttft_s >= 5
    assert answer.e2e_s >= answer.ttft_s
    assert answer.sent_s - answer.scheduled_s >= 5


def test_send_request_chat_body_includes_usage_option():
    _, received = send(sse.answer(1))

    assert received.path == "/v1/chat/completions"
    assert received.body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_send_request_messages_and_prompt_are_unchanged():
    messages = [{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}]

    assert send(sse.answer(1), Request(Prompt(None, messages), 8))[1].body["messages"] == messages
    _, received = send(sse.answer(1), api="completions")
    assert (received.path, received.body["prompt"]) == ("/v1/completions", "hello")
    assert "messages" not in received.body


def test_send_request_extra_body_adds_and_removes_fields():
    extra = {
        "ignore_eos": True,
        "stream_options": None,
        "max_tokens": None,
        "max_completion_tokens": 4,
    }
    _, received = send(sse.answer(1), extra=extra)

    assert received.body.keys() == {
        "model",
        "messages",
        "stream",
        "ignore_eos",
        "max_completion_tokens",
    }


def test_send_request_key_is_bearer_token():
    assert send(sse.answer(1), key="secret")[1].headers["Authorization"] == "Bearer secret"
    assert "Authorization" not in send(sse.answer(1))[1].headers


def model_names(**server):
    async def send_once():
        async with serve(OpenAiServer(**server)) as running, endpoint.open_session(None) as session:
            return await endpoint.list_models(session, f"{running.url}/v1")

    return asyncio.run(send_once())


def test_list_models_returns_names():
    assert model_names() == ["tiny", "other"]


@pytest.mark.parametrize("models", [[], {}, None, {"data": None}, {"data": [{}, 3, {"id": 4}]}])
def test_list_models_unexpected_response_is_empty(models):
    assert model_names(models=models) == []
    assert model_names(models_status=500) == []


def test_list_models_failure_names_remedy():
    with pytest.raises(EndpointError, match="OPENAI_API_KEY"):
        model_names(models_status=401)

    async def nowhere():
        async with endpoint.open_session(None) as session:
            await endpoint.list_models(session, "http://127.0.0.1:9/v1")

    with pytest.raises(EndpointError, match="Connection refused; start the server"):
        asyncio.run(nowhere())


def test_send_request_cancelled_closes_connection():
    async def cancelled():
        script = Script([step for _ in range(1_000) for step in (sse.text("a"), 0.05)])
        async with (
            serve(OpenAiServer(script=lambda _: script)) as server,
            endpoint.open_session(None) as session,
        ):
            target = RequestTarget(f"{server.url}/v1", "chat", "tiny", {}, 60.0)
            task = asyncio.create_task(endpoint.send_request(session, target, REQUEST))
            await server.wrote.wait()
            task.cancel()
            await asyncio.wait([task])
            await server.finished.wait()
            return task.cancelled(), server.requests[0].cancelled

    assert asyncio.run(cancelled()) == (True, True)
