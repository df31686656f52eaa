from __future__ import annotations

import json

import pytest

from exporter.model import Slot, SourceError
from exporter.sources.carbon import gb
from exporter.sources.carbon.gb import GbCarbonIntensity
from tests.exporter.sources.carbon.feeds import NOON, NOON_S, visit
from tests.fakes.carbon_api import CarbonApi


def test_the_nation_gives_actuals_of_the_past_and_forecasts_of_what_comes():
    async def body(api, session):
        slots = {s.begin_s: s for s in await GbCarbonIntensity(base_url=api.url).slots(session, NOON_S + 60)}
        assert slots[NOON_S - 3_600] == Slot(
            NOON_S - 3_600, NOON_S - 1_800, 190.0, "GB", "gb", basis="average", quality="actual"
        )
        assert slots[NOON_S] == Slot(NOON_S, NOON_S + 1_800, 200.0, "GB", "gb", basis="average", quality="forecast")
        assert max(slots) == NOON_S + 48 * 3_600

    visit(CarbonApi(NOON), body)


def test_the_slots_of_the_last_two_hours_are_asked_for_because_actuals_come_late():
    async def body(api, session):
        await GbCarbonIntensity(base_url=api.url + "/").slots(session, NOON_S + 1_799)
        assert api.asked == ["/intensity/2018-01-20T10:00Z/2018-01-22T12:30Z"]

    visit(CarbonApi(NOON), body)


@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_region_gives_forecasts_whether_or_not_it_comes_in_a_list(in_a_list):
    async def body(api, session):
        api.regions_in_a_list = in_a_list
        slots = await GbCarbonIntensity("london", base_url=api.url).slots(session, NOON_S)
        assert api.asked == ["/regional/intensity/2018-01-20T10:00Z/2018-01-22T12:30Z/regionid/13"]
        assert {(s.region, s.quality, s.grams_per_kwh) for s in slots} == {("London", "forecast", 200.0)}
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
def test_a_region_is_found_by_name_in_any_case_by_number_or_by_postcode(text, region):
    assert gb.resolve_region(text) == region


def test_an_unknown_region_is_answered_with_the_names_of_all():
    with pytest.raises(ValueError, match="'Atlantis' is not a region of gb") as caught:
        GbCarbonIntensity("Atlantis")
    assert all(name in str(caught.value) for name in ("GB", *gb.REGIONS, "1 to 17", "OX1"))


@pytest.mark.parametrize("text", ["0", "18", "OX", "OX1 3Q", "OX123", "", "../intensity", "OX1?x"])
def test_what_is_neither_name_nor_number_nor_postcode_is_refused(text):
    with pytest.raises(ValueError, match="is not a region of gb"):
        gb.resolve_region(text)


def test_a_postcode_of_northern_ireland_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="Northern Ireland is not part of this grid"):
        gb.resolve_region("BT1 1AA")


@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_postcode_gives_the_forecasts_of_its_place(in_a_list):
    async def body(api, session):
        api.regions_in_a_list = in_a_list
        slots = await GbCarbonIntensity("OX1 3QD", base_url=api.url).slots(session, NOON_S)
        assert api.asked == ["/regional/intensity/2018-01-20T10:00Z/2018-01-22T12:30Z/postcode/OX1"]
        assert {(s.region, s.quality, s.grams_per_kwh) for s in slots} == {("OX1", "forecast", 200.0)}

    visit(CarbonApi(NOON), body)


def test_the_seventeen_regions_have_the_numbers_one_to_seventeen():
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
def test_whatever_the_api_does_wrong_is_one_clear_line(fault, cause):
    async def body(api, session):
        with pytest.raises(SourceError) as caught:
            await GbCarbonIntensity(base_url=api.url).slots(session, NOON_S)
        assert cause in caught.value.cause
        assert api.url in caught.value.cause
        assert caught.value.remedy
        assert "\n" not in str(caught.value)

    visit(CarbonApi(NOON, fault), body)


@pytest.mark.parametrize("grams", [-1, 5_001, float("nan"), "200", True])
def test_an_absurd_intensity_is_refused(grams):
    async def body(api, session):
        api.forecast = grams
        with pytest.raises(SourceError, match=r"data\.0\.intensity\.forecast|Invalid JSON"):
            await GbCarbonIntensity(base_url=api.url).slots(session, NOON_S)

    visit(CarbonApi(NOON), body)


def test_an_answer_of_more_slots_than_can_be_is_refused():
    async def body(api, session):
        period = api.period(NOON, national=True)
        api.bodies["many"] = json.dumps({"data": [period] * 4_001})
        with pytest.raises(SourceError, match="List should have at most 4000 items"):
            await GbCarbonIntensity(base_url=api.url).slots(session, NOON_S)

    visit(CarbonApi(NOON, "many"), body)


def test_a_zero_is_an_intensity_like_any_other():
    async def body(api, session):
        api.actuals["2018-01-20T11:00Z"] = 0
        slots = await GbCarbonIntensity(base_url=api.url).slots(session, NOON_S)
        assert [(s.grams_per_kwh, s.quality) for s in slots if s.begin_s == NOON_S - 3_600] == [(0.0, "actual")]

    visit(CarbonApi(NOON), body)


def test_a_slot_of_which_nothing_is_known_is_left_out():
    async def body(api, session):
        api.forecast = None
        slots = await GbCarbonIntensity(base_url=api.url).slots(session, NOON_S)
        assert {s.quality for s in slots} == {"actual"}

    visit(CarbonApi(NOON), body)
