"""The connection to the server that samples are pushed to."""

from __future__ import annotations

import asyncio
import re
import ssl
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from exporter.push.answers import Answer, answer, unreachable
from exporter.push.backlog import Batch, Sample
from exporter.push.target import Target

TIMEOUT_S = 30.0
CONNECT_S = 10.0
KEEP_CONNECTED_S = 5.0
"""Shorter than any server does: one that closes it meanwhile looks like one that went away."""
_READ_BYTES = 4_096
_SHOWN = 300
_SECRET = re.compile(r"//[^/@\s]+@")


class Server:
    """Open within `async with`. Bodies are made in a thread of its own."""

    def __init__(self, target: Target, thread: ThreadPoolExecutor) -> None:
        self._target = target
        self._thread = thread
        self._proxy = proxy_of(target.url)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_S),
            connector=aiohttp.TCPConnector(ssl=self._target.tls or True, keepalive_timeout=KEEP_CONNECTED_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(self, part: Sequence[Sample], batch: Batch) -> Answer:
        """What the server makes of this part of the batch."""
        target = self._target
        labels = {series_id: {**of, **target.labels} for series_id, of in batch.labels.items()}
        body = await asyncio.get_running_loop().run_in_executor(self._thread, target.form.body, part, labels)
        headers = {**target.form.headers, "User-Agent": "wattline"}
        authorization = target.authorization()
        if authorization:
            headers["Authorization"] = authorization
        try:
            async with self._session.post(
                target.url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy
            ) as response:
                start = await response.content.read(_READ_BYTES)
                return answer(response.status, response.headers, start.decode("utf-8", "replace"))
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, ssl.SSLError) as error:
            cause = f"no TLS that can be trusted: {_line(error)}"
            return unreachable(cause, "give --push.ca-file its authority, and --push.url the name in its certificate")
        except TimeoutError:
            return unreachable(f"no answer within {TIMEOUT_S:.0f} s", "is it overloaded, or a firewall between?")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return unreachable(f"no answer: {_line(error)}", "is it running, and is the address right?")


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
