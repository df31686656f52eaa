"""Carbon provider Energy-Charts (Fraunhofer ISE): countries of Europe.

https://api.energy-charts.info (CC BY 4.0, no key). Quarter hours (hours for some countries) as
parallel lists: actual values, about an hour late, and forecasts; both contain nulls. A country
without a forecast has the last known intensity as an estimate.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, Self
from urllib.parse import urlencode

from pydantic import BaseModel, Field, model_validator

from wattline_exporter.sensors.carbon.provider import (
    DAY_S,
    Basis,
    CarbonProvider,
    GramsPerKwh,
    Items,
    Web,
    extend_with_estimates,
    format_minute,
    whole_steps,
)
from wattline_exporter.sensors.carbon.providers import static
from wattline_exporter.sensors.readings import Slot

COUNTRIES = {
    "al": "Albania",
    "all": "Europe",
    "am": "Armenia",
    "at": "Austria",
    "az": "Azerbaijan",
    "ba": "Bosnia-Herzegovina",
    "be": "Belgium",
    "bg": "Bulgaria",
    "by": "Belarus",
    "ch": "Switzerland",
    "cy": "Cyprus",
    "cz": "Czech Republic",
    "de": "Germany",
    "dk": "Denmark",
    "ee": "Estonia",
    "es": "Spain",
    "eu": "European Union",
    "fi": "Finland",
    "fr": "France",
    "ge": "Georgia",
    "gr": "Greece",
    "hr": "Croatia",
    "hu": "Hungary",
    "ie": "Ireland",
    "it": "Italy",
    "lt": "Lithuania",
    "lu": "Luxembourg",
    "lv": "Latvia",
    "md": "Moldova",
    "me": "Montenegro",
    "mk": "North Macedonia",
    "mt": "Malta",
    "nie": "Northern Ireland",
    "nl": "Netherlands",
    "no": "Norway",
    "pl": "Poland",
    "pt": "Portugal",
    "ro": "Romania",
    "rs": "Serbia",
    "ru": "Russia",
    "se": "Sweden",
    "si": "Slovenia",
    "sk": "Slovak Republic",
    "tr": "Turkey",
    "ua": "Ukraine",
    "uk": "United Kingdom",
    "xk": "Kosovo",
}
_STATIC_COUNTRIES = {"all": "Europe", "eu": "EU", "nie": "GB", "uk": "GB"}
_SLOT_S = 900
_MAX_SLOT_S = 3_600
_EXTEND_S = 3 * 3_600.0

log = logging.getLogger(__name__)


class SeriesResponse(BaseModel):
    """Parallel lists, whose elements are parsed one by one."""

    unix_seconds: Items
    co2eq: Items
    co2eq_forecast: Items | None = None
    deprecated: bool = False

    @model_validator(mode="after")
    def _is_parallel(self) -> Self:
        if {len(self.co2eq), len(self.co2eq_forecast or self.co2eq)} != {len(self.unix_seconds)}:
            raise ValueError("the lists differ in length")
        return self

    def rows(self) -> list[dict[str, object]]:
        """Return the elements of each time."""
        forecasts = self.co2eq_forecast or [None] * len(self.unix_seconds)
        return [
            {"unix_seconds": time, "co2eq": actual, "co2eq_forecast": forecast}
            for time, actual, forecast in zip(self.unix_seconds, self.co2eq, forecasts, strict=True)
        ]


class _Row(BaseModel):
    unix_seconds: Annotated[int, Field(strict=True, ge=0, lt=1 << 33)]
    co2eq: GramsPerKwh | None
    co2eq_forecast: GramsPerKwh | None


class EnergyCharts(CarbonProvider):
    """Provider of European intensities; a region is a country, see `resolve_country`."""

    name = "energy-charts"
    basis: ClassVar[Basis] = "average"
    base_url = "https://api.energy-charts.info"
    longest_past_s = 14 * DAY_S

    def __init__(self, region: str) -> None:
        self.region = resolve_country(region)
        self._path = f"/co2eq?{urlencode({'country': self.region})}"
        self._is_deprecation_logged = False
        self._last: list[Slot] = []

    async def current(self, web: Web, now_s: float) -> list[Slot]:
        series = await web.get(self._path, SeriesResponse)
        if series.deprecated and not self._is_deprecation_logged:
            self._is_deprecation_logged = True
            log.warning(
                "%s%s is marked as deprecated; look for a newer exporter", web.base_url, self._path
            )
        slots = self.parse_slots(web, series)
        if not slots and not web.dropped:
            slots = self._last  # without a forecast, the first response of a day has no value
        self._last = slots[-1:]
        if not slots:
            raise web.no_intensity(self.region)
        return extend_with_estimates(slots, now_s, step_s=_SLOT_S, within_s=_EXTEND_S)

    async def past(self, web: Web, begin_s: float, end_s: float) -> list[Slot]:
        begin_s, end_s = whole_steps(begin_s, end_s, _MAX_SLOT_S)
        query = urlencode({"start": format_minute(begin_s), "end": format_minute(end_s)})
        path = f"{self._path}&{query}"
        series = await web.get(path, SeriesResponse, display_path=self._path)
        return self.parse_slots(web, series)

    @classmethod
    async def regions(cls, web: Web) -> list[tuple[str, str]]:
        del web
        return list(COUNTRIES.items())

    def country(self) -> str:
        return _STATIC_COUNTRIES.get(self.region, self.region)

    def parse_slots(self, web: Web, series: SeriesResponse) -> list[Slot]:
        """Return the actual values, and forecasts where none is known."""
        rows = web.valid_items("rows", series.rows(), _Row)
        while disordered := _disordered(rows):
            for position in disordered:
                web.drop(f"rows.{position}: the times do not increase")
                del rows[position]
        slots: list[Slot] = []
        starts_s = {position: row.unix_seconds for position, row in rows.items()}
        for row, end_s in zip(rows.values(), _ends(starts_s), strict=True):
            if row.co2eq is not None:
                slots.append(self.slot(row.unix_seconds, end_s, row.co2eq, "actual"))
            elif row.co2eq_forecast is not None:
                slots.append(self.slot(row.unix_seconds, end_s, row.co2eq_forecast, "forecast"))
        return slots


PROVIDER = EnergyCharts


def _disordered(rows: Mapping[int, _Row]) -> list[int]:
    """Return the positions of neighbours whose times do not increase; either may be wrong."""
    return sorted(
        {
            position
            for before, after in pairwise(rows)
            if rows[after].unix_seconds <= rows[before].unix_seconds
            for position in (before, after)
        }
    )


def _ends(starts_s: Mapping[int, int]) -> Iterator[float]:
    """Yield the end of the slot of each start, by position in the response.

    A slot lasts until the next one, an hour at most. Where that is missing, it is as long as the
    slot before it; the first one is as long as the slot after it.
    """
    spacing_s = {
        position: starts_s[position + 1] - start_s
        for position, start_s in starts_s.items()
        if position + 1 in starts_s and starts_s[position + 1] - start_s <= _MAX_SLOT_S
    }
    length_s = next(iter(spacing_s.values()), _mean_spacing_s(starts_s))
    following_s = [*starts_s.values(), math.inf][1:]
    for (position, start_s), next_s in zip(starts_s.items(), following_s, strict=True):
        length_s = spacing_s.get(position, length_s)
        yield min(start_s + length_s, next_s)


def _mean_spacing_s(starts_s: Mapping[int, int]) -> float:
    """Return the spacing of starts of which no two are neighbours, a quarter of an hour where it is
    unknown.
    """
    means_s = [
        (starts_s[after] - starts_s[before]) / (after - before)
        for before, after in pairwise(starts_s)
    ]
    return min((mean_s for mean_s in means_s if mean_s <= _MAX_SLOT_S), default=_SLOT_S)


def resolve_country(text: str) -> str:
    """Return the provider's code of a country, given as its code, its name, or as in the static
    table.
    """
    plain = " ".join(text.casefold().split())
    codes = {name.casefold(): code for code, name in COUNTRIES.items()} | {
        code: code for code in COUNTRIES
    }
    if plain in codes:
        return codes[plain]
    try:
        code = static.find_country(text).alpha_2.casefold()
    except ValueError:
        code = ""
    code = "uk" if code == "gb" else code
    if code in COUNTRIES:
        return code
    raise ValueError(
        f"{text!r} is not a country of energy-charts; use one of: {', '.join(COUNTRIES)}"
    )
