"""Requests of a real exporter that is killed or stopped, and started again."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing

import numpy as np
import pytest
import requests
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from tests.daemon import begin, daemon, end
from tests.exporter.api import assert_problem
from tests.exporter.requests.calls import accepted, report, served
from tests.exporter.requests.serving_node import ServingNode
from tests.exporter.runs.ledger_node import GPU
from tests.polling import eventually
from wattline.contract import metrics as m
from wattline.contract.requests.served import ServedRequest
from wattline.contract.requests.stored import unpack_requests
from wattline_exporter.config.request_options import RequestSettings
from wattline_exporter.requests.division.columns import RequestColumns
from wattline_exporter.requests.division.totals import DivisionTotals
from wattline_exporter.requests.service import RequestService
from wattline_exporter.requests.store import RequestStore
from wattline_exporter.simulation import Constant

RUN = "?run_id=server"


def test_requests_before_a_kill_have_their_energy_and_count_once(tmp_path):
    """One request at a time at 200 W; at the kill, none is final. The next exporter divides their
    energy, and a third one has the same answers.
    """
    options = ("--simulate", "1xH200", "--no-collector.rapl", "--requests.labels", "user")
    sent = []
    with daemon(tmp_path, *options) as exporter, exporter.simulation() as simulation:
        begin(exporter, "llm-server", run_id="server", gpus=["0"])
        simulation.set_load(0, Constant(200.0))
        time.sleep(1.0)
        begun_at = time.time()
        while len(sent) < 6:
            time.sleep(0.5)
            sent.append(served(len(sent), seconds=time.time() - begun_at))
            begun_at = time.time()
            accepted(exporter, "server", sent[-1])
        time.sleep(1.2)
        assert exporter.get(f"/api/v1/requests/r-0{RUN}")[1]["state"] == "pending"
        exporter.process.kill()
        exporter.process.wait()
    answers = []
    for is_first in (True, False):
        with daemon(tmp_path, *options) as exporter:
            again = accepted(exporter, "server", *sent)
            listed = exporter.get("/api/v1/runs/server/requests")[1]["requests"]
            if is_first:
                end(exporter, "server")
            eventually(
                lambda: exporter.get(f"/api/v1/requests/r-5{RUN}")[1]["state"] == "final",
                "final energies",
                exporter.log,
            )
            answers.append([exporter.get(f"/api/v1/requests/r-{k}{RUN}")[1] for k in range(6)])
        assert again["duplicate"] == 6
        assert [each["id"] for each in listed] == [each["id"] for each in sent]
    with closing(sqlite3.connect(tmp_path / "state" / "requests.sqlite")) as connection:
        query = "SELECT name, sum(value) FROM request_counter GROUP BY name"
        counters = dict(connection.execute(query).fetchall())

    first, second = answers
    total_j = sum(view["energy_joules"] for view in first)
    true_j = [200.0 * (each["ended_at"] - each["started_at"]) for each in sent]
    assert counters[m.REQUESTS.name] == 6
    assert counters[m.REQUEST_ENERGY_TOTAL.name] == pytest.approx(total_j, rel=1e-6)
    assert total_j == pytest.approx(sum(true_j), rel=0.05)
    assert [view["energy_joules"] for view in second] == pytest.approx(
        [view["energy_joules"] for view in first], rel=1e-6
    )
    for view, joules in zip(first, true_j, strict=True):
        assert abs(view["energy_joules"] - joules) <= view["energy_uncertainty_joules"]


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


def test_requests_before_a_kill_without_saved_energies_say_so(node):
    """The exporter is killed before it saves the energies of the GPU, and is down for 20 s."""

    async def scenario():
        node.node.run_for(2)
        now_at = node.node.now().at
        await node.store.add("server", RequestColumns.of([served_at("r", now_at - 2, now_at)]))
        node.node.run_for(20)
        service = restarted(node)
        await service.start()
        for _ in range(35):
            node.node.run_for(1)
            await service.tick()
        return service.show("r"), node.values()

    view, values = asyncio.run(scenario())

    assert (view.state, view.energy_joules) == ("final", None)
    assert view.notes[0].startswith("no energy: the exporter ended before it saved the energy")
    assert values[m.REQUESTS.name, "", ""] == 1
    assert m.REQUEST_ENERGY_TOTAL.name not in {name for name, *_ in values}


def served_at(name, started_at, ended_at):
    return ServedRequest(name, started_at, ended_at, 50, 40)


async def energies(node, sent):
    return [(await node.service.find(each.request_id)).energy_joules for each in sent]


@pytest.mark.parametrize("down_s", [2, 8])
def test_energies_after_a_kill_are_those_without_it(tmp_path, down_s):
    """The same requests with and without a kill after 80 s; nothing is served meanwhile."""

    async def scenario(node, *, is_killed):
        sent = await node.serve(80, np.random.default_rng(1), rate=1.0)
        sent += await node.serve(8, np.random.default_rng(2), rate=0.0)
        final = {
            each.request_id: node.service.show(each.request_id).energy_joules
            for each in sent
            if node.service.show(each.request_id).state == "final"
        }
        if is_killed:
            await restarted(node).start()
        node.node.run_for(down_s)
        sent += await node.serve(60, np.random.default_rng(3), rate=1.0)
        await node.service.tick(at_once=True)
        before = await energies(node, [each for each in sent if each.request_id in final])
        assert before == pytest.approx([*final.values()], rel=1e-6)
        assert 20 < len(final) < 80
        divided = await node.service.divided_energy("server", 0.0)
        begins_at, ends_at, joules, *_ = np.array(divided.seconds).T
        assert (begins_at[1:] > ends_at[:-1] - 1e-3).all()
        divided_j.append((joules.sum(), sum(map(phases_j, divided.totals))))
        return np.array(await energies(node, sent))

    def phases_j(totals):
        return sum(DivisionTotals.from_json(totals).phases_j)

    found = []
    divided_j = []
    for is_killed in (False, True):
        folder = tmp_path / str(is_killed)
        folder.mkdir()
        node = ServingNode(folder)
        found.append(asyncio.run(scenario(node, is_killed=is_killed)))
        counted_j = node.values()[m.REQUEST_ENERGY_TOTAL.name, "", ""]
        assert node.values()[m.REQUESTS.name, "", ""] == len(found[-1])
        assert counted_j == pytest.approx(found[-1].sum(), rel=1e-6)
        node.close()

    plain_j, killed_j = found
    assert divided_j[1] == pytest.approx(divided_j[0], rel=0.01)  # of all slots, each once
    assert killed_j.sum() == pytest.approx(plain_j.sum(), rel=0.01)
    assert np.abs(killed_j - plain_j).mean() < 0.02 * plain_j.mean()


def test_requests_of_two_servers_before_a_kill_have_equal_parts_of_their_gpu(node):
    """The GPU draws 260 W; each run has one request of 20 s after the other: 2,600 J each."""
    runs = ("server", "other")
    node.node.begin(run_id="other", gpus=[GPU.id])

    async def serve(first, seconds):
        for second in range(first, first + seconds):
            node.node.power_w = 260.0
            node.node.run_for(1.0)
            now_at = node.node.now().at
            for number, run_id in enumerate(runs):
                if second >= 40 and second % 20 == 10 * number:
                    request = served_at(f"{run_id}-{second}", now_at - 20.0, now_at)
                    await node.service.report(run_id, [request])
                    sent.append((run_id, request.request_id))
            await node.service.tick()

    async def scenario():
        await serve(0, 190)
        pending = [
            (run_id, name) for run_id, name in sent if node.service.show(name).state != "final"
        ]
        await restarted(node).start()
        await serve(190, 100)
        await node.service.tick(at_once=True)
        return [(run_id, (await node.service.find(name)).energy_joules) for run_id, name in pending]

    sent = []
    found = asyncio.run(scenario())

    assert {run_id for run_id, _ in found} == set(runs)
    assert [joules for _, joules in found] == pytest.approx([2_600.0] * len(found), rel=0.02)


def test_requests_of_an_exporter_that_was_down_for_longer_than_the_window_are_final(node):
    """The GPU draws 160 W; the last request ended at the kill."""

    async def scenario():
        node.node.power_w = 160.0
        sent = []
        for second in range(20):
            node.node.run_for(1)
            now_at = node.node.now().at
            sent.append(served_at(f"r-{second}", now_at - 1, now_at))
            await node.service.report("server", sent[-1:])
            await node.service.tick()
        node.node.now_s += 400.0
        await restarted(node).start()
        await node.service.tick()
        divided = await node.service.divided_energy("server", 0.0)
        return [node.service.show(each.request_id) for each in sent], divided.seconds

    views, seconds = asyncio.run(scenario())

    assert sum(joules for _, _, joules, *_ in seconds) == pytest.approx(20 * 160.0, rel=0.05)

    assert {view.state for view in views} == {"final"}
    assert [view.energy_joules for view in views[:17]] == pytest.approx([160.0] * 17, rel=0.1)
    assert sum(view.energy_joules for view in views) == pytest.approx(20 * 160.0, rel=0.05)
    assert node.values()[m.REQUESTS.name, "", ""] == 20


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
