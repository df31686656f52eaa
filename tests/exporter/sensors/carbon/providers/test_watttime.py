from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.exporter.sensors.carbon.feeds import HOUR_S, NOON, NOON_S, chain, visit
from tests.fakes.watttime import PASSWORD, USER, WattTimeApi
from wattline_exporter.sensors.carbon.providers.watttime import WattTime
from wattline_exporter.sensors.readings import SourceError

ACCOUNT = f"{USER}:{PASSWORD}"
LATER = NOON + timedelta(minutes=7)
LATER_S = NOON_S + 420
FORECAST_G = 453.59237  # 1,000 lbs/MWh = 453,592.37 g / 1,000 kWh
ACTUAL_G = 408.233133  # 900 lbs/MWh


def test_watttime_pounds_per_mwh_are_converted():
    async def body(api, web):
        slots = {s.begin_s: s for s in await WattTime("CAISO_NORTH").current(web, LATER_S)}
        now, past = slots[NOON_S + 300], slots[LATER_S - 3_600]
        assert (now.end_s, now.grams_per_kwh, now.quality) == (
            NOON_S + 600,
            pytest.approx(FORECAST_G),
            "forecast",
        )
        assert (past.grams_per_kwh, past.quality) == (pytest.approx(ACTUAL_G), "actual")
        assert {(s.basis, s.provider, s.region) for s in slots.values()} == {
            ("marginal", "watttime", "CAISO_NORTH")
        }
        assert max(slots) > NOON_S + 48 * HOUR_S

    visit(WattTimeApi(LATER), body, ACCOUNT)


def test_watttime_login_is_reused_until_token_expires():
    async def body(api, web):
        marginal = WattTime("CAISO_NORTH")
        for minutes in (0, 5, 24, 26, 30):
            await marginal.current(web, LATER_S + minutes * 60)
        assert api.logins == 2

    visit(WattTimeApi(LATER), body, ACCOUNT)


def test_watttime_withdrawn_token_is_replaced():
    async def body(api, web):
        marginal = WattTime("CAISO_NORTH")
        await marginal.current(web, LATER_S)
        api.tokens.clear()
        assert await marginal.current(web, LATER_S + 300)
        assert api.logins == 2

    visit(WattTimeApi(LATER), body, ACCOUNT)


def test_watttime_coordinates_are_resolved_once_a_month():
    async def body(api, web):
        marginal = WattTime("37.77, -122.42")
        assert marginal.region == "37.77,-122.42"
        for days in (0, 1, 31):
            slots = await marginal.current(web, LATER_S + days * 86_400)
            assert {s.region for s in slots} == {"CAISO_NORTH"}
        asked = [path for path in api.requested_paths if "region-from-loc" in path]
        assert (
            asked
            == ["/v3/region-from-loc?latitude=37.77&longitude=-122.42&signal_type=co2_moer"] * 2
        )

    visit(WattTimeApi(LATER), body, ACCOUNT)


def test_watttime_without_history_uses_the_forecast():
    async def body(api, web):
        marginal = WattTime("CAISO_NORTH")
        for _ in range(2):
            assert {s.quality for s in await marginal.current(web, LATER_S)} == {"forecast"}
        assert len([path for path in api.requested_paths if "historical" in path]) == 1

    visit(WattTimeApi(LATER, history=False), body, ACCOUNT)


def test_watttime_region_outside_plan_is_reported():
    async def body(api, web):
        with pytest.raises(
            SourceError, match=r"/v3/forecast: HTTP 403 Forbidden; check that the account's plan"
        ):
            await WattTime("PJM_NJ").current(web, LATER_S)

    visit(WattTimeApi(LATER), body, ACCOUNT)


def test_watttime_wrong_password_is_not_shown():
    async def body(api, web):
        with pytest.raises(
            SourceError, match=r"/login: HTTP 403 .*USER:PASSWORD in the token file"
        ) as caught:
            await WattTime("CAISO_NORTH").current(web, LATER_S)
        assert "wr0ng" not in "".join(
            repr(error) + repr(error.__dict__) for error in chain(caught.value)
        )

    visit(WattTimeApi(LATER), body, f"{USER}:wr0ng")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"units": "percentile"}, r"meta\.units"),
        ({"answers_for": "PJM_NJ"}, "answered for another region than CAISO_NORTH"),
    ],
)
def test_watttime_other_region_or_unit_is_refused(options, why):
    async def body(api, web):
        with pytest.raises(SourceError, match=why):
            await WattTime("CAISO_NORTH").current(web, LATER_S)

    visit(WattTimeApi(LATER, **options), body, ACCOUNT)


@pytest.mark.parametrize(
    "region", ["", "caiso north", "91,0", "0,181", "CAISO&x", "../login", "1,2,3"]
)
def test_watttime_invalid_region_is_refused(region):
    with pytest.raises(ValueError, match="is not a region of watttime"):
        WattTime(region)


def test_watttime_regions_with_marginal_signal_are_listed():
    async def body(api, web):
        assert await WattTime.regions(web) == [("CAISO_NORTH", "California ISO Northern")]

    visit(WattTimeApi(LATER), body, ACCOUNT)


def test_watttime_past_has_actual_values():
    async def body(api, web):
        slots = await WattTime("caiso_north").past(web, NOON_S - 640, NOON_S - 10)
        assert [(s.begin_s, s.end_s, s.quality) for s in slots] == [
            (NOON_S - 660, NOON_S - 360, "actual"),
            (NOON_S - 360, NOON_S - 60, "actual"),
        ]
        assert [s.grams_per_kwh for s in slots] == [pytest.approx(ACTUAL_G)] * 2

    visit(WattTimeApi(LATER), body, ACCOUNT)


def test_watttime_bad_slot_is_dropped_and_counted():
    def point(minute: int, value: object) -> dict[str, object]:
        return {"point_time": f"2018-01-20T12:{minute:02}:00+00:00", "value": value}

    signal = {
        "data": [point(0, 1_000), point(5, -1), point(10, 900)],
        "meta": {"region": "CAISO_NORTH", "units": "lbs_co2_per_mwh"},
    }

    async def body(api, web):
        provider = WattTime("CAISO_NORTH")
        await provider.current(web, LATER_S)  # logs in
        api.bodies["bad slot"] = json.dumps(signal)
        api.fault = "bad slot"
        slots = await provider.current(web, LATER_S)
        assert [(s.begin_s, s.grams_per_kwh, s.quality) for s in slots] == [
            (NOON_S, pytest.approx(FORECAST_G), "actual"),
            (NOON_S + 600, pytest.approx(ACTUAL_G), "actual"),
        ]
        assert web.dropped == 2  # one of the forecast, and one of the history
        assert web.problem == "data.1.value: Input should be greater than or equal to 0"

    visit(WattTimeApi(LATER), body, ACCOUNT)
