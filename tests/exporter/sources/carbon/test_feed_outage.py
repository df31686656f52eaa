"""What counts while a provider does not answer, and what is said of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from exporter.model import Slot, SourceError
from exporter.sources.carbon.feed import CarbonFeed, CarbonFeeds
from exporter.sources.carbon.provider import HttpStatusError
from exporter.sources.carbon.static import StaticIntensity
from tests.exporter.sources.carbon.feeds import DAY_S, NOON_S, Clock, Scripted, fed, half, refused, slot

DOWN = SourceError("down", "wait")
BRITAIN = StaticIntensity("GBR", 268.255)
MIDNIGHT_S = NOON_S - DAY_S / 2
STATIC = Slot(MIDNIGHT_S, MIDNIGHT_S + DAY_S, 268.255, "GBR", "static", "average", "static")


def told(seconds: float, status: int = 429) -> HttpStatusError:
    return HttpStatusError("asked too often", "wait", status, seconds)


def test_before_the_first_answer_nothing_counts_and_from_the_first_failure_on_the_static_mean():
    feed = CarbonFeed(Scripted(DOWN), now=Clock(), fallback=BRITAIN)
    assert feed.slot_at(NOON_S) is None
    refused(feed)
    assert feed.slot_at(NOON_S) == STATIC
    assert feed.slot_at(NOON_S + DAY_S / 2).begin_s == MIDNIGHT_S + DAY_S


def test_what_was_forecast_counts_before_the_static_mean_does():
    clock = Clock()
    feed = fed(clock, [slot(NOON_S, 200), slot(NOON_S + 1_800, 210)], fallback=BRITAIN)
    feed.provider.answers += [DOWN]
    clock.now_s += 1_850
    refused(feed)
    assert (feed.slot_at(clock()).grams_per_kwh, feed.slot_at(clock()).quality) == (210, "forecast")
    clock.now_s += 1_800
    assert feed.slot_at(clock()) == STATIC


def test_a_provider_that_answers_again_takes_over():
    clock = Clock()
    feed = CarbonFeed(Scripted(DOWN, [slot(NOON_S, 200)]), now=clock, fallback=BRITAIN)
    refused(feed)
    asyncio.run(feed.refresh(None))
    assert feed.slot_at(NOON_S).provider == "scripted"
    assert feed.slot_at(NOON_S + DAY_S) is None  # no outage, no fallback


def test_without_a_fallback_an_outage_leaves_nothing():
    feed = CarbonFeed(Scripted(DOWN), now=Clock())
    refused(feed)
    assert feed.slot_at(NOON_S) is None


def test_an_outage_is_said_once_with_what_counts_meanwhile_and_its_end_too(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    feed = fed(clock, [slot(NOON_S, 200), slot(NOON_S + 1_800, 210)], fallback=BRITAIN)
    feed.provider.answers += [DOWN, DOWN, DOWN, [slot(NOON_S + 1_800, 210)]]
    clock.now_s += 1_860
    said = {str(refused(feed)) for _ in range(3)}
    clock.now_s += 90
    asyncio.run(feed.refresh(None))

    assert [text.partition("wait; ")[2] for text in said] == [
        (
            "known slots are used until 2018-01-20T13:00Z; "
            "after that the intensity is the yearly mean of GBR, 268.255 gCO2eq/kWh (static)"
        )
    ]
    assert [record.message for record in caplog.records] == [
        "carbon intensity (average) of scripted for GB recovered after 90 s"
    ]


def test_an_outage_without_anything_to_fall_back_on_says_that_emissions_are_absent():
    said = refused(CarbonFeed(Scripted(DOWN), now=Clock()))
    assert str(said) == "down; wait; until then the intensity is not available; emissions are not exported"


def test_a_server_that_says_when_to_come_back_is_left_alone_until_then():
    feed = CarbonFeed(Scripted(told(7_200), told(7_200, 503)), now=Clock(), chance=half)
    for _ in range(2):
        refused(feed)
        assert feed.due_s == NOON_S + 7_200 * 1.05


def test_a_wait_that_is_shorter_than_the_back_off_does_not_shorten_it():
    feed = CarbonFeed(Scripted(told(1)), now=Clock(), chance=half)
    refused(feed)
    assert feed.due_s == NOON_S + 60


@pytest.mark.parametrize(("chance", "wait_s"), [(0.0, 45), (1.0, 75)])
def test_the_back_off_is_spread_by_a_quarter(chance, wait_s):
    feed = CarbonFeed(Scripted(DOWN), now=Clock(), chance=lambda: chance)
    refused(feed)
    assert feed.due_s == NOON_S + wait_s


def test_the_age_is_that_of_the_last_answer_and_no_failure_renews_it():
    clock = Clock()
    feed = CarbonFeed(Scripted(DOWN, [slot(NOON_S, 200)], DOWN), now=clock)
    refused(feed)
    assert feed.fetched_s is None
    asyncio.run(feed.refresh(None))
    clock.now_s += 600
    refused(feed)
    assert feed.fetched_s == NOON_S


def test_a_new_slot_takes_the_place_of_the_estimates_that_it_overlaps():
    estimates = [slot(NOON_S + n * 900, 300, "estimated", 900) for n in range(6)]
    feed = fed(Clock(), estimates, [slot(NOON_S, 250, "estimated", 3_600)])
    assert [(s.begin_s - NOON_S, s.end_s - NOON_S, s.grams_per_kwh) for s in feed._slots] == [
        (0, 3_600, 250),
        (3_600, 4_500, 300),
        (4_500, 5_400, 300),
    ]


def test_slots_that_overlap_in_one_answer_end_where_the_next_begins():
    feed = fed(Clock(), [slot(NOON_S, 200, length_s=3_600), slot(NOON_S + 1_800, 210)])
    assert feed.slot_at(NOON_S + 1_799).end_s == NOON_S + 1_800
    assert feed.slot_at(NOON_S + 1_801).grams_per_kwh == 210


def test_one_provider_a_basis_and_each_basis_by_itself():
    average = fed(Clock(), [slot(NOON_S, 200)])
    marginal = Scripted()
    marginal.basis = "marginal"
    both = CarbonFeeds((average, CarbonFeed(marginal, now=Clock())))
    assert both.slots_at(NOON_S) == (average.slot_at(NOON_S),)
    with pytest.raises(ValueError, match="more than one provider of a basis"):
        CarbonFeeds((average, average))
