"""Server with OpenAI's API whose responses follow a script of chunks and delays."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from aiohttp import web

from tests.fakes.web_api import WebApi

DONE = b"data: [DONE]\n\n"
CUT: Literal["cut"] = "cut"
"""Element of a script that breaks the connection."""

Step = bytes | float | Literal["cut"]


@dataclass(frozen=True)
class Script:
    steps: Sequence[Step]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class ReceivedRequest:
    """Received request; times are of the monotonic clock, which all processes share."""

    received_s: float
    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    written_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    cancelled: bool = False


@dataclass
class OpenAiServer(WebApi):
    """Server that responds to request n with `script(n)`; `slots` limits the number of concurrent
    responses.
    """

    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    script: Callable[[int], Script] = lambda _: Script([text("a"), finish(), usage(3, 1), DONE])
    models: Any = field(
        default_factory=lambda: {"object": "list", "data": [{"id": "tiny"}, {"id": "other"}]}
    )
    models_status: int = 200
    slots: int = 1_000
    requests: list[ReceivedRequest] = field(default_factory=list)
    wrote: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    def routes(self) -> list[web.RouteDef]:
        self._free = asyncio.Semaphore(self.slots)
        return [
            web.get("/v1/models", self.list_models),
            web.post("/v1/chat/completions", self.complete),
            web.post("/v1/completions", self.complete),
        ]

    async def list_models(self, _request: web.Request) -> web.Response:
        return web.json_response(self.models, status=self.models_status)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        received = ReceivedRequest(
            time.monotonic(), request.path, await request.json(), dict(request.headers)
        )
        self.requests.append(received)
        script = self.script(len(self.requests) - 1)
        try:
            async with self._free:
                return await self._play(request, script, received)
        except (asyncio.CancelledError, ConnectionError):
            received.cancelled = True
            raise
        finally:
            received.ended_s = time.monotonic()
            self.finished.set()

    async def _play(
        self, request: web.Request, script: Script, received: ReceivedRequest
    ) -> web.StreamResponse:
        headers = {"Content-Type": script.content_type, **script.headers}
        response = web.StreamResponse(status=script.status, headers=headers)
        await response.prepare(request)
        for step in script.steps:
            if isinstance(step, bytes):
                received.written_s.append(time.monotonic())
                await response.write(step)
                self.wrote.set()
            elif step == CUT or await self._is_released_within(step):
                if request.transport is not None:
                    request.transport.abort()
                raise asyncio.CancelledError
        await response.write_eof()
        return response

    async def _is_released_within(self, wait_s: float) -> bool:
        """Return whether the server was stopped during the wait."""
        try:
            await asyncio.wait_for(self.released.wait(), wait_s)
        except TimeoutError:
            return False
        return True


def event(document: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


def delta(**fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}], "usage": None})


def role() -> bytes:
    return delta(role="assistant", content="")


def text(content: str) -> bytes:
    """Return a chunk of text, as a chat's delta and as a completion's text."""
    return event(
        {
            "choices": [
                {"index": 0, "delta": {"content": content}, "text": content, "finish_reason": None}
            ]
        }
    )


def finish(reason: Any = "length") -> bytes:
    return event({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": reason}]})


def usage(prompt: int, generated: int, **details: Any) -> bytes:
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    return event({"choices": [], "usage": {**counts, **details}})


def answer(tokens: int, prompt: int = 3, *, first_s: float = 0.0, gap_s: float = 0.0) -> Script:
    """Return a script with one token per chunk and all fields of a complete response."""
    steps: list[Step] = [role(), first_s, text("a")]
    for _ in range(tokens - 1):
        steps += [gap_s, text("b")]
    return Script([*steps, finish(), usage(prompt, tokens), DONE])
