from __future__ import annotations

from datetime import timedelta

import pytest

from tests.exporter.sensors.carbon.feeds import DAY_S, HOUR_S, NOON, NOON_S, chain, visit
from tests.fakes.electricity_maps import TOKEN, ElectricityMapsApi
from wattline_exporter.sensors.carbon import electricity_maps
from wattline_exporter.sensors.carbon.electricity_maps import ElectricityMaps
from wattline_exporter.sensors.readings import Slot, SourceError

LATER = NOON + timedelta(minutes=20)
LATER_S = NOON_S + 1_200


def at(slots: list[Slot], t_s: float) -> Slot:
    return next(s for s in reversed(slots) if s.begin_s <= t_s < s.end_s)


def test_electricity_maps_slots_have_the_right_quality():
    async def body(api, session):
        slots = await ElectricityMaps("de", TOKEN, api.url).slots(session, LATER_S)
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

    visit(ElectricityMapsApi(LATER), body)


def test_electricity_maps_missing_forecast_is_retried_after_a_day():
    async def body(api, session):
        provider = ElectricityMaps("DE", TOKEN, api.url)
        for now_s in (LATER_S, LATER_S + HOUR_S, LATER_S + DAY_S + 1):
            assert {s.quality for s in await provider.slots(session, now_s)} >= {
                "actual",
                "estimated",
            }
        assert len([path for path in api.requested_paths if "forecast" in path]) == 2

    visit(ElectricityMapsApi(LATER, free=True), body)


@pytest.mark.parametrize("status", ["403", "500", "429"])
def test_electricity_maps_latest_alone_is_sufficient(status):
    async def body(api, session):
        slots = await ElectricityMaps("DE", TOKEN, api.url).slots(session, LATER_S)
        assert at(slots, LATER_S).grams_per_kwh == 320

    visit(ElectricityMapsApi(LATER, extra_fault=status), body)


def test_electricity_maps_end_of_hour_is_extended():
    late = NOON + timedelta(minutes=59)

    async def body(api, session):
        slots = await ElectricityMaps("DE", TOKEN, api.url).slots(session, late.timestamp())
        assert (
            at(slots, NOON_S + HOUR_S + 30).grams_per_kwh,
            at(slots, NOON_S + HOUR_S).quality,
        ) == (320, "estimated")

    visit(ElectricityMapsApi(late, free=True), body)


def test_electricity_maps_late_hour_is_extended_in_quarter_hours():
    async def body(api, session):
        slots = await ElectricityMaps("DE", TOKEN, api.url).slots(session, LATER_S)
        now = at(slots, LATER_S)
        assert (now.quality, now.begin_s, now.end_s) == ("estimated", NOON_S + 900, NOON_S + 1_800)

    visit(ElectricityMapsApi(LATER, free=True, late=1), body)


def test_electricity_maps_value_older_than_three_hours_is_refused():
    async def body(api, session):
        slots = await ElectricityMaps("DE", TOKEN, api.url).slots(session, LATER_S)
        assert max(s.end_s for s in slots) <= NOON_S - 3 * HOUR_S

    visit(ElectricityMapsApi(LATER, free=True, late=4), body)


def test_electricity_maps_five_minute_slots_are_parsed():
    async def body(api, session):
        slots = await ElectricityMaps("DE", TOKEN, api.url).slots(session, LATER_S)
        assert {s.end_s - s.begin_s for s in slots if s.quality == "actual"} == {300}

    visit(ElectricityMapsApi(LATER, granularity="5_minutes"), body)


def test_electricity_maps_refused_token_is_not_shown():
    async def body(api, session):
        with pytest.raises(SourceError, match="HTTP 401") as caught:
            await ElectricityMaps("DE", "wrong-s3cret", api.url).slots(session, LATER_S)
        assert "check the token, and that its plan includes zone DE" in str(caught.value)
        assert "s3cret" not in "".join(
            repr(error) + repr(error.__dict__) for error in chain(caught.value)
        )

    visit(ElectricityMapsApi(LATER), body)


def test_electricity_maps_other_zone_is_refused():
    async def body(api, session):
        with pytest.raises(SourceError, match="answered for zone 'FR' instead of DE"):
            await ElectricityMaps("DE", TOKEN, api.url).slots(session, LATER_S)

    visit(ElectricityMapsApi(LATER, answers_for="FR"), body)


def test_electricity_maps_daily_slots_are_refused():
    async def body(api, session):
        with pytest.raises(SourceError, match="is not 5_minutes or 15_minutes or hourly"):
            await ElectricityMaps("DE", TOKEN, api.url).slots(session, LATER_S)

    visit(ElectricityMapsApi(LATER, granularity="daily"), body)


def test_electricity_maps_unmarked_value_is_estimated():
    async def body(api, session):
        api.bodies["bare"] = (
            '{"zone": "DE", "carbonIntensity": 310, "datetime": "2018-01-20T12:00:00.000Z"}'
        )
        slots = await ElectricityMaps("DE", TOKEN, api.url).slots(session, LATER_S)
        assert at(slots, LATER_S).quality == "estimated"

    visit(ElectricityMapsApi(LATER, fault="bare"), body)


@pytest.mark.parametrize(
    "zone", ["Germany", "", "D", "DE&x=1", "DE/..", "DE-", "US-CAL-CISO-A-B-C"]
)
def test_electricity_maps_invalid_zone_is_refused(zone):
    with pytest.raises(ValueError, match="is not a zone of electricitymaps"):
        ElectricityMaps(zone, TOKEN)


def test_electricity_maps_zones_are_listed_without_invalid_keys():
    async def body(api, session):
        assert await electricity_maps.list_zones(session, None, api.url) == {
            "DE": "Germany",
            "US-CAL-CISO": "USA, CAISO",
        }

    visit(ElectricityMapsApi(LATER), body)
