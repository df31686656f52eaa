"""Listener with limits on the number of connections and on the time of handshake, headers and
responses.

aiohttp's sites lack two of these limits. They accept connections without a bound: 400 TLS
connections without a handshake were all open after 30 s, each with a file descriptor that the
exporter needs for its own files. And a client that does not read a response keeps it in memory
without a time limit.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_request import BaseRequest

from wattline_exporter.web.documents import problem_response

log = logging.getLogger(__name__)

_FULL_BODY = (
    b'{"type":"about:blank","title":"Service Unavailable","status":503,'
    b'"detail":"too many connections; close some, or try again in a second"}'
)
_FULL_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: "
    b"1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
)
_ACCEPT_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections: int = 256
    """Limit per listener."""
    headers_s: float = 10.0
    """Time from the first byte of a request, or the start of the connection, to the end of the
    headers.
    """
    idle_s: float = 75.0
    """Time between two requests."""
    unread_s: float = 30.0
    """Time for which a client may leave a response unread."""
    handshake_s: float = 10.0


class BoundedConnection(asyncio.Protocol):
    """Protocol in front of aiohttp's that closes the connection when a time limit is exceeded."""

    def __init__(
        self, inner: asyncio.Protocol, limits: ConnectionLimits, lost: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._headers: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_request = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._start_header_timer()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._in_request:
            self._start_header_timer()
        self._inner.data_received(data)

    def start_request(self) -> None:
        """Stop the timer of the headers, which are complete."""
        self._in_request += 1
        self._stop_header_timer()

    def end_request(self) -> None:
        self._in_request -= 1

    def _start_header_timer(self) -> None:
        if self._headers is None:
            self._headers = self._loop.call_later(self._limits.headers_s, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._unread = self._unread or self._loop.call_later(self._limits.unread_s, self.abort)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_unread_timer()
        self._lost()
        self._inner.connection_lost(exc)

    def _stop_header_timer(self) -> None:
        if self._headers is not None:
            self._headers.cancel()
            self._headers = None

    def _stop_unread_timer(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class BoundedListener:
    """Acceptor of one listening socket; `make` returns the protocol of a connection."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.open = 0
        self._listening = listening
        self._make = make
        self._tls = tls
        self._limits = limits or ConnectionLimits()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[BoundedConnection] = set()
        self._all_closed = asyncio.Event()
        self._lacks_files = False

    def start(self) -> None:
        self._listening.setblocking(False)
        self._spawn(self._accept)

    async def close(self) -> None:
        """Stop accepting; open connections continue until `abort`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listening.close()

    async def abort(self) -> None:
        """Abort open connections; over TLS a client may never complete an orderly close."""
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _spawn(self, function: Callable[..., object], *arguments: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(function(*arguments))  # type: ignore[arg-type]  # a coroutine
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                await self._handle_accept_error(error)
                continue
            self._lacks_files = False
            if self.open >= self._limits.connections:
                self._refuse(accepted)
            else:
                self.open += 1
                self._spawn(self._serve, accepted)

    async def _handle_accept_error(self, error: OSError) -> None:
        """Wait after an aborted connection, or while no file descriptors are left."""
        if not self._lacks_files:
            log.warning(
                "cannot accept a connection: %s; raise the limit of open files (ulimit -n)",
                error.strerror,
            )
        self._lacks_files = True
        await asyncio.sleep(_ACCEPT_RETRY_S)

    def _refuse(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            if self._tls is None:
                accepted.setblocking(False)
                accepted.send(_FULL_RESPONSE)

    async def _serve(self, accepted: socket.socket) -> None:
        is_counted = True

        def closed() -> None:
            nonlocal is_counted
            self.open -= is_counted
            is_counted = False
            self._connections.discard(connection)
            if not self._connections:
                self._all_closed.set()

        connection = BoundedConnection(self._make(), self._limits, closed)
        within_s = self._limits.handshake_s if self._tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=within_s
            )
            if is_counted:
                self._connections.add(connection)
        except OSError:  # failed or late handshake; not logged, since clients could fill the log
            accepted.close()
            closed()
        except asyncio.CancelledError:
            accepted.close()
            closed()
            raise


class HttpConnection(web.RequestHandler):
    """aiohttp's protocol, with problem+json for requests that are not valid HTTP."""

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(
            request, status, exc, message
        )  # logs it, and raises if a response has been started
        cause = " ".join((message or "").split()) or "the request is not valid HTTP"
        response = problem_response(
            status, "internal error; see the exporter's log" if status == 500 else cause[:200]
        )
        response.force_close()
        return response
