"""Interface of carbon providers, and the HTTP client of those on the web."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Protocol, TypeVar

import aiohttp
from pydantic import BaseModel

from wattline.contract.carbon.responses import (
    DAY_S,
    Basis,
    IntensitySlot,
    ResponseError,
    one_line,
    parse_response,
)
from wattline_exporter.sensors.readings import Slot, SourceError

TIMEOUT_S = 10.0
MAX_BODY_BYTES = 4 << 20

_Model = TypeVar("_Model", bound=BaseModel)


class CarbonProvider(Protocol):
    """A service that publishes carbon intensities of one basis for one region.

    `region` is the configured one; the slots may name it differently. `slots` returns those known
    around `now_s` (Unix seconds), at least one. Raises SourceError.
    """

    @property
    def name(self) -> str: ...

    @property
    def region(self) -> str: ...

    @property
    def basis(self) -> Basis: ...

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]: ...


class HttpStatusError(SourceError):
    """A response other than 200; `retry_after_s` is the delay that the server asks for."""

    def __init__(self, cause: str, remedy: str, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(cause, remedy)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def is_denied(self) -> bool:
        """True if this account or address has no access."""
        return self.status in (401, 403, 404)


class OptionalEndpoint:
    """An endpoint that not every account may use; it is retried a day after access was denied."""

    def __init__(self) -> None:
        self._next_request_s = 0.0

    async def get(self, request: Callable[[], Awaitable[_Model]], now_s: float) -> _Model | None:
        """Return the response, or None while there is none."""
        if now_s < self._next_request_s:
            return None
        try:
            return await request()
        except HttpStatusError as error:
            self._next_request_s = now_s + (DAY_S if error.is_denied else error.retry_after_s)
        except SourceError:
            pass  # the required endpoint has answered, and its slots are useful alone
        return None


@dataclass(frozen=True)
class CarbonApi:
    """HTTP client of one provider. With `secret` headers it follows no redirect, which could lead
    to another host.
    """

    base_url: str
    timeout_s: float = TIMEOUT_S
    secret: Mapping[str, str] = field(default_factory=dict, repr=False)

    async def get(
        self,
        session: aiohttp.ClientSession,
        path: str,
        model: type[_Model],
        *,
        display_path: str | None = None,
    ) -> _Model:
        """Return the parsed response. Raises SourceError.

        Messages contain `display_path`, which stays the same where `path` contains the time.
        """
        base = self.base_url.rstrip("/")
        url = f"{base}{display_path or path}"
        remedy = f"check with: curl -i '{url}'"
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        request = session.get(
            f"{base}{path}", headers=self.secret, timeout=timeout, allow_redirects=not self.secret
        )
        try:
            async with request as response:
                status, reason = response.status, one_line(response.reason or "")
                retry_s = parse_retry_after(response.headers.get("Retry-After"), time.time())
                body = await _read_body(response, url, remedy)
        except TimeoutError as error:
            raise SourceError(
                f"cannot fetch {url}: no response within {self.timeout_s:g} s", remedy
            ) from error
        except (aiohttp.ClientError, ValueError) as error:  # ValueError: invalid URL
            cause = one_line(str(error)) or type(error).__name__
            raise SourceError(f"cannot fetch {url}: {cause}", remedy) from error
        if status != 200:
            cause = f"cannot fetch {url}: HTTP {status} {reason}".rstrip()
            remedy = "the next request is sent later" if status == 429 else remedy
            raise HttpStatusError(cause, remedy, status, retry_s if status in (429, 503) else 0.0)
        return parse_body(url, body, model)


async def _read_body(response: aiohttp.ClientResponse, url: str, remedy: str) -> bytes:
    body = b""
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise SourceError(
                f"cannot fetch {url}: the response is larger than {MAX_BODY_BYTES >> 20} MiB",
                remedy,
            )
    return body


def parse_body(url: str, body: bytes, model: type[_Model]) -> _Model:
    """Return the validated body of a response from `url`. Raises SourceError."""
    try:
        return parse_response(body, model)
    except ResponseError as error:
        raise SourceError(
            f"cannot parse the response of {url}: {error}", f"check with: curl -i '{url}'"
        ) from error


def parse_retry_after(value: str | None, now_s: float) -> float:
    """Return the delay in seconds, from a number or an HTTP date: 0 without a valid one, at most a
    day.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), DAY_S)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max(moment.timestamp() - now_s, 0.0), DAY_S)


def label_slots(
    slots: Iterable[IntensitySlot], provider: CarbonProvider, region: str | None = None
) -> list[Slot]:
    """Return the slots with the provider's name, basis and region."""
    return [
        Slot(
            begin_s=slot.start_s,
            end_s=slot.end_s,
            grams_per_kwh=slot.grams_per_kwh,
            region=region or provider.region,
            provider=provider.name,
            basis=provider.basis,
            quality=slot.quality,
        )
        for slot in slots
    ]


def extend_with_estimates(
    slots: list[Slot], now_s: float, *, step_s: float, within_s: float
) -> list[Slot]:
    """Append the last intensity as estimates of `step_s`, up to the slot after the current one.

    Nothing is appended once the last slot has ended more than `within_s` ago.
    """
    last = max(slots, key=lambda slot: slot.end_s)
    estimates = []
    begin_s = last.end_s
    while begin_s <= now_s + step_s and now_s < last.end_s + within_s:
        estimates.append(
            replace(last, begin_s=begin_s, end_s=begin_s + step_s, quality="estimated")
        )
        begin_s += step_s
    return [*slots, *estimates]
