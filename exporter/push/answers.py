"""What a server's answer to samples means: taken, never to be taken, too many at once, or to be tried again later."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LONGEST_WAIT_S = 3_600.0
_SHOWN = 300
_NEVER = (400, 409, 422)
_MISDIRECTED = (
    "unsupported path",
    "cannot parse path",
    "missing route",
    "no org id",
    "invalid tenant",
    "invalid org id",
)
"""Of the address or the tenant, and of no sample: VictoriaMetrics, vmauth and Mimir say so with 400 or 422."""
_LATE = ("out of order", "out-of-order", "out of bounds", "too old", "duplicate sample", "too far in the past")


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` has cause and remedy in one line; `wait_s` is what the server asks for."""

    kind: Literal["accepted", "refused", "too_large", "later"]
    text: str = ""
    wait_s: float | None = None
    lost: bool = False
    """Whether the server may have lost what it took lately: it was not there."""


def answer(status: int, headers: Mapping[str, str], body: str) -> Answer:
    """`body` is the beginning of the text."""
    page = body.lstrip()[:1] == "<" or "html" in headers.get("Content-Type", "")
    if 200 <= status < 300 and not page:
        return Answer("accepted")
    said = f"HTTP {status}"
    if not page and body.strip():
        said += f" ({' '.join(body.split())[:_SHOWN]})"
    if status == 413:
        return Answer("too_large", f"{said}; raise the greatest body that the server, or a proxy before it, takes")
    misdirected = any(mark in body.lower() for mark in _MISDIRECTED)
    if status in _NEVER and not page and not misdirected and "https" not in body.lower():
        return Answer("refused", f"{said}; {_remedy_of_refusal(body)}")
    wait_s = _wait_s(headers.get("Retry-After", "")) if status in (429, 503) else None
    remedy = _remedy(404 if misdirected else status, page=page)
    return Answer("later", f"{said}; {remedy}", wait_s, lost=status in (502, 503, 504))


def unreachable(cause: str, remedy: str) -> Answer:
    return Answer("later", f"{cause}; {remedy}", lost=True)


def _remedy_of_refusal(body: str) -> str:
    """By what they write: Prometheus, Mimir and Thanos say the same in other words."""
    if any(mark in body.lower() for mark in _LATE):
        return (
            "the server has later samples of these series, or takes none that old: let it take them with "
            "storage.tsdb.out_of_order_time_window (Prometheus), and give each node an instance of its own"
        )
    return "see the server's log"


def _remedy(status: int, *, page: bool) -> str:
    if status in (401, 403):
        return "give --push.basic-auth or --push.token-file, of a user who may write"
    if status in (404, 405) or (page and status < 300):
        return (
            "is the path of --push.url right? Prometheus takes samples with --web.enable-remote-write-receiver (from "
            "2.33), a VictoriaMetrics cluster at /insert/0/prometheus/api/v1/import/prometheus, Mimir by a gateway "
            "that names the tenant"
        )
    if status in (400, 409, 422):
        return "does the server, or a proxy before it, speak TLS? then use https:// in --push.url"
    if 300 <= status < 400:
        return "it is somewhere else: give --push.url the address that it leads to"
    if status == 429:
        return "the server takes no more for now: raise its limit, or --push.every"
    return "see the server's log"


def _wait_s(text: str) -> float | None:
    """Retry-After: seconds, or a date."""
    if text.strip().isdecimal():
        wait_s = float(text)
    else:
        try:
            wait_s = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(wait_s, 0.0), LONGEST_WAIT_S)
