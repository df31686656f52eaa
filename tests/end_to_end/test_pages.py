"""The report's page in a real browser."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import daemon
from tests.browser import Page, browser
from wattline_exporter.simulation import Square

LOADED_FILES = """
performance.getEntriesByType("resource").map(entry => entry.name).filter(name => !name.startsWith("data:"))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    with daemon.daemon(folder, "--simulate", "2xH200", "--carbon.intensity", "230") as exporter:
        with exporter.simulation() as simulation:
            simulation.set_load(0, Square(72, 640, 1.73))
        run = daemon.begin(exporter, "page", labels={"model": "<b>&amp;"})
        exporter.post(f"/api/v1/runs/{run['run_id']}/phase", {"name": "measure"})
        threading.Event().wait(8)
        daemon.end(exporter, run["run_id"], work={"generated_tokens": 1234}, results={"loss": 0.5})
        threading.Event().wait(2)
        analyzer = Path(sys.executable).with_name("analyzer")
        command = [
            analyzer,
            "report",
            "--run-id",
            run["run_id"],
            "--source",
            exporter.url,
            "--out",
            folder / "out",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder / "out"


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield Page(started)


@pytest.mark.parametrize("width", [360, 1200])
def test_page_is_self_contained_and_fits_a_phone(page, report, width):
    page.emulate(width=width)
    page.open(report / "report.html")

    assert page.requests == []
    assert page.value(LOADED_FILES) == []
    assert page.value("[...document.images].filter(image => image.naturalWidth === 0).length") == 0
    assert page.value("document.documentElement.scrollWidth") <= width


def test_page_shows_the_measured_energy(page, report):
    page.emulate(width=1200)
    page.open(report / "report.html")
    text = page.value("document.body.innerText")

    assert "SIMULATED hardware" in text
    assert "generated token" in text
    assert "<b>&amp;" in text
    assert "CO₂" in text
