"""The service of requests on a node in virtual time, whose power is known at each instant."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from exporter.config.request_options import RequestSettings
from exporter.contract import metrics as m
from exporter.contract.requests.served import ServedRequest
from exporter.contract.run import EndRequest
from exporter.model import RunError
from exporter.requests.intake import RateLimit
from exporter.requests.service import RequestService
from exporter.requests.store import RequestStore
from exporter.storage.state_file import StateFile
from tests.exporter.runs.ledger_node import GPU, LedgerNode

IDLE_W = 60.0


class ServingNode:
    """A node with a server: 60 W without requests, and 40 W for each request in progress."""

    def __init__(self, folder, **settings) -> None:
        self.file = StateFile(folder)
        self.node = LedgerNode(self.file)
        self.node.power_w = IDLE_W
        self.node.run_for(20)
        self.run = self.node.begin(run_id="server", gpus=[GPU.id])
        self.store = RequestStore(folder)
        self.service = RequestService(self, self.node.live, self.store, RequestSettings(**settings), self.node.now)
        self.number, self.running = 0, []

    def close(self):
        self.store.close()
        self.file.close()

    def devices_of(self, run_id):
        return self.node.service.devices_of(run_id)

    def note(self, run_id, text):
        self.node.service.note(run_id, text)

    def others_on_gpus(self, run_id):
        return self.node.service.others_on_gpus(run_id)

    def idle_w(self, _):
        return IDLE_W

    def attributed_j(self, device, run_id):
        return self.node.service.attributed_j(device, run_id)

    async def serve(self, seconds, rng, rate=0.5):
        """Serve requests in steps of 0.25 s; report them at their ends, and tick each second."""
        running, sent = self.running, []
        for step in range(round(seconds * 4)):
            if rng.random() < rate / 4:
                running.append([self.node.now().at, rng.integers(2, 30)])
            self.node.power_w = IDLE_W + 40.0 * len(running)
            self.node.run_for(0.25)
            now_at = self.node.now().at
            for each in running:
                each[1] -= 1
            ended = [each for each in running if each[1] == 0]
            running[:] = [each for each in running if each[1] > 0]
            for started_at, _ in ended:
                self.number += 1
                made = int((now_at - started_at) * 40)
                sent.append(ServedRequest(f"r-{self.number}", started_at, now_at, 50, made, started_at + 0.05))
                await self.service.report("server", sent[-1:])
            if step % 4 == 0:
                await self.service.tick()
        return sent

    def readings(self):
        """Return the metrics a long time after the labels were new."""
        return [*self.service._counters.readings(math.inf), *self.service._servers.readings(self.node.now())]

    def values(self):
        return {(reading.metric.name, *reading.labels): reading.value for reading in self.readings()}


@pytest.fixture
def node(tmp_path):
    node = ServingNode(tmp_path, labels=("user",))
    yield node
    node.close()


def test_requests_have_the_energy_that_they_used_and_add_up_with_the_rest(node):
    async def scenario():
        sent = await node.serve(120, np.random.default_rng(1))
        division = node.service._servers.by_run["server"]._division
        await node.service.tick(at_once=True)
        views = [node.service.show(each.request_id) for each in sent]
        return sent, views, division

    sent, views, division = asyncio.run(scenario())
    values = node.values()

    final = [(each, view) for each, view in zip(sent, views, strict=True) if view.energy_joules is not None]
    assert len(final) >= len(sent) - 2, "the last ones may end after the last slot"
    total_j = sum(view.energy_joules for _, view in final)
    assert values[m.REQUEST_ENERGY_TOTAL.name, "", ""] == pytest.approx(total_j, rel=1e-9)
    assert values[m.REQUESTS.name, "", ""] == len(sent)
    assert total_j + division.rest_j + division.open_j == pytest.approx(division.measured_j, rel=1e-9)
    dynamic_j = np.array([view.energy_joules - view.idle_energy_joules for _, view in final])
    true_j = np.array([40.0 * (each.ended_at - each.started_at) for each, _ in final])
    assert dynamic_j.sum() == pytest.approx(true_j.sum(), rel=0.03)
    assert np.abs(dynamic_j - true_j).mean() / true_j.mean() < 0.1
    assert all(view.state == "final" for view in views)


def test_a_request_has_an_estimate_at_once_and_its_final_energy_later(node):
    async def scenario():
        rng = np.random.default_rng(2)
        first = (await node.serve(10, rng, rate=2.0))[0]
        pending = node.service.show(first.request_id)
        await node.serve(80, rng)
        sent = await node.serve(20, rng, rate=2.0)
        provisional = node.service.show(sent[-1].request_id)
        await node.serve(40, rng, rate=0.0)
        return pending, provisional, node.service.show(sent[-1].request_id)

    pending, provisional, final = asyncio.run(scenario())

    assert (pending.state, pending.energy_joules) == ("pending", None)
    assert (provisional.state, final.state) == ("provisional", "final")
    assert abs(provisional.energy_joules - final.energy_joules) <= provisional.energy_uncertainty_joules
    assert final.idle_energy_joules > 0


def test_a_request_after_idle_time_has_the_estimate_of_the_known_model(node):
    """All requests before it are final; the model of the server is still known."""

    async def scenario():
        await node.serve(80, np.random.default_rng(2), rate=1.0)
        await node.serve(300, np.random.default_rng(2), rate=0.0)
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("r", now_at - 2, now_at, 50, 80, now_at - 1.95)])
        return node.service.show("r")

    assert asyncio.run(scenario()).state == "provisional"


def test_long_requests_that_began_before_the_first_report_lack_energy(node):
    async def scenario():
        node.node.power_w = IDLE_W + 40
        node.node.run_for(30)
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("long", now_at - 30, now_at, 10, 1_000, now_at - 29)])
        await node.serve(60, np.random.default_rng(1), rate=0.0)
        return node.service.show("long")

    view = asyncio.run(scenario())

    assert view.state == "final"
    assert any("the energy of its first 20 s is missing" in note for note in view.notes)
    assert view.energy_joules == pytest.approx(10 * 100, rel=0.05)


def test_labels_beyond_the_limit_are_counted_as_other(node):
    async def scenario():
        now_at = node.node.now().at
        await node.service.report(
            "server",
            [ServedRequest(f"r-{k}", now_at, now_at, 1, 1, labels={"model": "a", "user": f"u{k}"}) for k in range(150)],
        )
        await node.service.tick(at_once=True)
        return [reading for reading in node.readings() if reading.metric is m.REQUESTS]

    readings = asyncio.run(scenario())

    assert sum(reading.value for reading in readings) == 150
    assert len(readings) == 101
    (other,) = [reading for reading in readings if reading.labels[0] == "(other)"]
    assert (other.value, other.extra) == (50, (("user", "(other)"),))


def test_requests_that_cannot_be_saved_can_be_reported_again(node):
    async def scenario():
        now_at = node.node.now().at
        requests = [ServedRequest("r", now_at, now_at, 1, 1)]
        node.store.path.mkdir()
        with pytest.raises(RunError, match="the requests are not saved"):
            await node.service.report("server", requests)
        node.store.path.rmdir()
        return await node.service.report("server", requests)

    assert asyncio.run(scenario()).accepted == 1


def test_a_call_repeated_while_the_disk_is_slow_is_stored_once(node):
    async def scenario():
        now_at = node.node.now().at
        requests = [ServedRequest("r", now_at, now_at, 1, 1)]
        await node.service.report("server", [ServedRequest("first", now_at, now_at, 1, 1)])
        with closing(sqlite3.connect(node.store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            node.store.within_s = 0.05
            for _ in range(2):
                with pytest.raises(RunError, match="the requests are not saved"):
                    await node.service.report("server", requests)
        node.store.within_s = 30.0
        receipt = await node.service.report("server", requests)
        return receipt, await node.service.listed("server", 0.0, 1e11, 10, (0, 0)), node.service.show("r")

    receipt, page, view = asyncio.run(scenario())

    assert receipt.accepted + receipt.duplicate == 1
    assert [each.id for each in page.requests] == ["first", "r"]
    assert view.state == "pending"


def test_a_call_repeated_at_once_is_answered_after_the_first_is_saved(node):
    async def scenario():
        now_at = node.node.now().at
        requests = [ServedRequest("r", now_at, now_at, 1, 1)]
        node.store.path.mkdir()
        calls = (node.service.report("server", requests) for _ in range(2))
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [getattr(each, "status", None) for each in asyncio.run(scenario())] == [503, 503]


def test_a_request_reported_after_its_time_was_divided_has_no_energy(node):
    async def scenario():
        await node.serve(60, np.random.default_rng(1), rate=1.0)
        start_at = node.node.now().at
        await node.serve(80, np.random.default_rng(2), rate=1.0)
        await node.service.report("server", [ServedRequest("late", start_at, start_at + 2, 10, 50)])
        await node.serve(20, np.random.default_rng(3), rate=0.0)
        await node.service.tick(at_once=True)
        return node.service.show("late")

    view = asyncio.run(scenario())

    assert (view.state, view.energy_joules) == ("final", None)
    assert any("after the energy of its time was divided" in note for note in view.notes)


def test_requests_of_a_run_without_gpus_have_no_energy(node):
    node.node.begin(run_id="cpu", gpus=[])

    async def scenario():
        now_at = node.node.now().at
        await node.service.report("cpu", [ServedRequest("r", now_at, now_at, 10, 50)])
        for _ in range(60):
            node.node.run_for(1)
            await node.service.tick()
        return node.service.show("r")

    view = asyncio.run(scenario())

    assert (view.state, view.energy_joules) == ("final", None)
    assert m.REQUEST_ENERGY_TOTAL.name not in {name for name, *_ in node.values()}
    assert node.values()[m.REQUESTS.name, "", ""] == 1


def test_a_request_of_two_runs_with_the_same_id_has_two_energies(node):
    node.node.begin(run_id="other", gpus=[GPU.id])
    node.node.run_for(5)

    async def scenario():
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("r", now_at - 2, now_at, 10, 50)])
        await node.service.report("other", [ServedRequest("r", now_at - 1, now_at, 10, 50)])
        open_runs = [node.service.show("r", run_id).run_id for run_id in ("server", "other")]
        await node.serve(60, np.random.default_rng(1), rate=0.0)
        return open_runs, node.service.show("r"), node.service.show("r", "server")

    open_runs, latest, first = asyncio.run(scenario())

    assert open_runs == ["server", "other"]
    assert (latest.run_id, first.run_id) == ("other", "server")
    assert first.energy_joules == pytest.approx(2 * latest.energy_joules, rel=0.05)
    assert all(any("other runs used the same GPUs" in note for note in view.notes) for view in (latest, first))


def test_gpus_found_after_the_first_report_count_from_its_begin(node):
    node.node.run_for(5)

    async def scenario():
        found, devices_of = node.node.service.devices_of("server"), node.devices_of
        node.devices_of = lambda run_id: found._replace(devices=())
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("r", now_at - 2, now_at, 10, 50)])
        await node.serve(5, np.random.default_rng(1), rate=0.0)
        node.devices_of = devices_of
        await node.serve(60, np.random.default_rng(1), rate=0.0)
        return node.service.show("r")

    assert asyncio.run(scenario()).energy_joules == pytest.approx(2 * IDLE_W, rel=0.05)


def test_rate_limit_call_above_limit_per_second_is_accepted_once():
    limit = RateLimit(50)

    limit.take(200, 1_000.0)

    with pytest.raises(RunError) as refused:
        limit.take(200, 1_001.0)
    limit.take(200, 1_001.0 + refused.value.retry_after_s)


def test_ids_of_a_server_that_reports_are_kept_over_many_short_runs(node):
    ids = node.service._ids_of("server")
    for number in range(200):
        node.service._ids_of(f"short-{number}")
        assert node.service._ids_of("server") is ids


def test_requests_after_their_file_was_deleted_are_stored(node):
    async def scenario():
        for name in ("before", "after"):
            now_at = node.node.now().at
            await node.service.report("server", [ServedRequest(name, now_at, now_at, 1, 1)])
            if name == "before":
                node.store.path.unlink()
        return await node.service.listed("server", 0.0, 1e11, 10, (0, 0))

    assert [each.id for each in asyncio.run(scenario()).requests] == ["after"]


def test_more_open_requests_than_the_maximum_are_refused(tmp_path):
    node = ServingNode(tmp_path, max_open=5)

    async def scenario():
        now_at = node.node.now().at
        more = [ServedRequest("more", now_at, now_at, 1, 1)]
        await node.service.report("server", [ServedRequest(f"r-{k}", now_at, now_at, 1, 1) for k in range(5)])
        with pytest.raises(RunError, match="5 requests wait for their energy") as refused:
            await node.service.report("server", more)
        await node.service.tick(at_once=True)
        return refused.value.status, await node.service.report("server", more)

    status, receipt = asyncio.run(scenario())
    node.close()

    assert (status, receipt.accepted) == (429, 1)


@pytest.mark.parametrize("late_s", [0, 7])
def test_two_runs_on_a_gpu_divide_its_energy_by_attribution(node, late_s):
    """Without processes both runs have the same load, so each has half of the 200 W. The second one reports later."""
    node.node.begin(run_id="other", gpus=[GPU.id])

    async def scenario():
        begin_s, node.node.power_w = node.node.now_s, 200.0
        for second in range(60):
            node.node.run_for(1.0)
            now_at = node.node.now().at
            for run_id in ("server", "other") if second >= late_s else ("server",):
                request = ServedRequest(f"{run_id}-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9)
                await node.service.report(run_id, [request])
            await node.service.tick()
        divisions = [each._division for each in node.service._servers.by_run.values()]
        starts = {r.labels: r.value for r in node.service.readings() if r.metric is m.RUN_REQUESTS_START}
        return begin_s, divisions, starts, [node.service.show(f"{run_id}-20") for run_id in ("server", "other")]

    begin_s, divisions, starts, views = asyncio.run(scenario())

    until_s = min(each.last_edge_s for each in divisions)
    own_j = [np.interp(until_s, each._edges_s, each._joules) for each in divisions]
    meter_j = 9 * IDLE_W + 200 * (until_s - begin_s)  # from 10 s before the first report
    assert sum(own_j) == pytest.approx(meter_j, rel=1e-3)
    assert [view.energy_joules for view in views] == pytest.approx([100.0, 100.0], rel=0.03)
    assert all("attributed" in view.notes[-1] for view in views)
    begin_at = node.node.now().at - node.node.now_s + begin_s
    first, second = (starts[run_id, "gpu", GPU.id] - begin_at for run_id in ("server", "other"))
    assert first == pytest.approx(1 - 10, abs=1e-3)
    assert second == pytest.approx(late_s + 1 - 10, abs=1e-3)


def test_run_alone_on_its_gpu_has_all_of_its_energy_after_the_other_run(node):
    """The other run reports one request and ends; its share is that up to its end."""
    node.node.begin(run_id="other", gpus=[GPU.id])

    async def scenario():
        node.node.power_w = 200.0
        for second in range(70):
            node.node.run_for(1.0)
            now_at = node.node.now().at
            for run_id in ("server", "other") if second < 10 else ("server",):
                request = ServedRequest(f"{run_id}-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9)
                await node.service.report(run_id, [request])
            await node.service.tick()
            if second == 10:
                await node.node.service.end("other", EndRequest())
        return [node.service.show(f"server-{second}") for second in (5, 30)]

    shared, alone = asyncio.run(scenario())

    assert shared.energy_joules == pytest.approx(100.0, rel=0.03)
    assert alone.energy_joules == pytest.approx(200.0, rel=0.03)


def test_requests_after_a_long_time_without_requests_have_their_energy(node):
    async def scenario():
        await node.serve(60, np.random.default_rng(3))
        await node.serve(200, np.random.default_rng(3), rate=0.0)
        sent = await node.serve(20, np.random.default_rng(4), rate=1.0)
        await node.service.tick(at_once=True)
        return [(each, node.service.show(each.request_id)) for each in sent[:5]]

    for request, view in asyncio.run(scenario()):
        true_j = 40.0 * (request.ended_at - request.started_at)
        assert view.energy_joules - view.idle_energy_joules == pytest.approx(true_j, rel=0.25)
