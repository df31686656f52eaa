from __future__ import annotations

import asyncio
import csv
from pathlib import Path

import pytest

from tests.exporter.sensors.carbon.feeds import DAY_S, NOON_S
from wattline_exporter.sensors.carbon.providers import static
from wattline_exporter.sensors.carbon.providers.static import (
    TABLE_YEAR,
    ConstantIntensity,
    StaticIntensity,
)

EMBER = Path(__file__).parents[5] / "shared/data/carbon/co2-intensities-ember-2021.csv"


@pytest.mark.parametrize("text", ["DE", "de", "DEU", "Germany", " germany "])
def test_static_country_is_found_by_code_or_name(text):
    germany = static.find_country(text)
    assert (germany.alpha_3, germany.grams_per_kwh, germany.year, germany.source) == (
        "DEU",
        363.982,
        2021,
        "Ember",
    )


def test_static_unknown_country_lists_similar_ones():
    with pytest.raises(
        ValueError, match=r"no carbon intensity for 'Germny'; did you mean Germany \(DEU\)"
    ):
        StaticIntensity("Germny")
    with pytest.raises(ValueError, match="use an ISO 3166-1 code or an English name"):
        StaticIntensity("Qqqqq")


@pytest.mark.skipif(not EMBER.exists(), reason="the reference data are not next to this checkout")
def test_static_table_has_embers_values():
    with EMBER.open(encoding="utf-8") as file:
        ember = [
            (row["country_code_iso_3"], float(row["emissions_intensity_gco2_per_kwh"]))
            for row in csv.DictReader(file)
        ]
    assert [(c.alpha_3, c.grams_per_kwh) for c in static.countries()] == ember


def test_static_intensity_covers_today_and_tomorrow():
    midnight_s = NOON_S - 12 * 3_600
    slots = asyncio.run(StaticIntensity("FR").current(None, NOON_S))
    assert [(s.begin_s, s.end_s) for s in slots] == [
        (midnight_s, midnight_s + DAY_S),
        (midnight_s + DAY_S, midnight_s + 2 * DAY_S),
    ]
    assert {(s.region, s.provider, s.basis, s.quality) for s in slots} == {
        ("FRA", "static", "average", "static")
    }


def test_static_constant_has_region_custom():
    slots = asyncio.run(ConstantIntensity(230).current(None, NOON_S))
    assert {(s.region, s.grams_per_kwh) for s in slots} == {("custom", 230.0)}


@pytest.mark.parametrize("grams", [-1, 5_001, float("nan"), float("inf")])
def test_static_implausible_constant_is_refused(grams):
    with pytest.raises(ValueError, match="is out of range; use 0 to 5000"):
        ConstantIntensity(grams)


def test_static_table_is_of_the_year_that_reports_state():
    assert {country.year for country in static.countries()} == {TABLE_YEAR}


def test_static_past_has_each_day_of_the_range():
    midnight_s = NOON_S - 12 * 3_600
    slots = asyncio.run(StaticIntensity("FR").past(None, midnight_s - 1, NOON_S))
    assert [(s.begin_s, s.grams_per_kwh, s.quality) for s in slots] == [
        (midnight_s - DAY_S, 67.781, "static"),
        (midnight_s, 67.781, "static"),
    ]
