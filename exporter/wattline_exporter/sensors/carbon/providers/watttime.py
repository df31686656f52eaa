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
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeVar
from urllib.parse import urlencode

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from wattline_exporter.sensors.carbon.provider import (
    DAY_S,
    MAX_GRAMS_PER_KWH,
    Basis,
    CarbonProvider,
    HttpStatusError,
    Items,
    OptionalEndpoint,
    ProviderError,
    Quality,
    Secret,
    Web,
    extend_with_estimates,
    latest_values,
)
from wattline_exporter.sensors.carbon.providers import TOKEN_VARIABLE
from wattline_exporter.sensors.readings import Slot

_SIGNAL = "co2_moer"
_REGION_PATTERN = r"[A-Z0-9][A-Z0-9_.-]{0,63}"
_COORDINATES = re.compile(r"(-?[0-9]{1,2}(?:\.[0-9]+)?)\s*,\s*(-?[0-9]{1,3}(?:\.[0-9]+)?)")
_GRAMS_PER_KWH = 453.59237 / 1_000
"""One pound per MWh in g/kWh."""
_TOKEN_S = 25 * 60.0
_LOCATION_S = 30 * DAY_S
"""Lifetime of a looked-up region; WattTime recommends one request a month."""
_FORECAST_HOURS = 49
"""One hour more than is exported, so that the last one is complete."""
_PAST_S = 2 * 3_600.0
_EXTEND_S = 3_600.0
_LIST_REGIONS = "list the regions with: exporter regions --carbon.provider watttime"

_Query = dict[str, str | int]
_Model = TypeVar("_Model", bound=BaseModel)


class LoginResponse(BaseModel):
    token: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,8192}$")]


class LocationResponse(BaseModel):
    region: Annotated[str, StringConstraints(pattern=f"^{_REGION_PATTERN}$")]


class _Point(BaseModel):
    point_time: AwareDatetime
    value: Annotated[float, Field(strict=True, ge=0, le=MAX_GRAMS_PER_KWH / _GRAMS_PER_KWH)]


class _Meta(BaseModel):
    region: str
    units: Literal["lbs_co2_per_mwh"]
    data_point_period_seconds: Annotated[float, Field(ge=60, le=3_600)] = 300.0


class SignalResponse(BaseModel):
    """Points, which are parsed one by one."""

    data: Items
    meta: _Meta


class _Region(BaseModel):
    region: str
    region_full_name: str = ""


class _SignalType(BaseModel):
    signal_type: str
    regions: list[_Region]


class AccessResponse(BaseModel):
    signal_types: list[_SignalType]

    def region_names(self) -> list[tuple[str, str]]:
        """Return key and name of each region whose marginal intensity the account may read."""
        names = {
            region.region: region.region_full_name
            for kind in self.signal_types
            if kind.signal_type == _SIGNAL
            for region in kind.regions
            if re.fullmatch(_REGION_PATTERN, region.region)
        }
        return sorted(names.items())


class WattTime(CarbonProvider):
    """Provider of marginal intensities; a region is a name, or `LATITUDE,LONGITUDE`."""

    name = "watttime"
    basis: ClassVar[Basis] = "marginal"
    base_url = "https://api.watttime.org"
    secret = Secret("USER:PASSWORD", pattern="[^:]+:.+")
    longest_past_s = 13 * DAY_S
    """3,744 points of 5 minutes; the API's limit is 32 days."""

    def __init__(self, region: str) -> None:
        self.region, self._coordinates = _parse_region(region)
        self._account = _Account()
        self._located_region = ""
        self._located_s = 0.0
        self._history = OptionalEndpoint()

    async def current(self, web: Web, now_s: float) -> list[Slot]:
        region = await self._locate(web, now_s)
        query: _Query = {"region": region, "signal_type": _SIGNAL}
        forecast = await self._get(
            web, now_s, "forecast", {**query, "horizon_hours": _FORECAST_HOURS}
        )
        past = {**query, **_time_range(now_s - _PAST_S, now_s)}
        history = await self._history.get(partial(self._get, web, now_s, "historical", past), now_s)
        slots = self._slots(web, forecast, "forecast")
        if history:
            slots += self._slots(web, history, "actual")
        if not slots:
            raise web.no_intensity(region)
        step_s = forecast.meta.data_point_period_seconds
        slots = latest_values(slots)
        return extend_with_estimates(slots, now_s, step_s=step_s, within_s=_EXTEND_S)

    async def past(self, web: Web, begin_s: float, end_s: float) -> list[Slot]:
        """Return the actual values. Each call logs in."""
        self._account = _Account()
        region = await self._locate(web, end_s)
        query: _Query = {"region": region, "signal_type": _SIGNAL}
        query |= _time_range(begin_s // 60 * 60, -(-end_s // 60) * 60)
        return self._slots(web, await self._get(web, end_s, "historical", query), "actual")

    @classmethod
    async def regions(cls, web: Web) -> list[tuple[str, str]]:
        access = await _Account().get(web, 0.0, "/v3/my-access", {}, AccessResponse)
        return access.region_names()

    async def _get(self, web: Web, now_s: float, endpoint: str, query: _Query) -> SignalResponse:
        signal = await self._account.get(web, now_s, f"/v3/{endpoint}", query, SignalResponse)
        if signal.meta.region != query["region"]:
            cause = f"{web.base_url} answered for another region than {query['region']}"
            raise ProviderError(cause, _LIST_REGIONS)
        return signal

    async def _locate(self, web: Web, now_s: float) -> str:
        """Return the region, looked up by its coordinates where those are configured."""
        if self._coordinates is None:
            return self.region
        if not self._located_region or not 0 <= now_s - self._located_s < _LOCATION_S:
            latitude, longitude = self._coordinates
            query: _Query = {
                "latitude": latitude,
                "longitude": longitude,
                "signal_type": _SIGNAL,
            }
            location = await self._account.get(
                web, now_s, "/v3/region-from-loc", query, LocationResponse
            )
            self._located_region = location.region
            self._located_s = now_s
        return self._located_region

    def _slots(self, web: Web, signal: SignalResponse, quality: Quality) -> list[Slot]:
        length_s = signal.meta.data_point_period_seconds
        slots: list[Slot] = []
        for point in web.valid_items("data", signal.data, _Point).values():
            begin_s = point.point_time.timestamp()
            grams_per_kwh = point.value * _GRAMS_PER_KWH
            slots.append(
                self.slot(begin_s, begin_s + length_s, grams_per_kwh, quality, signal.meta.region)
            )
        return slots


PROVIDER = WattTime


def _time_range(begin_s: float, end_s: float) -> dict[str, str]:
    begin = datetime.fromtimestamp(begin_s, UTC).isoformat(timespec="minutes")
    end = datetime.fromtimestamp(end_s, UTC).isoformat(timespec="minutes")
    return {"start": begin, "end": end}


class _Account:
    """Requests with a token, obtained by logging in where needed. No message contains credentials
    or the token.
    """

    def __init__(self) -> None:
        self._token = ""
        self._token_s = 0.0

    async def get(
        self, web: Web, now_s: float, path: str, query: _Query, model: type[_Model]
    ) -> _Model:
        """Return the parsed response; log in again if the token is refused, since it may have
        expired early.
        """
        if not self._token or not 0 <= now_s - self._token_s < _TOKEN_S:
            await self._log_in(web, now_s)
        try:
            return await self._get(web, path, query, model)
        except HttpStatusError as error:
            if error.status != 401:
                raise
        await self._log_in(web, now_s)
        return await self._get(web, path, query, model)

    async def _get(self, web: Web, path: str, query: _Query, model: type[_Model]) -> _Model:
        credentials = {"Authorization": f"Bearer {self._token}"}
        try:
            return await web.get(
                f"{path}?{urlencode(query)}", model, credentials=credentials, display_path=path
            )
        except HttpStatusError as error:
            if not error.is_denied:
                raise
            remedy = (
                "check that the account's plan includes the region (a free one has "
                f"CAISO_NORTH); {_LIST_REGIONS}"
            )
            raise HttpStatusError(error.cause, remedy, error.status) from error

    async def _log_in(self, web: Web, now_s: float) -> None:
        credentials = base64.b64encode(web.secret.encode()).decode()
        try:
            login = await web.get(
                "/login", LoginResponse, credentials={"Authorization": f"Basic {credentials}"}
            )
        except HttpStatusError as error:
            if not error.is_denied:
                raise
            remedy = f"check USER:PASSWORD in the token file or {TOKEN_VARIABLE}"
            raise HttpStatusError(error.cause, remedy, error.status) from error
        self._token = login.token
        self._token_s = now_s


def _parse_region(text: str) -> tuple[str, tuple[str, str] | None]:
    """Return the region's name, and its coordinates where the text contains those."""
    match = _COORDINATES.fullmatch(text.strip())
    if match and abs(float(match[1])) <= 90 and abs(float(match[2])) <= 180:
        return f"{match[1]},{match[2]}", (match[1], match[2])
    region = text.strip().upper()
    if not match and re.fullmatch(_REGION_PATTERN, region):
        return region, None
    raise ValueError(
        f"{text!r} is not a region of watttime; use a name such as CAISO_NORTH, or "
        f"LATITUDE,LONGITUDE ({_LIST_REGIONS})"
    )
