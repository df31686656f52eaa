"""HTTP connection to a push server."""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from exporter.model import boottime
from exporter.push.config import PushTarget
from exporter.push.encoding import TEXT
from exporter.push.responses import PushResponse, classify_response, unreachable_response
from exporter.storage.push_queue import PushBatch, QueuedSample

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 90.0
"""Idle time after which proxies and servers have closed the connection in any case."""
CLOSING_SERVER_S = 1.0
"""Time for which new connections prove nothing, after a server closed one after its first response."""
_READ_BYTES = 16_384
_MAX_TEXT = 300
_CREDENTIALS = re.compile(r"//[^/@\s]+@")


class _NoConnectionError(Exception):
    """The request would need a new connection."""


class PushConnection:
    """One kept-alive connection, used within `async with`; bodies are encoded in `thread`.

    While it stays open, the server process is the same one, with all samples that it has accepted.
    """

    def __init__(self, target: PushTarget, thread: ThreadPoolExecutor, *, timeout_s: float = TIMEOUT_S) -> None:
        self._target = target
        self._thread = thread
        self._timeout_s = timeout_s
        self._proxy = environment_proxy(target.url)
        self._may_connect = self._is_reused = False
        self._closed_s = -math.inf
        """Time of the last first response with `Connection: close`."""

    async def __aenter__(self) -> Self:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(self._before_connecting)
        trace.on_connection_reuseconn.append(self._before_reuse)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            # no limit, since refused attempts would count
            connector=aiohttp.TCPConnector(limit=0, ssl=self._target.tls or True, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
        )
        return self

    async def _before_connecting(self, *_: object) -> None:
        if not self._may_connect:
            raise _NoConnectionError

    async def _before_reuse(self, *_: object) -> None:
        self._is_reused = True

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(self, part: Sequence[QueuedSample], batch: PushBatch, *, may_connect: bool = True) -> PushResponse:
        """Send a part of the batch; without `may_connect` only on the open connection.

        The response is `disconnected` if there is none, or if the server closes it during the request.
        """
        target = self._target
        labels = {series_id: {**of, **target.labels} for series_id, of in batch.labels.items()}
        body = await asyncio.get_running_loop().run_in_executor(self._thread, target.form.body, part, labels)
        self._may_connect = may_connect or boottime() < self._closed_s + CLOSING_SERVER_S
        self._is_reused = False
        try:
            return await self._request(body)
        except _NoConnectionError:
            return PushResponse("disconnected")
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, ssl.SSLError) as error:
            remedy = "check that the server expects TLS, else use http:// in --push.url"
            if isinstance(error, aiohttp.ClientConnectorCertificateError):
                remedy = "set --push.ca-file to its authority, and use the certificate's host name in --push.url"
            return unreachable_response(f"no trusted TLS connection: {_describe(error)}", remedy)
        except TimeoutError as error:
            is_slow = not isinstance(error, aiohttp.ConnectionTimeoutError)
            cause = f"no response within {self._timeout_s:g} s"
            return unreachable_response(cause, "check the server's load, and firewalls", reduce_batch=is_slow)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if self._is_reused and isinstance(error, aiohttp.ClientConnectionError):
                return PushResponse("disconnected")
            # a server may close the connection for a body that is too large
            is_closed = isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
            is_closed = is_closed and not isinstance(error, aiohttp.ClientConnectorError)
            remedy = "check that the server runs, and its address"
            return unreachable_response(f"no response: {_describe(error)}", remedy, reduce_batch=is_closed)

    async def _request(self, body: bytes) -> PushResponse:
        target = self._target
        headers = {**target.form.headers, "User-Agent": "wattline", **target.headers()}
        authorization = target.authorization()
        if authorization:
            headers["Authorization"] = authorization
        async with self._session.post(
            target.url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy
        ) as response:
            text = b""
            async for chunk in response.content.iter_any():  # read to the end, else the connection is closed
                text += chunk
                if len(text) > _READ_BYTES:
                    break
            if not self._is_reused and _is_closing(response):
                self._closed_s = boottime()
            result = classify_response(response.status, response.headers, text.decode("utf-8", "replace"))
            # this header identifies VictoriaMetrics, which accepts remote write as well
            is_victoria = "X-Server-Hostname" in response.headers
            # an overloaded VictoriaMetrics answers 503 without having been restarted
            is_overloaded = is_victoria and self._is_reused and response.status == HTTPStatus.SERVICE_UNAVAILABLE
            return replace(
                result,
                loses_recent_samples=target.form is TEXT or is_victoria,
                same_connection=self._is_reused,
                may_have_restarted=result.may_have_restarted and not is_overloaded,
            )


def _is_closing(response: aiohttp.ClientResponse) -> bool:
    connection = response.headers.get("Connection", "").lower()
    return "close" in connection or (response.version == aiohttp.HttpVersion10 and "keep-alive" not in connection)


def environment_proxy(url: str) -> str | None:
    """Return the proxy of the environment. aiohttp's own lookup would also read passwords from ~/.netrc."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _describe(error: Exception) -> str:
    """Return the error in one line without credentials."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    text = str(error) or type(error).__name__
    return " ".join(_CREDENTIALS.sub("//", text).split())[:_MAX_TEXT]
