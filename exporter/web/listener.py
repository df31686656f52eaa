"""Where connections come in, and how long and how many: who says nothing, or reads nothing, is cut off."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

log = logging.getLogger(__name__)

_REASON = (
    b'{"type":"about:blank","title":"Not available now","status":503,'
    b'"detail":"there are too many connections; close some, or try again in a moment"}'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_REASON), _REASON)
)
_OUT_OF_FILES_S = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    connections: int = 256
    """Of one listener."""
    headers_s: float = 10.0
    """From the first byte of a request, or from the connection's begin, to the end of its headers."""
    idle_s: float = 75.0
    """Between two requests."""
    answer_s: float = 30.0
    """For which a client may leave what was written to it unread."""
    handshake_s: float = 10.0


class BoundedConnection(asyncio.Protocol):
    """Stands before aiohttp's own protocol, and ends the connection when its time is over."""

    def __init__(self, inner: asyncio.Protocol, bounds: Bounds, lost: Callable[[], None]) -> None:
        self._inner = inner
        self._bounds = bounds
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._headers: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_request = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._await_headers()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._in_request:
            self._await_headers()
        self._inner.data_received(data)

    def begin(self) -> None:
        """The headers of a request are in."""
        self._in_request += 1
        self._stop_headers()

    def end(self) -> None:
        self._in_request -= 1

    def _await_headers(self) -> None:
        if self._headers is None:
            self._headers = self._loop.call_later(self._bounds.headers_s, self.cut_off)

    def cut_off(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._unread = self._unread or self._loop.call_later(self._bounds.answer_s, self.cut_off)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._stop_unread()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_headers()
        self._stop_unread()
        self._lost()
        self._inner.connection_lost(exc)

    def _stop_headers(self) -> None:
        if self._headers is not None:
            self._headers.cancel()
            self._headers = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class Listener:
    """Accepts on one listening socket; `make` gives the protocol of a connection."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.open = 0
        self._listening = listening
        self._make = make
        self._tls = tls
        self._bounds = bounds or Bounds()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[BoundedConnection] = set()
        self._all_gone = asyncio.Event()
        self._short_of_files = False

    def start(self) -> None:
        self._listening.setblocking(False)
        self._spawn(self._accept_for_ever)

    async def close(self) -> None:
        """No new connection; those that are open go on until `cut_off`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listening.close()

    async def cut_off(self) -> None:
        """Ends what is still open: who is to take leave over TLS may never do so."""
        for connection in tuple(self._connections):
            connection.cut_off()
        if self._connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def _spawn(self, function: Callable[..., object], *arguments: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(function(*arguments))  # type: ignore[arg-type]  # a coroutine
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                await self._rest(error)
                continue
            self._short_of_files = False
            if self.open >= self._bounds.connections:
                self._turn_away(accepted)
            else:
                self.open += 1
                self._spawn(self._serve, accepted)

    async def _rest(self, error: OSError) -> None:
        """The client is gone already, or there are no file descriptors left."""
        if not self._short_of_files:
            log.warning("cannot accept a connection: %s; raise the limit of open files (ulimit -n)", error.strerror)
        self._short_of_files = True
        await asyncio.sleep(_OUT_OF_FILES_S)

    def _turn_away(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            if self._tls is None:
                accepted.setblocking(False)
                accepted.send(_FULL)

    async def _serve(self, accepted: socket.socket) -> None:
        held = True

        def lost() -> None:
            nonlocal held
            self.open -= held
            held = False
            self._connections.discard(connection)
            if not self._connections:
                self._all_gone.set()

        connection = BoundedConnection(self._make(), self._bounds, lost)
        within_s = self._bounds.handshake_s if self._tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=within_s
            )
            if held:
                self._connections.add(connection)
        except OSError:  # no TLS, or none in time; who sends such a thing must not fill the log
            accepted.close()
            lost()
        except asyncio.CancelledError:
            accepted.close()
            lost()
            raise
