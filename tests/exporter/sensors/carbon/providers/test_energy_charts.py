from __future__ import annotations

import json
import logging
from datetime import timedelta

import pytest

from tests.exporter.sensors.carbon.feeds import NOON, NOON_S, visit
from tests.fakes.energy_charts import EnergyChartsApi
from wattline_exporter.sensors.carbon.providers import energy_charts
from wattline_exporter.sensors.carbon.providers.energy_charts import EnergyCharts
from wattline_exporter.sensors.readings import Slot, SourceError

QUARTER_S = 900.0


def test_energy_charts_slots_have_the_right_quality():
    async def body(api, web):
        slots = {s.begin_s: s for s in await EnergyCharts("DE").current(web, NOON_S)}
        last_s = NOON_S - 3_600 - QUARTER_S  # the quarter hour that ended an hour ago
        assert slots[last_s] == Slot(
            last_s, last_s + 900, 400.0, "de", "energy-charts", "average", "actual"
        )
        assert slots[NOON_S] == Slot(
            NOON_S, NOON_S + 900, 450.0, "de", "energy-charts", "average", "forecast"
        )
        assert max(slots) == NOON_S + 12 * 3_600 - 900  # until midnight
        assert api.requested_paths == ["/co2eq?country=de"]

    visit(EnergyChartsApi(NOON), body)


def test_energy_charts_without_forecast_extends_the_last_value():
    async def body(api, web):
        slots = await EnergyCharts("al").current(web, NOON_S)
        assert {s.quality for s in slots} == {"actual", "estimated"}
        now = next(s for s in slots if s.begin_s <= NOON_S < s.end_s)
        assert (now.grams_per_kwh, now.quality, now.end_s - now.begin_s) == (
            400.0,
            "estimated",
            900,
        )
        assert max(s.end_s for s in slots) >= NOON_S + 900  # until the next response

    visit(EnergyChartsApi(NOON, forecasts=False), body)


def test_energy_charts_value_older_than_three_hours_is_refused():
    async def body(api, web):
        slots = await EnergyCharts("al").current(web, NOON_S + 4 * 3_600)
        assert {s.quality for s in slots} == {"actual"}

    visit(EnergyChartsApi(NOON, forecasts=False), body)


def test_energy_charts_end_of_day_is_extended():
    late = NOON + timedelta(hours=11, minutes=50)

    async def body(api, web):
        slots = {s.begin_s: s for s in await EnergyCharts("de").current(web, late.timestamp())}
        midnight_s = NOON_S + 12 * 3_600
        assert (slots[midnight_s].quality, slots[midnight_s].grams_per_kwh) == ("estimated", 450.0)

    visit(EnergyChartsApi(late), body)


def test_energy_charts_empty_day_keeps_the_last_value_for_three_hours():
    async def body(api, web):
        provider = EnergyCharts("al")
        await provider.current(web, NOON_S)
        api.bodies["new day"] = (
            '{"unix_seconds": [1516449600], "co2eq": [null], "co2eq_forecast": [null]}'
        )
        api.fault = "new day"
        for now_s, qualities in ((NOON_S + 1_800, {"estimated"}), (NOON_S + 4 * 3_600, set())):
            slots = await provider.current(web, now_s)
            assert {s.quality for s in slots if s.begin_s <= now_s < s.end_s} == qualities

    visit(EnergyChartsApi(NOON, forecasts=False), body)


def test_energy_charts_hourly_slots_are_parsed():
    async def body(api, web):
        slots = await EnergyCharts("fr").current(web, NOON_S)
        assert {s.end_s - s.begin_s for s in slots} == {3_600}

    visit(EnergyChartsApi(NOON, step_s=3_600), body)


def test_energy_charts_deprecation_is_logged_once(caplog):
    caplog.set_level(logging.WARNING)

    async def body(api, web):
        provider = EnergyCharts("de")
        for _ in range(2):
            await provider.current(web, NOON_S)
        assert len(caplog.records) == 1
        assert "deprecated" in caplog.text

    visit(EnergyChartsApi(NOON, deprecated=True), body)


@pytest.mark.parametrize("grams", [-1, 5_001, float("nan"), "400"])
def test_energy_charts_implausible_intensities_are_dropped(grams):
    async def body(api, web):
        slots = await EnergyCharts("de").current(web, NOON_S)
        assert {(s.grams_per_kwh, s.quality) for s in slots} == {(450.0, "forecast")}
        assert web.dropped == 44  # quarter hours from midnight to 11:00
        assert web.problem.startswith("rows.0.co2eq: Input should be ")

    visit(EnergyChartsApi(NOON, measured=grams), body)


def test_energy_charts_bad_slots_are_dropped_and_leave_gaps():
    times = [NOON_S, NOON_S + 900, NOON_S + 1_800, "12:45", NOON_S + 3_600]
    values = [400.0, -1, 420.0, 430.0, 440.0]

    async def body(api, web):
        api.bodies["bad slots"] = json.dumps(
            {"unix_seconds": [t if isinstance(t, str) else int(t) for t in times], "co2eq": values}
        )
        slots = await EnergyCharts("de").current(web, NOON_S)
        assert [(s.begin_s, s.end_s, s.grams_per_kwh) for s in slots] == [
            (NOON_S, NOON_S + 900, 400.0),
            (NOON_S + 1_800, NOON_S + 2_700, 420.0),
            (NOON_S + 3_600, NOON_S + 4_500, 440.0),
        ]
        assert web.dropped == 2
        assert web.problem == "rows.1.co2eq: Input should be greater than or equal to 0"

    visit(EnergyChartsApi(NOON, fault="bad slots"), body)


@pytest.mark.parametrize("wrong_s", [0, 1 << 32])
def test_energy_charts_wrong_time_drops_one_neighbour_at_most(wrong_s):
    times = [int(NOON_S) + 900 * n for n in range(6)]
    times[2] = wrong_s

    async def body(api, web):
        series = {"unix_seconds": times, "co2eq": [400.0 + n for n in range(6)]}
        api.bodies["wrong time"] = json.dumps(series)
        slots = await EnergyCharts("de").current(web, NOON_S)
        assert {s.grams_per_kwh for s in slots} >= {400.0, 404.0, 405.0}
        assert max(s.end_s for s in slots) == NOON_S + 5_400
        assert web.dropped == 2

    visit(EnergyChartsApi(NOON, fault="wrong time"), body)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"unix_seconds": [1, 2], "co2eq": [1.0]}', "the lists differ in length"),
        ('{"unix_seconds": [1], "co2eq": [1.0], "co2eq_forecast": []}', None),
        (
            '{"unix_seconds": [1], "co2eq": [1.0], "co2eq_forecast": [1.0, 2.0]}',
            "the lists differ in length",
        ),
        ('{"unix_seconds": [2, 1], "co2eq": [1.0, 1.0]}', "the times do not increase"),
        ('{"unix_seconds": [-1], "co2eq": [1.0]}', r"rows\.0\.unix_seconds"),
        ('{"unix_seconds": [], "co2eq": []}', "has no intensity"),
        ('{"unix_seconds": [1], "co2eq": [null]}', "has no intensity"),
    ],
)
def test_energy_charts_inconsistent_lists_are_refused(text, why):
    async def body(api, web):
        api.bodies["this"] = text
        asked = EnergyCharts("de").current(web, NOON_S)
        if why is None:
            assert [s.grams_per_kwh for s in await asked] == [1.0]
            return
        with pytest.raises(SourceError, match=why):
            await asked

    visit(EnergyChartsApi(NOON, fault="this"), body)


@pytest.mark.parametrize(
    ("text", "code"),
    [("DE", "de"), ("germany", "de"), ("GBR", "uk"), ("gb", "uk"), ("uk", "uk"), ("EU", "eu")],
)
def test_energy_charts_country_is_resolved_by_code_and_name(text, code):
    assert energy_charts.resolve_country(text) == code


def test_energy_charts_unknown_country_lists_known_ones():
    with pytest.raises(
        ValueError, match="'Japan' is not a country of energy-charts; use one of: al, all"
    ):
        EnergyCharts("Japan")
