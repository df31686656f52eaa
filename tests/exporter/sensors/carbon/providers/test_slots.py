"""Rules that the slots of every provider follow: their length, and actual values that stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.exporter.sensors.carbon.feeds import NOON_S, Clock, half, slot
from wattline_exporter.sensors.carbon.feed import CarbonFeed
from wattline_exporter.sensors.carbon.provider import ProviderAccess, Reply, Web, without_overlaps
from wattline_exporter.sensors.carbon.providers import load_provider, provider_names

ACCESS = ProviderAccess("http://api", "ada:s3cret")
BAD = -1
REGIONS = {"electricitymaps": "DE", "energy-charts": "de", "gb": "GB", "watttime": "CAISO_NORTH"}
Bodies = Mapping[str, Any]


class Replies:
    """HTTP client that answers with the body whose name is in the address."""

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies

    async def get(self, url: str, *_: object, **__: object) -> Reply:
        found = [body for name, body in self.bodies.items() if name in url]
        if not found:
            return Reply(404, "Not Found", None, b"")
        return Reply(200, "OK", None, json.dumps(found[0]).encode())


def moment(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def energy_charts(times: list[int], actual: list[Any], forecast: list[Any]) -> Bodies:
    return {"/co2eq": {"unix_seconds": times, "co2eq": actual, "co2eq_forecast": forecast}}


def gb_period(begin_s: float, **intensity: Any) -> dict[str, Any]:
    return {"from": moment(begin_s), "to": moment(begin_s + 1_800), "intensity": intensity}


def maps_point(begin_s: float, grams: float, *, measured: bool = True) -> dict[str, Any]:
    return {"datetime": moment(begin_s), "carbonIntensity": grams, "isEstimated": not measured}


def maps(granularity: str, name: str, content: Bodies) -> dict[str, Bodies]:
    return {name: {"zone": "DE", "temporalGranularity": granularity, **content}}


def watttime(step_s: int, name: str, values: Mapping[float, float]) -> dict[str, Bodies]:
    meta = {
        "region": "CAISO_NORTH",
        "units": "lbs_co2_per_mwh",
        "data_point_period_seconds": step_s,
    }
    points = [{"point_time": moment(t_s), "value": value} for t_s, value in values.items()]
    return {"/login": {"token": "t"}, name: {"data": points, "meta": meta}}


def with_bad_second_row(name: str, step_s: int) -> Bodies:
    """Return the responses with four values from noon on, `step_s` apart; the second is invalid."""
    times = [int(NOON_S) + n * step_s for n in range(4)]
    values = [200, BAD, 220, 230]
    rows = list(zip(times, values, strict=True))
    if name == "energy-charts":
        return energy_charts(times, values, [None] * 4)
    if name == "gb":
        return {"/intensity": {"data": [gb_period(t_s, forecast=value) for t_s, value in rows]}}
    if name == "watttime":
        return watttime(step_s, "/forecast", dict(rows))
    granularity = {300: "5_minutes", 900: "15_minutes", 3_600: "hourly"}[step_s]
    history = {"history": [maps_point(t_s, value) for t_s, value in rows]}
    latest = maps_point(NOON_S, 200)
    return maps(granularity, "/latest", latest) | maps(granularity, "/history", history)


ACTUAL_BEFORE_OTHERS: Mapping[str, Bodies] = {
    "electricitymaps": maps("hourly", "/latest", maps_point(NOON_S, 320, measured=False))
    | maps("hourly", "/history", {"history": [maps_point(NOON_S, 300)]})
    | maps("15_minutes", "/forecast", {"forecast": [maps_point(NOON_S + 900, 350)]}),
    "energy-charts": energy_charts([int(NOON_S), int(NOON_S) + 900], [300, None], [350, 350]),
    "gb": {
        "/intensity": {
            "data": [gb_period(NOON_S, forecast=350, actual=300), gb_period(NOON_S, forecast=350)]
        }
    },
    "watttime": watttime(300, "/historical", {NOON_S: 900})
    | watttime(300, "/forecast", {NOON_S: 1_000}),
}
FORECASTS_ONLY: Mapping[str, Bodies] = {
    "electricitymaps": maps("hourly", "/latest", maps_point(NOON_S, 320, measured=False))
    | maps("hourly", "/forecast", {"forecast": [maps_point(NOON_S, 350)]}),
    "energy-charts": energy_charts([int(NOON_S), int(NOON_S) + 900], [None] * 2, [350] * 2),
    "gb": {"/intensity": {"data": [gb_period(NOON_S, forecast=350)]}},
    "watttime": watttime(300, "/forecast", {NOON_S: 1_000}),
}


def test_every_provider_on_the_web_has_these_tests():
    assert sorted([*REGIONS, "static"]) == sorted(provider_names())
    assert ACTUAL_BEFORE_OTHERS.keys() == FORECASTS_ONLY.keys() == REGIONS.keys()


@pytest.mark.parametrize(
    ("name", "step_s"),
    [
        ("electricitymaps", 300),
        ("electricitymaps", 3_600),
        ("energy-charts", 900),
        ("energy-charts", 3_600),
        ("gb", 1_800),
        ("watttime", 300),
        ("watttime", 3_600),
    ],
)
def test_slot_before_invalid_row_has_the_spacing_of_the_data(name, step_s):
    provider = load_provider(name)(REGIONS[name])
    web = Web(Replies(with_bad_second_row(name, step_s)), ACCESS)
    slots = asyncio.run(provider.current(web, NOON_S))
    received = {slot.begin_s: slot.end_s for slot in slots if slot.grams_per_kwh}
    begins_s = [NOON_S, NOON_S + 2 * step_s, NOON_S + 3 * step_s]
    assert [received[begin_s] - begin_s for begin_s in begins_s] == [step_s] * 3
    assert NOON_S + step_s not in received
    assert web.dropped == 1


@pytest.mark.parametrize("name", REGIONS)
def test_actual_value_is_not_replaced_by_a_later_forecast(name):
    provider = load_provider(name)(REGIONS[name])
    feed = CarbonFeed(provider, now=Clock(), access=ACCESS, chance=half)
    asyncio.run(feed.refresh(Replies(ACTUAL_BEFORE_OTHERS[name])))
    first = feed.slot_at(NOON_S)
    asyncio.run(feed.refresh(Replies(FORECASTS_ONLY[name])))
    assert first.quality == "actual"
    assert feed.slot_at(NOON_S) == first


def test_actual_hour_is_not_cut_by_forecasts_of_quarter_hours():
    provider = load_provider("electricitymaps")("DE")
    feed = CarbonFeed(provider, now=Clock(), access=ACCESS, chance=half)
    asyncio.run(feed.refresh(Replies(ACTUAL_BEFORE_OTHERS["electricitymaps"])))
    assert feed.slot_at(NOON_S + 3_599).grams_per_kwh == 300
    assert feed.slot_at(NOON_S + 3_599).quality == "actual"


def test_overlapping_values_fill_only_the_time_without_actual_value():
    slots = [
        slot(900, 350, length_s=1_800),  # its first 300 s are measured
        slot(0, 300, "actual", length_s=900),  # the next actual value replaces its last 300 s
        slot(600, 310, "actual", length_s=600),
        slot(300, 350, length_s=300),
    ]
    assert [(one.begin_s, one.end_s, one.grams_per_kwh) for one in without_overlaps(slots)] == [
        (0, 600, 300),
        (600, 1_200, 310),
        (1_200, 2_700, 350),
    ]
