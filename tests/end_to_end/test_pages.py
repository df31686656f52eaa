"""The report's page in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from exporter.simulation import Square
from tests import daemon, servers

CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--virtual-time-budget=5000", "--dump-dom"),
)
PROBE = """<!doctype html><title>probe</title><iframe style="border: 0; width: {width}px; height: 4000px"
src="report.html"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument;
  const loaded = frame.contentWindow.performance.getEntriesByType("resource")
    .map(entry => entry.name).filter(name => !name.startsWith("data:"));
  document.title = JSON.stringify({{
    text: page.body.innerText, wide: page.documentElement.scrollWidth, loaded,
    broken: [...page.images].filter(image => image.naturalWidth === 0).length,
  }});
}};
</script>"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


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
        command = [analyzer, "report", "--run-id", run["run_id"], "--source", exporter.url, "--out", folder / "out"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder / "out"


def rendered_pages(folder: Path, width: int, profile: Path) -> dict:
    """Return the layout of the page in a browser of that width."""
    (folder / "probe.html").write_text(PROBE.format(width=width))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/probe.html"
        command = [servers.require("chromium"), *CHROMIUM, f"--user-data-dir={profile}", url]
        completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        server.shutdown()
    title = completed.stdout.partition("<title>")[2].partition("</title>")[0]
    return json.loads(title.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&"))


@pytest.mark.parametrize("width", [360, 1200])
def test_page_is_self_contained_and_fits_a_phone(report, tmp_path, width):
    page = rendered_pages(report, width, tmp_path)

    assert page["loaded"] == []
    assert page["broken"] == 0
    assert page["wide"] <= width


def test_page_shows_the_measured_energy(report, tmp_path):
    text = rendered_pages(report, 1200, tmp_path)["text"]

    assert "SIMULATED hardware" in text
    assert "generated token" in text
    assert "<b>&amp;" in text
    assert "CO₂" in text
