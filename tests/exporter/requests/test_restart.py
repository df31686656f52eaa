"""Requests of a real exporter that is killed or stopped, and started again."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing

import pytest
import requests
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from tests.daemon import begin, daemon, end
from tests.exporter.api import assert_problem
from tests.exporter.requests.calls import accepted, report, served
from tests.polling import eventually
from wattline.contract import metrics as m
from wattline.contract.requests.served import ServedRequest
from wattline.contract.requests.stored import unpack_requests
from wattline_exporter.config.request_options import RequestSettings
from wattline_exporter.requests.service import RequestService
from wattline_exporter.requests.store import RequestStore

RUN = "?run_id=server"


def test_acknowledged_requests_survive_a_kill_and_count_once(tmp_path):
    """At the kill, no request is final. The next exporter counts them, without energy; a third one
    not again.
    """
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
            eventually(
                lambda: "wattline_requests_total" in exporter.metrics(),
                "counted requests",
                exporter.log,
            )
            counted = exporter.metrics()["wattline_requests_total"]
            _, view = exporter.get(f"/api/v1/requests/r-0{RUN}")
            again = accepted(exporter, "server", *sent)
            listed = exporter.get("/api/v1/runs/server/requests")[1]["requests"]

        assert sorted((labels["user"], count) for labels, count in counted) == [
            (user, shown) for user in ("u0", "u1", "u2")
        ]
        assert view["state"] == "final"
        assert "the exporter ended before it saved the energy" in view["notes"][0]
        assert again["duplicate"] == 6
        assert [each["id"] for each in listed] == [each["id"] for each in sent]


def test_a_stop_makes_requests_final_with_energy_that_is_kept(tmp_path):
    """The second exporter is killed without energy to save; the third one has the energies of the
    first one.
    """
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
            views += [
                exporter.get(f"/api/v1/requests/r-{k}{query}")
                for query in ("", RUN)
                for k in range(10)
            ]
            others = [exporter.get(f"/api/v1/requests/{query}") for query in ("r-", "llama")]
            accept = {"Accept": "application/openmetrics-text"}
            families = list(
                openmetrics(
                    requests.get(exporter.url + "/metrics", headers=accept, timeout=30).text
                )
            )
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
    assert {(status, view["state"], view["run_id"]) for status, view in views} == {
        (200, "final", "server")
    }
    assert views[:20] == views[20:]
    assert sum(view["energy_joules"] for _, view in views[:10]) == pytest.approx(energy_j, rel=1e-6)
    assert all(view["energy_uncertainty_joules"] > 0 for _, view in views)
    for answer in others:
        assert_problem(answer, 404, "report it first")


def restarted(node):
    """Return the service of the next exporter on the same folder."""
    node.store.close()
    node.store = RequestStore(node.store.path.parent)
    node.service = RequestService(
        node, node.node.live, node.store, RequestSettings(), node.node.now
    )
    return node.service


def test_a_request_that_ends_at_a_stop_has_its_energy(node):
    """The GPU draws 160 W, and the last request has it alone for 0.4 s: 64 J."""

    async def scenario():
        node.node.power_w = 160.0
        for second in range(60):
            node.node.run_for(1)
            now_at = node.node.now().at
            await node.service.report(
                "server", [ServedRequest(f"r-{second}", now_at - 1, now_at, 50, 40)]
            )
            await node.service.tick()
        node.node.run_for(0.4)
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("last", now_at - 0.4, now_at, 20, 16)])
        await node.service.stop()
        before, values = node.service.show("last"), node.values()
        return before, values, await restarted(node).find("last")

    before, values, after = asyncio.run(scenario())

    assert before.energy_joules == pytest.approx(64.0, abs=before.energy_uncertainty_joules)
    assert before.energy_joules == pytest.approx(64.0, rel=0.1)
    assert after == before.model_copy(
        update={
            name: pytest.approx(value, rel=1e-6)
            for name, value in before.model_dump().items()
            if isinstance(value, float)
        }
    )
    assert values[m.REQUESTS.name, "", ""] == values[m.REQUEST_ENERGY_COUNT.name, "", ""] == 61


def test_requests_before_a_kill_that_were_not_saved_say_so(node):
    """The first exporter divides the energy of the request, and is killed before it saves that."""

    async def scenario():
        node.node.run_for(2)
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("r", now_at - 2, now_at, 50, 40)])
        node.node.run_for(1)
        await node.service.divide(at_once=True)
        before, service = node.service.show("r"), restarted(node)
        await service.start()
        after = await service.find("r")
        await service.tick()
        return before, after, await restarted(node).find("r", "server")

    before, after, later = asyncio.run(scenario())

    assert before.energy_joules > 0
    assert (after.state, after.energy_joules) == ("final", None)
    assert after.notes == [
        "no energy: the exporter ended before it saved the energy of this request"
    ]
    assert later == after


class _Client(threading.Thread):
    """Server that reports requests of 0.1 s until `stopping`, each batch again until it is
    acknowledged.
    """

    def __init__(self, name):
        super().__init__(name=name)
        self.exporter, self.sent, self.stopping = None, [], threading.Event()

    def run(self):
        rng = random.Random(self.name)
        while not self.stopping.is_set():
            ids = [f"{self.name}-{len(self.sent) + k}" for k in range(rng.randint(1, 4))]
            batch = [served(each, seconds=0.1, id=each) for each in ids]
            while not self._is_acknowledged(batch):
                time.sleep(0.02)
            self.sent += ids
            time.sleep(rng.uniform(0.0, 0.05))

    def _is_acknowledged(self, batch):
        try:
            return report(self.exporter, "server", *batch)[0] == 202
        except requests.ConnectionError:
            return False


def test_acknowledged_requests_count_once_over_restarts(tmp_path):
    """The counter has all stored requests, and the histogram those whose answer has an energy."""
    options, clients = (
        ("--simulate", "1xH200", "--no-collector.rapl"),
        [_Client(name) for name in "abc"],
    )
    signs = [signal.SIGTERM, signal.SIGKILL]
    for number, sign in enumerate([*signs, signal.SIGTERM]):
        with daemon(tmp_path, *options) as exporter:
            for client in clients:
                client.exporter = exporter
            if number == 0:
                begin(exporter, "llm-server", run_id="server", gpus=["0"])
                for client in clients:
                    client.start()
            time.sleep(1.0)
            if number == len(signs):
                for client in clients:
                    client.stopping.set()
                    client.join()
            exporter.process.send_signal(sign)
            exporter.process.wait()
    with daemon(tmp_path, *options) as exporter:
        eventually(
            lambda: m.REQUEST_ENERGY_COUNT.name in exporter.metrics(),
            "counted requests",
            exporter.log,
        )
        counts = [
            exporter.value(name, model="llama")
            for name in (m.REQUESTS.name, m.REQUEST_ENERGY_COUNT.name)
        ]
        with closing(sqlite3.connect(tmp_path / "state" / "requests.sqlite")) as connection:
            bodies = connection.execute("SELECT body FROM batch").fetchall()
        stored = [each.request_id for (body,) in bodies for each in unpack_requests(body)]
        views = [exporter.get(f"/api/v1/requests/{each}?run_id=server")[1] for each in stored]

    assert sorted(stored) == sorted(each for client in clients for each in client.sent)
    assert {view["state"] for view in views} == {"final"}
    assert counts == [len(stored), sum(view["energy_joules"] is not None for view in views)]
