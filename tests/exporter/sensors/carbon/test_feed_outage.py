"""Intensities and messages while a provider does not respond."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.exporter.sensors.carbon.feeds import (
    DAY_S,
    NOON_S,
    Clock,
    Scripted,
    feed_after,
    half,
    refresh_error,
    script_of,
    slot,
)
from wattline_exporter.sensors.carbon.feed import CarbonFeed, CarbonFeeds
from wattline_exporter.sensors.carbon.provider import HttpStatusError
from wattline_exporter.sensors.carbon.providers.static import StaticIntensity
from wattline_exporter.sensors.readings import Slot, SourceError

DOWN = SourceError("down", "wait")
BRITAIN = StaticIntensity("GBR")
MIDNIGHT_S = NOON_S - DAY_S / 2
STATIC = Slot(MIDNIGHT_S, MIDNIGHT_S + DAY_S, 268.255, "GBR", "static", "average", "static")


def retry_after_error(seconds: float, status: int = 429) -> HttpStatusError:
    return HttpStatusError("asked too often", "wait", status, seconds)


def test_feed_before_first_response_has_no_slot_then_fallback():
    feed = CarbonFeed(Scripted(DOWN), now=Clock(), fallback=BRITAIN)
    assert feed.slot_at(NOON_S) is None
    refresh_error(feed)
    assert feed.slot_at(NOON_S) == STATIC
    assert feed.slot_at(NOON_S + DAY_S / 2).begin_s == MIDNIGHT_S + DAY_S


def test_feed_uses_forecast_before_fallback():
    clock = Clock()
    feed = feed_after(clock, [slot(NOON_S, 200), slot(NOON_S + 1_800, 210)], fallback=BRITAIN)
    script_of(feed).extend([DOWN])
    clock.now_s += 1_850
    refresh_error(feed)
    assert (feed.slot_at(clock()).grams_per_kwh, feed.slot_at(clock()).quality) == (210, "forecast")
    clock.now_s += 1_800
    assert feed.slot_at(clock()) == STATIC


def test_feed_recovered_provider_replaces_fallback():
    clock = Clock()
    feed = CarbonFeed(Scripted(DOWN, [slot(NOON_S, 200)]), now=clock, fallback=BRITAIN)
    refresh_error(feed)
    asyncio.run(feed.refresh(None))
    assert feed.slot_at(NOON_S).provider == "scripted"
    assert feed.slot_at(NOON_S + DAY_S) is None  # no outage, no fallback


def test_feed_without_fallback_has_no_slot_in_outage():
    feed = CarbonFeed(Scripted(DOWN), now=Clock())
    refresh_error(feed)
    assert feed.slot_at(NOON_S) is None


def test_feed_outage_and_recovery_are_reported(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    feed = feed_after(clock, [slot(NOON_S, 200), slot(NOON_S + 1_800, 210)], fallback=BRITAIN)
    script_of(feed).extend([DOWN, DOWN, DOWN, [slot(NOON_S + 1_800, 210)]])
    clock.now_s += 1_860
    messages = {str(refresh_error(feed)) for _ in range(3)}
    clock.now_s += 90
    asyncio.run(feed.refresh(None))

    assert [text.partition("wait; ")[2] for text in messages] == [
        (
            "known slots are used until 2018-01-20T13:00Z; "
            "after that the intensity is the yearly mean of GBR, 268.255 gCO2eq/kWh (static)"
        )
    ]
    assert [record.message for record in caplog.records] == [
        "carbon intensity (average) of scripted for GB recovered after 90 s"
    ]


def test_feed_outage_without_fallback_reports_missing_emissions():
    error = refresh_error(CarbonFeed(Scripted(DOWN), now=Clock()))
    assert (
        str(error)
        == "down; wait; until then the intensity is not available; emissions are not exported"
    )


def test_feed_retry_after_delays_the_next_request():
    feed = CarbonFeed(
        Scripted(retry_after_error(7_200), retry_after_error(7_200, 503)), now=Clock(), chance=half
    )
    for _ in range(2):
        refresh_error(feed)
        assert feed.due_s == NOON_S + 7_200 * 1.05


def test_feed_short_retry_after_does_not_shorten_back_off():
    feed = CarbonFeed(Scripted(retry_after_error(1)), now=Clock(), chance=half)
    refresh_error(feed)
    assert feed.due_s == NOON_S + 60


@pytest.mark.parametrize(("chance", "wait_s"), [(0.0, 45), (1.0, 75)])
def test_feed_back_off_varies_by_a_quarter(chance, wait_s):
    feed = CarbonFeed(Scripted(DOWN), now=Clock(), chance=lambda: chance)
    refresh_error(feed)
    assert feed.due_s == NOON_S + wait_s


def test_feed_fetch_time_is_not_changed_by_failures():
    clock = Clock()
    feed = CarbonFeed(Scripted(DOWN, [slot(NOON_S, 200)], DOWN), now=clock)
    refresh_error(feed)
    assert feed.fetched_s is None
    asyncio.run(feed.refresh(None))
    clock.now_s += 600
    refresh_error(feed)
    assert feed.fetched_s == NOON_S


def test_feed_new_slot_replaces_overlapping_estimates():
    estimates = [slot(NOON_S + n * 900, 300, "estimated", 900) for n in range(6)]
    feed = feed_after(Clock(), estimates, [slot(NOON_S, 250, "estimated", 3_600)])
    assert [(s.begin_s - NOON_S, s.end_s - NOON_S, s.grams_per_kwh) for s in feed._slots] == [
        (0, 3_600, 250),
        (3_600, 4_500, 300),
        (4_500, 5_400, 300),
    ]


def test_feed_overlapping_slots_end_at_the_next_start():
    feed = feed_after(Clock(), [slot(NOON_S, 200, length_s=3_600), slot(NOON_S + 1_800, 210)])
    assert feed.slot_at(NOON_S + 1_799).end_s == NOON_S + 1_800
    assert feed.slot_at(NOON_S + 1_801).grams_per_kwh == 210


def test_feeds_allow_one_provider_per_basis():
    average = feed_after(Clock(), [slot(NOON_S, 200)])
    marginal = Scripted()
    marginal.basis = "marginal"
    both = CarbonFeeds((average, CarbonFeed(marginal, now=Clock())))
    assert both.slots_at(NOON_S) == (average.slot_at(NOON_S),)
    with pytest.raises(ValueError, match="more than one provider of a basis"):
        CarbonFeeds((average, average))
