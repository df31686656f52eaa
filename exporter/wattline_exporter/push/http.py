"""HTTP connection to a push server, and the interpretation of its responses."""

from __future__ import annotations

import asyncio
import email.utils
import math
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Literal, Self

import aiohttp

from wattline_exporter.push.config import PushTarget
from wattline_exporter.push.remote_write import TEXT
from wattline_exporter.sensors.carbon.transport import environment_proxy
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.storage.push_queue import PushBatch, QueuedSample

MAX_RETRY_AFTER_S = 3_600.0
_MAX_TEXT = 300
_PERMANENT = (400, 409, 422)
_ADDRESS_ERRORS = (
    "unsupported path",
    "cannot parse path",
    "missing route",
    "no org id",
    "invalid tenant",
    "invalid org id",
)
"""Errors of the address or the tenant, which VictoriaMetrics, vmauth and Mimir report with 400 or
422.
"""
_BODY_ERRORS = ("snappy", "gzip", "decompress", "unmarshal", "decode", "unexpected eof")
"""Errors of the whole body, as Prometheus, VictoriaMetrics and Mimir report them if it was modified
on its way.
"""
_LATE_ERRORS = (
    "out of order",
    "out-of-order",
    "out of bounds",
    "too old",
    "duplicate sample",
    "too far in the past",
    "conflict",
)
"""Errors of samples older than the server accepts; a Thanos receiver reports only 409 with
`conflict`.
"""
_FUTURE_ERRORS = ("in the future",)
_FUTURE_REMEDY = "check the clocks of this host and of the server"
_LATE_REMEDY = (
    "the server has later samples of these series, or accepts none that old: set "
    "storage.tsdb.out_of_order_time_window (Prometheus), and give each node its own instance label"
)
_BODY_REMEDY = "check whether a proxy changes the body or its Content-Encoding"
_DEFAULT_REMEDY = "see the server's log"


@dataclass(frozen=True, slots=True)
class PushResponse:
    """Result of one request; `text` is the cause and the remedy in one line."""

    kind: Literal["accepted", "refused", "too_large", "retry", "disconnected"]
    """`disconnected`: the connection on which the server accepted samples before is closed."""
    text: str = ""
    retry_after_s: float | None = None
    """Delay that the server asks for."""
    may_have_restarted: bool = False
    """True if the server was unreachable, so that it may have lost samples it accepted recently."""
    loses_recent_samples: bool = False
    """True for a server that keeps accepted samples in memory at first, and loses them if it is
    killed.
    """
    same_connection: bool = False
    """True if it arrived on the connection of the previous response."""
    from_server: bool = False
    """True if the server, or a proxy in front of it, sent a response."""
    reduce_batch: bool = False
    """True if a smaller request may succeed."""
    is_sample_fault: bool = False
    """True if the samples were refused for their timestamps."""


def classify_response(status: int, headers: Mapping[str, str], body: str) -> PushResponse:
    """Return the meaning of an HTTP response; `body` is the start of its text."""
    is_page = body.lstrip()[:1] == "<" or "html" in headers.get("Content-Type", "")
    if 200 <= status < 300 and not is_page:
        return PushResponse("accepted")
    cause = f"HTTP {status}"
    if not is_page and body.strip():
        cause += f" ({_one_line(body)})"
    if status == 413:
        return PushResponse(
            "too_large",
            f"{cause}; raise the maximum body size of the server, or of a proxy before it",
        )
    is_address, is_body = _contains(body, _ADDRESS_ERRORS), _contains(body, _BODY_ERRORS)
    is_future = status in _PERMANENT and _contains(body, _FUTURE_ERRORS)
    is_late = not is_future and _contains(body, _LATE_ERRORS)
    is_configuration = is_future or is_page or is_address or is_body or _contains(body, ("https",))
    if status in _PERMANENT and (is_late or not is_configuration):
        remedy = _LATE_REMEDY if is_late else _DEFAULT_REMEDY
        return PushResponse("refused", f"{cause}; {remedy}", is_sample_fault=is_late)
    retry_after_s = _parse_delay(headers.get("Retry-After", "")) if status in (429, 503) else None
    remedy = _remedy(404 if is_address else status, is_page=is_page)
    if is_future or (is_body and status in _PERMANENT):
        remedy = _FUTURE_REMEDY if is_future else _BODY_REMEDY
    text = f"{cause}; {remedy}"
    return PushResponse(
        "retry", text, retry_after_s, may_have_restarted=status in (502, 503, 504), from_server=True
    )


def unreachable_response(cause: str, remedy: str, *, reduce_batch: bool = False) -> PushResponse:
    return PushResponse(
        "retry", f"{cause}; {remedy}", may_have_restarted=True, reduce_batch=reduce_batch
    )


def _one_line(body: str) -> str:
    return "".join(
        character if character.isprintable() else " " for character in " ".join(body.split())
    )[:_MAX_TEXT]


def _contains(body: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in body.lower() for phrase in phrases)


def _remedy(status: int, *, is_page: bool) -> str:
    if status in (401, 403):
        return "set --push.basic-auth or --push.token-file for a user with write access"
    if status in (404, 405) or (is_page and status < 300):
        return (
            "check the path of --push.url: Prometheus accepts samples with "
            "--web.enable-remote-write-receiver (from "
            "2.33), a VictoriaMetrics cluster at /insert/0/prometheus/api/v1/import/prometheus, "
            "Mimir through a "
            "gateway that sets the tenant"
        )
    if status in (400, 409, 422):
        return (
            "check whether the server, or a proxy before it, expects TLS (https:// in --push.url)"
        )
    if 300 <= status < 400:
        return "set --push.url to the address of the redirect"
    if status == 429:
        return "the server limits the rate: raise its limit, or --push.every"
    return _DEFAULT_REMEDY


def _parse_delay(text: str) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date."""
    if text.strip().isdecimal():
        delay_s = float(text)
    else:
        try:
            delay_s = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(delay_s, 0.0), MAX_RETRY_AFTER_S)


TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 90.0
"""Idle time after which proxies and servers have closed the connection in any case."""
CLOSING_SERVER_S = 1.0
"""Time for which new connections prove nothing, after a server closed one after its first response.
"""
_READ_BYTES = 16_384
_CREDENTIALS = re.compile(r"//[^/@\s]+@")


class _NoConnectionError(Exception):
    """The request would need a new connection."""


class PushConnection:
    """One kept-alive connection, used within `async with`; bodies are encoded in `thread`.

    While it stays open, the server process is the same one, with all samples that it has accepted.
    """

    def __init__(
        self, target: PushTarget, thread: ThreadPoolExecutor, *, timeout_s: float = TIMEOUT_S
    ) -> None:
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
            connector=aiohttp.TCPConnector(
                limit=0, ssl=self._target.tls or True, keepalive_timeout=KEEPALIVE_S
            ),
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

    async def post(
        self, part: Sequence[QueuedSample], batch: PushBatch, *, may_connect: bool = True
    ) -> PushResponse:
        """Send a part of the batch; without `may_connect` only on the open connection.

        The response is `disconnected` if there is none, or if the server closes it during the
        request.
        """
        target = self._target
        labels = {series_id: {**of, **target.labels} for series_id, of in batch.labels.items()}
        body = await asyncio.get_running_loop().run_in_executor(
            self._thread, target.form.body, part, labels
        )
        self._may_connect = may_connect or boottime() < self._closed_s + CLOSING_SERVER_S
        self._is_reused = False
        try:
            return await self._request(body)
        except _NoConnectionError:
            return PushResponse("disconnected")
        except (
            aiohttp.ClientConnectorCertificateError,
            aiohttp.ClientConnectorSSLError,
            ssl.SSLError,
        ) as error:
            remedy = "check that the server expects TLS, else use http:// in --push.url"
            if isinstance(error, aiohttp.ClientConnectorCertificateError):
                remedy = (
                    "set --push.ca-file to its authority, and use the certificate's host "
                    "name in --push.url"
                )
            return unreachable_response(f"no trusted TLS connection: {_describe(error)}", remedy)
        except TimeoutError as error:
            is_slow = not isinstance(error, aiohttp.ConnectionTimeoutError)
            cause = f"no response within {self._timeout_s:g} s"
            return unreachable_response(
                cause, "check the server's load, and firewalls", reduce_batch=is_slow
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if self._is_reused and isinstance(error, aiohttp.ClientConnectionError):
                return PushResponse("disconnected")
            # a server may close the connection for a body that is too large
            is_closed = isinstance(error, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError)
            is_closed = is_closed and not isinstance(error, aiohttp.ClientConnectorError)
            remedy = "check that the server runs, and its address"
            return unreachable_response(
                f"no response: {_describe(error)}", remedy, reduce_batch=is_closed
            )

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
            async for (
                chunk
            ) in response.content.iter_any():  # read to the end, else the connection is closed
                text += chunk
                if len(text) > _READ_BYTES:
                    break
            if not self._is_reused and _is_closing(response):
                self._closed_s = boottime()
            result = classify_response(
                response.status, response.headers, text.decode("utf-8", "replace")
            )
            rejection = target.form.rejection(text) if result.kind == "accepted" else ""
            if rejection:
                result = PushResponse(
                    "refused", f"{_one_line(rejection)}; {_DEFAULT_REMEDY}", is_sample_fault=True
                )
            # this header identifies VictoriaMetrics, which accepts remote write as well
            is_victoria = "X-Server-Hostname" in response.headers
            # an overloaded VictoriaMetrics answers 503 without having been restarted
            is_overloaded = (
                is_victoria
                and self._is_reused
                and response.status == HTTPStatus.SERVICE_UNAVAILABLE
            )
            return replace(
                result,
                loses_recent_samples=target.form is TEXT or is_victoria,
                same_connection=self._is_reused,
                may_have_restarted=result.may_have_restarted and not is_overloaded,
            )


def _is_closing(response: aiohttp.ClientResponse) -> bool:
    connection = response.headers.get("Connection", "").lower()
    return "close" in connection or (
        response.version == aiohttp.HttpVersion10 and "keep-alive" not in connection
    )


def _describe(error: Exception) -> str:
    """Return the error in one line without credentials."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    text = str(error) or type(error).__name__
    return " ".join(_CREDENTIALS.sub("//", text).split())[:_MAX_TEXT]
