from __future__ import annotations

import asyncio
import json

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
from wattline_exporter.sensors.carbon.cache import CarbonCache
from wattline_exporter.sensors.carbon.feed import CarbonFeed
from wattline_exporter.sensors.carbon.provider import HttpStatusError
from wattline_exporter.sensors.carbon.providers.static import StaticIntensity
from wattline_exporter.sensors.readings import SourceError

ANSWER = [slot(NOON_S - 1_800, 190, "actual"), slot(NOON_S, 200), slot(NOON_S + 1_800, 210)]


def restarted(folder, now_s=NOON_S + 60, *answers, provider=None, fallback=None):
    """Return the feed of an exporter started on that folder."""
    provider = provider or Scripted(*answers)
    return CarbonFeed(
        provider, now=Clock(now_s), cache=CarbonCache(folder), chance=half, fallback=fallback
    )


def test_cache_after_restart_avoids_requests_until_slot_ends(tmp_path):
    before = feed_after(Clock(), ANSWER, cache=CarbonCache(tmp_path))
    after = restarted(tmp_path)

    assert list(after._slots) == list(before._slots) == ANSWER
    assert after.due_s == before.due_s == NOON_S + 1_820
    asyncio.run(
        after.refresh(None)
    )  # as the daemon does at its start; the provider has no response
    assert after.fetched_s == NOON_S


def test_cache_after_slot_end_bridges_until_the_first_request(tmp_path):
    feed_after(Clock(), ANSWER, cache=CarbonCache(tmp_path))
    after = restarted(tmp_path, NOON_S + 1_900)
    assert after.due_s <= NOON_S + 1_900
    assert after.slot_at(NOON_S + 1_900).grams_per_kwh == 210


def test_cache_keeps_the_delay_a_provider_asked_for(tmp_path):
    retry_error = HttpStatusError("asked too often", "wait", 429, DAY_S)
    refresh_error(
        CarbonFeed(Scripted(retry_error), now=Clock(), cache=CarbonCache(tmp_path), chance=half)
    )
    after = restarted(tmp_path, NOON_S + 60, fallback=StaticIntensity("GBR"))
    assert after.due_s == NOON_S + DAY_S * 1.05
    assert after.slot_at(NOON_S + 60).quality == "static"
    message = str(refresh_error(after))
    assert "scripted limits the request rate; the next request is sent in 90660 s" in message
    assert "static" in message


def test_cache_does_not_keep_a_plain_failure(tmp_path):
    refresh_error(
        CarbonFeed(Scripted(SourceError("down", "wait")), now=Clock(), cache=CarbonCache(tmp_path))
    )
    assert restarted(tmp_path).due_s <= NOON_S


@pytest.mark.parametrize(
    ("what", "value"), [("name", "other"), ("region", "London"), ("basis", "marginal")]
)
def test_cache_of_other_provider_region_or_basis_is_ignored(tmp_path, what, value):
    feed_after(Clock(), ANSWER, cache=CarbonCache(tmp_path))
    other = Scripted()
    setattr(other, what, value)
    after = restarted(tmp_path, provider=other)
    assert (after.slot_at(NOON_S + 60), after.due_s, after.fetched_s) == (None, 0.0, None)


def test_cache_after_clock_set_back_is_requested_again(tmp_path):
    feed_after(Clock(), ANSWER, cache=CarbonCache(tmp_path))
    after = restarted(tmp_path, NOON_S - DAY_S)
    assert (after.due_s, after.fetched_s) == (0, None)  # no negative age


def test_cache_file_is_shared_by_two_feeds(tmp_path):
    cache = CarbonCache(tmp_path)
    marginal = Scripted([slot(NOON_S, 400)])
    marginal.basis = "marginal"
    feed_after(Clock(), ANSWER, cache=cache)
    asyncio.run(CarbonFeed(marginal, now=Clock(), cache=cache).refresh(None))
    again = CarbonCache(tmp_path)
    assert (len(again.get("average").rows), len(again.get("marginal").rows)) == (3, 1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00" * 4096,
        b"not json",
        b"[]",
        b'{"version": 2, "feeds": {}}',
        b'{"version": 1, "feeds": {"median": {}}}',
        b'{"version": 1, "feeds": {"average": {"provider": "scripted", "region": "GB"}}}',
    ],
)
def test_cache_invalid_file_is_logged_once_and_replaced(tmp_path, caplog, garbage):
    (tmp_path / "carbon.json").write_bytes(garbage)
    feed = restarted(tmp_path, NOON_S + 60, ANSWER)
    assert feed.due_s == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "carbon.json" in caplog.text
    asyncio.run(feed.refresh(None))
    assert json.loads((tmp_path / "carbon.json").read_bytes())["version"] == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("grams_per_kwh", -1),
        ("grams_per_kwh", 1e9),
        ("end_s", NOON_S - 1_801),
        ("begin_s", 0),
        ("quality", "static"),
    ],
)
def test_cache_invalid_slot_invalidates_the_file(tmp_path, key, value):
    feed_after(Clock(), ANSWER, cache=CarbonCache(tmp_path))
    document = json.loads((tmp_path / "carbon.json").read_bytes())
    document["feeds"]["average"]["slots"][0][key] = value
    (tmp_path / "carbon.json").write_text(json.dumps(document))
    assert restarted(tmp_path).slot_at(NOON_S + 60) is None


def test_cache_unwritable_folder_is_logged_once(tmp_path, caplog):
    clock = Clock()
    feed = feed_after(clock, ANSWER, ANSWER, cache=CarbonCache(tmp_path / "missing"))
    assert feed.slot_at(NOON_S).grams_per_kwh == 200
    assert len(caplog.records) == 1
    assert "after a restart the intensities are requested again" in caplog.text
    (tmp_path / "missing").mkdir()
    script_of(feed).extend([ANSWER])
    asyncio.run(feed.refresh(None))
    assert (tmp_path / "missing" / "carbon.json").exists()


def test_cache_interrupted_write_keeps_the_old_file(tmp_path):
    feed_after(Clock(), ANSWER, cache=CarbonCache(tmp_path))
    (tmp_path / "carbon.new").write_text(
        '{"version": 1, "feeds": {"aver'
    )  # as left by a kill during the write
    assert restarted(tmp_path).slot_at(NOON_S).grams_per_kwh == 200
