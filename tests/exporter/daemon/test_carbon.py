"""Failures of a carbon API: forecast, then static mean, reported once."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest

from tests.daemon import daemon
from tests.exporter.sensors.carbon.feeds import DAY_S, NOON, NOON_S, Clock
from tests.fakes import web_api
from tests.fakes.carbon_api import CarbonApi
from tests.fakes.watttime import PASSWORD, USER, WattTimeApi
from tests.polling import eventually
from wattline_exporter.sensors.carbon.feed import CarbonFeed, carbon_readings
from wattline_exporter.sensors.carbon.provider import ProviderAccess
from wattline_exporter.sensors.carbon.providers.gb import GbCarbonIntensity
from wattline_exporter.sensors.carbon.providers.static import StaticIntensity
from wattline_exporter.sensors.carbon.transport import AiohttpTransport
from wattline_exporter.sensors.readings import SourceError

INTENSITY = "wattline_carbon_intensity_grams_per_kilowatt_hour"
FORECAST = "wattline_carbon_intensity_forecast_grams_per_kilowatt_hour"
BEYOND_S = NOON_S + 2 * DAY_S + 3_600
"""Time after the end of the forecast."""
FAULTS = [
    "429",
    "500",
    "503",
    "garbage",
    "truncated",
    "cut off",
    "html",
    "empty",
    "huge",
    "slow",
    "silence",
    "no name",
]


@asynccontextmanager
async def failing(fault: str):
    """Yield the URL of an API with that fault."""
    if fault == "silence":
        async with web_api.unresponsive_server() as url:
            yield url
    elif fault == "no name":
        yield "http://no-such-host.invalid"
    else:
        async with web_api.serve(CarbonApi(NOON, fault, retry_after="600")) as api:
            yield api.url


def exported(feed: CarbonFeed, now_s: float) -> list[tuple[str, str, float]]:
    """Return provider, quality and intensity in a scrape, and the age of the response."""
    readings = list(carbon_readings([feed], now_s))
    ages = [("age", r.labels[0], now_s - r.value) for r in readings if "fetched" in r.metric.name]
    return [
        (r.labels[1], r.labels[3], r.value) for r in readings if r.metric.name == INTENSITY
    ] + ages


@pytest.mark.parametrize("fault", FAULTS)
def test_outage_uses_forecast_then_static_mean_then_provider(fault):
    clock = Clock(NOON_S + 60)
    feed = CarbonFeed(GbCarbonIntensity(), now=clock, fallback=StaticIntensity("GBR"))

    async def refresh(session, url: str, timeout_s: float) -> None:
        feed._access = ProviderAccess(url, timeout_s=timeout_s)
        await feed.refresh(AiohttpTransport(session))

    async def run() -> None:
        async with (
            aiohttp.ClientSession() as session,
            web_api.serve(CarbonApi(NOON)) as healthy_api,
        ):
            await refresh(session, healthy_api.url, 5)
            assert exported(feed, clock()) == [("gb", "forecast", 200), ("age", "gb", 0)]
            async with failing(fault) as url:
                for now_s, expected in [
                    (NOON_S + DAY_S, ("gb", "forecast", 200)),
                    (BEYOND_S, ("static", "static", 268.255)),
                ]:
                    clock.now_s = now_s
                    with pytest.raises(SourceError):
                        await refresh(session, url, 0.2 if fault in ("slow", "silence") else 5)
                    assert exported(feed, now_s) == [expected, ("age", "gb", now_s - NOON_S - 60)]
                    assert feed.due_s > now_s
            healthy_api.now = datetime.fromtimestamp(clock(), UTC)
            await refresh(session, healthy_api.url, 5)
            assert exported(feed, clock()) == [("gb", "forecast", 200), ("age", "gb", 0)]

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["429", "503"])
def test_retry_after_is_respected(fault):
    clock = Clock()

    async def run() -> None:
        async with aiohttp.ClientSession() as session, failing(fault) as url:
            feed = CarbonFeed(GbCarbonIntensity(), now=clock, access=ProviderAccess(url))
            with pytest.raises(SourceError):
                await feed.refresh(AiohttpTransport(session))
            assert NOON_S + 600 <= feed.due_s <= NOON_S + 660

    asyncio.run(run())


# -- whole daemon

OPTIONS = ("--no-collector.nvml", "--no-collector.rapl", "--no-history")


def gb(url: str) -> tuple[str, ...]:
    return ("--carbon.provider", "gb", "--carbon.url", url)


def test_restart_in_outage_uses_the_cached_forecast(tmp_path):
    with web_api.serve_in_thread(CarbonApi(datetime.now(UTC))) as api:
        with daemon(tmp_path, *OPTIONS, *gb(api.url)) as first:
            assert first.wait_for_metric(bool, INTENSITY, provider="gb", quality="forecast") == 200
            assert first.value(FORECAST, provider="gb", basis="average", horizon_hours="48") == 200
        api.fault = "500"
        asked = list(api.requested_paths)
        held_s = 1_800 - time.time() % 1_800
        with daemon(tmp_path, *OPTIONS, *gb(api.url)) as again:
            assert again.value(INTENSITY, provider="gb", quality="forecast") == 200
            assert held_s < 10 or api.requested_paths == asked  # unless the slot has just ended


@pytest.mark.parametrize("fault", ["500", "html", "slow"])
def test_api_failing_from_start_uses_static_mean_and_logs_once(tmp_path, fault):
    with (
        web_api.serve_in_thread(CarbonApi(datetime.now(UTC), fault)) as api,
        daemon(tmp_path, *OPTIONS, *gb(api.url)) as exporter,
    ):
        assert (
            exporter.wait_for_metric(
                bool, INTENSITY, provider="static", quality="static", region="GBR"
            )
            == 268.255
        )
        assert exporter.value("wattline_carbon_intensity_fetched_timestamp_seconds") is None
        assert exporter.log().count("until then the intensity is the yearly mean of GBR") == 1
        assert exporter.log().count("level=warning") == 1
        assert exporter.value("wattline_source_up", source="carbon") == 0


def test_daemon_without_network_starts_and_is_ready(tmp_path):
    with daemon(tmp_path, *OPTIONS, *gb("http://no-such-host.invalid")) as exporter:
        assert exporter.get("/-/ready")[0] == 200
        assert exporter.wait_for_metric(bool, INTENSITY, provider="static") == 268.255


def test_silent_api_does_not_block_shutdown(tmp_path):
    slow = web_api.serve_in_thread(CarbonApi(datetime.now(UTC), "slow"))
    with slow as api, daemon(tmp_path, *OPTIONS, *gb(api.url)) as one:
        eventually(lambda: bool(api.requested_paths), "a request", one.log)
        assert one.get("/metrics")[0] == 200
        assert one.stop() == 0


SLOW_RESOLVER = """
import socket, time
def getaddrinfo(host, *rest, known=socket.getaddrinfo, **more):
    if host == "slow.invalid":
        print("resolving", flush=True)
        time.sleep(60)
    return known(host, *rest, **more)
socket.getaddrinfo = getaddrinfo
from wattline_exporter.cli.main import main
main()
"""


def test_hanging_resolver_does_not_block_shutdown(tmp_path):
    with daemon(
        tmp_path, *OPTIONS, *gb("http://slow.invalid"), program=("-c", SLOW_RESOLVER)
    ) as exporter:
        eventually(lambda: "resolving" in exporter.log(), "a look-up", exporter.log)
        assert exporter.stop() == 0  # within 15 s


def test_both_bases_are_exported_without_secrets_in_the_log(tmp_path):
    (tmp_path / "token").write_text(f"watttime={USER}:{PASSWORD}\n")
    now = datetime.now(UTC)
    with (
        web_api.serve_in_thread(CarbonApi(now)) as average,
        web_api.serve_in_thread(WattTimeApi(now)) as marginal,
    ):
        options = (
            "--carbon.marginal-provider",
            "watttime",
            "--carbon.marginal-region",
            "CAISO_NORTH",
        )
        marginal_options = (
            "--carbon.marginal-url",
            marginal.url,
            "--carbon.token-file",
            str(tmp_path / "token"),
        )
        with daemon(
            tmp_path,
            *OPTIONS,
            *gb(average.url),
            *options,
            *marginal_options,
            "--log.level",
            "debug",
        ) as exporter:
            assert exporter.wait_for_metric(bool, INTENSITY, basis="average") == 200
            intensity = exporter.wait_for_metric(
                bool, INTENSITY, basis="marginal", provider="watttime"
            )
            assert intensity == pytest.approx(453.59237)
            assert not any(secret in exporter.log() for secret in (PASSWORD, "s3cret-jwt"))
