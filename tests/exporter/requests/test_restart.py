"""Requests of a real exporter that is killed or stopped, and started again."""

from __future__ import annotations

import time

import pytest
import requests
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from tests.daemon import begin, daemon, end
from tests.exporter.api import assert_problem
from tests.exporter.requests.calls import accepted, served
from tests.polling import eventually

RUN = "?run_id=server"


def test_acknowledged_requests_survive_a_kill_and_count_once(tmp_path):
    """At the kill, no request is final. The next exporter counts them, without energy; a third one not again."""
    options = ("--simulate", "1xH200", "--no-collector.rapl", "--requests.labels", "user")
    with daemon(tmp_path, *options) as exporter:
        begin(exporter, "llm-server", run_id="server", gpus=["0"])
        time.sleep(0.3)
        sent = [served(k, seconds=0.1) for k in range(6)]
        accepted(exporter, "server", *sent)
        assert exporter.value("wattline_requests_total") is None
        exporter.process.kill()
        exporter.process.wait()
    for shown in (0, 2):  # the labels are new to the first exporter
        with daemon(tmp_path, *options) as exporter:
            eventually(lambda: "wattline_requests_total" in exporter.metrics(), "counted requests", exporter.log)
            counted = exporter.metrics()["wattline_requests_total"]
            _, view = exporter.get(f"/api/v1/requests/r-0{RUN}")
            again = accepted(exporter, "server", *sent)
            listed = exporter.get("/api/v1/runs/server/requests")[1]["requests"]

        assert sorted((labels["user"], count) for labels, count in counted) == [
            (user, shown) for user in ("u0", "u1", "u2")
        ]
        assert view["state"] == "final"
        assert "use analyzer requests --run-id server" in view["notes"][0]
        assert again["duplicate"] == 6
        assert [each["id"] for each in listed] == [each["id"] for each in sent]


def test_a_stop_makes_requests_final_with_energy_that_is_kept(tmp_path):
    """The second exporter is killed: it has no energy to save, and the third one has what the first one saved."""
    options = ("--simulate", "1xH200", "--no-collector.rapl")
    with daemon(tmp_path, *options) as exporter:
        begin(exporter, "llm-server", run_id="server", gpus=["0"])
        time.sleep(2.5)
        accepted(exporter, "server", *(served(k, seconds=1.0 + k / 10) for k in range(10)))
        status, view = exporter.get("/api/v1/requests/r-1")
        assert (status, view["state"], view["energy_joules"]) == (202, "pending", None)
        time.sleep(1.0)
    views = []
    for is_killed in (True, False):
        with daemon(tmp_path, *options) as exporter:
            views += [exporter.get(f"/api/v1/requests/r-{k}{query}") for query in ("", RUN) for k in range(10)]
            others = [exporter.get(f"/api/v1/requests/{query}") for query in ("r-", "llama")]
            accept = {"Accept": "application/openmetrics-text"}
            families = list(openmetrics(requests.get(exporter.url + "/metrics", headers=accept, timeout=30).text))
            found = {sample.name: sample.value for family in families for sample in family.samples}
            if is_killed:
                exporter.process.kill()
                exporter.process.wait()
            else:
                run = end(exporter, "server")

    energy_j = found["wattline_request_energy_joules_total"]
    assert found["wattline_requests_total"] == found["wattline_request_energy_joules_count"] == 10
    assert found["wattline_request_energy_joules_sum"] == energy_j
    assert 0 < energy_j < run["energy_joules"]["gpu"][next(iter(run["energy_joules"]["gpu"]))]
    assert {(status, view["state"], view["run_id"]) for status, view in views} == {(200, "final", "server")}
    assert views[:20] == views[20:]
    assert sum(view["energy_joules"] for _, view in views[:10]) == pytest.approx(energy_j, rel=1e-6)
    assert all(view["energy_uncertainty_joules"] > 0 for _, view in views)
    for answer in others:
        assert_problem(answer, 404, "report it first")
