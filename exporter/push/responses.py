"""Interpretation of a push server's responses: accepted, refused, too large, or to be retried."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
"""Errors of the address or the tenant, which VictoriaMetrics, vmauth and Mimir report with 400 or 422."""
_BODY_ERRORS = ("snappy", "gzip", "decompress", "unmarshal", "decode", "unexpected eof")
"""Errors of the whole body, as Prometheus, VictoriaMetrics and Mimir report them if it was modified on its way."""
_LATE_ERRORS = (
    "out of order",
    "out-of-order",
    "out of bounds",
    "too old",
    "duplicate sample",
    "too far in the past",
    "conflict",
)
"""Errors of samples older than the server accepts; a Thanos receiver reports only 409 with `conflict`."""
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
    """True for a server that keeps accepted samples in memory at first, and loses them if it is killed."""
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
        return PushResponse("too_large", f"{cause}; raise the maximum body size of the server, or of a proxy before it")
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
    return PushResponse("retry", text, retry_after_s, may_have_restarted=status in (502, 503, 504), from_server=True)


def unreachable_response(cause: str, remedy: str, *, reduce_batch: bool = False) -> PushResponse:
    return PushResponse("retry", f"{cause}; {remedy}", may_have_restarted=True, reduce_batch=reduce_batch)


def _one_line(body: str) -> str:
    return "".join(character if character.isprintable() else " " for character in " ".join(body.split()))[:_MAX_TEXT]


def _contains(body: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in body.lower() for phrase in phrases)


def _remedy(status: int, *, is_page: bool) -> str:
    if status in (401, 403):
        return "set --push.basic-auth or --push.token-file for a user with write access"
    if status in (404, 405) or (is_page and status < 300):
        return (
            "check the path of --push.url: Prometheus accepts samples with --web.enable-remote-write-receiver (from "
            "2.33), a VictoriaMetrics cluster at /insert/0/prometheus/api/v1/import/prometheus, Mimir through a "
            "gateway that sets the tenant"
        )
    if status in (400, 409, 422):
        return "check whether the server, or a proxy before it, expects TLS (https:// in --push.url)"
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
