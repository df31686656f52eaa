"""Requests of two servers on one GPU whose loads change, in virtual time, with the true energy of
each server.

Each of two processes uses 540 W times its utilization, and both share 60 W of idle power equally.
As NVML reports it, the utilization that is read each second is the mean since the last reading.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import numpy as np
import pytest

from tests.exporter.api import sleeper
from tests.exporter.requests.serving_node import IDLE_W
from tests.exporter.runs.ledger_node import GPU, FakeSensors
from wattline.contract.requests.served import ServedRequest
from wattline_exporter.runs.admission import RunEnd, RunStart
from wattline_exporter.sensors.readings import GpuProcess, GpuProcessList

PEAK_W, STEP_S, SECOND = 540.0, 0.05, 20
"""Power of a full load, and the step of time, of which a second has SECOND."""
RUNS = ("first", "second")


class StillSensors(FakeSensors):
    """Sensors whose update takes no time, in which the processes would have no load."""

    async def wait_for_update(self, _) -> None:
        pass


class TwoServers:
    """Servers with a load while they have requests; `read_at` and `ticks_at` are steps after each
    full second.
    """

    def __init__(self, node, loads, read_at, ticks_at) -> None:
        self.serving, self.node = node, node.node
        self.loads, self.read_at, self.ticks_at = loads, read_at, ticks_at
        self.processes = [sleeper(), sleeper()]
        self.node.service._sensors = StillSensors(self.node)
        self.step, self.used = 0, [0.0, 0.0]
        self.true_j = [0.0, 0.0]

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()

    async def begin(self):
        """Begin both runs after 15 s without load, in which the idle power becomes known."""
        for _ in range(15 * SECOND):
            await self._advance([])
        for run_id, process in zip(RUNS, self.processes, strict=True):
            await self.begin_run(run_id, process, workload="llm-server", labels={"server": "app"})

    async def begin_and_serve(self, requests, seconds):
        await self.begin()
        await self.serve(requests, seconds)

    async def begin_run(self, run_id, *processes, **request):
        pids = [process.pid for process in processes]
        await self.node.service.begin(RunStart(run_id=run_id, gpus=[GPU.id], pids=pids, **request))

    async def each_second(self, _):
        """Change the node at a full second after the begin; tests replace it."""

    async def serve(self, requests, seconds):
        """Serve requests, each with the number of its server, and its begin and end in seconds."""
        for step in range(round(seconds * SECOND)):
            busy = {
                number
                for number, begin_s, end_s in requests
                if begin_s <= (step + 0.5) * STEP_S < end_s
            }
            for number in busy:
                self.true_j[number] += (PEAK_W * self.loads[number] + IDLE_W / 2) * STEP_S
            if step % SECOND == 0:
                await self.each_second(step // SECOND)
            await self._advance(busy)
            for each, (number, begin_s, end_s) in enumerate(requests):
                if round(end_s * SECOND) == step + 1:
                    now_at = self.node.now().at
                    request = ServedRequest(f"r-{each}", now_at - (end_s - begin_s), now_at, 50, 40)
                    await self.serving.service.report(RUNS[number], [request])

    async def _advance(self, busy):
        loads = [load if number in busy else 0.0 for number, load in enumerate(self.loads)]
        self.node.power_w = IDLE_W + PEAK_W * sum(loads)
        self.node.run_for(STEP_S)
        self.step += 1
        self.used = [used + load / SECOND for used, load in zip(self.used, loads, strict=True)]
        if self.step % SECOND == self.read_at:
            listed = [
                GpuProcess(process.pid, 100, used)
                for process, used in zip(self.processes, self.used, strict=True)
            ]
            self.node.live.gpus[GPU.id].take_processes(
                GpuProcessList(GPU.id, tuple(listed), self.node.now_s)
            )
            self.used = [0.0, 0.0]
        if self.step % SECOND == 0:
            runs = self.node.ledger
            await runs.attribution.scan(runs.open_runs)
            runs.tick()
            runs.attribution.tick(runs.runs.values(), self.node.now_s)
        if self.step % SECOND == self.ticks_at:
            await self.serving.service.tick()

    def energy_j(self, requests):
        """Return the energy of the requests of each server."""
        views = [
            (number, self.serving.service.show(f"r-{each}"))
            for each, (number, *_) in enumerate(requests)
        ]
        return [
            sum(view.energy_joules for number, view in views if number == own) for own in (0, 1)
        ]


@pytest.mark.parametrize(("read_at", "ticks_at"), [(2, 4), (10, 16), (18, 1)])
@pytest.mark.parametrize("pattern", ["bursts", "later"])
def test_two_servers_whose_loads_change_have_their_true_energies(node, pattern, read_at, ticks_at):
    """The first server has bursts of 2 s, or a load before the second one has, whose load is
    constant.
    """
    node.node.end("server")
    first = (
        [(0, 2 + 4 * k, 4 + 4 * k) for k in range(6)]
        if pattern == "bursts"
        else [(0, k, k + 1) for k in range(24)]
    )
    requests = [*first, *((1, k, k + 1) for k in range(4 if pattern == "later" else 0, 24))]
    with ExitStack() as stack:
        servers = TwoServers(node, (0.5, 0.25), read_at, ticks_at)
        stack.callback(servers.close)

        async def scenario():
            await servers.begin()
            await servers.serve(requests, 65)

        asyncio.run(scenario())

    assert servers.energy_j(requests) == pytest.approx(servers.true_j, rel=0.02)


@pytest.mark.parametrize("begin_s", [0, 10], ids=["before the reports", "during the reports"])
def test_job_and_requests_of_its_server_have_its_energy(node, begin_s):
    """Both servers have a constant load and half of the idle power. The job has the process of the
    first for 25 s.
    """
    node.node.end("server")
    requests = [(number, k, k + 1) for k in range(44) for number in (0, 1)]
    attributed_j = []
    with ExitStack() as stack:
        servers = TwoServers(node, (0.5, 0.25), 10, 16)
        stack.callback(servers.close)

        async def with_job(second):
            if second == begin_s:
                await servers.begin_run("job", servers.processes[0], workload="llm-server")
            if second in (begin_s + 5, begin_s + 25):
                energies = servers.node.ledger.attribution.energies
                attributed_j.append(
                    [energies.share_j(GPU, "idle_shared", name) or 0.0 for name in ("job", *RUNS)]
                )
            if second == begin_s + 25:
                await servers.node.service.end("job", RunEnd())

        servers.each_second = with_job
        asyncio.run(servers.begin_and_serve(requests, 85))

    assert servers.energy_j(requests) == pytest.approx(servers.true_j, rel=0.02)
    true_j = [20 * (PEAK_W * load + IDLE_W / 2) for load in servers.loads]
    of_runs = [last - first for first, last in zip(*attributed_j, strict=True)]
    assert of_runs == pytest.approx([true_j[0], 0.0, true_j[1]], rel=1e-3)


@pytest.mark.parametrize("has_other_work", [False, True])
def test_job_of_a_server_is_no_other_run_on_its_gpu(node, has_other_work):
    """The job lasts from 12 s to 27 s. Requests until then share their GPU only with other work of
    the job.
    """
    node.node.end("server")
    requests = [(0, k, k + 1) for k in range(44)]
    with ExitStack() as stack:
        servers = TwoServers(node, (0.5, 0.25 if has_other_work else 0.0), 10, 16)
        stack.callback(servers.close)

        async def with_job(second):
            if second == 12:
                await servers.node.service.end("second", RunEnd())
                pids = [process.pid for process in servers.processes[: 1 + has_other_work]]
                await servers.begin_run(
                    "job", *servers.processes[: 1 + has_other_work], workload="llm-server"
                )
                assert len(pids) == 1 + has_other_work
            if second == 27:
                await servers.node.service.end("job", RunEnd())

        servers.each_second = with_job
        asyncio.run(servers.begin_and_serve(requests, 85))
    shared = [
        any("other runs" in note for note in node.service.show(f"r-{k}").notes) for k in range(44)
    ]

    assert shared[13:27] == [has_other_work] * 14
    assert not any(shared[28:])


def test_divided_seconds_have_a_change_of_load_at_its_time(node):
    """Both servers have a load up to 24 s, the second one from 4.3 s on."""
    node.node.end("server")
    requests = [
        *((0, k, k + 1) for k in range(24)),
        (1, 4.3, 5),
        *((1, k, k + 1) for k in range(5, 24)),
    ]
    with ExitStack() as stack:
        servers = TwoServers(node, (0.5, 0.25), 10, 16)
        stack.callback(servers.close)

        async def scenario():
            await servers.begin()
            begun_at = node.node.now().at
            await servers.serve(requests, 30)
            await node.service.tick(at_once=True)
            return begun_at, [await node.service.divided_energy(run_id, 0.0) for run_id in RUNS]

        begun_at, found = asyncio.run(scenario())

    for load, load_s, divided in zip(servers.loads, (0.0, 4.3), found, strict=True):
        begins_s, ends_s, joules, idle_j, _ = np.array(divided.seconds).T
        from_s, until_s = begins_s - begun_at, ends_s - begun_at
        loaded_s = np.maximum(np.minimum(until_s, 24.0) - np.maximum(from_s, load_s), 0.0)
        true_j = PEAK_W * load * loaded_s + IDLE_W / 2 * (until_s - from_s)
        is_shared = from_s > 1.0  # the second server reports its first request later
        assert np.cumsum((joules - true_j)[is_shared]) == pytest.approx(
            np.zeros(is_shared.sum()), abs=0.25 * PEAK_W * servers.loads[1]
        )  # a slot of the load that changes
        assert idle_j[is_shared] == pytest.approx(
            IDLE_W / 2 * (until_s - from_s)[is_shared], rel=1e-6
        )
        assert until_s[-1] > 26.0


def test_energy_of_polls_that_come_late_belongs_to_the_requests(node):
    """At 200 W the GPU is not polled for 6 s, as on a machine that is too busy; its counter has
    their energy.
    """

    async def scenario():
        node.node.power_w = 200.0
        for second in range(75):
            if 20 <= second < 26:
                node.node.now_s += 1.0
            else:
                node.node.run_for(1.0)
            now_at = node.node.now().at
            await node.service.report(
                "server", [ServedRequest(f"r-{second}", now_at - 1, now_at, 50, 40)]
            )
            await node.service.tick()
        return [node.service.show(f"r-{second}") for second in range(5, 30)]

    views = asyncio.run(scenario())

    assert {view.state for view in views} == {"final"}
    assert sum(view.energy_joules for view in views) == pytest.approx(25 * 200.0, rel=0.01)


def test_counter_does_not_fall_while_the_gpu_draws_no_power(node):
    """At 200 W and 0 W in turns, the energy that the meter interpolates falls at a change."""

    async def scenario():
        sent, totals_j = [], []
        for second in range(90):
            node.node.power_w = 200.0 if second // 2 % 2 == 0 else 0.0
            node.node.run_for(1.0)
            now_at = node.node.now().at
            sent.append(
                ServedRequest(f"r-{second}", now_at - 0.6, now_at - 0.1, 50, 20, now_at - 0.5)
            )
            await node.service.report("server", sent[-1:])
            await node.service.tick()
            totals_j.append(
                sum(
                    one.value
                    for one in node.readings()
                    if one.metric.name.endswith("energy_joules_total")
                )
            )
        return [node.service.show(each.request_id) for each in sent], totals_j

    views, totals_j = asyncio.run(scenario())

    final_j = [view.energy_joules for view in views if view.state == "final"]
    assert len(final_j) > 50
    assert min(final_j) >= 0.0
    assert totals_j == sorted(totals_j)
