"""Requests of several runs on one GPU, in virtual time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.exporter.requests.serving_node import IDLE_W
from tests.exporter.runs.ledger_node import GPU
from wattline.contract import metrics as m
from wattline.contract.requests.served import ServedRequest
from wattline_exporter.runs.admission import RunEnd, RunStart


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
    assert all(
        any("other runs used the GPUs of this run" in note for note in view.notes)
        for view in (latest, first)
    )


@pytest.mark.parametrize("late_s", [0, 7])
def test_two_runs_on_a_gpu_divide_its_energy_by_attribution(node, late_s):
    """Without processes both runs have the same load, so each has half of the 200 W. The second one
    reports later.
    """
    node.node.begin(run_id="other", gpus=[GPU.id])

    async def scenario():
        begin_s, node.node.power_w = node.node.now_s, 200.0
        for second in range(60):
            node.node.run_for(1.0)
            now_at = node.node.now().at
            for run_id in ("server", "other") if second >= late_s else ("server",):
                request = ServedRequest(
                    f"{run_id}-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9
                )
                await node.service.report(run_id, [request])
            await node.service.tick()
        divisions = [each._division for each in node.service._servers.by_run.values()]
        starts = {
            r.labels: r.value for r in node.service.readings() if r.metric is m.RUN_REQUESTS_START
        }
        return (
            begin_s,
            divisions,
            starts,
            [node.service.show(f"{run_id}-20") for run_id in ("server", "other")],
        )

    begin_s, divisions, starts, views = asyncio.run(scenario())

    until_s = min(each.last_edge_s for each in divisions)
    own_j = [np.interp(until_s, each.edges_s, each._joules) for each in divisions]
    runs = [node.node.ledger.find(run_id) for run_id in ("server", "other")]
    meter_j = IDLE_W * (begin_s - runs[0].begin_s) + 200 * (until_s - begin_s)
    assert sum(own_j) == pytest.approx(meter_j, rel=1e-3)
    assert [view.energy_joules for view in views] == pytest.approx([100.0, 100.0], rel=0.03)
    assert all("has its share of the energy" in view.notes[-1] for view in views)
    assert [starts[run.run_id, "gpu", GPU.id] for run in runs] == pytest.approx(
        [run.started_at for run in runs], abs=2e-3
    ), "a part of the GPU begins with the run"


def test_run_alone_on_its_gpu_has_all_of_its_energy_after_the_other_run(node):
    """The other run reports one request and ends; its share is that up to its end."""
    node.node.begin(run_id="other", gpus=[GPU.id])

    async def scenario():
        node.node.power_w = 200.0
        for second in range(70):
            node.node.run_for(1.0)
            now_at = node.node.now().at
            for run_id in ("server", "other") if second < 10 else ("server",):
                request = ServedRequest(
                    f"{run_id}-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9
                )
                await node.service.report(run_id, [request])
            await node.service.tick()
            if second == 10:
                await node.node.service.end("other", RunEnd())
        return [node.service.show(f"server-{second}").energy_joules for second in range(55)]

    joules = asyncio.run(scenario())

    assert np.mean(joules[2:9]) == pytest.approx(100.0, rel=0.01)
    assert np.mean(joules[12:]) == pytest.approx(200.0, rel=0.01)


def test_note_of_shared_gpu_is_on_requests_during_other_run_only(node):
    """The other run ends after 25.3 s; the requests before 25 s and after 25.5 s last a second
    each.
    """
    node.node.begin(run_id="other", gpus=[GPU.id])

    async def scenario():
        for second in range(60):
            if second == 25:
                node.node.run_for(0.3)
                await node.node.service.end("other", RunEnd())
                node.node.run_for(0.2)
            node.node.run_for(1.0)
            now_at = node.node.now().at
            request = ServedRequest(f"r-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9)
            await node.service.report("server", [request])
            await node.service.tick()
        return [node.service.show(f"r-{second}") for second in range(45)]

    noted = [any("other runs" in note for note in view.notes) for view in asyncio.run(scenario())]

    assert noted == [second < 25 for second in range(45)]


def test_run_has_the_note_of_another_run_of_two_seconds(node):
    async def scenario():
        for second in range(12):
            if second == 4:
                await node.node.service.begin(
                    RunStart(workload="test", run_id="short", gpus=[GPU.id])
                )
            if second == 6:
                await node.node.service.end("short", RunEnd())
            node.node.run_for(1.0)
            now_at = node.node.now().at
            request = ServedRequest(f"r-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9)
            await node.service.report("server", [request])
            await node.service.tick()

    asyncio.run(scenario())

    assert [note for note in node.node.ledger.find("server").notes if "other runs" in note]


@pytest.mark.parametrize("pause_s", [2, 8])
def test_run_after_another_one_on_the_gpu_leaves_its_requests_and_notes(node, pause_s):
    """The server ends after 10 s at 200 W; the later run begins while its requests are not final
    yet, also at 200 W.
    """

    async def scenario():
        node.node.power_w = 200.0
        for second in range(10):
            node.node.run_for(1.0)
            now_at = node.node.now().at
            await node.service.report(
                "server", [ServedRequest(f"a-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9)]
            )
            await node.service.tick()
        await node.node.service.end("server", RunEnd())
        node.node.power_w = IDLE_W
        for _ in range(pause_s):
            node.node.run_for(1.0)
            await node.service.tick()

    async def later():
        node.node.power_w = 200.0
        for second in range(80):
            node.node.run_for(1.0)
            now_at = node.node.now().at
            await node.service.report(
                "later", [ServedRequest(f"b-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9)]
            )
            await node.service.tick()
        return [node.service.show(name) for name in ("a-5", "b-5", "b-30")]

    asyncio.run(scenario())
    node.node.begin(run_id="later", gpus=[GPU.id])
    views = asyncio.run(later())

    assert [view.energy_joules for view in views] == pytest.approx([200.0] * 3, rel=0.02)
    assert [view.idle_energy_joules for view in views] == pytest.approx([IDLE_W] * 3, rel=0.02)
    assert not any("other runs" in note for view in views for note in view.notes)
    notes = [note for name in ("server", "later") for note in node.node.ledger.find(name).notes]
    assert not any("other runs" in note for note in notes)


def test_requests_at_the_change_of_two_runs_have_all_power(node):
    """At the constant idle power of 60 W the server ends after 10.35 s, and the later run begins at
    once.
    """

    async def serve(run_id, seconds):
        for second in range(seconds):
            node.node.run_for(1.0)
            now_at = node.node.now().at
            request = ServedRequest(f"{run_id}-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9)
            await node.service.report(run_id, [request])
            await node.service.tick()

    async def end():
        node.node.run_for(0.35)
        now_at = node.node.now().at
        await node.service.report("server", [ServedRequest("last", now_at - 0.35, now_at, 50, 40)])
        await node.node.service.end("server", RunEnd())

    node.node.power_w = IDLE_W
    asyncio.run(serve("server", 10))
    asyncio.run(end())
    node.node.begin(run_id="later", gpus=[GPU.id])
    asyncio.run(serve("later", 70))

    for name, seconds in (
        ("server-8", 1.0),
        ("server-9", 1.0),
        ("last", 0.35),
        ("later-0", 1.0),
        ("later-1", 1.0),
    ):
        view = node.service.show(name)
        assert view.energy_joules == pytest.approx(
            seconds * IDLE_W, abs=view.energy_uncertainty_joules
        )
    assert node.service.show("server-8").energy_joules == pytest.approx(IDLE_W, rel=0.01)
    assert node.service.show("later-0").energy_joules == pytest.approx(IDLE_W, rel=0.01)


def test_run_within_another_one_has_half_of_the_power_while_open(node):
    """At the constant idle power of 60 W, the other run is open for 20 s; neither has processes."""

    async def serve(run_ids, seconds, first):
        for second in range(first, first + seconds):
            node.node.run_for(1.0)
            now_at = node.node.now().at
            for run_id in run_ids:
                request = ServedRequest(
                    f"{run_id}-{second}", now_at - 1, now_at, 50, 40, now_at - 0.9
                )
                await node.service.report(run_id, [request])
            await node.service.tick()

    async def end():
        await node.node.service.end("other", RunEnd())

    node.node.power_w = IDLE_W
    asyncio.run(serve(["server"], 20, 0))
    node.node.begin(run_id="other", gpus=[GPU.id])
    asyncio.run(serve(["server", "other"], 20, 20))
    asyncio.run(end())
    asyncio.run(serve(["server"], 70, 40))

    for run_id in ("server", "other"):
        joules = [
            node.service.show(f"{run_id}-{second}").energy_joules for second in (20, 21, 37, 38)
        ]
        assert joules == pytest.approx([IDLE_W / 2] * 4, rel=0.01)
    for name, watts in (("server-19", IDLE_W), ("server-39", IDLE_W / 2), ("other-39", IDLE_W / 2)):
        view = node.service.show(name)
        assert view.energy_joules == pytest.approx(watts, abs=view.energy_uncertainty_joules)
    assert node.service.show("server-41").energy_joules == pytest.approx(IDLE_W, rel=0.01)
