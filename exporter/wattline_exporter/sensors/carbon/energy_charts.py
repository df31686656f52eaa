"""Carbon provider Energy-Charts: countries of Europe.

Actual values are about an hour late; a country without a forecast has the last known intensity as
an estimate.
"""

from __future__ import annotations

import logging
from urllib.parse import urlencode

import aiohttp

from wattline.contract.carbon.energy_charts import BASE_URL, SLOT_S, SeriesResponse
from wattline.contract.carbon.responses import Basis
from wattline_exporter.sensors.carbon import static
from wattline_exporter.sensors.carbon.provider import (
    TIMEOUT_S,
    CarbonApi,
    extend_with_estimates,
    label_slots,
)
from wattline_exporter.sensors.readings import Slot, SourceError

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
_EXTEND_S = 3 * 3_600.0

log = logging.getLogger(__name__)


class EnergyCharts:
    """Provider of European intensities; `region` is a country as in `resolve_country`, which raises
    ValueError.
    """

    name = "energy-charts"
    basis: Basis = "average"

    def __init__(
        self, region: str, base_url: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.region = resolve_country(region)
        self._api = CarbonApi(base_url or BASE_URL, timeout_s)
        self._is_deprecation_logged = False
        self._last: list[Slot] = []

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        path = f"/co2eq?{urlencode({'country': self.region})}"
        series = await self._api.get(session, path, SeriesResponse)
        if series.deprecated and not self._is_deprecation_logged:
            self._is_deprecation_logged = True
            log.warning(
                "%s%s is marked as deprecated; look for a newer exporter", self._api.base_url, path
            )
        # without a forecast, the first response of a day contains no value
        slots = label_slots(series.slots(), self) or self._last
        self._last = slots[-1:]
        if not slots:
            cause = f"{self._api.base_url}{path} has no intensity"
            raise SourceError(cause, "the request is repeated; check that the country is covered")
        return extend_with_estimates(slots, now_s, step_s=SLOT_S, within_s=_EXTEND_S)


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


def static_country(code: str) -> str:
    """Return the country's key in the static table."""
    return _STATIC_COUNTRIES.get(code, code)
