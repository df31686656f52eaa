from __future__ import annotations

import asyncio

from tests.exporter.sensors.carbon.feeds import (
    HOUR_S,
    NOON_S,
    Clock,
    Scripted,
    feed_after,
    refresh_error,
    script_of,
    slot,
)
from wattline.contract.metrics import (
    CARBON_FETCHED_TIMESTAMP,
    CARBON_FORECAST,
    CARBON_INTENSITY,
    CARBON_INTENSITY_TIMESTAMP,
)
from wattline_exporter.sensors.carbon.feed import CarbonFeed, carbon_readings
from wattline_exporter.sensors.carbon.providers.static import ConstantIntensity, StaticIntensity
from wattline_exporter.sensors.readings import Reading, SourceError


def readings_of(feed: CarbonFeed, now_s: float = NOON_S) -> list[Reading]:
    return list(carbon_readings([feed], now_s))


def test_gauges_export_current_slot_with_source_and_time():
    labels = ("GB", "scripted", "average", "actual")
    assert readings_of(
        feed_after(Clock(NOON_S + 60), [slot(NOON_S, 190, "actual")]), NOON_S + 90
    ) == [
        Reading(CARBON_INTENSITY, labels, 190),
        Reading(CARBON_INTENSITY_TIMESTAMP, labels, NOON_S),
        Reading(CARBON_FETCHED_TIMESTAMP, ("scripted", "average"), NOON_S + 60),
    ]


def test_gauges_export_forecast_of_each_hour():
    feed = feed_after(Clock(), [slot(NOON_S + n * 1_800, 200 + n) for n in range(6)])
    horizons = {
        r.labels: r.value for r in readings_of(feed, NOON_S + 60) if r.metric is CARBON_FORECAST
    }
    assert horizons == {
        ("GB", "scripted", "average", "1"): 202,
        ("GB", "scripted", "average", "2"): 204,
    }


def test_gauges_export_no_forecast_for_estimates():
    feed = feed_after(
        Clock(), [slot(NOON_S + n * HOUR_S, 200, "estimated", HOUR_S) for n in range(3)]
    )
    assert not [r for r in readings_of(feed) if r.metric is CARBON_FORECAST]


def test_gauges_in_outage_export_static_mean_with_age():
    clock = Clock()
    feed = feed_after(clock, [slot(NOON_S, 200)], fallback=StaticIntensity("GBR"))
    script_of(feed).extend([SourceError("down", "wait")])
    clock.now_s += HOUR_S
    refresh_error(feed)
    labels = ("GBR", "static", "average", "static")
    assert readings_of(feed, clock()) == [
        Reading(CARBON_INTENSITY, labels, 268.255),
        Reading(CARBON_INTENSITY_TIMESTAMP, labels, NOON_S - 12 * HOUR_S),
        Reading(CARBON_FETCHED_TIMESTAMP, ("scripted", "average"), NOON_S),
    ]


def test_gauges_without_any_response_are_absent():
    feed = CarbonFeed(Scripted(SourceError("down", "wait")), now=Clock())
    refresh_error(feed)
    assert readings_of(feed) == []


def test_gauges_of_constant_have_no_age_and_forecast():
    feed = CarbonFeed(ConstantIntensity(230), now=Clock())
    asyncio.run(feed.refresh(None))
    assert [r.metric for r in readings_of(feed)] == [CARBON_INTENSITY, CARBON_INTENSITY_TIMESTAMP]
