"""Great Britain: the system operator's Carbon Intensity API (https://carbonintensity.org.uk, CC BY 4.0, no key).

Half-hour slots in UTC. Nationally an estimate of the actual follows half an hour after the slot's end and is revised
for a day; the regions have forecasts only. It counts generation, imports and losses, not life cycles: not comparable
with providers that do. Shapes: https://carbon-intensity.github.io/api-definitions; of the regional endpoints some wrap
the region in a list, some do not.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Self

import aiohttp
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, model_validator

from exporter.model import Slot, SourceError
from exporter.sources.carbon.provider import DAY_S, MOST_POINTS, TIMEOUT_S, Api, Basis, Grams

BASE_URL = "https://api.carbonintensity.org.uk"
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
_BACK_S = 2 * 3_600
"""How far back to ask: actuals come late, and the API starts with the slot that ends at `from`."""
_AHEAD_S = 48.5 * 3_600

_POSTCODE = re.compile(r"(?P<outward>[A-Z]{1,2}[0-9][A-Z0-9]?)(?: ?[0-9][A-Z]{2})?")


class _Intensity(BaseModel):
    forecast: Grams | None
    actual: Grams | None = None


class _Period(BaseModel):
    begin: AwareDatetime = Field(alias="from")
    end: AwareDatetime = Field(alias="to")
    intensity: _Intensity

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if not self.begin < self.end:
            raise ValueError("the slot ends before it begins")
        if (self.end - self.begin).total_seconds() > DAY_S:
            raise ValueError("the slot is longer than a day")
        return self


class _National(BaseModel):
    data: Annotated[list[_Period], Field(max_length=MOST_POINTS)]


class _Regional(BaseModel):
    data: Annotated[
        list[_National], Field(max_length=20), BeforeValidator(lambda data: data if isinstance(data, list) else [data])
    ]


class GbCarbonIntensity:
    """`region` is what `resolve` takes; it raises ValueError for what is none."""

    name = "gb"
    basis: Basis = "average"

    def __init__(self, region: str = NATIONAL, base_url: str = BASE_URL, timeout_s: float = TIMEOUT_S) -> None:
        self.region = resolve(region)
        self._api = Api(base_url, timeout_s)

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        periods = await self._periods(session, now_s)
        slots = [slot for period in periods if (slot := self._slot(period)) is not None]
        if not slots:
            raise SourceError(f"{self._api.base_url} knows no intensity for {self.region}", "it will be asked again")
        return slots

    async def _periods(self, session: aiohttp.ClientSession, now_s: float) -> list[_Period]:
        slot_s = now_s // _SLOT_S * _SLOT_S
        span = f"{_moment(slot_s - _BACK_S)}/{_moment(slot_s + _AHEAD_S)}"
        where = "" if self.region == NATIONAL else f"/{_place(self.region)}"
        kind = "regional/intensity" if where else "intensity"
        path = f"/{kind}/{span}{where}"
        shown = f"/{'regional' if where else 'intensity'}{where}"
        if not where:
            return (await self._api.get(session, path, _National, shown=shown)).data
        regions = (await self._api.get(session, path, _Regional, shown=shown)).data
        return [period for region in regions for period in region.data]

    def _slot(self, period: _Period) -> Slot | None:
        grams, known = period.intensity.actual, period.intensity.actual is not None
        if grams is None:
            grams = period.intensity.forecast
        if grams is None:
            return None
        return Slot(
            begin_s=period.begin.timestamp(),
            end_s=period.end.timestamp(),
            grams_per_kwh=grams,
            region=self.region,
            provider=self.name,
            basis="average",
            quality="actual" if known else "forecast",
        )


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def resolve(region: str) -> str:
    """`GB`, the region as it is written in REGIONS, by name or number, or a postcode's outward code.

    Raises ValueError, naming all of them.
    """
    names = {_plain(name): name for name in (NATIONAL, *REGIONS)} | {str(n): name for name, n in REGIONS.items()}
    name = names.get(_plain(region))
    if name:
        return name
    outward = _outward(region)
    if outward and not outward.startswith("BT"):
        return outward
    why = "; Northern Ireland is not on this grid" if outward else ""
    raise ValueError(
        f"no region of the gb provider is called {region!r}{why}; it has: {', '.join((NATIONAL, *REGIONS))}, "
        "their numbers 1 to 17, and postcodes such as OX1"
    )


def knows(region: str) -> bool:
    """Whether it is one of the regions or a postcode, and no name of the whole country."""
    return _plain(region) in {_plain(name) for name in REGIONS} or _outward(region) is not None


def _outward(text: str) -> str | None:
    found = _POSTCODE.fullmatch(" ".join(text.upper().split()))
    return found["outward"] if found else None


def _place(region: str) -> str:
    """The end of the regional addresses."""
    return f"regionid/{REGIONS[region]}" if region in REGIONS else f"postcode/{region}"


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("&", "and").replace("_", " ").replace("-", " ").split())
