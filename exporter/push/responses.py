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
_GARBLED = ("snappy", "gzip", "decompress", "unmarshal", "decode", "unexpected eof")
"""Of the body as a whole, and of no sample: what Prometheus, VictoriaMetrics and Mimir say of one that was changed."""
_LATE = (
    "out of order",
    "out-of-order",
    "out of bounds",
    "too old",
    "duplicate sample",
    "too far in the past",
    "conflict",
)
"""The last is all that a Thanos receiver says of them, with 409."""
_EARLY = ("in the future",)
_EARLY_REMEDY = "is the clock of this machine, or the server's, wrong?"
_LATE_REMEDY = (
    "the server has later samples of these series, or takes none that old: let it take them with "
    "storage.tsdb.out_of_order_time_window (Prometheus), and give each node an instance of its own"
)
_GARBLED_REMEDY = "does a proxy before the server change the body, or its Content-Encoding?"
_REMEDY = "see the server's log"


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` has cause and remedy in one line; `wait_s` is what the server asks for."""

    kind: Literal["accepted", "refused", "too_large", "later", "gone"]
    """`gone` is the connection on which the server took samples before."""
    text: str = ""
    wait_s: float | None = None
    lost: bool = False
    """Whether the server may have lost what it took lately: it was not there."""
    forgets: bool = False
    """Whether what it took lately is lost where it is killed, and may be sent again."""
    kept: bool = False
    """Whether it came on the connection of the answer before."""
    answered: bool = False
    """Whether somebody was there to say so: the server, or a proxy before it."""
    slow: bool = False
    """Whether less at once may help."""
    sample: bool = False
    """Whether it is refused for what samples are: of too old a time."""


def answer(status: int, headers: Mapping[str, str], body: str) -> Answer:
    """`body` is the beginning of the text."""
    page = body.lstrip()[:1] == "<" or "html" in headers.get("Content-Type", "")
    if 200 <= status < 300 and not page:
        return Answer("accepted")
    said = f"HTTP {status}"
    if not page and body.strip():
        said += f" ({_line(body)})"
    if status == 413:
        return Answer("too_large", f"{said}; raise the greatest body that the server, or a proxy before it, takes")
    misdirected, garbled = _says(body, _MISDIRECTED), _says(body, _GARBLED)
    early = status in _NEVER and _says(body, _EARLY)
    late = not early and _says(body, _LATE)
    if status in _NEVER and (late or not (early or page or misdirected or garbled or _says(body, ("https",)))):
        return Answer("refused", f"{said}; {_LATE_REMEDY if late else _REMEDY}", sample=late)
    wait_s = _wait_s(headers.get("Retry-After", "")) if status in (429, 503) else None
    remedy = _remedy(404 if misdirected else status, page=page)
    if early or (garbled and status in _NEVER):
        remedy = _EARLY_REMEDY if early else _GARBLED_REMEDY
    return Answer("later", f"{said}; {remedy}", wait_s, lost=status in (502, 503, 504), answered=True)


def unreachable(cause: str, remedy: str, *, slow: bool = False) -> Answer:
    return Answer("later", f"{cause}; {remedy}", lost=True, slow=slow)


def _line(body: str) -> str:
    return "".join(character if character.isprintable() else " " for character in " ".join(body.split()))[:_SHOWN]


def _says(body: str, marks: tuple[str, ...]) -> bool:
    return any(mark in body.lower() for mark in marks)


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
    return _REMEDY


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
