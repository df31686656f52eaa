from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.exporter.sensors.carbon.feeds import DAY_S, HOUR_S, NOON, NOON_S, chain, visit
from tests.fakes.electricity_maps import TOKEN, ElectricityMapsApi
from wattline_exporter.sensors.carbon.providers.electricitymaps import ElectricityMaps
from wattline_exporter.sensors.readings import Slot, SourceError

LATER = NOON + timedelta(minutes=20)
LATER_S = NOON_S + 1_200


def at(slots: list[Slot], t_s: float) -> Slot:
    return next(s for s in reversed(slots) if s.begin_s <= t_s < s.end_s)


def test_electricity_maps_slots_have_the_right_quality():
    async def body(api, web):
        slots = await ElectricityMaps("de").current(web, LATER_S)
        assert at(slots, LATER_S) == Slot(
            NOON_S,
            NOON_S + 3_600,
            320.0,
            "DE",
            "electricitymaps",
            basis="average",
            quality="estimated",
        )
        assert (
            at(slots, NOON_S - 3 * HOUR_S).grams_per_kwh,
            at(slots, NOON_S - 3 * HOUR_S).quality,
        ) == (300, "actual")
        assert (at(slots, NOON_S + HOUR_S).grams_per_kwh, at(slots, NOON_S + HOUR_S).quality) == (
            350,
            "forecast",
        )
        assert max(s.begin_s for s in slots) == NOON_S + 48 * HOUR_S
        assert [path.partition("?")[0].rpartition("/")[2] for path in api.requested_paths] == [
            "latest",
            "history",
            "forecast",
        ]
        assert all("zone=DE" in path and TOKEN not in path for path in api.requested_paths)

    visit(ElectricityMapsApi(LATER), body, TOKEN)


def test_electricity_maps_missing_forecast_is_retried_after_a_day():
    async def body(api, web):
        provider = ElectricityMaps("DE")
        for now_s in (LATER_S, LATER_S + HOUR_S, LATER_S + DAY_S + 1):
            assert {s.quality for s in await provider.current(web, now_s)} >= {
                "actual",
                "estimated",
            }
        assert len([path for path in api.requested_paths if "forecast" in path]) == 2

    visit(ElectricityMapsApi(LATER, free=True), body, TOKEN)


@pytest.mark.parametrize("status", ["403", "500", "429"])
def test_electricity_maps_latest_alone_is_sufficient(status):
    async def body(api, web):
        slots = await ElectricityMaps("DE").current(web, LATER_S)
        assert at(slots, LATER_S).grams_per_kwh == 320

    visit(ElectricityMapsApi(LATER, extra_fault=status), body, TOKEN)


def test_electricity_maps_end_of_hour_is_extended():
    late = NOON + timedelta(minutes=59)

    async def body(api, web):
        slots = await ElectricityMaps("DE").current(web, late.timestamp())
        assert (
            at(slots, NOON_S + HOUR_S + 30).grams_per_kwh,
            at(slots, NOON_S + HOUR_S).quality,
        ) == (320, "estimated")

    visit(ElectricityMapsApi(late, free=True), body, TOKEN)


def test_electricity_maps_late_hour_is_extended_in_quarter_hours():
    async def body(api, web):
        slots = await ElectricityMaps("DE").current(web, LATER_S)
        now = at(slots, LATER_S)
        assert (now.quality, now.begin_s, now.end_s) == ("estimated", NOON_S + 900, NOON_S + 1_800)

    visit(ElectricityMapsApi(LATER, free=True, late=1), body, TOKEN)


def test_electricity_maps_value_older_than_three_hours_is_refused():
    async def body(api, web):
        slots = await ElectricityMaps("DE").current(web, LATER_S)
        assert max(s.end_s for s in slots) <= NOON_S - 3 * HOUR_S

    visit(ElectricityMapsApi(LATER, free=True, late=4), body, TOKEN)


def test_electricity_maps_five_minute_slots_are_parsed():
    async def body(api, web):
        slots = await ElectricityMaps("DE").current(web, LATER_S)
        assert {s.end_s - s.begin_s for s in slots if s.quality == "actual"} == {300}

    visit(ElectricityMapsApi(LATER, granularity="5_minutes"), body, TOKEN)


def test_electricity_maps_refused_token_is_not_shown():
    async def body(api, web):
        with pytest.raises(SourceError, match="HTTP 401") as caught:
            await ElectricityMaps("DE").current(web, LATER_S)
        assert "check the token, and that its plan includes zone DE" in str(caught.value)
        assert "s3cret" not in "".join(
            repr(error) + repr(error.__dict__) for error in chain(caught.value)
        )

    visit(ElectricityMapsApi(LATER), body, "wrong-s3cret")


def test_electricity_maps_other_zone_is_refused():
    async def body(api, web):
        with pytest.raises(SourceError, match="answered for zone 'FR' instead of DE"):
            await ElectricityMaps("DE").current(web, LATER_S)

    visit(ElectricityMapsApi(LATER, answers_for="FR"), body, TOKEN)


def test_electricity_maps_daily_slots_are_refused():
    async def body(api, web):
        with pytest.raises(SourceError, match="is not 5_minutes or 15_minutes or hourly"):
            await ElectricityMaps("DE").current(web, LATER_S)

    visit(ElectricityMapsApi(LATER, granularity="daily"), body, TOKEN)


def test_electricity_maps_unmarked_value_is_estimated():
    async def body(api, web):
        api.bodies["bare"] = (
            '{"zone": "DE", "carbonIntensity": 310, "datetime": "2018-01-20T12:00:00.000Z"}'
        )
        slots = await ElectricityMaps("DE").current(web, LATER_S)
        assert at(slots, LATER_S).quality == "estimated"

    visit(ElectricityMapsApi(LATER, fault="bare"), body, TOKEN)


@pytest.mark.parametrize(
    "zone", ["Germany", "", "D", "DE&x=1", "DE/..", "DE-", "US-CAL-CISO-A-B-C"]
)
def test_electricity_maps_invalid_zone_is_refused(zone):
    with pytest.raises(ValueError, match="is not a zone of electricitymaps"):
        ElectricityMaps(zone)


def test_electricity_maps_zones_are_listed_without_invalid_keys():
    async def body(api, web):
        assert await ElectricityMaps.regions(web) == [
            ("DE", "Germany"),
            ("US-CAL-CISO", "USA, CAISO"),
        ]

    visit(ElectricityMapsApi(LATER), body)


def test_electricity_maps_bad_slots_are_dropped_and_counted():
    def point(hour: int, grams: object) -> dict[str, object]:
        return {"carbonIntensity": grams, "datetime": f"2018-01-20T{hour:02}:00:00.000Z"}

    document = {
        "zone": "DE",
        "history": [point(9, 300), point(10, "300"), point(11, 310)],
        "forecast": [point(12, 350), {"carbonIntensity": 360}, point(14, 370)],
        **point(12, 9_999),
    }

    async def body(api, web):
        api.bodies["bad slots"] = json.dumps(document)
        slots = await ElectricityMaps("DE").current(web, LATER_S)
        assert [(s.begin_s, s.grams_per_kwh, s.quality) for s in slots] == [
            (NOON_S, 350, "forecast"),
            (NOON_S + 2 * HOUR_S, 370, "forecast"),
            (NOON_S - 3 * HOUR_S, 300, "estimated"),
            (NOON_S - HOUR_S, 310, "estimated"),
        ]
        assert web.dropped == 3
        assert web.problem == "forecast.1.datetime: Field required"

    visit(ElectricityMapsApi(LATER, fault="bad slots"), body, TOKEN)
