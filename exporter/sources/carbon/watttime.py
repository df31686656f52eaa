"""WattTime, API v3 (https://docs.watttime.org): what one more kWh would emit (marginal), in regions of the whole world.

Never to be mixed with averages. A login by user and password gives a token of half an hour. The signal `co2_moer` is in
pounds of CO2 per MWh, in slots of 5 minutes. Forecasts and history are for subscribers, except of CAISO_NORTH; the
free signal index is a rank of 0 to 100 and no intensity, and so of no use here. Limits: 3,000 requests and 100 logins
in 5 minutes.
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

from exporter.model import Slot, SourceError
from exporter.sources.carbon.provider import (
    DAY_S,
    MOST_GRAMS_PER_KWH,
    MOST_POINTS,
    TIMEOUT_S,
    Api,
    Basis,
    Extra,
    StatusError,
    carried,
)

BASE_URL = "https://api.watttime.org"
GRAMS_PER_POUND = 453.59237
_GRAMS_PER_KWH = GRAMS_PER_POUND / 1_000
_SIGNAL = "co2_moer"
_REGION = r"[A-Z0-9][A-Z0-9_.-]{0,63}"
_PLACE = re.compile(r"(-?[0-9]{1,2}(?:\.[0-9]+)?)\s*,\s*(-?[0-9]{1,3}(?:\.[0-9]+)?)")
_TOKEN_S = 25 * 60.0
_PLACE_S = 30 * DAY_S
"""The regions' borders move now and then; WattTime advises to ask once a month."""
_HORIZON_H = 49
"""One more than is shown, so that the last hour is whole."""
_BACK_S = 2 * 3_600.0
_CARRY_S = 3_600.0

_Model = TypeVar("_Model", bound=BaseModel)


class _Login(BaseModel):
    token: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,8192}$")]


class _Place(BaseModel):
    region: Annotated[str, StringConstraints(pattern=f"^{_REGION}$")]


class _Point(BaseModel):
    point_time: AwareDatetime
    value: Annotated[float, Field(strict=True, ge=0, le=MOST_GRAMS_PER_KWH / _GRAMS_PER_KWH)]


class _Meta(BaseModel):
    region: str
    units: Literal["lbs_co2_per_mwh"]
    data_point_period_seconds: Annotated[float, Field(ge=60, le=3_600)] = 300.0


class _Signal(BaseModel):
    data: Annotated[list[_Point], Field(max_length=MOST_POINTS)]
    meta: _Meta


class _Region(BaseModel):
    region: str
    region_full_name: str = ""


class _SignalType(BaseModel):
    signal_type: str
    regions: list[_Region]


class _Access(BaseModel):
    signal_types: list[_SignalType]


class WattTime:
    """`region` is a region's name, or `LATITUDE,LONGITUDE`; raises ValueError for what can be neither."""

    name = "watttime"
    basis: Basis = "marginal"

    def __init__(
        self, region: str, user: str, password: str, base_url: str = BASE_URL, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.region, self._place = _parsed(region)
        self._account = _Account(user, password, Api(base_url, timeout_s))
        self._found, self._found_s = "", 0.0
        self._history = Extra()

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        region = await self._resolved(session, now_s)
        asked = {"region": region, "signal_type": _SIGNAL}
        forecast = await self._signal(session, now_s, "forecast", {**asked, "horizon_hours": _HORIZON_H})
        start, end = (
            datetime.fromtimestamp(at_s, UTC).isoformat(timespec="minutes") for at_s in (now_s - _BACK_S, now_s)
        )
        history = await self._history.get(
            partial(self._signal, session, now_s, "historical", {**asked, "start": start, "end": end}), now_s
        )
        slots = {slot.begin_s: slot for slot in _slots(forecast, region, "forecast")}
        if history:
            slots |= {slot.begin_s: slot for slot in _slots(history, region, "actual")}
        if not slots:
            raise SourceError(f"{self._account.api.base_url} knows no intensity for {region}", "it will be asked again")
        return carried(list(slots.values()), now_s, step_s=forecast.meta.data_point_period_seconds, within_s=_CARRY_S)

    async def _signal(
        self, session: aiohttp.ClientSession, now_s: float, what: str, query: dict[str, str | int]
    ) -> _Signal:
        signal = await self._account.get(session, now_s, f"/v3/{what}", query, _Signal)
        if signal.meta.region != query["region"]:
            cause = f"{self._account.api.base_url} answered for another region than {query['region']}"
            raise SourceError(cause, "try: exporter regions --carbon.provider watttime")
        return signal

    async def _resolved(self, session: aiohttp.ClientSession, now_s: float) -> str:
        if self._place is None:
            return self.region
        if not self._found or not 0 <= now_s - self._found_s < _PLACE_S:
            latitude, longitude = self._place
            query: dict[str, str | int] = {"latitude": latitude, "longitude": longitude, "signal_type": _SIGNAL}
            place = await self._account.get(session, now_s, "/v3/region-from-loc", query, _Place)
            self._found, self._found_s = place.region, now_s
        return self._found


class _Account:
    """Logged in where needed. No message shows what was sent to log in, nor the token."""

    def __init__(self, user: str, password: str, api: Api) -> None:
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
        """Logs in once more where the token is refused, which may have been withdrawn early."""
        if not self._token or not 0 <= now_s - self._token_s < _TOKEN_S:
            await self._log_in(session, now_s)
        try:
            return await self._ask(session, path, query, model)
        except StatusError as error:
            if error.status != 401:
                raise
        await self._log_in(session, now_s)
        return await self._ask(session, path, query, model)

    async def _ask(
        self, session: aiohttp.ClientSession, path: str, query: dict[str, str | int], model: type[_Model]
    ) -> _Model:
        api = replace(self.api, secret={"Authorization": f"Bearer {self._token}"})
        try:
            return await api.get(session, f"{path}?{urlencode(query)}", model, shown=path)
        except StatusError as error:
            if not error.denied:
                raise
            remedy = (
                "is the region in this account's plan (a free one has CAISO_NORTH)? "
                "try: exporter regions --carbon.provider watttime"
            )
            raise StatusError(error.cause, remedy, error.status) from error

    async def _log_in(self, session: aiohttp.ClientSession, now_s: float) -> None:
        try:
            api = replace(self.api, secret={"Authorization": self._auth})
            login = await api.get(session, "/login", _Login)
        except StatusError as error:
            if not error.denied:
                raise
            remedy = "is USER:PASSWORD in --carbon.token-file or WATTLINE_CARBON_TOKEN right?"
            raise StatusError(error.cause, remedy, error.status) from error
        self._token, self._token_s = login.token, now_s


def _slots(signal: _Signal, region: str, quality: Literal["actual", "forecast"]) -> list[Slot]:
    length_s = signal.meta.data_point_period_seconds
    slots = []
    for point in signal.data:
        begin_s = point.point_time.timestamp()
        grams = point.value * _GRAMS_PER_KWH
        slots.append(Slot(begin_s, begin_s + length_s, grams, region, WattTime.name, WattTime.basis, quality))
    return slots


def _parsed(text: str) -> tuple[str, tuple[str, str] | None]:
    """The region as it is to be asked for, and the place that it is to be found by."""
    found = _PLACE.fullmatch(text.strip())
    if found and abs(float(found[1])) <= 90 and abs(float(found[2])) <= 180:
        return f"{found[1]},{found[2]}", (found[1], found[2])
    region = text.strip().upper()
    if not found and re.fullmatch(_REGION, region):
        return region, None
    raise ValueError(
        f"{text!r} is no region of the watttime provider; give one such as CAISO_NORTH, or LATITUDE,LONGITUDE "
        "(all of them: exporter regions --carbon.provider watttime)"
    )


async def regions(session: aiohttp.ClientSession, user: str, password: str, base_url: str = BASE_URL) -> dict[str, str]:
    """Each region's full name by its name: those of which this account may have the marginal intensity."""
    access = await _Account(user, password, Api(base_url)).get(session, 0.0, "/v3/my-access", {}, _Access)
    found = [region for kind in access.signal_types if kind.signal_type == _SIGNAL for region in kind.regions]
    names = {region.region: region.region_full_name for region in found}
    return {name: names[name] for name in sorted(names) if re.fullmatch(_REGION, name)}
