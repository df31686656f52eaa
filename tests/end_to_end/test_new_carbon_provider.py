"""A new carbon provider is one file: options, daemon, `regions`, `check` and the analyzer use it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from aiohttp import web

from tests.analyzer.carbon.test_providers import REPORT, steady_run_in
from tests.daemon import daemon, environment
from tests.fakes import web_api
from tests.fakes.web_api import WebApi

NAME = "tidal-grid"
KEY = "s3cret"
GRAMS = 40.0
PROVIDER = """
from pydantic import BaseModel

from wattline_exporter.sensors.carbon.provider import CarbonProvider, Secret


class Hour(BaseModel):
    grams: float


class Coasts(BaseModel):
    coasts: dict[str, str]


class TidalGrid(CarbonProvider):
    name = "tidal-grid"
    basis = "average"
    base_url = "http://tidal.invalid"
    secret = Secret("a key")
    longest_past_s = 86_400.0

    def __init__(self, region):
        if region.casefold() not in ("north", "south"):
            raise ValueError(f"{region!r} is not a coast of tidal-grid; use north or south")
        self.region = region.casefold()

    async def current(self, web, now_s):
        return [await self._hour(web, now_s)]

    async def past(self, web, begin_s, end_s):
        times = range(int(begin_s // 3_600) * 3_600, int(end_s) + 1, 3_600)
        return [await self._hour(web, time_s) for time_s in times]

    async def _hour(self, web, time_s):
        begin_s = time_s // 3_600 * 3_600
        path = f"/{self.region}/{begin_s:.0f}"
        hour = await web.get(path, Hour, credentials={"key": web.secret})
        return self.slot(begin_s, begin_s + 3_600, hour.grams, "actual")

    @classmethod
    async def regions(cls, web):
        coasts = await web.get("/coasts", Coasts, credentials={"key": web.secret})
        return list(coasts.coasts.items())

    def country(self):
        return "FRA"


PROVIDER = TidalGrid
"""
PRELUDE = """
import sys
from wattline_exporter.sensors.carbon import providers
providers.__path__.append(sys.argv.pop(1))
from {program} import main
sys.exit(main())
"""


@dataclass
class TidalApi(WebApi):
    """API with 40 g in each hour of the coast `north`."""

    keys: list[str | None] = field(default_factory=list)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/coasts", self.coasts), web.get("/north/{time}", self.hour)]

    async def coasts(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, {"coasts": {"north": "The north coast", "south": ""}})

    async def hour(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, {"grams": GRAMS})

    async def _answer(self, request: web.Request, document: object) -> web.StreamResponse:
        self.keys.append(request.headers.get("key"))
        return await self.answer(request, document)


@pytest.fixture
def folder(tmp_path):
    """Return a folder of the providers' search path with one new file."""
    added = tmp_path / "added"
    added.mkdir()
    (added / "tidal_grid.py").write_text(PROVIDER)
    return added


@pytest.fixture
def api():
    with web_api.serve_in_thread(TidalApi(datetime.now(UTC))) as served:
        yield served


def program(name, folder):
    """Return the command of a program whose providers include those of the folder."""
    return ["-c", PRELUDE.format(program=name), str(folder)]


def run(name, folder, *arguments):
    return subprocess.run(
        [sys.executable, *program(name, folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment({"WATTLINE_CARBON_TOKEN": KEY}),
    )


EXPORTER = "wattline_exporter.cli.main"
ANALYZER = "wattline_analyzer.__main__"


def test_new_provider_is_in_help_of_exporter_and_analyzer(folder):
    assert "|tidal-grid|" in run(EXPORTER, folder, "serve", "--help").stdout
    assert "tidal-grid" in run(EXPORTER, folder, "regions", "--help").stdout
    assert "tidal-grid" in run(ANALYZER, folder, "report", "--help").stdout


def test_new_provider_lists_its_regions_with_its_secret(folder, api):
    done = run(EXPORTER, folder, "regions", "--carbon.provider", NAME, "--carbon.url", api.url)
    assert (done.stdout, done.stderr) == ("north The north coast\nsouth\n", "")
    assert api.keys == [KEY]


def test_new_provider_has_a_line_in_check(folder, api, tmp_path):
    options = ("--carbon.provider", NAME, "--carbon.region", "North", "--carbon.url", api.url)
    sources = ("--no-collector.nvml", "--no-collector.rapl", "--no-collector.host")
    state = ("--state.path", str(tmp_path / "state"), "--path.sysfs", str(tmp_path))
    done = run(EXPORTER, folder, "check", *sources, *state, *options)
    assert (
        "carbon  works: north, 40 gCO2eq/kWh (actual, tidal-grid, average)"
        in done.stdout.splitlines()
    )
    missing = run(EXPORTER, folder, "check", *sources, *state, *options[:2])
    assert "--carbon.provider tidal-grid needs --carbon.region" in missing.stderr


def test_new_provider_is_served_and_has_the_yearly_mean_in_an_outage(folder, api, tmp_path):
    intensity = "wattline_carbon_intensity_grams_per_kilowatt_hour"
    options = ("--carbon.provider", NAME, "--carbon.region", "north", "--carbon.url", api.url)
    sources = ("--no-collector.nvml", "--no-collector.rapl", "--no-history")
    started = {
        "program": program(EXPORTER, folder),
        "env": {"WATTLINE_CARBON_TOKEN": KEY},
    }
    with daemon(tmp_path, *sources, *options, **started) as exporter:
        labels = {"provider": NAME, "region": "north", "quality": "actual"}
        assert exporter.wait_for_metric(bool, intensity, **labels) == GRAMS
    api.fault = "500"
    other = tmp_path / "other"
    other.mkdir()
    with daemon(other, *sources, *options, **started) as exporter:
        labels = {"provider": "static", "region": "FRA"}
        assert exporter.wait_for_metric(bool, intensity, **labels) == 67.781  # Ember, 2021


def test_new_provider_restates_a_report(folder, api, tmp_path):
    source = steady_run_in(tmp_path)
    restated = ("--restate", f"{NAME}:north", "--restate-url", api.url)
    done = run(ANALYZER, folder, *REPORT, "--source", source, *restated)
    (one,) = json.loads(done.stdout)["restated_emissions"]
    assert one["emissions_grams"] == pytest.approx(6_000 / 3.6e6 * GRAMS, rel=1e-9)
    assert set(api.keys) == {KEY}
