"""ASGI middleware that reports each request of a server with OpenAI's API.

vLLM loads it with `--middleware wattline.integrations.asgi.EnergyMiddleware`; other servers add it
in their code. `wattline.integrations.serve` adds it to any program that uses uvicorn.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from wattline.client.messages import log_message_once
from wattline.contract.api import HASH_DIGITS, MAX_LABEL_VALUE
from wattline.contract.requests.served import CLIENT_RUN_HEADER, CLIENT_RUN_LABEL
from wattline.integrations.answer_energy import AnswerEnergy
from wattline.integrations.served_requests import ANSWER_ENERGY, Served, ServedRequests
from wattline.integrations.usage import (
    MAX_JSON_BYTES,
    AnswerUsage,
    EventStream,
    parse,
    states_tokens,
)

ROUTES = "WATTLINE_ROUTES"
"""Ends of further paths, separated by commas, whose answers are known to have numbers of tokens."""
_ROUTES = ("/completions", "/responses", "/messages", "/embeddings")
_JSON = "application/json"
_EVENTS = "text/event-stream"
_LINES = "application/x-ndjson"
_MAX_ID = 120
_MEASURED = "wattline.measured"
"""Key of a scope whose requests an outer instance measures."""
_JOULES = ("energy_joules", "energy_uncertainty_joules")
_MAX_REQUEST_BYTES = _MAX_OTHER_BYTES = 1024 * 1024
"""Longest request whose labels are read, and longest JSON answer of other routes that is read."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class EnergyMiddleware:
    """Middleware that measures arrival, first token and end, and reads the tokens of the answer's
    `usage`.

    It measures each POST request whose answer states numbers of tokens. Of known routes it also
    counts those without. With WATTLINE_ANSWER_ENERGY=1 the answer has the energy: in the header
    `Wattline-Energy` of a JSON answer, in the last comment of a stream (`: energy {…}`). The answer
    then ends up to 0.5 s later. If an application has it twice, the inner instance does nothing.
    """

    def __init__(self, app: Application, requests: ServedRequests | None = None) -> None:
        self._app = app
        self._requests = requests or ServedRequests("the ASGI application")
        self._energies = (
            AnswerEnergy(self._requests) if os.environ.get(ANSWER_ENERGY) == "1" else None
        )
        named = (route.strip() for route in os.environ.get(ROUTES, "").split(","))
        self._routes = (*_ROUTES, *(route for route in named if route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_inner = _MEASURED in scope
        scope[_MEASURED] = True
        if is_inner:
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, self._on_lifespan(send))
        elif scope["type"] == "http" and scope["method"] == "POST":
            is_known = scope["path"].endswith(self._routes)
            exchange = _Exchange(
                scope,
                receive,
                send,
                self._requests,
                self._energies if is_known else None,
                is_known=is_known,
            )
            try:
                await self._app(scope, exchange.receive, exchange.send)
            finally:
                exchange.report_cut()
        else:
            await self._app(scope, receive, send)

    def _on_lifespan(self, send: Send) -> Send:
        async def observe(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._requests.start()
            elif message["type"].startswith("lifespan.shutdown"):
                await asyncio.to_thread(self._requests.close)
            await send(message)

        return observe


class _Exchange:
    """A request and its answer, which pass unchanged except for the energy. Answers of other routes
    never wait.
    """

    def __init__(  # noqa: PLR0913  # the first three are those of ASGI
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        requests: ServedRequests,
        energies: AnswerEnergy | None,
        *,
        is_known: bool,
    ) -> None:
        self._started_at, self._started_s = time.time(), time.monotonic()
        self._scope = scope
        self._receive = receive
        self._send = send
        self._requests = requests
        self._energies = energies
        self._is_known = is_known
        self._keeps_request = is_known or _media_type(scope["headers"]) == _JSON
        self._request_body = b""
        self._usage = AnswerUsage()
        self._events: EventStream | None = None
        self._body: bytearray | None = None
        self._first_token_at: float | None = None
        self._held: list[Message] = []
        self._is_measured = False

    async def receive(self) -> Message:
        message = await self._receive()
        if self._keeps_request and message["type"] == "http.request":
            self._request_body += message.get("body", b"")
            self._keeps_request = len(self._request_body) <= _MAX_REQUEST_BYTES
        return message

    async def send(self, message: Message) -> None:
        has_energy = False
        try:
            has_energy = self._observe(message)
        except Exception as error:  # noqa: BLE001  # the answer must reach the client nevertheless
            log_message_once(f"cannot measure a request: {type(error).__name__}: {error}")
        self._held.append(message)
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if self._energies and has_energy:
            await self._add_energy(self._energies, message)
        if is_last or not (
            self._energies and self._body is not None
        ):  # the header of a JSON answer waits for its end
            held = self._held
            self._held = []
            for one in held:
                await self._send(one)

    def report_cut(self) -> None:
        """Count an answer that ended without its last part, such as a stream that the client
        closed.
        """
        if self._is_measured:
            self._is_measured = False
            self._note_without_usage()

    def _note_without_usage(self) -> None:
        if self._is_known:
            self._requests.note_without_usage()

    def _observe(self, message: Message) -> bool:
        """Measure a part of the answer; return True for the last part of an answer that was
        reported with its id.
        """
        if message["type"] == "http.response.start":
            kind = _media_type(message["headers"])
            encoded = _header(message["headers"], b"content-encoding") not in {"", "identity"}
            self._is_measured = (
                message["status"] == 200 and kind in {_JSON, _EVENTS, _LINES} and not encoded
            )
            if self._is_measured and kind != _JSON:
                self._events = EventStream(
                    self._usage, is_lines=kind == _LINES, is_known=self._is_known
                )
                if kind == _LINES or _header(message["headers"], b"content-length"):
                    self._energies = None  # a comment is no JSON, or exceeds the length
            elif self._is_measured:
                self._body = bytearray()
        elif message["type"] == "http.response.body" and self._is_measured:
            return self._observe_body(message)
        return False

    def _observe_body(self, message: Message) -> bool:
        piece = message.get("body", b"")
        if self._events is not None:
            self._events.feed(piece)
            if self._usage.has_text and self._first_token_at is None:
                self._first_token_at = self._now()
        elif self._body is not None and len(self._body) <= MAX_JSON_BYTES:
            self._body += piece
            if not self._is_known and len(self._body) > _MAX_OTHER_BYTES:
                self._body = None
                self._is_measured = False
                return False
        if message.get("more_body", False):
            return False
        self._is_measured = False
        ended_at = self._now()
        if self._events is not None:
            self._events.end()
        elif self._body is not None and (self._is_known or states_tokens(self._body)):
            self._usage.read(parse(bytes(self._body)))
        return self._report(ended_at)

    def _report(self, ended_at: float) -> bool:
        usage = self._usage
        if usage.prompt_tokens is None:
            self._note_without_usage()
            return False
        usage.request_id = usage.request_id and usage.request_id[:_MAX_ID]
        self._requests.add(
            Served(
                request_id=usage.request_id,
                started_at=self._started_at,
                ended_at=ended_at,
                first_token_at=self._first_token_at,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                generated_tokens=usage.generated_tokens or 0,
                labels=self._labels(),
            )
        )
        return usage.request_id is not None

    def _now(self) -> float:
        """Return the Unix time, unaffected by changes of the clock since the arrival."""
        return self._started_at + (time.monotonic() - self._started_s)

    def _labels(self) -> dict[str, str]:
        request = parse(self._request_body) if self._keeps_request else None
        request = request if isinstance(request, dict) else {}
        key = _header(self._scope["headers"], b"authorization").partition(" ")[2].strip()
        key = key or _header(self._scope["headers"], b"x-api-key")
        labels = {
            "model": self._usage.model or request.get("model"),
            "user": request.get("user"),
            "route": self._scope["path"],
            CLIENT_RUN_LABEL: _header(self._scope["headers"], CLIENT_RUN_HEADER.lower().encode()),
            "api_key": hashlib.sha256(key.encode()).hexdigest()[:HASH_DIGITS] if key else None,
        }
        return {
            name: _printable(value)
            for name, value in labels.items()
            if value and isinstance(value, str)
        }

    async def _add_energy(self, energies: AnswerEnergy, last: Message) -> None:
        energy = await energies.of(str(self._usage.request_id))
        if energy is None:
            return
        text = json.dumps(_shortened(energy))
        if self._events is not None:
            last["body"] = last.get("body", b"") + f": energy {text}\n\n".encode()
        else:
            start = self._held[0]
            start["headers"] = [*start["headers"], (b"wattline-energy", text.encode())]


def _shortened(energy: Mapping[str, Any]) -> dict[str, Any]:
    joules = {
        name: round(float(energy[name]), 6) for name in _JOULES if energy.get(name) is not None
    }
    return {"id": energy.get("id"), "state": energy.get("state"), **joules}


def _media_type(headers: Any) -> str:
    return _header(headers, b"content-type").partition(";")[0].strip().lower()


def _header(headers: Any, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), "")


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_LABEL_VALUE])
