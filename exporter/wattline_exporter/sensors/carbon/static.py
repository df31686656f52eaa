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
from typing import Self

import aiohttp

from wattline.contract.carbon import static
from wattline.contract.carbon.responses import MAX_GRAMS_PER_KWH, Basis
from wattline_exporter.sensors.readings import Slot

_DAY_S = 86_400


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


class StaticIntensity:
    """Constant gCO2eq/kWh; `region` is the country's alpha-3 code, a group's name, or `custom`."""

    name = static.PROVIDER
    basis: Basis = "average"

    def __init__(self, region: str, grams_per_kwh: float) -> None:
        if not (math.isfinite(grams_per_kwh) and 0 <= grams_per_kwh <= MAX_GRAMS_PER_KWH):
            raise ValueError(
                f"carbon intensity {grams_per_kwh:g} gCO2eq/kWh is out of range; use 0 to "
                f"{MAX_GRAMS_PER_KWH:g}"
            )
        self.region = region
        self.grams_per_kwh = float(grams_per_kwh)

    @classmethod
    def of_country(cls, text: str) -> Self:
        """Return the mean of a country by alpha-2, alpha-3 or English name. Raises ValueError with
        close matches.
        """
        country = find_country(text)
        return cls(country.alpha_3 or country.name, country.grams_per_kwh)

    @classmethod
    def constant(cls, grams_per_kwh: float) -> Self:
        return cls(static.CUSTOM_REGION, grams_per_kwh)

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        """Return today's and tomorrow's slot in UTC, so that the next one is known at midnight."""
        del session
        return [self.slot(now_s), self.slot(now_s + _DAY_S)]

    def slot(self, t_s: float) -> Slot:
        """Return the UTC day that contains `t_s`."""
        begin_s = t_s // _DAY_S * _DAY_S
        return Slot(
            begin_s,
            begin_s + _DAY_S,
            self.grams_per_kwh,
            self.region,
            self.name,
            self.basis,
            "static",
        )


@functools.cache
def countries() -> tuple[CountryIntensity, ...]:
    text = (
        importlib.resources.files("wattline_exporter.sensors.carbon")
        .joinpath("countries.csv")
        .read_text(encoding="utf-8")
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
