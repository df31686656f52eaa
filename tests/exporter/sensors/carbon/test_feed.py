from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import aiohttp
import pytest

from tests.exporter.sensors.carbon.feeds import (
    DAY_S,
    NOON,
    NOON_S,
    Clock,
    Scripted,
    feed_after,
    half,
    refresh_error,
    script_of,
    slot,
)
from tests.fakes import web_api
from tests.fakes.carbon_api import CarbonApi
from wattline_exporter.sensors.carbon.feed import CarbonFeed
from wattline_exporter.sensors.carbon.provider import ProviderAccess, Transport
from wattline_exporter.sensors.carbon.providers.gb import GbCarbonIntensity
from wattline_exporter.sensors.carbon.transport import AiohttpTransport
from wattline_exporter.sensors.readings import SourceError


def test_feed_returns_the_current_slot():
    feed = feed_after(Clock(), [slot(NOON_S, 200), slot(NOON_S + 1_800, 210)])
    assert feed.slot_at(NOON_S - 1) is None
    assert feed.slot_at(NOON_S).grams_per_kwh == 200
    assert feed.slot_at(NOON_S + 1_799.9).grams_per_kwh == 200
    assert feed.slot_at(NOON_S + 1_800).grams_per_kwh == 210
    assert feed.slot_at(NOON_S + 3_600) is None


def test_feed_prefers_actual_over_forecast_in_any_order():
    first, then = [slot(NOON_S, 200)], [slot(NOON_S, 190, "actual")]
    assert feed_after(Clock(), first, then).slot_at(NOON_S).grams_per_kwh == 190
    assert feed_after(Clock(), then, first).slot_at(NOON_S).grams_per_kwh == 190


def test_feed_revision_replaces_slot_of_same_quality():
    assert (
        feed_after(Clock(), [slot(NOON_S, 200)], [slot(NOON_S, 205)]).slot_at(NOON_S).grams_per_kwh
        == 205
    )
    actuals = [slot(NOON_S, 190, "actual")], [slot(NOON_S, 192, "actual")]
    assert feed_after(Clock(), *actuals).slot_at(NOON_S).grams_per_kwh == 192


def test_feed_sorts_slots_by_time():
    feed = feed_after(Clock(), [slot(NOON_S + n * 1_800, 200 + n) for n in (3, 0, 2, 1)])
    assert [s.grams_per_kwh for s in feed._slots] == [200, 201, 202, 203]


def test_feed_is_due_at_start_and_after_slot_end():
    clock = Clock()
    feed = CarbonFeed(Scripted([slot(NOON_S, 200)]), now=clock, chance=half)
    assert feed.due_s <= clock()
    clock.now_s += 600
    asyncio.run(feed.refresh(None))
    assert feed.due_s == NOON_S + 1_820


def test_feed_jitter_is_some_seconds():
    feed = CarbonFeed(Scripted([slot(NOON_S, 200)]), now=Clock())
    asyncio.run(feed.refresh(None))
    assert NOON_S + 1_800 < feed.due_s <= NOON_S + 1_860


def test_feed_failures_back_off_from_1_to_15_minutes():
    clock, down = Clock(), SourceError("down", "wait")
    feed = CarbonFeed(Scripted(*[down] * 20, [slot(NOON_S, 200)], down), now=clock, chance=half)
    waits = []
    for _ in range(20):
        assert refresh_error(feed).__cause__ is down
        waits.append(feed.due_s - NOON_S)
    assert waits == [60, 120, 240, 480, *[900] * 16]
    asyncio.run(feed.refresh(None))
    refresh_error(feed)
    assert feed.due_s == NOON_S + 60  # a success resets the back-off


def test_feed_response_without_current_slot_is_a_failure():
    feed = CarbonFeed(Scripted([slot(NOON_S - DAY_S, 200)]), now=Clock(), chance=half)
    assert "has no slot for the current time; check the clock" in str(refresh_error(feed))
    assert feed.due_s == NOON_S + 60


def test_feed_after_clock_set_back_is_due():
    clock = Clock(NOON_S + 365 * DAY_S)
    feed = feed_after(clock, [slot(clock(), 200)])
    clock.now_s = NOON_S
    assert feed.due_s <= clock()


def test_feed_drops_slots_older_than_two_days():
    clock = Clock()
    feed = CarbonFeed(Scripted(), now=clock)
    for half_hours in range(0, 400, 4):
        clock.now_s = NOON_S + half_hours * 1_800
        script_of(feed).append([slot(clock() + n * 1_800, 200) for n in range(96)])
        asyncio.run(feed.refresh(None))
    slots_kept = feed._slots
    assert slots_kept[0].end_s > clock() - 2 * DAY_S
    assert len(slots_kept) == 192  # two days of past and two of future
    assert feed.slot_at(clock() - DAY_S) is not None


def follow(body: Callable[[CarbonApi, Clock, CarbonFeed, Transport], Awaitable[None]]) -> None:
    """Run `body` with an API on loopback, and a feed of it."""

    async def run() -> None:
        async with web_api.serve(CarbonApi(NOON)) as api, aiohttp.ClientSession() as session:
            clock = Clock()
            feed = CarbonFeed(GbCarbonIntensity(), now=clock, access=ProviderAccess(api.url))
            await body(api, clock, feed, AiohttpTransport(session))

    asyncio.run(run())


def test_feed_uses_known_forecast_during_outage():
    async def body(api, clock, feed, transport):
        await feed.refresh(transport)
        api.fault = "500"
        clock.now_s += DAY_S
        with pytest.raises(SourceError):
            await feed.refresh(transport)
        assert feed.slot_at(clock()).begin_s == NOON_S + DAY_S
        clock.now_s += DAY_S + 1_800
        assert feed.slot_at(clock()) is None

    follow(body)


def test_feed_replaces_forecast_by_actual():
    async def body(api, clock, feed, transport):
        await feed.refresh(transport)
        assert (feed.slot_at(NOON_S).grams_per_kwh, feed.slot_at(NOON_S).quality) == (
            200,
            "forecast",
        )
        clock.now_s += 3_600
        api.now = datetime.fromtimestamp(clock(), UTC)
        await feed.refresh(transport)
        assert (feed.slot_at(NOON_S).grams_per_kwh, feed.slot_at(NOON_S).quality) == (190, "actual")

    follow(body)


def test_feed_without_valid_current_slot_reports_the_problem():
    async def body(api, clock, feed, transport):
        api.actuals["2018-01-20T12:00Z"] = -1
        with pytest.raises(SourceError) as caught:
            await feed.refresh(transport)
        assert caught.value.cause == (
            "gb has no slot for the current time: data.5.intensity.actual: "
            "Input should be greater than or equal to 0"
        )
        assert feed.slot_at(NOON_S) is None
        assert feed.slot_at(NOON_S + 1_800).grams_per_kwh == 200

    follow(body)


def test_feed_counts_invalid_slots_and_reports_the_first():
    async def body(api, clock, feed, transport):
        api.actuals["2018-01-20T10:00Z"] = -1
        api.actuals["2018-01-20T10:30Z"] = "190"
        batch = await feed.refresh(transport)
        assert [reading.value for reading in batch.readings] == [2.0]
        assert batch.readings[0].labels == ("gb", "average")
        (problem,) = batch.problems
        assert problem.startswith("gb sent invalid slots: data.1.intensity.actual: Input should be")
        assert feed.slot_at(NOON_S).grams_per_kwh == 200
        api.actuals.clear()
        again = await feed.refresh(transport)
        assert (again.readings[0].value, again.problems) == (2.0, ())

    follow(body)
