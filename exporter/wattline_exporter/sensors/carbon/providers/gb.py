"""Carbon provider of Great Britain: the system operator's Carbon Intensity API.

https://carbon-intensity.github.io/api-definitions (CC BY 4.0, no key). It counts generation,
imports and losses, without life cycles: not comparable with providers that include them. Half-hour
slots in UTC. An estimate of the national actual follows half an hour after the slot's end and is
revised for a day; the regions have forecasts only. Some of the regional endpoints wrap the region
in a list.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, model_validator

from wattline_exporter.sensors.carbon.provider import (
    DAY_S,
    Basis,
    CarbonProvider,
    GramsPerKwh,
    Items,
    ProviderError,
    Web,
    format_minute,
    whole_steps,
)
from wattline_exporter.sensors.readings import Slot

NATIONAL = "GB"
REGIONS = {
    "North Scotland": 1,
    "South Scotland": 2,
    "North West England": 3,
    "North East England": 4,
    "Yorkshire": 5,
    "North Wales & Merseyside": 6,
    "South Wales": 7,
    "West Midlands": 8,
    "East Midlands": 9,
    "East England": 10,
    "South West England": 11,
    "South England": 12,
    "London": 13,
    "South East England": 14,
    "England": 15,
    "Scotland": 16,
    "Wales": 17,
}
_SLOT_S = 1_800
_PAST_S = 2 * 3_600
"""Requested past: actuals are late, and the API starts with the slot that ends at `from`."""
_FUTURE_S = 48.5 * 3_600

_POSTCODE = re.compile(r"(?P<outward>[A-Z]{1,2}[0-9][A-Z0-9]?)(?: ?[0-9][A-Z]{2})?")


class _Intensity(BaseModel):
    forecast: GramsPerKwh | None
    actual: GramsPerKwh | None = None


class _Period(BaseModel):
    start: AwareDatetime = Field(alias="from")
    end: AwareDatetime = Field(alias="to")
    intensity: _Intensity

    @model_validator(mode="after")
    def _has_valid_length(self) -> Self:
        if not self.start < self.end:
            raise ValueError("the slot ends before it starts")
        if (self.end - self.start).total_seconds() > DAY_S:
            raise ValueError("the slot is longer than a day")
        return self


class NationalResponse(BaseModel):
    """Periods, which are parsed one by one."""

    data: Items


class RegionalResponse(BaseModel):
    data: Annotated[
        list[NationalResponse],
        Field(max_length=20),
        BeforeValidator(lambda data: data if isinstance(data, list) else [data]),
    ]


class GbCarbonIntensity(CarbonProvider):
    """Provider of British intensities; for a region see `resolve_region`."""

    name = "gb"
    basis: ClassVar[Basis] = "average"
    base_url = "https://api.carbonintensity.org.uk"
    default_region = NATIONAL
    longest_past_s = 13.5 * DAY_S

    def __init__(self, region: str = NATIONAL) -> None:
        self.region = resolve_region(region)

    async def current(self, web: Web, now_s: float) -> list[Slot]:
        slot_s = now_s // _SLOT_S * _SLOT_S
        slots = await self._get(web, slot_s - _PAST_S, slot_s + _FUTURE_S)
        if not slots:
            raise web.no_intensity(self.region)
        return slots

    async def past(self, web: Web, begin_s: float, end_s: float) -> list[Slot]:
        if self.region != NATIONAL:
            raise ProviderError(
                f"gb has forecasts but no actuals for its regions, such as {self.region}",
                f"use the whole country, {NATIONAL}",
            )
        return await self._get(web, *whole_steps(begin_s, end_s, _SLOT_S))

    @classmethod
    async def regions(cls, web: Web) -> list[tuple[str, str]]:
        del web
        return [
            (NATIONAL, "Great Britain"),
            *((str(number), name) for name, number in REGIONS.items()),
        ]

    def country(self) -> str:
        return "GBR"

    @classmethod
    def owns(cls, text: str) -> bool:
        """Return True for a region or a postcode, False for the name of the whole country."""
        names = {_normalize(name) for name in REGIONS}
        return _normalize(text) in names or _outward_code(text) is not None

    async def _get(self, web: Web, begin_s: float, end_s: float) -> list[Slot]:
        times = f"{format_minute(begin_s)}/{format_minute(end_s)}"
        if self.region == NATIONAL:
            path = f"/intensity/{times}"
            national = await web.get(path, NationalResponse, display_path="/intensity")
            return self.parse_slots(web, national.data)
        place = _regional_place(self.region)
        path = f"/regional/intensity/{times}/{place}"
        response = await web.get(path, RegionalResponse, display_path=f"/regional/{place}")
        return [slot for part in response.data for slot in self.parse_slots(web, part.data)]

    def parse_slots(self, web: Web, periods: list[object]) -> list[Slot]:
        """Return the actual values, and forecasts where none is known."""
        slots: list[Slot] = []
        for period in web.valid_items("data", periods, _Period).values():
            begin_s = period.start.timestamp()
            end_s = period.end.timestamp()
            intensity = period.intensity
            if intensity.actual is not None:
                slots.append(self.slot(begin_s, end_s, intensity.actual, "actual"))
            elif intensity.forecast is not None:
                slots.append(self.slot(begin_s, end_s, intensity.forecast, "forecast"))
        return slots


PROVIDER = GbCarbonIntensity


def resolve_region(text: str) -> str:
    """Return `GB`, a name of REGIONS, or a postcode's outward code, given a name, a number or a
    postcode.

    Raises ValueError, which lists them.
    """
    names = {_normalize(name): name for name in (NATIONAL, *REGIONS)} | {
        str(n): name for name, n in REGIONS.items()
    }
    name = names.get(_normalize(text))
    if name:
        return name
    outward = _outward_code(text)
    if outward and not outward.startswith("BT"):
        return outward
    cause = "; Northern Ireland is not part of this grid" if outward else ""
    raise ValueError(
        f"{text!r} is not a region of gb{cause}; use one of: {', '.join((NATIONAL, *REGIONS))}, "
        "their numbers 1 to 17, or a postcode such as OX1"
    )


def _outward_code(text: str) -> str | None:
    match = _POSTCODE.fullmatch(" ".join(text.upper().split()))
    return match["outward"] if match else None


def _regional_place(region: str) -> str:
    return f"regionid/{REGIONS[region]}" if region in REGIONS else f"postcode/{region}"


def _normalize(name: str) -> str:
    return " ".join(name.casefold().replace("&", "and").replace("_", " ").replace("-", " ").split())
