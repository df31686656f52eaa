"""Energy-Charts of Fraunhofer ISE (https://api.energy-charts.info, CC BY 4.0, no key): countries of Europe.

`/co2eq` gives a day of quarter hours (some countries: hours), life cycle included, as parallel lists: what was, and
behind it what is forecast, null where either is not known. What was comes about an hour late; a country without a
forecast has the last known intensity as an estimate meanwhile.
"""

from __future__ import annotations

import logging
from typing import Annotated, Literal, Self
from urllib.parse import urlencode

import aiohttp
from pydantic import BaseModel, Field, model_validator

from exporter.model import Slot, SourceError
from exporter.sources.carbon import static
from exporter.sources.carbon.provider import MOST_POINTS, TIMEOUT_S, Api, Basis, Grams, carried

BASE_URL = "https://api.energy-charts.info"
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
_STATIC = {"all": "Europe", "eu": "EU", "nie": "GB", "uk": "GB"}
_SLOT_S = 900
_LONGEST_S = 3_600
_CARRY_S = 3 * 3_600.0

_Values = Annotated[list[Grams | None], Field(max_length=MOST_POINTS)]

log = logging.getLogger(__name__)


class _Series(BaseModel):
    unix_seconds: Annotated[list[Annotated[int, Field(strict=True, ge=0, lt=1 << 33)]], Field(max_length=MOST_POINTS)]
    co2eq: _Values
    co2eq_forecast: _Values | None = None
    deprecated: bool = False

    @model_validator(mode="after")
    def _parallel(self) -> Self:
        if {len(self.co2eq), len(self.co2eq_forecast or self.co2eq)} != {len(self.unix_seconds)}:
            raise ValueError("the lists are not of one length")
        if any(later <= earlier for earlier, later in zip(self.unix_seconds, self.unix_seconds[1:], strict=False)):
            raise ValueError("the times do not rise")
        return self


class EnergyCharts:
    """`region` is a country as `resolve` takes it; it raises ValueError for what is none."""

    name = "energy-charts"
    basis: Basis = "average"

    def __init__(self, region: str, base_url: str = BASE_URL, timeout_s: float = TIMEOUT_S) -> None:
        self.region = resolve(region)
        self._api = Api(base_url, timeout_s)
        self._said = False
        self._last: list[Slot] = []

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        path = f"/co2eq?{urlencode({'country': self.region})}"
        series = await self._api.get(session, path, _Series)
        if series.deprecated and not self._said:
            self._said = True
            log.warning("%s%s says that it is deprecated: look for a newer exporter", self._api.base_url, path)
        slots = self._slots(series) or self._last  # a day begins with nothing known where there is no forecast
        self._last = slots[-1:]
        if not slots:
            raise SourceError(
                f"{self._api.base_url}{path} knows no intensity",
                "it will be asked again; is the country covered at all?",
            )
        return carried(slots, now_s, step_s=_SLOT_S, within_s=_CARRY_S)

    def _slots(self, series: _Series) -> list[Slot]:
        times = series.unix_seconds
        forecasts = series.co2eq_forecast or [None] * len(times)
        slots: list[Slot] = []
        length_s = _SLOT_S
        for n, (begin_s, actual, forecast) in enumerate(zip(times, series.co2eq, forecasts, strict=True)):
            step_s = times[n + 1] - begin_s if n + 1 < len(times) else length_s
            length_s = step_s if step_s <= _LONGEST_S else _SLOT_S
            if actual is not None:
                slots.append(self._slot(begin_s, length_s, actual, "actual"))
            elif forecast is not None:
                slots.append(self._slot(begin_s, length_s, forecast, "forecast"))
        return slots

    def _slot(self, begin_s: int, length_s: int, grams: float, quality: Literal["actual", "forecast"]) -> Slot:
        return Slot(begin_s, begin_s + length_s, grams, self.region, self.name, self.basis, quality)


def resolve(text: str) -> str:
    """The code of a country, by that code, by its name here, or by what the static table knows it by."""
    plain = " ".join(text.casefold().split())
    codes = {name.casefold(): code for code, name in COUNTRIES.items()} | {code: code for code in COUNTRIES}
    if plain in codes:
        return codes[plain]
    try:
        found = static.find(text).alpha_2.casefold()
    except ValueError:
        found = ""
    found = "uk" if found == "gb" else found
    if found in COUNTRIES:
        return found
    raise ValueError(f"no country of the energy-charts provider is called {text!r}; it has: {', '.join(COUNTRIES)}")


def static_country(region: str) -> str:
    """What the static table calls it."""
    return _STATIC.get(region, region)
