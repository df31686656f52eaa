"""Carbon providers: their interface, and the requests to their web APIs."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, Field, ValidationError

from wattline_exporter.sensors.readings import Slot, SourceError

DAY_S = 86_400.0
TIMEOUT_S = 10.0
MAX_BODY_BYTES = 4 << 20
MAX_GRAMS_PER_KWH = 5_000.0
"""Upper bound of a plausible intensity in gCO2eq/kWh; lignite alone has about 1,100."""
MAX_POINTS = 4_000
"""Limit per response, so that none blocks the event loop; 9.5 days of 5 minutes are 2,736."""
MAX_TEXT = 200
"""Characters of a server's text in a message."""

Basis = Literal["average", "marginal"]
Quality = Literal["actual", "forecast", "estimated", "static"]
GramsPerKwh = Annotated[float, Field(strict=True, ge=0, le=MAX_GRAMS_PER_KWH)]
Items = Annotated[list[object], Field(max_length=MAX_POINTS)]
"""Field of a response whose items are parsed one by one, with `Web.valid_items`."""
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Secret:
    """Secret that a provider needs: its name in messages, and the pattern of its text."""

    form: str
    pattern: str = ".+"
    is_needed_for_regions: bool = True


class CarbonProvider(ABC):
    """A service that publishes carbon intensities of one basis for one region.

    Each file of the folder `providers` defines one, as `PROVIDER`. `region` is the configured
    region in the provider's spelling; slots may name it differently. Times are Unix seconds.
    """

    name: ClassVar[str]
    """Name of the file, with `-` for `_`."""
    basis: ClassVar[Basis]
    base_url: ClassVar[str] = ""
    """Address of its API; empty for a table in this package."""
    secret: ClassVar[Secret | None] = None
    default_region: ClassVar[str | None] = None
    """Region where none is configured; None if one must be configured."""
    longest_past_s: ClassVar[float] = math.inf
    """Longest time range of one `past` request."""

    region: str

    @abstractmethod
    def __init__(self, region: str) -> None:
        """Set `region` from the user's text. Raises ValueError, which names valid regions."""

    @abstractmethod
    async def current(self, web: Web, now_s: float) -> list[Slot]:
        """Return the slots known around `now_s`, at least one. Raises ProviderError."""

    @abstractmethod
    async def past(self, web: Web, begin_s: float, end_s: float) -> list[Slot]:
        """Return the slots of a past time range, as they are known now. Raises ProviderError."""

    @classmethod
    @abstractmethod
    async def regions(cls, web: Web) -> list[tuple[str, str]]:
        """Return the key and the name of each region. Raises ProviderError."""

    def country(self) -> str | None:
        """Return the region's country as in the table of yearly means, None if it is unknown."""
        return None

    @classmethod
    def owns(cls, text: str) -> bool:
        """Return True for a text that can only be a region of this provider."""
        del text
        return False

    def slot(
        self,
        begin_s: float,
        end_s: float,
        grams_per_kwh: float,
        quality: Quality,
        region: str | None = None,
    ) -> Slot:
        """Return a slot of this provider, of its own region unless another is given."""
        return Slot(
            begin_s,
            end_s,
            grams_per_kwh,
            region or self.region,
            self.name,
            self.basis,
            quality,
        )


class ProviderError(SourceError):
    """A response that is missing, invalid or not usable."""


class HttpStatusError(ProviderError):
    """A response other than 200; `retry_after_s` is the delay that the server asks for."""

    def __init__(self, cause: str, remedy: str, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(cause, remedy)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def is_denied(self) -> bool:
        """True if this account or address has no access."""
        return self.status in (401, 403, 404)


class TransportError(Exception):
    """A request without a complete response; the text is the cause."""


class Reply(NamedTuple):
    """Response of a server; `retry_after` is the header of that name."""

    status: int
    reason: str
    retry_after: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class ProviderAccess:
    """Address and secret of a provider, and the limits of each response."""

    base_url: str = ""
    secret: str = field(default="", repr=False)
    timeout_s: float = TIMEOUT_S
    max_body_bytes: int = MAX_BODY_BYTES


class Transport(Protocol):
    """HTTP client: aiohttp in the exporter, requests in the analyzer."""

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        access: ProviderAccess,
        *,
        follow_redirects: bool,
    ) -> Reply:
        """Return the response within the limits of `access`.

        Raises TimeoutError, or TransportError.
        """


class Web:
    """Requests to the API of one provider. `dropped` counts the invalid items of its responses."""

    def __init__(self, transport: Transport, access: ProviderAccess) -> None:
        self._transport = transport
        self._access = access
        self.dropped = 0
        self.problem = ""
        """Position and cause of the first invalid item, or empty."""

    @property
    def base_url(self) -> str:
        return self._access.base_url.rstrip("/")

    @property
    def secret(self) -> str:
        """Secret of the provider, or empty."""
        return self._access.secret

    async def get(
        self,
        path: str,
        model: type[_Model],
        *,
        credentials: Mapping[str, str] | None = None,
        display_path: str | None = None,
    ) -> _Model:
        """Return the parsed response. Raises ProviderError.

        With `credentials`, which are headers, it follows no redirect, which could lead to another
        host. Messages contain `display_path`, which stays the same where `path` contains the time.
        """
        url = f"{self.base_url}{display_path or path}"
        remedy = f"check with: curl -i '{url}'"
        headers = dict(credentials or {})
        try:
            reply = await self._transport.get(
                f"{self.base_url}{path}", headers, self._access, follow_redirects=not headers
            )
        except TimeoutError as error:
            cause = f"cannot fetch {url}: no response within {self._access.timeout_s:g} s"
            raise ProviderError(cause, remedy) from error
        except TransportError as error:
            raise ProviderError(f"cannot fetch {url}: {one_line(str(error))}", remedy) from error
        if reply.status != 200:
            raise _status_error(url, remedy, reply)
        return parse_body(url, reply.body, model)

    def valid_items(
        self, name: str, items: Sequence[object], model: type[_Model]
    ) -> dict[int, _Model]:
        """Return the valid items of the field `name` by position; drop and count the others."""
        valid: dict[int, _Model] = {}
        for position, item in enumerate(items):
            try:
                valid[position] = model.model_validate(item)
            except ValidationError as error:
                self.drop(_first_problem(error, f"{name}.{position}"))
        return valid

    def drop(self, problem: str) -> None:
        """Count an invalid item."""
        self.dropped += 1
        self.problem = self.problem or problem

    def no_intensity(self, region: str) -> ProviderError:
        """Return the error of responses without a valid slot."""
        cause = f"{self.base_url} has no intensity for {region}"
        if self.problem:
            cause = f"{cause}: {self.problem}"
        return ProviderError(cause, "the request is repeated")


def _status_error(url: str, remedy: str, reply: Reply) -> HttpStatusError:
    cause = f"cannot fetch {url}: HTTP {reply.status} {one_line(reply.reason)}".rstrip()
    if reply.status == 429:
        remedy = "the next request is sent later"
    retry_s = 0.0
    if reply.status in (429, 503):
        retry_s = parse_retry_after(reply.retry_after, time.time())
    return HttpStatusError(cause, remedy, reply.status, retry_s)


def parse_body(url: str, body: bytes, model: type[_Model]) -> _Model:
    """Return the validated body of a response from `url`. Raises ProviderError, which names the
    first invalid field.
    """
    if not body.strip():
        problem = "the body is empty"
    elif body.lstrip().startswith(b"<"):
        problem = "the body is a web page, not JSON (from a proxy or a login page?)"
    else:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            problem = _first_problem(error)
    raise ProviderError(
        f"cannot parse the response of {url}: {problem}", f"check with: curl -i '{url}'"
    )


def _first_problem(error: ValidationError, parent: str = "") -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field_name = ".".join([*([parent] if parent else []), *(str(part) for part in first["loc"])])
    return one_line(f"{field_name or 'body'}: {first['msg']}")


def one_line(text: str) -> str:
    """Return at most MAX_TEXT printable characters of the text."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:MAX_TEXT]


def format_minute(time_s: float) -> str:
    """Return the time in UTC as providers expect it: `2018-01-20T12:00Z`."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def whole_steps(begin_s: float, end_s: float, step_s: float) -> tuple[float, float]:
    """Return the time range extended to multiples of `step_s`."""
    return begin_s // step_s * step_s, -(-end_s // step_s) * step_s


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
        except ProviderError:
            pass  # the required endpoint has answered, and its slots are useful alone
        return None


def latest_values(slots: Iterable[Slot]) -> list[Slot]:
    """Return one slot for each start: the last one, except that only an actual value replaces an
    actual one.
    """
    by_start: dict[float, Slot] = {}
    for slot in slots:
        known = by_start.get(slot.begin_s)
        if known is None or known.quality != "actual" or slot.quality == "actual":
            by_start[slot.begin_s] = slot
    return list(by_start.values())


def without_overlaps(slots: Iterable[Slot]) -> list[Slot]:
    """Return the `latest_values` by start, without overlaps.

    A slot ends at the start of the next one, but an actual value at that of the next actual one:
    other values fill only the time that no actual value covers.
    """
    ordered = sorted(latest_values(slots), key=lambda slot: slot.begin_s)
    starts_s = [slot.begin_s for slot in ordered]
    actual_starts_s = [slot.begin_s for slot in ordered if slot.quality == "actual"]
    separate: list[Slot] = []
    covered_s = -math.inf
    for slot in ordered:
        is_actual = slot.quality == "actual"
        next_s = _first_after(actual_starts_s if is_actual else starts_s, slot.begin_s)
        end_s = min(slot.end_s, next_s)
        begin_s = max(slot.begin_s, covered_s)
        if is_actual:
            covered_s = end_s
        if begin_s < end_s:
            separate.append(replace(slot, begin_s=begin_s, end_s=end_s))
    return separate


def _first_after(sorted_s: Sequence[float], t_s: float) -> float:
    after = bisect_right(sorted_s, t_s)
    return sorted_s[after] if after < len(sorted_s) else math.inf


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
