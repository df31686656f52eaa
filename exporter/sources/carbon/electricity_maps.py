"""Electricity Maps, API v3 (https://portal.electricitymaps.com/developer-hub/api): zones of the whole world, by token.

Life-cycle intensity of consumption, in hours unless the token's plan says otherwise. The present hour is estimated at
first (`isEstimated`) and measured hours later, which the history of 24 hours then shows. Free tokens have one zone, for
uses that are not commercial, and no forecast: that is then done without. A request without a zone would be answered
for wherever the caller's address seems to be; so the zone is always sent, and the answer's is compared.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Literal, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
from pydantic import AwareDatetime, BaseModel, Field, RootModel, model_validator

from exporter.model import Slot, SourceError
from exporter.sources.carbon.provider import MOST_POINTS, TIMEOUT_S, Api, Basis, Extra, Grams, StatusError, carried

BASE_URL = "https://api.electricitymaps.com"
_ZONE = re.compile(r"[A-Z]{2}(-[A-Z0-9]{1,12}){0,3}")
_LENGTH_S = {"5_minutes": 300.0, "15_minutes": 900.0, "hourly": 3_600.0}
_CARRY_S = 3 * 3_600.0
_CARRY_STEP_S = 900.0
_MORE = {"forecast": {"horizonHours": 48}}

_Model = TypeVar("_Model", bound=BaseModel)


class _Point(BaseModel):
    """`carbonIntensity` in gCO2eq/kWh; forecasts have no `isEstimated`."""

    carbonIntensity: Grams | None  # noqa: N815  # theirs
    datetime: AwareDatetime
    isEstimated: bool | None = None  # noqa: N815  # theirs

    def begin_s(self, length_s: float) -> float:
        return self.datetime.timestamp() // length_s * length_s


class _Answer(BaseModel):
    zone: str
    temporalGranularity: str = "hourly"  # noqa: N815  # theirs

    @property
    def length_s(self) -> float:
        return _LENGTH_S[self.temporalGranularity]

    @model_validator(mode="after")
    def _slots_are_short(self) -> Self:
        if self.temporalGranularity not in _LENGTH_S:
            raise ValueError(f"its slots are not of {' or '.join(_LENGTH_S)}")
        return self


class _Latest(_Answer, _Point):
    pass


class _History(_Answer):
    history: Annotated[list[_Point], Field(max_length=MOST_POINTS)]


class _Forecast(_Answer):
    forecast: Annotated[list[_Point], Field(max_length=MOST_POINTS)]


class _Zone(BaseModel):
    zoneName: str | None = None  # noqa: N815  # theirs
    countryName: str | None = None  # noqa: N815  # theirs


class _Zones(RootModel[dict[str, _Zone]]):
    pass


class ElectricityMaps:
    """`region` is a zone's key, in any case; raises ValueError for what cannot be one."""

    name = "electricitymaps"
    basis: Basis = "average"

    def __init__(self, region: str, token: str, base_url: str = BASE_URL, timeout_s: float = TIMEOUT_S) -> None:
        self.region = region.strip().upper()
        if not _ZONE.fullmatch(self.region):
            raise ValueError(
                f"{region!r} is no zone of the electricitymaps provider; they are such as DE or US-CAL-CISO "
                "(all of them: exporter regions --carbon.provider electricitymaps)"
            )
        self._api = Api(base_url, timeout_s, {"auth-token": token})
        self._history, self._forecast = Extra(), Extra()

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        latest = await self._latest(session)
        if latest.zone != self.region:
            cause = f"{self._api.base_url} answered for the zone {latest.zone[:20]!r} where {self.region} was asked for"
            raise SourceError(cause, "try: exporter regions --carbon.provider electricitymaps")
        history = await self._history.get(partial(self._ask, session, "history", _History), now_s)
        forecast = await self._forecast.get(partial(self._ask, session, "forecast", _Forecast), now_s)
        slots: dict[float, Slot] = {}
        if forecast and forecast.zone == self.region:
            for point in forecast.forecast:
                self._add(slots, point, forecast.length_s, "forecast")
        for point in history.history if history and history.zone == self.region else ():
            self._add(slots, point, history.length_s if history else 0.0, _quality(point))
        self._add(slots, latest, latest.length_s, _quality(latest))
        if not slots:
            raise SourceError(f"{self._api.base_url} knows no intensity for {self.region}", "it will be asked again")
        return carried(list(slots.values()), now_s, step_s=_CARRY_STEP_S, within_s=_CARRY_S)

    async def _latest(self, session: aiohttp.ClientSession) -> _Latest:
        try:
            return await self._ask(session, "latest", _Latest)
        except StatusError as error:
            if not error.denied:
                raise
            remedy = (
                f"is the token right, and the zone {self.region} in its plan? "
                "try: exporter regions --carbon.provider electricitymaps"
            )
            raise StatusError(error.cause, remedy, error.status) from error

    async def _ask(self, session: aiohttp.ClientSession, what: str, model: type[_Model]) -> _Model:
        query = urlencode({"zone": self.region, **_MORE.get(what, {})})
        return await self._api.get(session, f"/v3/carbon-intensity/{what}?{query}", model)

    def _add(
        self,
        slots: dict[float, Slot],
        point: _Point,
        length_s: float,
        quality: Literal["actual", "forecast", "estimated"],
    ) -> None:
        if point.carbonIntensity is None:
            return
        begin_s = point.begin_s(length_s)
        slots[begin_s] = Slot(
            begin_s, begin_s + length_s, point.carbonIntensity, self.region, self.name, self.basis, quality
        )


def _quality(point: _Point) -> Literal["actual", "estimated"]:
    """An answer that does not say is not taken for measured."""
    return "actual" if point.isEstimated is False else "estimated"


async def zones(session: aiohttp.ClientSession, token: str | None, base_url: str = BASE_URL) -> dict[str, str]:
    """Each zone's name by its key: those of the token's plan, or all without a token."""
    api = Api(base_url, secret={"auth-token": token} if token else {})
    found = await api.get(session, "/v3/zones", _Zones)
    names = {key: (zone.countryName, zone.zoneName) for key, zone in found.root.items() if _ZONE.fullmatch(key)}
    return {key: ", ".join(name for name in pair if name) for key, pair in sorted(names.items())}
