"""What a source of carbon intensities is, and how the web ones are asked."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Annotated, Literal, Protocol, TypeVar

import aiohttp
from pydantic import BaseModel, Field, ValidationError

from exporter.model import Slot, SourceError

TIMEOUT_S = 10.0
DAY_S = 86_400.0
MOST_BYTES = 4 << 20
MOST_GRAMS_PER_KWH = 5_000.0
"""Well above any grid (lignite alone: about 1,100): what lies beyond is not an intensity."""
MOST_POINTS = 2_000
"""In one answer: a week of 5 minutes. More is not looked at, so that no answer holds up the event loop."""
MOST_TEXT = 200
"""Characters of a server's own words in a message."""

Basis = Literal["average", "marginal"]
Grams = Annotated[float, Field(strict=True, ge=0, le=MOST_GRAMS_PER_KWH)]
_Model = TypeVar("_Model", bound=BaseModel)


class Provider(Protocol):
    """`slots` gives what is known around `now_s` (Unix seconds), never an empty list, or raises SourceError.

    `region` is what it was asked for; the slots may name it otherwise. Its slots are all of one `basis`.
    """

    @property
    def name(self) -> str: ...

    @property
    def region(self) -> str: ...

    @property
    def basis(self) -> Basis: ...

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]: ...


class StatusError(SourceError):
    """The server answered another status than 200; `after_s` is for how long it asks to be left alone."""

    def __init__(self, cause: str, remedy: str, status: int, after_s: float = 0.0) -> None:
        super().__init__(cause, remedy)
        self.status = status
        self.after_s = after_s

    @property
    def denied(self) -> bool:
        """Whether this account, or this address, may not have it."""
        return self.status in (401, 403, 404)


class Extra:
    """An endpoint that not every account may use, and that is done without: asked a day later again where denied."""

    def __init__(self) -> None:
        self._again_s = 0.0

    async def get(self, ask: Callable[[], Awaitable[_Model]], now_s: float) -> _Model | None:
        if now_s < self._again_s:
            return None
        try:
            return await ask()
        except StatusError as error:
            self._again_s = now_s + (DAY_S if error.denied else error.after_s)
        except SourceError:
            pass  # what is asked for before it has answered, and is worth having alone
        return None


@dataclass(frozen=True)
class Api:
    """Where a provider answers. With `secret` headers no redirect is followed: it could lead to another host."""

    base_url: str
    timeout_s: float = TIMEOUT_S
    secret: Mapping[str, str] = field(default_factory=dict, repr=False)

    async def get(
        self, session: aiohttp.ClientSession, path: str, model: type[_Model], *, shown: str | None = None
    ) -> _Model:
        """The JSON at `path`. Raises SourceError, in one line, for whatever can go wrong on the way.

        Messages name the path `shown`, so that they stay the same where `path` has the time in it.
        """
        base = self.base_url.rstrip("/")
        shown = f"{base}{shown or path}"
        check = f"try: curl -i '{shown}'"
        limit = aiohttp.ClientTimeout(total=self.timeout_s)
        asked = session.get(f"{base}{path}", headers=self.secret, timeout=limit, allow_redirects=not self.secret)
        try:
            async with asked as response:
                status, reason = response.status, _one_line(response.reason or "")
                asked_s = retry_after_s(response.headers.get("Retry-After"), time.time())
                body = await _bounded(response, shown, check)
        except TimeoutError as error:
            raise SourceError(f"{shown} did not answer within {self.timeout_s:g} s", check) from error
        except (aiohttp.ClientError, ValueError) as error:  # ValueError: an address that cannot be
            why = _one_line(str(error)) or type(error).__name__
            raise SourceError(f"cannot fetch {shown}: {why}", check) from error
        if status != 200:
            slower = "asked too often; it will be asked again, less often"
            after_s = asked_s if status in (429, 503) else 0.0
            cause = f"{shown} answered {status} {reason}".rstrip()
            raise StatusError(cause, slower if status == 429 else check, status, after_s)
        return parse(shown, body, model)


async def _bounded(response: aiohttp.ClientResponse, shown: str, check: str) -> bytes:
    body = b""
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > MOST_BYTES:
            raise SourceError(f"{shown} answered more than {MOST_BYTES >> 20} MiB", check)
    return body


def parse(shown: str, body: bytes, model: type[_Model]) -> _Model:
    """Raises SourceError, naming the first thing that is not as it should be."""
    check = f"try: curl -i '{shown}'"
    if not body.strip():
        raise SourceError(f"{shown} answered with an empty body", check)
    if body.lstrip().startswith(b"<"):
        raise SourceError(f"{shown} answered with a web page, not JSON", f"is a proxy or a login page between? {check}")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        what = _one_line(f"{place or 'body'}: {first['msg']}")
        raise SourceError(f"{shown} answered what is not understood: {what}", check) from error


def retry_after_s(value: str | None, now_s: float) -> float:
    """The header, in seconds or as an HTTP date, as seconds from now: 0 where there is none, a day at most."""
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), DAY_S)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max(moment.timestamp() - now_s, 0.0), DAY_S)


def carried(slots: list[Slot], now_s: float, *, step_s: float, within_s: float) -> list[Slot]:
    """`slots`, and behind the last the same intensity as an estimate, until the provider tells more.

    In pieces of `step_s`, up to the one after the present; none where the last slot ended more than `within_s` ago.
    """
    last = max(slots, key=lambda slot: slot.end_s)
    pieces = []
    begin_s = last.end_s
    while begin_s <= now_s + step_s and now_s < last.end_s + within_s:
        pieces.append(replace(last, begin_s=begin_s, end_s=begin_s + step_s, quality="estimated"))
        begin_s += step_s
    return [*slots, *pieces]


def _one_line(text: str) -> str:
    """Of a server's or a library's words; they may hold anything."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:MOST_TEXT]
