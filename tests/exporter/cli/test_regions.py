"""The command `exporter regions`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.exporter.commands import exporter
from tests.fakes import watttime, web_api
from tests.fakes.electricity_maps import ElectricityMapsApi
from tests.fakes.watttime import WattTimeApi


@pytest.fixture(autouse=True)
def _unset_token(monkeypatch):
    monkeypatch.delenv("WATTLINE_CARBON_TOKEN", raising=False)


def test_regions_of_providers_without_token_are_listed_offline():
    lines = {
        name: exporter("regions", "--carbon.provider", name).stdout.splitlines()
        for name in ("energy-charts", "gb", "static")
    }
    assert {"GB Great Britain", "1  North Scotland", "13 London", "17 Wales"} <= set(lines["gb"])
    assert {"de  Germany", "uk  United Kingdom"} <= set(lines["energy-charts"])
    assert any(
        line.startswith("DEU Germany: 363.982 gCO2eq/kWh in 2021") for line in lines["static"]
    )


def test_regions_of_other_providers_are_requested():
    now = datetime.now(UTC)
    with (
        web_api.serve_in_thread(ElectricityMapsApi(now)) as em,
        web_api.serve_in_thread(WattTimeApi(now)) as wt,
    ):
        zones = exporter("regions", "--carbon.provider", "electricitymaps", "--carbon.url", em.url)
        account = f"{watttime.USER}:{watttime.PASSWORD}"
        options = ("regions", "--carbon.provider", "watttime", "--carbon.url", wt.url)
        regions = exporter(*options, WATTLINE_CARBON_TOKEN=account)
        refused = exporter(*options, WATTLINE_CARBON_TOKEN="ada:wr0ng")
    assert zones.stdout.splitlines() == ["DE          Germany", "US-CAL-CISO USA, CAISO"]
    assert regions.stdout.splitlines() == ["CAISO_NORTH California ISO Northern"]
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert "cannot list the regions of watttime" in refused.stderr
    assert "wr0ng" not in refused.stderr


def test_regions_of_unreachable_api_are_one_line():
    done = exporter(
        "regions", "--carbon.provider", "electricitymaps", "--carbon.url", "http://127.0.0.1:1"
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "cannot fetch http://127.0.0.1:1/v3/zones" in done.stderr
    missing = exporter("regions", "--carbon.provider", "watttime")
    assert (missing.returncode, len(missing.stderr.splitlines())) == (2, 1)
    assert "watttime needs USER:PASSWORD" in missing.stderr
