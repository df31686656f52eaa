import asyncio
import gzip
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import requests
from prometheus_client import Metric
from prometheus_client import exposition as text
from prometheus_client.openmetrics import exposition as open_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from tests.daemon import begin, end
from tests.simulation.virtual_time import VirtualLoop, VirtualTime
from wattline.contract import metrics as contract
from wattline.contract.metrics import (
    GPU_ENERGY,
    GPU_POWER,
    HOST_MEMORY_TOTAL,
    METRICS,
    RUN_ATTRIBUTED_ENERGY,
    RUN_INFO,
    SOURCE_UP,
)
from wattline_exporter.sensors.readings import Reading, printable
from wattline_exporter.web.metrics_page import (
    SHARED_S,
    CollectedSeries,
    MetricsRenderer,
    RenderedSeries,
    SavedMetrics,
)

METRICS_PAGE = Path(__file__).parents[3] / "exporter/docs/METRICS.md"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
HOSTILE = ['"', "\\", "\n", 'a"b\\n\nc\\', "é世界🔥", "{}=,#", " ", "", "\t\r", "\\\\\"'"]


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


class Readings:
    def __init__(self, *readings):
        self.calls, self.readings = 0, readings

    def __call__(self):
        self.calls += 1
        return CollectedSeries(self.readings)


def page_of(*readings, accept="", compress=False):
    return MetricsRenderer(Readings(*readings), Clock()).page(accept, compress=compress)


def test_renderer_serves_all_scrapes_of_a_quarter_second():
    clock, readings = Clock(), Readings(Reading(SOURCE_UP, ("host",), 1.0))
    exposition = MetricsRenderer(readings, clock)
    for accept in ("", OPENMETRICS, "text/plain"):
        for compress in (True, False):
            exposition.page(accept, compress=compress)
    assert readings.calls == 1

    clock.now_s += SHARED_S - 0.01
    exposition.page("", compress=False)
    assert readings.calls == 1

    clock.now_s += 0.02
    exposition.page("", compress=False)
    assert readings.calls == 2


def test_series_of_an_ended_run_have_their_lines_as_one_text_per_metric():
    families = [(RUN_INFO, ["µ 1\n".encode(), b"b 2\n"]), (GPU_ENERGY, [b"c 3\n"])]
    rendered = RenderedSeries((), families)

    assert rendered.families == [(RUN_INFO, ["µ 1\nb 2\n".encode()]), (GPU_ENERGY, [b"c 3\n"])]


def test_page_is_released_when_no_other_scrape_shares_it():
    loop = VirtualLoop(VirtualTime(random.Random(1), begin_s=100.0))
    storage = SlowStorage()
    renderer = MetricsRenderer(Readings(Reading(SOURCE_UP, ("host",), 1.0)), loop.time)
    metrics = SavedMetrics(renderer, storage, asyncio.Event())

    async def pages_kept():
        scrape = asyncio.create_task(metrics.page("", compress=False))
        await asyncio.sleep(0)
        storage.saves[0].set_result(True)
        await scrape
        await asyncio.sleep(SHARED_S - 0.01)
        shared = len(renderer._pages)
        await asyncio.sleep(0.02)
        return shared, len(renderer._pages)

    assert loop.run_until_complete(pages_kept()) == (1, 0)
    assert list(renderer.readings) == [Reading(SOURCE_UP, ("host",), 1.0)]  # for OTLP
    loop.close()


class SlowStorage:
    """Storage of which each save ends when the test says so."""

    def __init__(self):
        self.saves = []

    def next_save(self):
        self.saves.append(asyncio.get_running_loop().create_future())
        return self.saves[-1]


def test_saved_readings_are_those_before_the_save_despite_a_later_scrape():
    async def readings_beside_a_scrape():
        clock = Clock()
        collected = Readings(Reading(GPU_ENERGY, ("0", "GPU-1"), 100.0))
        storage = SlowStorage()
        metrics = SavedMetrics(MetricsRenderer(collected, clock), storage, asyncio.Event())

        sent = asyncio.create_task(metrics.readings())
        await asyncio.sleep(0)  # it has rendered 100 J and waits for their save
        clock.now_s += SHARED_S
        collected.readings = (Reading(GPU_ENERGY, ("0", "GPU-1"), 130.0),)
        scrape = asyncio.create_task(metrics.page("", compress=False))
        await asyncio.sleep(0)  # it has rendered 130 J, which no save has yet
        storage.saves[0].set_result(True)
        values = [reading.value for reading in await sent]
        is_scrape_waiting = not scrape.done()
        storage.saves[1].set_result(True)
        await scrape
        return values, is_scrape_waiting

    assert asyncio.run(readings_beside_a_scrape()) == ([100.0], True)


@pytest.mark.parametrize(
    ("accept", "encode"), [("", text.generate_latest), (OPENMETRICS, open_text.generate_latest)]
)
def test_renderer_bytes_equal_prometheus_client(accept, encode):
    readings = [
        *(
            Reading(RUN_INFO, (f"run-{n}", value), 1.0, (("label_a", value),))
            for n, value in enumerate(HOSTILE)
        ),
        *(
            Reading(GPU_ENERGY, ("0", f"GPU-{n}"), v)
            for n, v in enumerate((0.0, 1e-9, 1234.5, 1.5e11, 2.0**60, 1e300))
        ),
        Reading(
            RUN_ATTRIBUTED_ENERGY, ("", "gpu", "GPU-0", "idle_apart"), 7.0
        ),  # with quotes in its help
        Reading(SOURCE_UP, ("host",), 1.0),
        Reading(HOST_MEMORY_TOTAL, (), 2.0**34),
    ]

    class Collected:
        def collect(self):
            for metric in dict.fromkeys(m for m in METRICS if m in {r.metric for r in readings}):
                name = (
                    metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
                )
                family = Metric(name, metric.help, metric.kind)
                for reading in readings:
                    if reading.metric is metric:
                        labels = dict(
                            zip(metric.labels, map(printable, reading.labels), strict=True)
                        )
                        extra = {name: printable(value) for name, value in reading.extra}
                        family.add_sample(metric.name, {**labels, **extra}, reading.value)
                yield family

    assert page_of(*readings, accept=accept).body == encode(Collected())


def test_renderer_text_and_openmetrics_have_the_same_samples():
    readings = (
        Reading(GPU_ENERGY, ("0", "GPU-0"), 1234.5),
        Reading(GPU_POWER, ("0", "GPU-0"), 300.0),
    )
    text, modern = page_of(*readings), page_of(*readings, accept=OPENMETRICS)
    samples = [
        {
            (s.name, s.labels["uuid"], s.value)
            for family in parse(page.body.decode())
            for s in family.samples
        }
        for page, parse in ((text, plain), (modern, openmetrics))
    ]

    assert text.content_type.startswith("text/plain")
    assert modern.content_type.startswith("application/openmetrics-text")
    assert modern.body.endswith(b"# EOF\n")
    assert (
        samples[0]
        == samples[1]
        == {(GPU_ENERGY.name, "GPU-0", 1234.5), (GPU_POWER.name, "GPU-0", 300.0)}
    )


def test_renderer_compressed_page_has_the_same_content():
    reading = Reading(GPU_POWER, ("0", "GPU-0"), 300.0)

    assert gzip.decompress(page_of(reading, compress=True).body) == page_of(reading).body


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    ("accept", "parse"), [("", plain), (OPENMETRICS, openmetrics)], ids=["text", "openmetrics"]
)
def test_renderer_any_label_value_survives_a_round_trip(value, accept, parse):
    page = page_of(
        Reading(RUN_INFO, ("run-1", value), 1.0, (("label_note", value),)), accept=accept
    )
    (family,) = parse(page.body.decode())
    (sample,) = family.samples

    assert sample.labels["workload"] == value
    assert sample.labels["label_note"] == value


def test_renderer_keeps_the_order_of_the_contract():
    body = page_of(
        Reading(SOURCE_UP, ("host",), 1.0), Reading(GPU_POWER, ("0", "GPU-0"), 300.0)
    ).body.decode()

    assert body.index(GPU_POWER.name) < body.index(SOURCE_UP.name)


def test_metrics_document_is_the_generated_one():
    assert METRICS_PAGE.read_text() == contract.markdown()


def test_metric_names_follow_prometheus():
    for metric in METRICS:
        assert metric.name.startswith("wattline_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.fixture(scope="module")
def scraped(exporter):
    """The page of an exporter with a run that is open and one that has ended."""
    done = begin(exporter, "done", labels={"note": 'a"b'})["run_id"]
    exporter.post(f"/api/v1/runs/{done}/phase", {"name": "p"})
    end(exporter, done, results={"loss": 1.0}, work={"steps": 3})
    begin(exporter, "open", run_id="open")
    yield exporter.text()
    end(exporter, "open")


def test_page_families_are_in_the_contract_with_their_labels(scraped):
    known = {metric.name: metric for metric in METRICS}
    for family in plain(scraped):
        for sample in family.samples:
            metric = known[sample.name]
            assert family.type == metric.kind
            assert family.documentation == metric.help
            open_labels = {
                name for name in sample.labels if metric.open_labels and name.startswith("label_")
            }
            assert set(sample.labels) - open_labels == set(metric.labels)


def test_page_has_no_duplicate_series(scraped):
    series = [
        (sample.name, *sorted(sample.labels.items()))
        for family in plain(scraped)
        for sample in family.samples
    ]

    assert len(series) == len(set(series))


def test_page_of_a_daemon_passes_promtool(scraped):
    promtool = shutil.which("promtool")
    if promtool is None:
        assert not os.environ.get("CI"), "CI needs promtool: apt install prometheus"
        pytest.skip("no promtool; apt install prometheus")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=scraped, text=True, capture_output=True, check=False
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "accept", ["", "*/*", OPENMETRICS, "application/json", "\xff;q=x", "text/plain;version=1.0.0"]
)
@pytest.mark.parametrize("encoding", ["gzip", "identity", "gzip;q=0", "br, gzip;q=0.5"])
def test_renderer_any_accept_header_gets_a_page(exporter, accept, encoding):
    headers = {"Accept": accept.encode("latin-1"), "Accept-Encoding": encoding}
    answer = requests.get(f"{exporter.url}/metrics", headers=headers, timeout=30)

    assert answer.status_code == 200
    assert "wattline_build_info" in answer.text
    assert (answer.headers.get("Content-Encoding") == "gzip") == (
        encoding in ("gzip", "br, gzip;q=0.5")
    )
    assert "Accept" in answer.headers["Vary"]
