"""Reports of a real exporter from all sources: estimates, shares and a clock step.

The exporter has a fake driver with two GPUs, no RAPL, and a carbon provider that never responds.
Its wall clock is set back by an hour during the second run; the clock of the servers is not.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing

import pytest

from tests import daemon, servers
from tests.fakes import nvml
from tests.fakes.clock import Clock
from tests.polling import eventually
from wattline.contract import metrics as m
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Simulation,
    create,
    make_gpus,
)

LOAD_W = 500.0
SOURCES = ("prometheus", "victoria-metrics", "exporter", "history")
QUANTUM_S = 0.1
"""Time between updates of the counter, where energy is divided; two runs have four edges."""
REFUSED = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def reports(tmp_path_factory, analyzer):
    """Reports by source and run."""
    servers.require("prometheus"), servers.require("victoria-metrics")
    folder = tmp_path_factory.mktemp("facts")
    (folder / "sys").mkdir()
    create(
        folder / FILE_NAME,
        make_gpus(2, PRODUCTS["H200"]),
        time.clock_gettime(time.CLOCK_BOOTTIME) - 10,
    )
    options = ("--path.sysfs", folder / "sys", "--cpu.power-model", "idle=40,max=150")
    carbon = ("--carbon.provider", "gb", "--carbon.url", REFUSED)
    clock = Clock(folder / "clock")
    with ExitStack() as stack:
        stack.callback(clock.close)
        simulation = stack.enter_context(Simulation.open(folder / FILE_NAME))
        simulation.set_load(0, Constant(LOAD_W), at=clock.boottime() - 9)
        environment = {**nvml.environment(simulation.path), **clock.environment()}
        exporter = stack.enter_context(
            daemon.daemon(folder, *map(str, (*options, *carbon)), env=environment)
        )
        places = {"exporter": exporter.url, "history": str(exporter.folder / "history.sqlite")}
        for name, start in (
            ("prometheus", servers.prometheus),
            ("victoria-metrics", servers.victoria_metrics),
        ):
            (folder / name).mkdir()
            target = exporter.url.removeprefix("http://")
            places[name] = stack.enter_context(start(folder / name, [target], "1s"))
        wait_for_scrape(exporter, places, m.GPU_ENERGY, {"gpu": "0"})
        daemon.begin(exporter, run_id="shared")
        daemon.begin(exporter, run_id="beside", gpus=["0"])
        time.sleep(8)
        daemon.end(exporter, "beside")
        daemon.end(exporter, "shared")
        wait_for_scrape(exporter, places, m.RUN_END, {"run_id": "shared"})
        runs = [(name, run_id) for name in SOURCES for run_id in ("shared", "beside")]
        result = {(name, run_id): report(analyzer, places[name], run_id) for name, run_id in runs}
        daemon.begin(exporter, run_id="turned-back", gpus=["0"])
        time.sleep(4)
        clock.step(-3_600.0)
        time.sleep(4)
        daemon.end(exporter, "turned-back")
        wait_for_scrape(exporter, places, m.RUN_END, {"run_id": "turned-back"})
        yield result | {
            (name, "turned-back"): report(analyzer, place, "turned-back")
            for name, place in places.items()
        }


def wait_for_scrape(exporter, places, metric, labels):
    """Wait until the servers and the exporter's history have a sample; the report itself waits for
    a few seconds.
    """
    selector = ",".join(f'{name}="{text}"' for name, text in labels.items())
    query = f"/api/v1/query?query={metric.name}{{{selector}}}[30s]"
    eventually(
        lambda: metric.name in str(exporter.get(query)),
        f"{metric.name} in the history",
        exporter.log,
    )
    for name in ("prometheus", "victoria-metrics"):
        with closing(PrometheusSource(places[name])) as source:

            def scraped(source=source):
                return len(source.fetch([metric], labels, time.time() - 60, time.time() + 1))

            eventually(scraped, f"{metric.name} at {name}", exporter.log)


def report(analyzer, source, run_id):
    completed = analyzer("report", "--run-id", run_id, "--source", source, "--format", "json")
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def devices(result):
    return {(device["component"], device["device"]): device for device in result["devices"]}


def texts(result, code):
    return [finding["text"] for finding in result["findings"] if finding["code"] == code]


@pytest.mark.parametrize("source", SOURCES)
def test_cpu_power_model_is_an_estimate_from_every_source(reports, source):
    result = reports[source, "shared"]

    assert result["energy"]["cpu"]["estimate"] is True
    assert result["energy"]["cpu"]["energy_uncertainty_joules"] is None
    assert devices(result)["cpu", "0"]["energy_method"] == "model"
    assert len(texts(result, "estimate")) == 1
    assert all(
        device["energy_method"] == "counter"
        for device in result["devices"]
        if device["component"] == "gpu"
    )


@pytest.mark.parametrize("source", SOURCES)
def test_two_runs_without_utilization_share_gpu_equally(reports, source):
    result, first = reports[source, "shared"], reports["exporter", "shared"]
    shared, alone = (
        device for key, device in sorted(devices(result).items(), key=index) if key[0] == "gpu"
    )

    assert shared["divided"] is True
    half_j = LOAD_W * (
        result["duration_seconds"] - reports[source, "beside"]["duration_seconds"] / 2
    )
    assert shared["attributed_energy_idle_shared_joules"] == pytest.approx(
        half_j, abs=4 * QUANTUM_S * LOAD_W
    )
    assert (
        shared["attributed_energy_idle_apart_joules"]
        <= shared["attributed_energy_idle_shared_joules"]
    )
    assert alone["divided"] is False
    for device in (shared, alone):
        same = devices(first)["gpu", device["device"]]
        for policy in ("idle_shared", "idle_apart"):
            name = f"attributed_energy_{policy}_joules"
            assert device[name] == pytest.approx(same[name], rel=1e-9)
    expected = "also used by beside; the run's attributed share is listed as well"
    assert any(expected in text for text in texts(result, "shared"))


def index(item):
    return item[1]["label"]


@pytest.mark.parametrize("source", SOURCES)
def test_carbon_provider_without_response_is_a_finding(reports, source):
    (text,) = texts(reports[source, "shared"], "carbon_fallback")

    assert "the yearly mean of GBR (static) is used instead" in text
    assert text.endswith("100 % static")


@pytest.mark.parametrize("source", SOURCES)
def test_clock_set_back_is_a_finding_and_keeps_energy(reports, source):
    result = reports[source, "turned-back"]
    (gpu,) = (device for device in result["devices"] if device["component"] == "gpu")

    assert "was set back by 1 h during the run" in texts(result, "clock_set")[0]
    assert result["ended_at_unix_seconds"] - result["started_at_unix_seconds"] == pytest.approx(
        result["duration_seconds"], abs=1
    )
    assert gpu["energy_joules"] == pytest.approx(LOAD_W * result["duration_seconds"], rel=0.02)


@pytest.mark.parametrize("source", ["prometheus", "victoria-metrics"])
def test_server_with_other_clock_gives_no_own_figure(reports, source):
    result = reports[source, "turned-back"]

    assert result["gpu"]["raw_samples_energy_joules"] is None
    assert len(texts(result, "clock_apart")) == 1


@pytest.mark.parametrize("source", ["exporter", "history"])
def test_history_after_clock_step_bounds_true_energy(reports, source):
    result = reports[source, "turned-back"]
    true_j = LOAD_W * result["duration_seconds"]

    assert (
        result["gpu"]["raw_samples_energy_low_joules"]
        <= true_j
        <= result["gpu"]["raw_samples_energy_high_joules"]
    )
    assert texts(result, "clock_apart") == []
