"""Past carbon intensities from the providers that publish them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import requests
from pydantic import BaseModel

from wattline.contract.carbon import electricity_maps, energy_charts, gb
from wattline.contract.carbon.providers import TOKEN_VARIABLE, read_provider_secret
from wattline.contract.carbon.responses import (
    IntensitySlot,
    ResponseError,
    format_minute,
    one_line,
    parse_response,
)
from wattline.contract.secret_file import SecretFileError
from wattline_analyzer.core.emissions import PastIntensities, PastSlot

TIMEOUT_S = 20.0
_MOST_BYTES = 16 << 20
_DAY_S = 86_400.0
_HOUR_S = 3_600.0

_Model = TypeVar("_Model", bound=BaseModel)


class PastIntensityError(Exception):
    """Past intensities that cannot be fetched; the text is one line."""


@dataclass(frozen=True, slots=True)
class PastIntensityRequest:
    """Request to a provider; an empty `region` means the run's, `base_url` replaces the provider's
    address.
    """

    provider: str
    region: str = ""
    base_url: str | None = None
    token: str = field(default="", repr=False)
    timeout_s: float = TIMEOUT_S


def fetch_past_intensity(
    request: PastIntensityRequest, run_regions: list[str], start_s: float, end_s: float
) -> PastIntensities:
    """Return past intensities; `run_regions` are the provider's regions of the run's nodes, used as
    default.

    A failure is the `problem` of the result.
    """
    region = request.region
    try:
        region = request.region or _region(request.provider, run_regions)
        slots = _slots(request, region, start_s, end_s)
    except PastIntensityError as error:
        return PastIntensities(request.provider, region, "average", problem=str(error))
    if not slots:
        problem = f"{request.provider} has no intensity of {region} for the run's time"
        return PastIntensities(request.provider, region, "average", problem=problem)
    return PastIntensities(request.provider, region, "average", slots)


def _slots(
    request: PastIntensityRequest, region: str, start_s: float, end_s: float
) -> tuple[PastSlot, ...]:
    """Return the slots that touch the time range, fetched in chunks of the provider's limit."""
    provider = PROVIDERS[request.provider]
    found: dict[float, PastSlot] = {}
    begin_s = start_s
    while begin_s < end_s:
        until_s = min(begin_s + provider.longest_days * _DAY_S, end_s)
        found |= {slot.start_s: slot for slot in provider.fetch(request, region, begin_s, until_s)}
        begin_s = until_s
    return tuple(
        slot for _, slot in sorted(found.items()) if slot.start_s < end_s and slot.end_s > start_s
    )


def _region(provider: str, run_regions: list[str]) -> str:
    if len(run_regions) > 1:
        regions = ", ".join(run_regions)
        raise PastIntensityError(
            f"the run's nodes are in several regions of {provider} ({regions}); name one"
        )
    if run_regions:
        return run_regions[0]
    if provider == "gb":
        return gb.NATIONAL
    raise PastIntensityError(
        f"the run has no region of {provider}; name it, as in --restate {provider}:DE"
    )


def _gb(
    request: PastIntensityRequest, region: str, start_s: float, end_s: float
) -> list[IntensitySlot]:
    if region != gb.NATIONAL:
        raise PastIntensityError(
            f"gb has forecasts but no actuals for its regions, such as {region}; use the whole "
            "country: --restate gb:GB"
        )
    from_s, to_s = start_s // gb.SLOT_S * gb.SLOT_S, -(-end_s // gb.SLOT_S) * gb.SLOT_S
    return _get(request, gb.national_path(from_s, to_s), gb.NationalResponse).slots()


def _electricity_maps(
    request: PastIntensityRequest, region: str, start_s: float, end_s: float
) -> list[IntensitySlot]:
    if not request.token:
        raise PastIntensityError(
            f"electricitymaps needs a token; add --carbon-token-file FILE, or set {TOKEN_VARIABLE}"
        )
    zone = region.upper()
    from_s, to_s = start_s // _HOUR_S * _HOUR_S, -(-end_s // _HOUR_S) * _HOUR_S
    query = {"zone": zone, "start": _second(from_s), "end": _second(to_s)}
    path, secret = "/v3/carbon-intensity/past-range", {"auth-token": request.token}
    response = _get(request, path, electricity_maps.PastRangeResponse, query, secret)
    if not response.is_for(zone):
        raise PastIntensityError(f"electricitymaps returned another zone than {zone}")
    return response.slots()


def _energy_charts(
    request: PastIntensityRequest, region: str, start_s: float, end_s: float
) -> list[IntensitySlot]:
    from_s, to_s = start_s // _HOUR_S * _HOUR_S, -(-end_s // _HOUR_S) * _HOUR_S
    query = {"country": region.lower(), "start": format_minute(from_s), "end": format_minute(to_s)}
    return _get(request, "/co2eq", energy_charts.SeriesResponse, query).slots()


@dataclass(frozen=True, slots=True)
class PastIntensityProvider:
    """A provider that publishes past intensities; `longest_days` is its limit per request."""

    base_url: str
    longest_days: float
    slots: Callable[[PastIntensityRequest, str, float, float], list[IntensitySlot]]

    def fetch(
        self, request: PastIntensityRequest, region: str, start_s: float, end_s: float
    ) -> list[PastSlot]:
        """Return the slots of the time. Raises PastIntensityError."""
        return [
            PastSlot(float(slot.start_s), float(slot.end_s), slot.grams_per_kwh, slot.quality)
            for slot in self.slots(request, region, start_s, end_s)
        ]


PROVIDERS: Mapping[str, PastIntensityProvider] = {
    "gb": PastIntensityProvider(gb.BASE_URL, 13.5, _gb),
    "electricitymaps": PastIntensityProvider(electricity_maps.BASE_URL, 9.5, _electricity_maps),
    "energy-charts": PastIntensityProvider(energy_charts.BASE_URL, 14, _energy_charts),
}


def _get(
    request: PastIntensityRequest,
    path: str,
    model: type[_Model],
    query: Mapping[str, str] | None = None,
    secret: Mapping[str, str] | None = None,
) -> _Model:
    """Return the parsed response. With a secret no redirect is followed. Raises
    PastIntensityError.
    """
    base = (request.base_url or PROVIDERS[request.provider].base_url).rstrip("/")
    try:
        with requests.get(
            f"{base}{path}",
            params=dict(query or {}),
            headers=dict(secret or {}),
            timeout=request.timeout_s,
            allow_redirects=not secret,
            stream=True,
        ) as response:
            body = _body(base, response)
    except requests.Timeout as error:
        raise PastIntensityError(
            f"cannot fetch {base}: no response within {request.timeout_s:g} s"
        ) from error
    except requests.exceptions.ChunkedEncodingError as error:
        raise PastIntensityError(
            f"cannot fetch {base}: the connection was closed within the response"
        ) from error
    except requests.ConnectionError as error:
        raise PastIntensityError(f"cannot connect to {base}") from error
    except requests.RequestException as error:
        raise PastIntensityError(
            f"cannot fetch {base}: {one_line(str(error) or type(error).__name__)}"
        ) from error
    _check_status(base, response.status_code)
    try:
        return parse_response(body, model)
    except ResponseError as error:
        raise PastIntensityError(f"cannot parse the response of {base}: {error}") from error


def _body(base: str, response: requests.Response) -> bytes:
    body = b""
    for chunk in response.iter_content(1 << 16):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise PastIntensityError(
                f"cannot fetch {base}: the response is larger than {_MOST_BYTES >> 20} MiB"
            )
    return body


def _check_status(base: str, status: int) -> None:
    if status in (401, 403):
        raise PastIntensityError(
            f"{base} denied access (HTTP {status}); check the token, and that its plan includes "
            "the region"
        )
    if status == 429:
        raise PastIntensityError(
            f"{base} limits the request rate (HTTP 429); try again in some minutes"
        )
    if status != 200:
        raise PastIntensityError(f"cannot fetch {base}: HTTP {status}")


def _second(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_provider_token(path: Path | None, provider: str) -> str:
    """Return the provider's secret from the file or the environment, empty without one. Raises
    PastIntensityError.
    """
    try:
        return read_provider_secret(path, provider) or ""
    except SecretFileError as error:
        raise PastIntensityError(
            f"--carbon-token-file: {error}; store one line PROVIDER=SECRET there"
        ) from None
    except ValueError as error:
        raise PastIntensityError(str(error)) from None
