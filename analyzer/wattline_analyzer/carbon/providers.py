"""Past carbon intensities from the providers of the exporter."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import requests

from wattline.contract.secret_file import SecretFileError
from wattline_analyzer.core.emissions import PastIntensities, PastSlot
from wattline_exporter.sensors.carbon.provider import (
    CarbonProvider,
    ProviderAccess,
    ProviderError,
    Reply,
    TransportError,
    Web,
    without_overlaps,
)
from wattline_exporter.sensors.carbon.providers import (
    TOKEN_VARIABLE,
    load_provider,
    read_provider_secret,
)

TIMEOUT_S = 20.0
_MAX_BODY_BYTES = 16 << 20


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

    A failure is the `problem` of the result; `dropped` counts the invalid slots of the responses.
    """
    kind = load_provider(request.provider)
    region = request.region
    try:
        region = request.region or _region(kind, run_regions)
        provider = kind(region)
        web = Web(RequestsTransport(), _access(kind, request))
        slots = asyncio.run(_past_slots(provider, web, start_s, end_s))
    except (PastIntensityError, ProviderError, ValueError) as error:
        return PastIntensities(kind.name, region, kind.basis, problem=str(error))
    if not slots:
        problem = f"{kind.name} has no intensity of {region} for the run's time"
        if web.problem:
            problem = f"{problem}: {web.problem}"
        return PastIntensities(kind.name, region, kind.basis, problem=problem)
    return PastIntensities(kind.name, region, kind.basis, slots, dropped=web.dropped)


def _region(kind: type[CarbonProvider], run_regions: list[str]) -> str:
    if len(run_regions) > 1:
        regions = ", ".join(run_regions)
        raise PastIntensityError(
            f"the run's nodes are in several regions of {kind.name} ({regions}); name one"
        )
    if run_regions:
        return run_regions[0]
    if kind.default_region is not None:
        return kind.default_region
    raise PastIntensityError(
        f"the run has no region of {kind.name}; name it, as in --restate {kind.name}:REGION"
    )


def _access(kind: type[CarbonProvider], request: PastIntensityRequest) -> ProviderAccess:
    if kind.secret is not None and not re.fullmatch(kind.secret.pattern, request.token):
        raise PastIntensityError(
            f"{kind.name} needs {kind.secret.form}; add --carbon-token-file FILE, or set "
            f"{TOKEN_VARIABLE}"
        )
    return ProviderAccess(
        request.base_url or kind.base_url,
        request.token,
        timeout_s=request.timeout_s,
        max_body_bytes=_MAX_BODY_BYTES,
    )


async def _past_slots(
    provider: CarbonProvider, web: Web, start_s: float, end_s: float
) -> tuple[PastSlot, ...]:
    """Return the slots that touch the time range, fetched in parts of the provider's limit."""
    found = [
        slot
        for begin_s, until_s in _parts(start_s, end_s, provider.longest_past_s)
        for slot in await provider.past(web, begin_s, until_s)
    ]
    return tuple(
        PastSlot(slot.begin_s, slot.end_s, slot.grams_per_kwh, slot.quality)
        for slot in without_overlaps(found)
        if slot.begin_s < end_s and slot.end_s > start_s
    )


def _parts(start_s: float, end_s: float, longest_s: float) -> Iterator[tuple[float, float]]:
    """Yield start and end of each part of a time range."""
    while start_s < end_s:
        until_s = min(start_s + longest_s, end_s)
        yield start_s, until_s
        start_s = until_s


class RequestsTransport:
    """HTTP client of the analyzer."""

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        access: ProviderAccess,
        *,
        follow_redirects: bool,
    ) -> Reply:
        """Return the response; it blocks. Raises TimeoutError, or TransportError."""
        try:
            return _get(url, headers, access, follow_redirects=follow_redirects)
        except requests.Timeout as error:
            raise TimeoutError from error
        except requests.exceptions.ChunkedEncodingError as error:
            raise TransportError("the connection was closed within the response") from error
        except requests.ConnectionError as error:
            raise TransportError("no connection") from error
        except requests.RequestException as error:
            raise TransportError(str(error) or type(error).__name__) from error


def _get(
    url: str, headers: Mapping[str, str], access: ProviderAccess, *, follow_redirects: bool
) -> Reply:
    with requests.get(
        url,
        headers=dict(headers),
        timeout=access.timeout_s,
        allow_redirects=follow_redirects,
        auth=_keep_headers if headers else None,
        stream=True,
    ) as response:
        body = _read_body(response, access.max_body_bytes)
        retry_after = response.headers.get("Retry-After")
        return Reply(response.status_code, response.reason or "", retry_after, body)


def _keep_headers(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send the credentials of the headers; without this, those of ~/.netrc replace them."""
    return request


def _read_body(response: requests.Response, max_bytes: int) -> bytes:
    body = b""
    for chunk in response.iter_content(1 << 16):
        body += chunk
        if len(body) > max_bytes:
            raise TransportError(f"the response is larger than {max_bytes >> 20} MiB")
    return body


def read_provider_token(path: Path | None, provider: str) -> str:
    """Return the provider's secret from the file or the environment, empty without one.

    Raises PastIntensityError.
    """
    if load_provider(provider).secret is None:
        return ""
    try:
        return read_provider_secret(path, provider)
    except SecretFileError as error:
        raise PastIntensityError(
            f"--carbon-token-file: {error}; store one line PROVIDER=SECRET there"
        ) from None
    except ValueError as error:
        raise PastIntensityError(str(error)) from None
