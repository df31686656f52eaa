from __future__ import annotations

import json

import pytest

from tests.exporter.sensors.carbon.feeds import NOON, NOON_S, visit
from tests.fakes.carbon_api import CarbonApi
from wattline_exporter.sensors.carbon.providers import gb
from wattline_exporter.sensors.carbon.providers.gb import GbCarbonIntensity
from wattline_exporter.sensors.readings import Slot, SourceError


def test_gb_national_slots_are_actual_then_forecast():
    async def body(api, web):
        slots = {s.begin_s: s for s in await GbCarbonIntensity().current(web, NOON_S + 60)}
        assert slots[NOON_S - 3_600] == Slot(
            NOON_S - 3_600, NOON_S - 1_800, 190.0, "GB", "gb", basis="average", quality="actual"
        )
        assert slots[NOON_S] == Slot(
            NOON_S, NOON_S + 1_800, 200.0, "GB", "gb", basis="average", quality="forecast"
        )
        assert max(slots) == NOON_S + 48 * 3_600

    visit(CarbonApi(NOON), body)


def test_gb_request_includes_the_last_two_hours():
    async def body(api, web):
        await GbCarbonIntensity().current(web, NOON_S + 1_799)
        assert api.requested_paths == ["/intensity/2018-01-20T10:00Z/2018-01-22T12:30Z"]

    visit(CarbonApi(NOON), body)


@pytest.mark.parametrize("in_a_list", [False, True])
def test_gb_region_as_list_or_object_is_parsed(in_a_list):
    async def body(api, web):
        api.regions_in_a_list = in_a_list
        slots = await GbCarbonIntensity("london").current(web, NOON_S)
        assert api.requested_paths == [
            "/regional/intensity/2018-01-20T10:00Z/2018-01-22T12:30Z/regionid/13"
        ]
        assert {(s.region, s.quality, s.grams_per_kwh) for s in slots} == {
            ("London", "forecast", 200.0)
        }
        assert len(slots) == 102  # 50.5 hours, and the half hour before

    visit(CarbonApi(NOON), body)


@pytest.mark.parametrize(
    ("text", "region"),
    [
        ("GB", "GB"),
        ("gb", "GB"),
        ("LONDON", "London"),
        ("south wales", "South Wales"),
        ("south-wales", "South Wales"),
        ("North Wales and Merseyside", "North Wales & Merseyside"),
        ("13", "London"),
        ("OX1", "OX1"),
        ("ox1 3qd", "OX1"),
        ("EC1A", "EC1A"),
        ("w1", "W1"),
    ],
)
def test_gb_region_is_resolved_by_name_number_or_postcode(text, region):
    assert gb.resolve_region(text) == region


def test_gb_unknown_region_lists_known_ones():
    with pytest.raises(ValueError, match="'Atlantis' is not a region of gb") as caught:
        GbCarbonIntensity("Atlantis")
    assert all(name in str(caught.value) for name in ("GB", *gb.REGIONS, "1 to 17", "OX1"))


@pytest.mark.parametrize("text", ["0", "18", "OX", "OX1 3Q", "OX123", "", "../intensity", "OX1?x"])
def test_gb_invalid_region_is_refused(text):
    with pytest.raises(ValueError, match="is not a region of gb"):
        gb.resolve_region(text)


def test_gb_postcode_of_northern_ireland_is_refused():
    with pytest.raises(ValueError, match="Northern Ireland is not part of this grid"):
        gb.resolve_region("BT1 1AA")


@pytest.mark.parametrize("in_a_list", [False, True])
def test_gb_postcode_returns_forecasts(in_a_list):
    async def body(api, web):
        api.regions_in_a_list = in_a_list
        slots = await GbCarbonIntensity("OX1 3QD").current(web, NOON_S)
        assert api.requested_paths == [
            "/regional/intensity/2018-01-20T10:00Z/2018-01-22T12:30Z/postcode/OX1"
        ]
        assert {(s.region, s.quality, s.grams_per_kwh) for s in slots} == {
            ("OX1", "forecast", 200.0)
        }

    visit(CarbonApi(NOON), body)


def test_gb_regions_have_numbers_1_to_17():
    assert sorted(gb.REGIONS.values()) == list(range(1, 18))


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("400", "HTTP 400 Bad Request"),
        ("429", "HTTP 429 Too Many Requests"),
        ("500", "HTTP 500 Internal Server Error"),
        ("503", "HTTP 503 Service Unavailable"),
        ("html", "the body is a web page, not JSON"),
        ("truncated", "Invalid JSON: EOF while parsing"),
        ("cut off", "cannot fetch "),
        ("empty", "the body is empty"),
        ("null", "body: Input should be an object"),
        ("error with 200", "data: Field required"),
        ("no intensity", "data.0.intensity: Field required"),
        ("backwards", "data.0: Value error, the slot ends before it starts"),
        ("a year long", "data.0: Value error, the slot is longer than a day"),
        ("garbage", "cannot parse the response of"),
        ("list", "cannot parse the response of"),
        ("huge", "the response is larger than 4 MiB"),
        ("no slots", "has no intensity for GB"),
    ],
)
def test_gb_api_fault_is_one_line(fault, cause):
    async def body(api, web):
        with pytest.raises(SourceError) as caught:
            await GbCarbonIntensity().current(web, NOON_S)
        assert cause in caught.value.cause
        assert api.url in caught.value.cause
        assert caught.value.remedy
        assert "\n" not in str(caught.value)

    visit(CarbonApi(NOON, fault), body)


@pytest.mark.parametrize("grams", [-1, 5_001, float("nan"), "200", True])
def test_gb_implausible_intensity_is_refused(grams):
    async def body(api, web):
        api.forecast = grams
        with pytest.raises(SourceError, match=r"data\.0\.intensity\.forecast|Invalid JSON"):
            await GbCarbonIntensity().current(web, NOON_S)

    visit(CarbonApi(NOON), body)


def test_gb_response_with_too_many_slots_is_refused():
    async def body(api, web):
        period = api.period(NOON, national=True)
        api.bodies["many"] = json.dumps({"data": [period] * 4_001})
        with pytest.raises(SourceError, match="List should have at most 4000 items"):
            await GbCarbonIntensity().current(web, NOON_S)

    visit(CarbonApi(NOON, "many"), body)


def test_gb_zero_is_a_valid_intensity():
    async def body(api, web):
        api.actuals["2018-01-20T11:00Z"] = 0
        slots = await GbCarbonIntensity().current(web, NOON_S)
        assert [(s.grams_per_kwh, s.quality) for s in slots if s.begin_s == NOON_S - 3_600] == [
            (0.0, "actual")
        ]

    visit(CarbonApi(NOON), body)


def test_gb_bad_slot_is_dropped_and_counted():
    def period(begin: str, end: str, grams: object) -> dict[str, object]:
        return {
            "from": f"2018-01-20T{begin}Z",
            "to": f"2018-01-20T{end}Z",
            "intensity": {"forecast": grams},
        }

    periods = [
        period("12:00", "12:30", 200),
        period("12:30", "13:00", 9_999),
        period("13:30", "13:00", 200),
        period("13:30", "14:00", 220),
    ]

    async def body(api, web):
        api.bodies["bad slots"] = json.dumps({"data": periods})
        slots = await GbCarbonIntensity().current(web, NOON_S)
        assert [(s.begin_s, s.grams_per_kwh) for s in slots] == [
            (NOON_S, 200),
            (NOON_S + 5_400, 220),
        ]
        assert web.dropped == 2
        assert (
            web.problem == "data.1.intensity.forecast: Input should be less than or equal to 5000"
        )

    visit(CarbonApi(NOON, "bad slots"), body)


def test_gb_slot_without_values_is_skipped():
    async def body(api, web):
        api.forecast = None
        slots = await GbCarbonIntensity().current(web, NOON_S)
        assert {s.quality for s in slots} == {"actual"}

    visit(CarbonApi(NOON), body)
