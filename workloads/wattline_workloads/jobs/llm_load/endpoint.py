"""Client of an OpenAI-compatible endpoint: its models and streamed requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from array import array
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal

import aiohttp

from wattline_workloads.jobs.llm_load import stream
from wattline_workloads.jobs.llm_load.generator import Request
from wattline_workloads.jobs.llm_load.request_reports import request_headers
from wattline_workloads.jobs.llm_load.stream import RequestFailure, RequestOutcome

# uvicorn, Node and llama.cpp close an idle connection after 5 s; a request must not be sent at that
# moment.
_IDLE_CONNECTION_S = 2.0
_MAX_RETRIES = 8  # of a request whose reused connection is closed
Api = Literal["chat", "completions"]
_CHECK_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 30.0
_END_OF_BODY_S = 1.0
_PIECE_BYTES = 1 << 16
_ERROR_BYTES = 4096


@dataclass
class _Sending:
    """Request in progress; `reused` if its connection has served another one before."""

    reused: bool = False


async def _record_reuse(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _: object
) -> None:
    if isinstance(context.trace_request_ctx, _Sending):
        context.trace_request_ctx.reused = True


@contextlib.asynccontextmanager
async def open_session(key: str | None) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with one connection per request in flight."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_record_reuse)
    async with aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
    ) as session:
        yield session


@contextlib.asynccontextmanager
async def post_request(
    session: aiohttp.ClientSession,
    url: str,
    body: bytes,
    limit: aiohttp.ClientTimeout,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Post a request, and repeat it if the server has closed the reused connection (RFC 9112,
    9.3.1).

    llama.cpp closes a keep-alive connection after each stream. The retries count as part of the
    request's time.
    """
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **headers}
    async with contextlib.AsyncExitStack() as stack:
        for is_last in (*[False] * _MAX_RETRIES, True):
            sending = _Sending()
            posting = session.post(
                url,
                data=body,
                headers=headers,
                timeout=limit,
                allow_redirects=False,
                trace_request_ctx=sending,
            )
            try:
                response = await stack.enter_async_context(posting)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if is_last or not sending.reused:
                    raise
            else:
                yield response
                return


class EndpointError(Exception):
    """Unusable endpoint; one line with cause and remedy."""


class _FailedError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.failure = RequestFailure(kind, message)


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Destination of requests of a run; `base` ends in `/v1`, a null in `extra` removes a field
    from the request.
    """

    base: str
    api: Api
    model: str | None
    extra: Mapping[str, Any]
    timeout_s: float
    run_id: str | None = None

    @property
    def url(self) -> str:
        return f"{self.base}/{'chat/completions' if self.api == 'chat' else 'completions'}"

    def with_model(self, model: str) -> RequestTarget:
        return replace(self, model=model)

    def of_run(self, run_id: str | None) -> RequestTarget:
        return replace(self, run_id=run_id)

    def body(self, request: Request) -> dict[str, Any]:
        prompt = request.prompt
        content: dict[str, Any] = {"prompt": prompt.text}
        if self.api == "chat":
            content = {"messages": prompt.messages or [{"role": "user", "content": prompt.text}]}
        body = {
            "model": self.model,
            **content,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        return {name: value for name, value in body.items() if value is not None}


async def list_models(session: aiohttp.ClientSession, base: str) -> list[str]:
    """List the endpoint's models, empty if it lists none. Raises EndpointError."""
    url = f"{base}/models"
    timeout = aiohttp.ClientTimeout(total=_CHECK_TIMEOUT_S, sock_connect=_CHECK_TIMEOUT_S / 2)
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            if response.status in {401, 403}:
                raise EndpointError(
                    f"{url} returned HTTP {response.status}: the API key is missing or wrong; set "
                    "OPENAI_API_KEY or "
                    "give --api-key-file"
                )
            if response.status == 503:
                message = _error_text(
                    (await response.content.read(_ERROR_BYTES)).decode(errors="replace")
                )
                raise EndpointError(
                    f"{url} returned HTTP 503: {message}; try again when the server has loaded its "
                    "model"
                )
            document = json.loads(await response.read()) if response.status == 200 else {}
    except aiohttp.ClientError as error:
        raise EndpointError(
            f"cannot reach {base}: {_connection_error(error)}; start the server, or correct --url"
        ) from error
    except (TimeoutError, ValueError):
        return []  # the server may be slow, or have no list
    listed = document.get("data") if isinstance(document, dict) else None
    names = (
        [model.get("id") for model in listed if isinstance(model, dict)]
        if isinstance(listed, list)
        else []
    )
    return [name for name in names if isinstance(name, str) and name]


async def send_request(
    session: aiohttp.ClientSession,
    target: RequestTarget,
    request: Request,
    scheduled_s: float | None = None,
) -> RequestOutcome:
    """Send a request and return its outcome; only a cancellation is raised."""
    sent_s = time.monotonic()
    scheduled_s = sent_s if scheduled_s is None else scheduled_s
    reading = _Reading()
    timeout = aiohttp.ClientTimeout(total=target.timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
    failure = None
    try:
        body = json.dumps(target.body(request)).encode()
        async with post_request(
            session, target.url, body, timeout, request_headers(target.run_id)
        ) as response:
            await _read(response, reading)
    except _FailedError as error:
        failure = error.failure
    except TimeoutError:
        failure = RequestFailure("timeout", f"no complete response within {target.timeout_s:g} s")
    except aiohttp.ClientError as error:
        failure = RequestFailure(
            "cut_off" if reading.begun else "connection", _connection_error(error)
        )
    if reading.complete and failure and failure.kind in {"timeout", "cut_off"}:
        failure = None  # the response is complete; only the connection ended badly
    ended_s = time.monotonic() if failure else reading.last_s
    return RequestOutcome(
        scheduled_s,
        sent_s,
        ended_s,
        reading.first_s,
        reading.gaps_s,
        reading.usage,
        failure,
        reading.answer_id,
    )


class _Reading:
    """State of a stream being read."""

    def __init__(self) -> None:
        self.begun = False
        self.complete = False
        self.first_s: float | None = None
        self.last_s = 0.0
        self.usage: stream.TokenUsage | None = None
        self.answer_id: str | None = None
        self.gaps_s = array("d")
        self._generated_s = 0.0

    def take(self, data: str, now_s: float) -> bool:
        """Process an event and return whether it was the last. Raises _FailedError."""
        if not data.strip():
            return False  # keep-alive
        self.last_s = now_s
        if data.strip() == stream.DONE:
            self.complete = True
            return True
        try:
            chunk = stream.parse_chunk(data)
        except (ValueError, RecursionError) as error:
            raise _FailedError(
                "malformed", f"an event is not a completion chunk: {error}"
            ) from error
        if chunk.error is not None:
            raise _FailedError("in_stream", chunk.error)
        if chunk.abort_reason:
            raise _FailedError(
                "aborted", f"the server aborted the response: finish_reason {chunk.abort_reason}"
            )
        if chunk.generated:
            if self.first_s is None:
                self.first_s = now_s
            else:
                self.gaps_s.append(now_s - self._generated_s)
            self._generated_s = now_s
        self.usage = chunk.usage or self.usage
        self.answer_id = self.answer_id or chunk.answer_id
        self.complete = self.complete or chunk.finished
        return False


async def _read(response: aiohttp.ClientResponse, reading: _Reading) -> None:
    """Read a response. Raises _FailedError and the errors of aiohttp."""
    if response.status != 200:
        text = (await response.content.read(_ERROR_BYTES)).decode(errors="replace")
        raise _FailedError(f"http_{response.status}", _error_text(text) or str(response.reason))
    if response.content_type == "application/json":
        text = (await response.content.read(_ERROR_BYTES)).decode(errors="replace")
        raise _FailedError(
            "not_streamed", _error_text(text) or "a JSON document instead of a stream"
        )
    reading.begun = True
    decoder = stream.EventStreamDecoder()
    while piece := await response.content.readany():
        now_s = time.monotonic()
        try:
            events = decoder.feed(piece)
        except ValueError as error:
            raise _FailedError("malformed", f"invalid server-sent events: {error}") from error
        for data in events:
            if reading.take(data, now_s):
                await _await_end(response)
                return
    if not reading.last_s and response.content_type != "text/event-stream":
        raise _FailedError("malformed", f"no event in a response of type {response.content_type}")
    if not reading.complete:
        raise _FailedError("cut_off", "the stream ended before the response was complete")


async def _await_end(response: aiohttp.ClientResponse) -> None:
    """Wait for the end of the body, so that the connection is reusable; some proxies never send
    it.
    """
    try:
        async with asyncio.timeout(_END_OF_BODY_S):
            while await response.content.read(_PIECE_BYTES):
                pass
    except (TimeoutError, aiohttp.ClientError):
        response.close()


def _error_text(text: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return text[:200]
    return (stream.error_message(document) if isinstance(document, dict) else None) or text[:200]


def _connection_error(error: aiohttp.ClientError) -> str:
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or type(error).__name__
    cause = error.os_error
    text = cause.strerror or str(cause)
    if cause.errno and "Connect call failed" in text:  # asyncio's text; use the system's
        text = os.strerror(cause.errno)
    return f"{error.host}:{error.port}: {text}"
