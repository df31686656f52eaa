"""Carbon intensities of the past from the providers that publish them: what they know now of a time gone by.

gb: https://carbon-intensity.github.io/api-definitions, electricitymaps: https://portal.electricitymaps.com/docs/api,
energy-charts: https://api.energy-charts.info. Whatever goes wrong is told in one line, as the problem of a `Past`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests

from analyzer.carbon.intensity import Past, PastSlot
from analyzer.sources.carbon.file import MOST_G_PER_KWH, moment_s
from exporter.contract.carbon.credentials import TOKEN_VARIABLE, read_provider_secret
from exporter.contract.secret_file import SecretFileError

TIMEOUT_S = 20.0
_MOST_BYTES = 16 << 20
_DAY_S = 86_400.0
_GB_SLOT_S, _CHARTS_SLOT_S, _LONGEST_S = 1_800.0, 900.0, 3_600.0
_GRANULARITIES_S = {"5_minutes": 300.0, "15_minutes": 900.0, "hourly": 3_600.0}
_NATIONAL = "GB"


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
        found |= {slot.start_s: slot for slot in provider.ask(asked, region, begin_s, until_s)}
        begin_s = until_s
    return tuple(slot for _, slot in sorted(found.items()) if slot.start_s < end_s and slot.end_s > start_s)


def _region(provider: str, seen: list[str]) -> str:
    if len(seen) > 1:
        raise ProviderError(f"the run's nodes are in several regions of {provider} ({', '.join(seen)}), name one")
    if seen:
        return seen[0]
    if provider == "gb":
        return _NATIONAL
    raise ProviderError(f"the run saw no region of {provider}; name it, as in --restate {provider}:DE")


def _gb(asked: Asked, region: str, start_s: float, end_s: float) -> Iterator[PastSlot]:
    if region != _NATIONAL:
        raise ProviderError(
            f"gb has forecasts only for its regions, such as {region}, and no actuals; "
            "the whole country's are another figure: --restate gb:GB"
        )
    from_s, to_s = start_s // _GB_SLOT_S * _GB_SLOT_S, -(-end_s // _GB_SLOT_S) * _GB_SLOT_S
    answer = _json(asked, f"/intensity/{_minute(from_s)}/{_minute(to_s)}")
    for period in _list(asked, answer, "data"):
        intensity = period["intensity"]
        quality = "forecast" if intensity.get("actual") is None else "actual"
        if intensity.get(quality) is not None:
            yield PastSlot(_time_s(period["from"]), _time_s(period["to"]), _grams(intensity[quality]), quality)


def _electricity_maps(asked: Asked, region: str, start_s: float, end_s: float) -> Iterator[PastSlot]:
    if not asked.token:
        raise ProviderError(f"electricitymaps needs its token: --carbon-token-file FILE, or {TOKEN_VARIABLE}")
    zone = region.upper()
    from_s, to_s = start_s // _LONGEST_S * _LONGEST_S, -(-end_s // _LONGEST_S) * _LONGEST_S
    times = {"start": _second(from_s), "end": _second(to_s)}
    answer = _json(asked, "/v3/carbon-intensity/past-range", {"zone": zone, **times}, {"auth-token": asked.token})
    length_s = _GRANULARITIES_S[answer.get("temporalGranularity", "hourly")]
    for point in _list(asked, answer, "data"):
        if point.get("zone", answer.get("zone")) != zone:  # one without a zone is of wherever we seem to be
            raise ProviderError(f"electricitymaps answered for another zone than {zone}")
        if point["carbonIntensity"] is not None:
            begin_s = _time_s(point["datetime"])
            quality = "actual" if point.get("isEstimated") is False else "estimated"
            yield PastSlot(begin_s, begin_s + length_s, _grams(point["carbonIntensity"]), quality)


def _energy_charts(asked: Asked, region: str, start_s: float, end_s: float) -> Iterator[PastSlot]:
    from_s, to_s = start_s // _LONGEST_S * _LONGEST_S, -(-end_s // _LONGEST_S) * _LONGEST_S
    answer = _json(asked, "/co2eq", {"country": region.lower(), "start": _minute(from_s), "end": _minute(to_s)})
    times, actuals = _list(asked, answer, "unix_seconds"), _list(asked, answer, "co2eq")
    forecasts = answer.get("co2eq_forecast") or [None] * len(times)
    length_s = _CHARTS_SLOT_S
    for n, (begin, actual, forecast) in enumerate(zip(times, actuals, forecasts, strict=True)):
        step_s = times[n + 1] - begin if n + 1 < len(times) else length_s
        length_s = float(step_s) if 0 < step_s <= _LONGEST_S else _CHARTS_SLOT_S
        value, quality = (forecast, "forecast") if actual is None else (actual, "actual")
        if value is not None:
            yield PastSlot(float(begin), begin + length_s, _grams(value), quality)


@dataclass(frozen=True, slots=True)
class Provider:
    """`longest_days` is how much it answers at once."""

    base_url: str
    longest_days: float
    slots: Callable[[Asked, str, float, float], Iterator[PastSlot]]

    def ask(self, asked: Asked, region: str, start_s: float, end_s: float) -> list[PastSlot]:
        """Raises ProviderError."""
        try:
            return list(self.slots(asked, region, start_s, end_s))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:  # JSON of another shape
            why = _one_line(f"{type(error).__name__}: {error}")
            raise ProviderError(f"{asked.provider} answered what is not understood ({why})") from error


PROVIDERS: Mapping[str, Provider] = {
    "gb": Provider("https://api.carbonintensity.org.uk", 13.5, _gb),
    "electricitymaps": Provider("https://api.electricitymaps.com", 9.5, _electricity_maps),
    "energy-charts": Provider("https://api.energy-charts.info", 14, _energy_charts),
}


def _json(
    asked: Asked, path: str, query: Mapping[str, str] | None = None, secret: Mapping[str, str] | None = None
) -> Any:
    """With a secret no redirect is followed: it could lead to another host. Raises ProviderError."""
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
        raise ProviderError(f"{base} did not answer within {asked.timeout_s:g} s") from error
    except requests.exceptions.ChunkedEncodingError as error:
        raise ProviderError(f"{base} broke off its answer") from error
    except requests.ConnectionError as error:
        raise ProviderError(f"cannot reach {base}") from error
    except requests.RequestException as error:
        raise ProviderError(f"cannot fetch {base}: {_one_line(str(error) or type(error).__name__)}") from error
    return _understood(base, response, body)


def _body(base: str, response: requests.Response) -> bytes:
    body = b""
    for chunk in response.iter_content(1 << 16):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ProviderError(f"{base} answered more than {_MOST_BYTES >> 20} MiB")
    return body


def _understood(base: str, response: requests.Response, body: bytes) -> Any:
    status = response.status_code
    if status in (401, 403):
        raise ProviderError(
            f"{base} does not let us in (HTTP {status}): is the token right, and the region in its plan?"
        )
    if status == 429:
        raise ProviderError(f"{base} was asked too often (HTTP 429): try again in some minutes")
    if status != 200:
        raise ProviderError(f"{base} answered HTTP {status}")
    if body.lstrip().startswith(b"<"):
        raise ProviderError(f"{base} answered with a web page, not JSON: is a proxy or a login page between?")
    try:
        return json.loads(body)
    except ValueError as error:
        raise ProviderError(f"{base} answered what is no whole JSON") from error


def _list(asked: Asked, answer: Any, key: str) -> list[Any]:
    found = answer[key]
    if not isinstance(found, list):
        raise TypeError(f"{key} of {asked.provider} is no list")
    return found


def _grams(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_G_PER_KWH:
        raise ValueError(f"{str(value)[:40]} is no intensity in g/kWh")
    return float(value)


def _time_s(text: Any) -> float:
    return moment_s(str(text))


def _minute(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _second(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:200]


def token(path: Path | None, provider: str) -> str:
    """Return the provider's secret from the file or the environment, empty without one. Raises ProviderError."""
    try:
        return read_provider_secret(path, provider) or ""
    except SecretFileError as error:
        raise ProviderError(f"--carbon-token-file: {error}; store one line PROVIDER=SECRET there") from None
    except ValueError as error:
        raise ProviderError(str(error)) from None
