from __future__ import annotations

from datetime import timedelta

import pytest

from tests.exporter.sensors.carbon.feeds import HOUR_S, NOON, NOON_S, chain, visit
from tests.fakes.watttime import PASSWORD, USER, WattTimeApi
from wattline_exporter.sensors.carbon import watttime
from wattline_exporter.sensors.carbon.watttime import WattTime
from wattline_exporter.sensors.readings import SourceError

LATER = NOON + timedelta(minutes=7)
LATER_S = NOON_S + 420
FORECAST_G = 453.59237  # 1,000 lbs/MWh = 453,592.37 g / 1,000 kWh
ACTUAL_G = 408.233133  # 900 lbs/MWh


def provider(api, region="CAISO_NORTH", password=PASSWORD) -> WattTime:
    return WattTime(region, USER, password, api.url)


def test_watttime_pounds_per_mwh_are_converted():
    async def body(api, session):
        slots = {s.begin_s: s for s in await provider(api).slots(session, LATER_S)}
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

    visit(WattTimeApi(LATER), body)


def test_watttime_login_is_reused_until_token_expires():
    async def body(api, session):
        marginal = provider(api)
        for minutes in (0, 5, 24, 26, 30):
            await marginal.slots(session, LATER_S + minutes * 60)
        assert api.logins == 2

    visit(WattTimeApi(LATER), body)


def test_watttime_withdrawn_token_is_replaced():
    async def body(api, session):
        marginal = provider(api)
        await marginal.slots(session, LATER_S)
        api.tokens.clear()
        assert await marginal.slots(session, LATER_S + 300)
        assert api.logins == 2

    visit(WattTimeApi(LATER), body)


def test_watttime_coordinates_are_resolved_once_a_month():
    async def body(api, session):
        marginal = provider(api, "37.77, -122.42")
        assert marginal.region == "37.77,-122.42"
        for days in (0, 1, 31):
            slots = await marginal.slots(session, LATER_S + days * 86_400)
            assert {s.region for s in slots} == {"CAISO_NORTH"}
        asked = [path for path in api.requested_paths if "region-from-loc" in path]
        assert (
            asked
            == ["/v3/region-from-loc?latitude=37.77&longitude=-122.42&signal_type=co2_moer"] * 2
        )

    visit(WattTimeApi(LATER), body)


def test_watttime_without_history_uses_the_forecast():
    async def body(api, session):
        marginal = provider(api)
        for _ in range(2):
            assert {s.quality for s in await marginal.slots(session, LATER_S)} == {"forecast"}
        assert len([path for path in api.requested_paths if "historical" in path]) == 1

    visit(WattTimeApi(LATER, history=False), body)


def test_watttime_region_outside_plan_is_reported():
    async def body(api, session):
        with pytest.raises(
            SourceError, match=r"/v3/forecast: HTTP 403 Forbidden; check that the account's plan"
        ):
            await provider(api, "PJM_NJ").slots(session, LATER_S)

    visit(WattTimeApi(LATER), body)


def test_watttime_wrong_password_is_not_shown():
    async def body(api, session):
        with pytest.raises(
            SourceError, match=r"/login: HTTP 403 .*USER:PASSWORD in --carbon\.token-file"
        ) as caught:
            await provider(api, password="wr0ng").slots(session, LATER_S)
        assert "wr0ng" not in "".join(
            repr(error) + repr(error.__dict__) for error in chain(caught.value)
        )

    visit(WattTimeApi(LATER), body)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"units": "percentile"}, r"meta\.units"),
        ({"answers_for": "PJM_NJ"}, "answered for another region than CAISO_NORTH"),
    ],
)
def test_watttime_other_region_or_unit_is_refused(options, why):
    async def body(api, session):
        with pytest.raises(SourceError, match=why):
            await provider(api).slots(session, LATER_S)

    visit(WattTimeApi(LATER, **options), body)


@pytest.mark.parametrize(
    "region", ["", "caiso north", "91,0", "0,181", "CAISO&x", "../login", "1,2,3"]
)
def test_watttime_invalid_region_is_refused(region):
    with pytest.raises(ValueError, match="is not a region of watttime"):
        WattTime(region, USER, PASSWORD)


def test_watttime_regions_with_marginal_signal_are_listed():
    async def body(api, session):
        listed = await watttime.list_regions(session, USER, PASSWORD, api.url)
        assert listed == {"CAISO_NORTH": "California ISO Northern"}

    visit(WattTimeApi(LATER), body)
