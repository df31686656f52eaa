"""Carbon provider of Great Britain: the system operator's Carbon Intensity API.

It counts generation, imports and losses, without life cycles: not comparable with providers that
include them.
"""

from __future__ import annotations

import re

import aiohttp

from wattline.contract.carbon.gb import (
    BASE_URL,
    NATIONAL,
    SLOT_S,
    NationalResponse,
    RegionalResponse,
    national_path,
)
from wattline.contract.carbon.responses import Basis, IntensitySlot, format_minute
from wattline_exporter.sensors.carbon.provider import TIMEOUT_S, CarbonApi, label_slots
from wattline_exporter.sensors.readings import Slot, SourceError

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
_PAST_S = 2 * 3_600
"""Requested past: actuals are late, and the API starts with the slot that ends at `from`."""
_FUTURE_S = 48.5 * 3_600

_POSTCODE = re.compile(r"(?P<outward>[A-Z]{1,2}[0-9][A-Z0-9]?)(?: ?[0-9][A-Z]{2})?")


class GbCarbonIntensity:
    """Provider of British intensities; `region` is one as in `resolve_region`, which raises
    ValueError.
    """

    name = "gb"
    basis: Basis = "average"

    def __init__(
        self, region: str = NATIONAL, base_url: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.region = resolve_region(region)
        self._api = CarbonApi(base_url or BASE_URL, timeout_s)

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        slots = label_slots(await self._get(session, now_s), self)
        if not slots:
            raise SourceError(
                f"{self._api.base_url} has no intensity for {self.region}",
                "the request is repeated",
            )
        return slots

    async def _get(self, session: aiohttp.ClientSession, now_s: float) -> list[IntensitySlot]:
        slot_s = now_s // SLOT_S * SLOT_S
        start_s, end_s = slot_s - _PAST_S, slot_s + _FUTURE_S
        if self.region == NATIONAL:
            path = national_path(start_s, end_s)
            return (
                await self._api.get(session, path, NationalResponse, display_path="/intensity")
            ).slots()
        place = _regional_place(self.region)
        path = f"/regional/intensity/{format_minute(start_s)}/{format_minute(end_s)}/{place}"
        return (
            await self._api.get(session, path, RegionalResponse, display_path=f"/regional/{place}")
        ).slots()


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


def is_british_region(text: str) -> bool:
    """Return True for a region or a postcode, False for the name of the whole country."""
    return (
        _normalize(text) in {_normalize(name) for name in REGIONS}
        or _outward_code(text) is not None
    )


def _outward_code(text: str) -> str | None:
    match = _POSTCODE.fullmatch(" ".join(text.upper().split()))
    return match["outward"] if match else None


def _regional_place(region: str) -> str:
    return f"regionid/{REGIONS[region]}" if region in REGIONS else f"postcode/{region}"


def _normalize(name: str) -> str:
    return " ".join(name.casefold().replace("&", "and").replace("_", " ").replace("-", " ").split())
