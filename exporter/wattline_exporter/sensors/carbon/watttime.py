"""Carbon provider WattTime, API v3: marginal intensities in regions of the whole world.

https://docs.watttime.org. Marginal and average intensities must not be mixed. Logging in by user
and password returns a token for half an hour. Forecasts and history need a subscription, except for
CAISO_NORTH. Limits: 3,000 requests and 100 logins in 5 minutes. The signal `co2_moer` is the
marginal intensity in pounds of CO2 per MWh, in 5 min slots. The free signal index is a rank of 0 to
100 and not an intensity; it is not used.
"""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlencode

import aiohttp
from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from wattline.contract.carbon.responses import (
    DAY_S,
    MAX_GRAMS_PER_KWH,
    MAX_POINTS,
    Basis,
    IntensitySlot,
    Quality,
)
from wattline_exporter.sensors.carbon.provider import (
    TIMEOUT_S,
    CarbonApi,
    HttpStatusError,
    OptionalEndpoint,
    extend_with_estimates,
    label_slots,
)
from wattline_exporter.sensors.readings import Slot, SourceError

BASE_URL = "https://api.watttime.org"
SIGNAL = "co2_moer"
REGION_PATTERN = r"[A-Z0-9][A-Z0-9_.-]{0,63}"
GRAMS_PER_POUND = 453.59237
_GRAMS_PER_KWH = GRAMS_PER_POUND / 1_000
"""One pound per MWh in g/kWh."""


class LoginResponse(BaseModel):
    token: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,8192}$")]


class LocationResponse(BaseModel):
    region: Annotated[str, StringConstraints(pattern=f"^{REGION_PATTERN}$")]


class _Point(BaseModel):
    point_time: AwareDatetime
    value: Annotated[float, Field(strict=True, ge=0, le=MAX_GRAMS_PER_KWH / _GRAMS_PER_KWH)]


class _Meta(BaseModel):
    region: str
    units: Literal["lbs_co2_per_mwh"]
    data_point_period_seconds: Annotated[float, Field(ge=60, le=3_600)] = 300.0


class SignalResponse(BaseModel):
    data: Annotated[list[_Point], Field(max_length=MAX_POINTS)]
    meta: _Meta

    @property
    def region(self) -> str:
        return self.meta.region

    @property
    def slot_s(self) -> float:
        return self.meta.data_point_period_seconds

    def slots(self, quality: Quality) -> list[IntensitySlot]:
        return [
            IntensitySlot(start_s, start_s + self.slot_s, point.value * _GRAMS_PER_KWH, quality)
            for point in self.data
            for start_s in (point.point_time.timestamp(),)
        ]


class _Region(BaseModel):
    region: str
    region_full_name: str = ""


class _SignalType(BaseModel):
    signal_type: str
    regions: list[_Region]


class AccessResponse(BaseModel):
    signal_types: list[_SignalType]

    def region_names(self) -> dict[str, str]:
        """Return the full name of each region whose marginal intensity the account may read."""
        regions = [
            region
            for kind in self.signal_types
            if kind.signal_type == SIGNAL
            for region in kind.regions
        ]
        names = {region.region: region.region_full_name for region in regions}
        return dict(sorted(names.items()))


_COORDINATES = re.compile(r"(-?[0-9]{1,2}(?:\.[0-9]+)?)\s*,\s*(-?[0-9]{1,3}(?:\.[0-9]+)?)")
_TOKEN_S = 25 * 60.0
_LOCATION_S = 30 * DAY_S
"""Lifetime of a looked-up region; WattTime recommends one request a month."""
_FORECAST_HOURS = 49
"""One hour more than is exported, so that the last one is complete."""
_PAST_S = 2 * 3_600.0
_EXTEND_S = 3_600.0
_LIST_REGIONS = "list the regions with: exporter regions --carbon.provider watttime"

_Model = TypeVar("_Model", bound=BaseModel)


class WattTime:
    """Provider of marginal intensities; `region` is a name or `LATITUDE,LONGITUDE`, else
    ValueError.
    """

    name = "watttime"
    basis: Basis = "marginal"

    def __init__(
        self,
        region: str,
        user: str,
        password: str,
        base_url: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.region, self._coordinates = _parse_region(region)
        self._account = _Account(user, password, CarbonApi(base_url or BASE_URL, timeout_s))
        self._located_region, self._located_s = "", 0.0
        self._history = OptionalEndpoint()

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        region = await self._locate(session, now_s)
        query = {"region": region, "signal_type": SIGNAL}
        forecast = await self._get(
            session, now_s, "forecast", {**query, "horizon_hours": _FORECAST_HOURS}
        )
        start, end = (
            datetime.fromtimestamp(time_s, UTC).isoformat(timespec="minutes")
            for time_s in (now_s - _PAST_S, now_s)
        )
        past: dict[str, str | int] = {**query, "start": start, "end": end}
        history = await self._history.get(
            partial(self._get, session, now_s, "historical", past), now_s
        )
        by_start = {slot.start_s: slot for slot in forecast.slots("forecast")}
        by_start |= {slot.start_s: slot for slot in (history.slots("actual") if history else ())}
        if not by_start:
            raise SourceError(
                f"{self._account.api.base_url} has no intensity for {region}",
                "the request is repeated",
            )
        slots = label_slots(by_start.values(), self, region)
        return extend_with_estimates(slots, now_s, step_s=forecast.slot_s, within_s=_EXTEND_S)

    async def _get(
        self,
        session: aiohttp.ClientSession,
        now_s: float,
        endpoint: str,
        query: dict[str, str | int],
    ) -> SignalResponse:
        signal = await self._account.get(session, now_s, f"/v3/{endpoint}", query, SignalResponse)
        if signal.region != query["region"]:
            cause = (
                f"{self._account.api.base_url} answered for another region than {query['region']}"
            )
            raise SourceError(cause, _LIST_REGIONS)
        return signal

    async def _locate(self, session: aiohttp.ClientSession, now_s: float) -> str:
        """Return the region, looked up by its coordinates where those are configured."""
        if self._coordinates is None:
            return self.region
        if not self._located_region or not 0 <= now_s - self._located_s < _LOCATION_S:
            latitude, longitude = self._coordinates
            query: dict[str, str | int] = {
                "latitude": latitude,
                "longitude": longitude,
                "signal_type": SIGNAL,
            }
            location = await self._account.get(
                session, now_s, "/v3/region-from-loc", query, LocationResponse
            )
            self._located_region, self._located_s = location.region, now_s
        return self._located_region


class _Account:
    """Requests with a token, obtained by logging in where needed. No message contains credentials
    or the token.
    """

    def __init__(self, user: str, password: str, api: CarbonApi) -> None:
        self._auth = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        self.api = api
        self._token, self._token_s = "", 0.0

    async def get(
        self,
        session: aiohttp.ClientSession,
        now_s: float,
        path: str,
        query: dict[str, str | int],
        model: type[_Model],
    ) -> _Model:
        """Return the parsed response; log in again if the token is refused, since it may have
        expired early.
        """
        if not self._token or not 0 <= now_s - self._token_s < _TOKEN_S:
            await self._log_in(session, now_s)
        try:
            return await self._get(session, path, query, model)
        except HttpStatusError as error:
            if error.status != 401:
                raise
        await self._log_in(session, now_s)
        return await self._get(session, path, query, model)

    async def _get(
        self,
        session: aiohttp.ClientSession,
        path: str,
        query: dict[str, str | int],
        model: type[_Model],
    ) -> _Model:
        api = replace(self.api, secret={"Authorization": f"Bearer {self._token}"})
        try:
            return await api.get(session, f"{path}?{urlencode(query)}", model, display_path=path)
        except HttpStatusError as error:
            if not error.is_denied:
                raise
            remedy = (
                "check that the account's plan includes the region (a free one has "
                f"CAISO_NORTH); {_LIST_REGIONS}"
            )
            raise HttpStatusError(error.cause, remedy, error.status) from error

    async def _log_in(self, session: aiohttp.ClientSession, now_s: float) -> None:
        try:
            api = replace(self.api, secret={"Authorization": self._auth})
            login = await api.get(session, "/login", LoginResponse)
        except HttpStatusError as error:
            if not error.is_denied:
                raise
            remedy = "check USER:PASSWORD in --carbon.token-file or WATTLINE_CARBON_TOKEN"
            raise HttpStatusError(error.cause, remedy, error.status) from error
        self._token, self._token_s = login.token, now_s


def _parse_region(text: str) -> tuple[str, tuple[str, str] | None]:
    """Return the region's name, and its coordinates where the text contains those."""
    match = _COORDINATES.fullmatch(text.strip())
    if match and abs(float(match[1])) <= 90 and abs(float(match[2])) <= 180:
        return f"{match[1]},{match[2]}", (match[1], match[2])
    region = text.strip().upper()
    if not match and re.fullmatch(REGION_PATTERN, region):
        return region, None
    raise ValueError(
        f"{text!r} is not a region of watttime; use a name such as CAISO_NORTH, or "
        f"LATITUDE,LONGITUDE ({_LIST_REGIONS})"
    )


async def list_regions(
    session: aiohttp.ClientSession, user: str, password: str, base_url: str | None = None
) -> dict[str, str]:
    """Return the full name by name of each region whose marginal intensity the account may read."""
    access = await _Account(user, password, CarbonApi(base_url or BASE_URL)).get(
        session, 0.0, "/v3/my-access", {}, AccessResponse
    )
    return {
        name: full
        for name, full in access.region_names().items()
        if re.fullmatch(REGION_PATTERN, name)
    }
