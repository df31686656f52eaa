"""The connection to the server that samples are pushed to."""

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
from exporter.push.config import Target
from exporter.push.encoding import TEXT
from exporter.push.responses import Answer, answer, unreachable
from exporter.storage.push_queue import PushBatch, QueuedSample

TIMEOUT_S = 30.0
CONNECT_S = 10.0
KEEP_CONNECTED_S = 90.0
"""Longer is of no use: what is between forgets connections, or the server closes them."""
CLOSES_WITHIN_S = 1.0
"""For so long after one that closes each connection after its first answer, a new one is no sign of anything."""
_READ_BYTES = 16_384
_SHOWN = 300
_SECRET = re.compile(r"//[^/@\s]+@")


class _NotAnewError(Exception):
    """It would take a new connection."""


class Server:
    """Open within `async with`. Bodies are made in a thread of its own.

    One connection is kept. While it lasts, the server is the process that it was, with all that it took.
    """

    def __init__(self, target: Target, thread: ThreadPoolExecutor, *, timeout_s: float = TIMEOUT_S) -> None:
        self._target = target
        self._thread = thread
        self._timeout_s = timeout_s
        self._proxy = proxy_of(target.url)
        self._anew = self._kept = False
        self._closes_s = -math.inf
        """When a first answer said that it closes the connection."""

    async def __aenter__(self) -> Self:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(self._before_connecting)
        trace.on_connection_reuseconn.append(self._before_reuse)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_S),
            # no limit, which would count the connections that are not made
            connector=aiohttp.TCPConnector(limit=0, ssl=self._target.tls or True, keepalive_timeout=KEEP_CONNECTED_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[trace],
        )
        return self

    async def _before_connecting(self, *_: object) -> None:
        if not self._anew:
            raise _NotAnewError

    async def _before_reuse(self, *_: object) -> None:
        self._kept = True

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(self, part: Sequence[QueuedSample], batch: PushBatch, *, anew: bool = True) -> Answer:
        """What the server makes of this part of the batch; with `anew` false `gone` where there is no connection.

        It is also gone where the server closes it at that moment, as it may when nothing was sent for a while.
        """
        target = self._target
        labels = {series_id: {**of, **target.labels} for series_id, of in batch.labels.items()}
        body = await asyncio.get_running_loop().run_in_executor(self._thread, target.form.body, part, labels)
        self._anew, self._kept = anew or boottime() < self._closes_s + CLOSES_WITHIN_S, False
        try:
            return await self._ask(body)
        except _NotAnewError:
            return Answer("gone")
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, ssl.SSLError) as error:
            remedy = "does it speak TLS there? else give --push.url http://"
            if isinstance(error, aiohttp.ClientConnectorCertificateError):
                remedy = "give --push.ca-file its authority, and --push.url the name in its certificate"
            return unreachable(f"no TLS that can be trusted: {_line(error)}", remedy)
        except TimeoutError as error:
            slow = not isinstance(error, aiohttp.ConnectionTimeoutError)
            cause = f"no answer within {self._timeout_s:g} s"
            return unreachable(cause, "is it overloaded, or a firewall between?", slow=slow)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if self._kept and isinstance(error, aiohttp.ClientConnectionError):
                return Answer("gone")
            # a body that is too large may be answered by hanging up
            hung_up = isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
            slow = hung_up and not isinstance(error, aiohttp.ClientConnectorError)
            return unreachable(f"no answer: {_line(error)}", "is it running, and is the address right?", slow=slow)

    async def _ask(self, body: bytes) -> Answer:
        target = self._target
        headers = {**target.form.headers, "User-Agent": "wattline", **target.headers()}
        authorization = target.authorization()
        if authorization:
            headers["Authorization"] = authorization
        async with self._session.post(
            target.url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy
        ) as response:
            text = b""
            async for some in response.content.iter_any():  # to the end, else the connection could not be kept
                text += some
                if len(text) > _READ_BYTES:
                    break
            if not self._kept and _closes(response):
                self._closes_s = boottime()
            said = answer(response.status, response.headers, text.decode("utf-8", "replace"))
            # by that header one knows VictoriaMetrics, which takes remote write as well
            is_victoria = "X-Server-Hostname" in response.headers
            # which has too much to do, and is the one that it was
            is_there = is_victoria and self._kept and response.status == HTTPStatus.SERVICE_UNAVAILABLE
            return replace(
                said, forgets=target.form is TEXT or is_victoria, kept=self._kept, lost=said.lost and not is_there
            )


def _closes(response: aiohttp.ClientResponse) -> bool:
    said = response.headers.get("Connection", "").lower()
    return "close" in said or (response.version == aiohttp.HttpVersion10 and "keep-alive" not in said)


def proxy_of(url: str) -> str | None:
    """That of the environment. Not by aiohttp, which would take a password from ~/.netrc as well."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _line(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    text = str(error) or type(error).__name__
    return " ".join(_SECRET.sub("//", text).split())[:_SHOWN]
