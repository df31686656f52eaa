"""Constant carbon intensity: a country's yearly mean, or a configured value.

The means are from Ember (https://ember-energy.org, CC BY 4.0): production without imports; see
countries.csv.
"""

from __future__ import annotations

import csv
import difflib
import functools
import importlib.resources
import math
from dataclasses import dataclass
from typing import ClassVar

from wattline_exporter.sensors.carbon.provider import (
    DAY_S,
    MAX_GRAMS_PER_KWH,
    Basis,
    CarbonProvider,
    Web,
)
from wattline_exporter.sensors.readings import Slot

CUSTOM_REGION = "custom"
"""Region of an intensity that was configured; the other regions are countries of the table."""
TABLE_YEAR = 2021
"""Year of all means in countries.csv."""


@dataclass(frozen=True, slots=True)
class CountryIntensity:
    """Mean intensity of a country in a year; groups such as EU and World have no ISO 3166-1
    codes.
    """

    alpha_2: str
    alpha_3: str
    name: str
    grams_per_kwh: float
    year: int
    source: str


class StaticIntensity(CarbonProvider):
    """Constant gCO2eq/kWh: the mean of a country by alpha-2, alpha-3 or English name.

    `region` is the country's alpha-3 code, or a group's name. Raises ValueError with close matches.
    """

    name = "static"
    basis: ClassVar[Basis] = "average"

    def __init__(self, region: str) -> None:
        country = find_country(region)
        self.region = country.alpha_3 or country.name
        self.grams_per_kwh = country.grams_per_kwh

    async def current(self, web: Web, now_s: float) -> list[Slot]:
        """Return today's and tomorrow's slot in UTC, so that the next one is known at midnight."""
        del web
        return [self.slot_at(now_s), self.slot_at(now_s + DAY_S)]

    async def past(self, web: Web, begin_s: float, end_s: float) -> list[Slot]:
        """Return each day of the time range in UTC."""
        del web
        first_day = int(begin_s // DAY_S)
        days_end = int(-(-end_s // DAY_S))
        return [self.slot_at(day * DAY_S) for day in range(first_day, days_end)]

    @classmethod
    async def regions(cls, web: Web) -> list[tuple[str, str]]:
        del web
        return [
            (
                country.alpha_3 or "-",
                f"{country.name}: {country.grams_per_kwh:g} gCO2eq/kWh in {country.year}",
            )
            for country in countries()
        ]

    def slot_at(self, t_s: float) -> Slot:
        """Return the UTC day that contains `t_s`."""
        begin_s = t_s // DAY_S * DAY_S
        return self.slot(begin_s, begin_s + DAY_S, self.grams_per_kwh, "static")


class ConstantIntensity(StaticIntensity):
    """Configured gCO2eq/kWh; its region is `custom`. Raises ValueError for an implausible value."""

    def __init__(self, grams_per_kwh: float) -> None:
        if not (math.isfinite(grams_per_kwh) and 0 <= grams_per_kwh <= MAX_GRAMS_PER_KWH):
            raise ValueError(
                f"carbon intensity {grams_per_kwh:g} gCO2eq/kWh is out of range; use 0 to "
                f"{MAX_GRAMS_PER_KWH:g}"
            )
        self.region = CUSTOM_REGION
        self.grams_per_kwh = float(grams_per_kwh)


PROVIDER = StaticIntensity


@functools.cache
def countries() -> tuple[CountryIntensity, ...]:
    text = (
        importlib.resources.files(__package__).joinpath("countries.csv").read_text(encoding="utf-8")
    )
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        CountryIntensity(
            alpha_2=row["alpha_2"],
            alpha_3=row["alpha_3"],
            name=row["country"],
            grams_per_kwh=float(row["grams_per_kwh"]),
            year=int(row["year"]),
            source=row["source"],
        )
        for row in rows
    )


def find_country(text: str) -> CountryIntensity:
    """Return a country by alpha-2, alpha-3 or English name, in any case. Raises ValueError with
    close matches.
    """
    by_name = {
        key.casefold(): c for c in countries() for key in (c.alpha_2, c.alpha_3, c.name) if key
    }
    name = " ".join(text.casefold().split())
    if name in by_name:
        return by_name[name]
    close = difflib.get_close_matches(name, by_name, n=5, cutoff=0.6)
    names = list(
        dict.fromkeys(f"{by_name[key].name} ({by_name[key].alpha_3 or 'no code'})" for key in close)
    )
    hint = (
        f"did you mean {', '.join(names)}?"
        if names
        else "use an ISO 3166-1 code or an English name"
    )
    raise ValueError(f"no carbon intensity for {text!r}; {hint} (list them with: exporter regions)")
