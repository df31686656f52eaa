"""Join of deploy/prometheus/joins.md on a real Prometheus and VictoriaMetrics."""

import re
from pathlib import Path

import pytest

from tests.grafana.cluster import END_S, SERVE
from tests.grafana.query import ask

DOCUMENT = Path(__file__).resolve().parents[2] / "deploy/prometheus/joins.md"


def test_run_series_join_with_the_gpu_by_device(server):
    (expr,) = re.findall(r"^```\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    answers = ask(server, {"expr": expr, "instant": True}, END_S)

    energies = {one.labels["run_id"]: one.value for one in answers}
    assert {one.labels["name"] for one in answers} == {"NVIDIA H100"}
    assert energies[SERVE.run_id] == pytest.approx(350 * 600, rel=0.06)  # W, s


def test_run_series_join_gives_the_uuid_for_a_second_join(server):
    run = 'wattline_run_attributed_energy_joules_total{run_id!="",component="gpu",policy="idle_shared"}'
    info = "on (cluster, instance, device) group_left (name, uuid) wattline_gpu_info"
    power = "on (cluster, instance, uuid) group_left (gpu) wattline_gpu_power_watts"
    answers = ask(server, {"expr": f"({run} * {info}) * {power} > 0", "instant": True}, END_S)

    assert answers
    assert all(one.labels["uuid"] == one.labels["device"] for one in answers)
