"""The whole metrics page of a fixed node.

Write a new one with `python -m tests.exporter.web.test_golden_page`, and review the difference.
"""

import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.exporter.web.golden_node import GoldenNode
from tests.servers import require
from wattline.contract.metrics import METRICS
from wattline_exporter.web.metrics_page import MetricsRenderer

GOLDEN = Path(__file__).with_name("golden") / "metrics.txt"


def rendered_page():
    node = GoldenNode()
    node.live_through()
    renderer = MetricsRenderer(node.collector.series, lambda: node.s)
    return renderer.page("", compress=False).body.decode()


@pytest.fixture(scope="module")
def page():
    return rendered_page()


@pytest.fixture(scope="module")
def values(page):
    samples = [
        sample for family in text_string_to_metric_families(page) for sample in family.samples
    ]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def value(values, name, **labels):
    return values[name, frozenset(labels.items())]


def test_page_of_the_fixed_node_is_the_golden_page(page):
    assert page == GOLDEN.read_text()


def test_page_has_every_metric_of_the_contract(page):
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}

    assert families == {metric.name for metric in METRICS}


def test_page_passes_promtool(page):
    promtool = require("promtool", "prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_page_of_a_repeated_scrape_is_the_same(page):
    node = GoldenNode()
    node.live_through()
    first = MetricsRenderer(node.collector.series, lambda: node.s).page("", compress=False).body
    second = MetricsRenderer(node.collector.series, lambda: node.s).page("", compress=False).body

    assert first == second


def test_energy_of_the_ended_run_is_300_w_for_20_s(values):
    gpu = {"component": "gpu", "device": "GPU-11111111"}

    joules = value(values, "wattline_run_energy_joules_total", run_id="ended", **gpu)
    half_width_j = value(values, "wattline_run_energy_uncertainty_joules", run_id="ended", **gpu)
    assert abs(joules - 300 * 20) <= half_width_j < 100
    # 15 s at 75 W, 20 s at 300 W, 15 s at 75 W
    assert value(
        values, "wattline_gpu_energy_joules_total", gpu="0", uuid="GPU-11111111"
    ) == pytest.approx(8_250.0 - 75 * 0.125)


def test_attributed_energy_of_all_runs_is_the_devices_energy(values):
    parts = [
        joules
        for (name, labels), joules in values.items()
        if name == "wattline_run_attributed_energy_joules_total"
        and {("device", "GPU-11111111"), ("policy", "idle_shared")} <= labels
    ]

    assert sum(parts) == pytest.approx(
        value(values, "wattline_gpu_energy_joules_total", gpu="0", uuid="GPU-11111111")
    )


if __name__ == "__main__":
    GOLDEN.write_text(rendered_page())
