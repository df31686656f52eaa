"""Carbon provider Electricity Maps, API v3: zones of the whole world, with a token.

https://portal.electricitymaps.com/developer-hub/api. Life-cycle intensity of consumption, in hours
unless the token's plan has shorter slots. Values are estimated at first (`isEstimated`) and
replaced by measured ones hours later. Free tokens have one zone, for non-commercial use, and no
forecast. A request without a zone would be answered for the location of the caller's address; so
each request names the zone, and the response's zone is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Self, TypeVar
from urllib.parse import urlencode

from pydantic import AwareDatetime, BaseModel, ConfigDict, RootModel, model_validator

from wattline_exporter.sensors.carbon.provider import (
    DAY_S,
    Basis,
    CarbonProvider,
    GramsPerKwh,
    HttpStatusError,
    Items,
    OptionalEndpoint,
    ProviderError,
    Quality,
    Secret,
    Web,
    extend_with_estimates,
    latest_values,
    whole_steps,
)
from wattline_exporter.sensors.readings import Slot

_SLOTS_S = {"5_minutes": 300.0, "15_minutes": 900.0, "hourly": 3_600.0}
_HOUR_S = 3_600.0
_EXTEND_S = 3 * 3_600.0
_EXTEND_STEP_S = 900.0
_ZONE = re.compile(r"[A-Z]{2}(-[A-Z0-9]{1,12}){0,3}")
_LIST_ZONES = "list the zones with: exporter regions --carbon.provider electricitymaps"


class _Point(BaseModel):
    """Intensity from `datetime` on, in gCO2eq/kWh; forecasts have no `isEstimated`."""

    carbonIntensity: GramsPerKwh | None  # noqa: N815  # the provider's name
    datetime: AwareDatetime
    isEstimated: bool | None = None  # noqa: N815  # the provider's name


class _ZonePoint(_Point):
    zone: str | None = None


class _Response(BaseModel):
    """Response for `zone`; it may be missing where each point has one."""

    zone: str | None = None
    temporalGranularity: str = "hourly"  # noqa: N815  # the provider's name

    @property
    def slot_s(self) -> float:
        return _SLOTS_S[self.temporalGranularity]

    @model_validator(mode="after")
    def _has_known_granularity(self) -> Self:
        if self.temporalGranularity not in _SLOTS_S:
            raise ValueError(f"temporalGranularity is not {' or '.join(_SLOTS_S)}")
        return self


class LatestResponse(_Response):
    """Response whose other fields are those of one point."""

    model_config = ConfigDict(extra="allow")

    zone: str


class HistoryResponse(_Response):
    zone: str
    history: Items


class ForecastResponse(_Response):
    zone: str
    forecast: Items


class PastRangeResponse(_Response):
    data: Items


class _Zone(BaseModel):
    zoneName: str | None = None  # noqa: N815  # the provider's name
    countryName: str | None = None  # noqa: N815  # the provider's name


class ZonesResponse(RootModel[dict[str, _Zone]]):
    """Zones by their keys."""


_Model = TypeVar("_Model", bound=_Response)


class ElectricityMaps(CarbonProvider):
    """Provider of life-cycle intensities; a region is a zone's key, in any case."""

    name = "electricitymaps"
    basis: ClassVar[Basis] = "average"
    base_url = "https://api.electricitymaps.com"
    secret = Secret("a token", is_needed_for_regions=False)
    longest_past_s = 9.5 * DAY_S

    def __init__(self, region: str) -> None:
        self.region = region.strip().upper()
        if not _ZONE.fullmatch(self.region):
            raise ValueError(
                f"{region!r} is not a zone of electricitymaps; use a key such as DE or US-CAL-CISO "
                f"({_LIST_ZONES})"
            )
        self._history = OptionalEndpoint()
        self._forecast = OptionalEndpoint()

    async def current(self, web: Web, now_s: float) -> list[Slot]:
        latest = await self._get_latest(web)
        history = await self._history.get(
            partial(self._get, web, "history", HistoryResponse), now_s
        )
        forecast = await self._forecast.get(
            partial(self._get, web, "forecast", ForecastResponse, horizonHours="48"), now_s
        )
        slots: list[Slot] = []
        if forecast:
            points = web.valid_items("forecast", forecast.forecast, _Point).values()
            slots += self._slots(points, forecast.slot_s, "forecast")
        if history:
            points = web.valid_items("history", history.history, _Point).values()
            slots += self._slots(points, history.slot_s)
        points = web.valid_items("latest", [latest.model_extra], _Point).values()
        slots += self._slots(points, latest.slot_s)
        if not slots:
            raise web.no_intensity(self.region)
        slots = latest_values(slots)
        return extend_with_estimates(slots, now_s, step_s=_EXTEND_STEP_S, within_s=_EXTEND_S)

    async def past(self, web: Web, begin_s: float, end_s: float) -> list[Slot]:
        begin_s, end_s = whole_steps(begin_s, end_s, _HOUR_S)
        times = {"start": _format_second(begin_s), "end": _format_second(end_s)}
        response = await self._get(web, "past-range", PastRangeResponse, **times)
        points = web.valid_items("data", response.data, _ZonePoint).values()
        for point in points:
            self._check_zone(web, point.zone or response.zone)
        return self._slots(points, response.slot_s)

    @classmethod
    async def regions(cls, web: Web) -> list[tuple[str, str]]:
        """Return the zones of the token's plan, or all without a token."""
        credentials = {"auth-token": web.secret} if web.secret else {}
        zones = await web.get("/v3/zones", ZonesResponse, credentials=credentials)
        return [
            (key, ", ".join(name for name in (zone.countryName, zone.zoneName) if name))
            for key, zone in sorted(zones.root.items())
            if _ZONE.fullmatch(key)
        ]

    def country(self) -> str:
        return self.region[:2]

    async def _get_latest(self, web: Web) -> LatestResponse:
        try:
            return await self._get(web, "latest", LatestResponse)
        except HttpStatusError as error:
            if not error.is_denied:
                raise
            remedy = (
                f"check the token, and that its plan includes zone {self.region}; {_LIST_ZONES}"
            )
            raise HttpStatusError(error.cause, remedy, error.status) from error

    async def _get(self, web: Web, endpoint: str, model: type[_Model], **query: str) -> _Model:
        """Return the response for this zone. Raises ProviderError."""
        base = f"/v3/carbon-intensity/{endpoint}?zone={self.region}"
        path = f"{base}&{urlencode(query)}" if query else base
        credentials = {"auth-token": web.secret}
        response = await web.get(path, model, credentials=credentials, display_path=base)
        if response.zone is not None:
            self._check_zone(web, response.zone)
        return response

    def _check_zone(self, web: Web, zone: str | None) -> None:
        if zone != self.region:
            cause = f"{web.base_url} answered for zone {str(zone)[:20]!r} instead of {self.region}"
            raise ProviderError(cause, _LIST_ZONES)

    def _slots(
        self, points: Iterable[_Point], length_s: float, quality: Quality | None = None
    ) -> list[Slot]:
        """Return the slots of the points that have a value.

        Without `quality`, one is estimated unless the provider states that it is measured.
        """
        slots: list[Slot] = []
        for point in points:
            if point.carbonIntensity is not None:
                begin_s = point.datetime.timestamp() // length_s * length_s
                end_s = begin_s + length_s
                measured: Quality = "actual" if point.isEstimated is False else "estimated"
                slots.append(self.slot(begin_s, end_s, point.carbonIntensity, quality or measured))
        return slots


PROVIDER = ElectricityMaps


def _format_second(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
