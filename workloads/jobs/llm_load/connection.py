"""The connections over which an endpoint is asked: kept from one request to the next, and found closed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

# Servers close an idle connection after 5 s (uvicorn, Node, llama.cpp); a request must not be sent just then.
_IDLE_CONNECTION_S = 2.0
_SENT_AGAIN = 8  # more connections than that are hardly found closed one after the other


@dataclass
class _Sending:
    """Whether a request went over a connection that had carried another before."""

    reused: bool = False


async def _note_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _: object) -> None:
    if isinstance(context.trace_request_ctx, _Sending):
        context.trace_request_ctx.reused = True


@contextlib.asynccontextmanager
async def connected(key: str | None) -> AsyncIterator[aiohttp.ClientSession]:
    """As many connections as there are requests in flight."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar(), trace_configs=[trace]
    ) as session:
        yield session


@contextlib.asynccontextmanager
async def posted(
    session: aiohttp.ClientSession, url: str, body: bytes, limit: aiohttp.ClientTimeout
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Sent again where a connection that was kept had been closed meanwhile: llama.cpp does so after each stream,
    though it says that it keeps it (RFC 9112, 9.3.1). What it cost stays in the request's time.
    """
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    async with contextlib.AsyncExitStack() as stack:
        for is_last in (*[False] * _SENT_AGAIN, True):
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
