"""Arbitrary responses and files: valid slots or SourceError, no other exception."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.exporter.sensors.carbon.feeds import NOON_S, Clock, Scripted, feed_after
from wattline_exporter.sensors.carbon.cache import CarbonCache
from wattline_exporter.sensors.carbon.feed import CarbonFeed, carbon_readings
from wattline_exporter.sensors.carbon.provider import (
    MAX_GRAMS_PER_KWH,
    ProviderAccess,
    Web,
    extend_with_estimates,
    parse_body,
)
from wattline_exporter.sensors.carbon.providers import (
    electricitymaps,
    energy_charts,
    gb,
    watttime,
)
from wattline_exporter.sensors.carbon.providers.energy_charts import EnergyCharts
from wattline_exporter.sensors.carbon.providers.gb import GbCarbonIntensity
from wattline_exporter.sensors.readings import Slot, SourceError

MODELS: list[type[BaseModel]] = [
    gb.NationalResponse,
    gb.RegionalResponse,
    energy_charts.SeriesResponse,
    electricitymaps.LatestResponse,
    electricitymaps.HistoryResponse,
    electricitymaps.ForecastResponse,
    electricitymaps.PastRangeResponse,
    electricitymaps.ZonesResponse,
    watttime.SignalResponse,
    watttime.LoginResponse,
    watttime.LocationResponse,
    watttime.AccessResponse,
]
KEYS = st.sampled_from(
    [name for model in MODELS for name in model.model_fields]
    + [
        "from",
        "to",
        "intensity",
        "forecast",
        "actual",
        "carbonIntensity",
        "datetime",
        "point_time",
        "value",
        "region",
    ]
)
MOMENTS = st.one_of(
    st.datetimes().map(lambda d: d.isoformat() + "Z"),
    st.sampled_from(
        ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2018-01-20T12:00Z", "now"]
    ),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), MOMENTS
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=25,
)
PERIOD = st.fixed_dictionaries(
    {
        "from": MOMENTS,
        "to": MOMENTS,
        "intensity": st.fixed_dictionaries({"forecast": SCALARS, "actual": SCALARS}),
    }
)


def assert_can_be(slots: list[Slot]) -> None:
    for slot in slots:
        assert math.isfinite(slot.grams_per_kwh)
        assert 0 <= slot.grams_per_kwh <= MAX_GRAMS_PER_KWH
        assert slot.begin_s < slot.end_s


@pytest.mark.parametrize("model", MODELS)
@given(st.one_of(st.binary(), JSON.map(lambda document: json.dumps(document).encode())))
def test_response_any_body_is_parsed_or_one_line(model, body):
    message = ""
    try:
        parse_body("http://api", body, model)
    except SourceError as error:
        message = str(error)
    assert not message or message.isprintable()
    assert len(message) < 1_000


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"data":' * 100_000, b"1" * 100_000, b'{"zone": "' + b"x" * 100_000]
)
@pytest.mark.parametrize("model", MODELS)
def test_response_deep_or_long_body_is_one_line(model, body):
    with pytest.raises(SourceError) as caught:
        parse_body("http://api", body, model)
    assert len(str(caught.value)) < 1_000


@given(st.lists(PERIOD, max_size=4))
def test_gb_any_periods_are_valid_slots(periods):
    web = Web(None, ProviderAccess())
    try:
        answer = parse_body(
            "http://api", json.dumps({"data": periods}).encode(), gb.NationalResponse
        )
    except SourceError:
        return
    slots = GbCarbonIntensity().parse_slots(web, answer.data)
    assert_can_be(slots)
    assert len(slots) + web.dropped <= len(periods)
    feed = CarbonFeed(Scripted(), now=Clock())
    feed._merge(slots)
    assert_can_be(feed._slots)


NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-10, 6_000))


@given(st.data())
def test_energy_charts_any_series_is_valid_slots(data):
    times = sorted(data.draw(st.sets(st.integers(-1, 2**33), max_size=6)))
    lists = st.lists(NUMBERS, min_size=len(times), max_size=len(times))
    document = {
        "unix_seconds": times,
        "co2eq": data.draw(lists),
        "co2eq_forecast": data.draw(lists),
    }
    try:
        series = parse_body(
            "http://api", json.dumps(document).encode(), energy_charts.SeriesResponse
        )
    except SourceError:
        return
    slots = EnergyCharts("de").parse_slots(Web(None, ProviderAccess()), series)
    assert_can_be(slots)
    if slots:
        assert (
            len(extend_with_estimates(slots, NOON_S, step_s=900, within_s=10_800))
            <= len(slots) + 14
        )


SLOTS = st.lists(
    st.builds(
        lambda begin, length, grams, quality: Slot(
            NOON_S + begin, NOON_S + begin + length, grams, "GB", "scripted", "average", quality
        ),
        st.integers(-7_200, 7_200),
        st.integers(1, 7_200),
        st.floats(0, MAX_GRAMS_PER_KWH),
        st.sampled_from(["actual", "forecast", "estimated"]),
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(SLOTS, max_size=4))
def test_feed_any_overlap_keeps_order_and_actuals(answers):
    feed = CarbonFeed(Scripted(), now=Clock())
    actual: set[float] = set()
    for answer in answers:
        feed._merge(answer)
        slots_kept = feed._slots
        assert_can_be(slots_kept)
        assert all(a.end_s <= b.begin_s for a, b in pairwise(slots_kept))
        overlapping = {s.begin_s for s in slots_kept if s.quality == "actual"}
        assert {
            begin for begin in actual if any(s.begin_s == begin for s in slots_kept)
        } <= overlapping
        actual |= overlapping


@settings(deadline=None)
@given(st.binary())
def test_cache_any_file_is_valid_or_ignored(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("cache")
    (folder / "carbon.json").write_bytes(content)
    feed = CarbonFeed(Scripted(), now=Clock(), cache=CarbonCache(folder))
    assert list(carbon_readings([feed], NOON_S)) == []


def test_gauges_export_at_most_48_horizons():
    clock = Clock()
    feed = feed_after(
        clock,
        [
            Slot(NOON_S + n * 60, NOON_S + n * 60 + 60, 1, "GB", "scripted", "average", "forecast")
            for n in range(6_000)
        ],
    )
    assert len(list(carbon_readings([feed], NOON_S))) == 48 + 3
