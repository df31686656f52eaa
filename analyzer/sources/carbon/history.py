"""Past carbon intensities from the providers that publish them; failures become the problem of a `Past`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import requests
from pydantic import BaseModel

from analyzer.carbon.intensity import Past, PastSlot
from exporter.contract.carbon import electricity_maps, energy_charts, gb
from exporter.contract.carbon.credentials import TOKEN_VARIABLE, read_provider_secret
from exporter.contract.carbon.response import IntensitySlot, ResponseError, format_minute, one_line, parse_response
from exporter.contract.secret_file import SecretFileError

TIMEOUT_S = 20.0
_MOST_BYTES = 16 << 20
_DAY_S = 86_400.0
_HOUR_S = 3_600.0

_Model = TypeVar("_Model", bound=BaseModel)


class ProviderError(Exception):
    """The text is one line."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`region` is empty where the run's own is meant; `base_url` overrides the provider's address."""

    provider: str
    region: str = ""
    base_url: str | None = None
    token: str = field(default="", repr=False)
    timeout_s: float = TIMEOUT_S


def past(asked: Asked, seen_regions: list[str], start_s: float, end_s: float) -> Past:
    """`seen_regions` are those of this provider that the run's nodes saw, in case none is asked for."""
    region = asked.region
    try:
        region = asked.region or _region(asked.provider, seen_regions)
        slots = _slots(asked, region, start_s, end_s)
    except ProviderError as error:
        return Past(asked.provider, region, "average", problem=str(error))
    if not slots:
        problem = f"{asked.provider} knows no intensity of {region} for the run's time"
        return Past(asked.provider, region, "average", problem=problem)
    return Past(asked.provider, region, "average", slots)


def _slots(asked: Asked, region: str, start_s: float, end_s: float) -> tuple[PastSlot, ...]:
    """Those that touch the time, asked for in chunks that the provider answers."""
    provider = PROVIDERS[asked.provider]
    found: dict[float, PastSlot] = {}
    begin_s = start_s
    while begin_s < end_s:
        until_s = min(begin_s + provider.longest_days * _DAY_S, end_s)
        found |= {slot.start_s: slot for slot in provider.fetch(asked, region, begin_s, until_s)}
        begin_s = until_s
    return tuple(slot for _, slot in sorted(found.items()) if slot.start_s < end_s and slot.end_s > start_s)


def _region(provider: str, seen: list[str]) -> str:
    if len(seen) > 1:
        raise ProviderError(f"the run's nodes are in several regions of {provider} ({', '.join(seen)}), name one")
    if seen:
        return seen[0]
    if provider == "gb":
        return gb.NATIONAL
    raise ProviderError(f"the run saw no region of {provider}; name it, as in --restate {provider}:DE")


def _gb(asked: Asked, region: str, start_s: float, end_s: float) -> list[IntensitySlot]:
    if region != gb.NATIONAL:
        raise ProviderError(
            f"gb has forecasts but no actuals for its regions, such as {region}; use the whole country: --restate gb:GB"
        )
    from_s, to_s = start_s // gb.SLOT_S * gb.SLOT_S, -(-end_s // gb.SLOT_S) * gb.SLOT_S
    return _get(asked, gb.national_path(from_s, to_s), gb.NationalResponse).slots()


def _electricity_maps(asked: Asked, region: str, start_s: float, end_s: float) -> list[IntensitySlot]:
    if not asked.token:
        raise ProviderError(f"electricitymaps needs a token; add --carbon-token-file FILE, or set {TOKEN_VARIABLE}")
    zone = region.upper()
    from_s, to_s = start_s // _HOUR_S * _HOUR_S, -(-end_s // _HOUR_S) * _HOUR_S
    query = {"zone": zone, "start": _second(from_s), "end": _second(to_s)}
    path, secret = "/v3/carbon-intensity/past-range", {"auth-token": asked.token}
    response = _get(asked, path, electricity_maps.PastRangeResponse, query, secret)
    if not response.is_for(zone):
        raise ProviderError(f"electricitymaps answered for another zone than {zone}")
    return response.slots()


def _energy_charts(asked: Asked, region: str, start_s: float, end_s: float) -> list[IntensitySlot]:
    from_s, to_s = start_s // _HOUR_S * _HOUR_S, -(-end_s // _HOUR_S) * _HOUR_S
    query = {"country": region.lower(), "start": format_minute(from_s), "end": format_minute(to_s)}
    return _get(asked, "/co2eq", energy_charts.SeriesResponse, query).slots()


@dataclass(frozen=True, slots=True)
class HistoryProvider:
    """A provider that publishes past intensities; `longest_days` is its limit per request."""

    base_url: str
    longest_days: float
    slots: Callable[[Asked, str, float, float], list[IntensitySlot]]

    def fetch(self, asked: Asked, region: str, start_s: float, end_s: float) -> list[PastSlot]:
        """Return the slots of the time. Raises ProviderError."""
        return [
            PastSlot(float(slot.start_s), float(slot.end_s), slot.grams_per_kwh, slot.quality)
            for slot in self.slots(asked, region, start_s, end_s)
        ]


PROVIDERS: Mapping[str, HistoryProvider] = {
    "gb": HistoryProvider(gb.BASE_URL, 13.5, _gb),
    "electricitymaps": HistoryProvider(electricity_maps.BASE_URL, 9.5, _electricity_maps),
    "energy-charts": HistoryProvider(energy_charts.BASE_URL, 14, _energy_charts),
}


def _get(
    asked: Asked,
    path: str,
    model: type[_Model],
    query: Mapping[str, str] | None = None,
    secret: Mapping[str, str] | None = None,
) -> _Model:
    """Return the parsed response. With a secret no redirect is followed. Raises ProviderError."""
    base = (asked.base_url or PROVIDERS[asked.provider].base_url).rstrip("/")
    try:
        with requests.get(
            f"{base}{path}",
            params=dict(query or {}),
            headers=dict(secret or {}),
            timeout=asked.timeout_s,
            allow_redirects=not secret,
            stream=True,
        ) as response:
            body = _body(base, response)
    except requests.Timeout as error:
        raise ProviderError(f"cannot fetch {base}: no response within {asked.timeout_s:g} s") from error
    except requests.exceptions.ChunkedEncodingError as error:
        raise ProviderError(f"cannot fetch {base}: the connection was closed within the response") from error
    except requests.ConnectionError as error:
        raise ProviderError(f"cannot connect to {base}") from error
    except requests.RequestException as error:
        raise ProviderError(f"cannot fetch {base}: {one_line(str(error) or type(error).__name__)}") from error
    _check_status(base, response.status_code)
    try:
        return parse_response(body, model)
    except ResponseError as error:
        raise ProviderError(f"cannot parse the response of {base}: {error}") from error


def _body(base: str, response: requests.Response) -> bytes:
    body = b""
    for chunk in response.iter_content(1 << 16):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ProviderError(f"cannot fetch {base}: the response is larger than {_MOST_BYTES >> 20} MiB")
    return body


def _check_status(base: str, status: int) -> None:
    if status in (401, 403):
        raise ProviderError(
            f"{base} denied access (HTTP {status}); check the token, and that its plan includes the region"
        )
    if status == 429:
        raise ProviderError(f"{base} limits the request rate (HTTP 429); try again in some minutes")
    if status != 200:
        raise ProviderError(f"cannot fetch {base}: HTTP {status}")


def _second(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def token(path: Path | None, provider: str) -> str:
    """Return the provider's secret from the file or the environment, empty without one. Raises ProviderError."""
    try:
        return read_provider_secret(path, provider) or ""
    except SecretFileError as error:
        raise ProviderError(f"--carbon-token-file: {error}; store one line PROVIDER=SECRET there") from None
    except ValueError as error:
        raise ProviderError(str(error)) from None
