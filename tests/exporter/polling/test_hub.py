"""Polls at the requests of runs."""

import asyncio
from collections.abc import Iterator

from wattline_exporter.polling.health import GpuHealth
from wattline_exporter.polling.hub import (
    BURST_S,
    PolledSource,
    PollingDemand,
    SensorHub,
)
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.nvml.schedule import FAST_S
from wattline_exporter.sensors.readings import Batch, Device, GpuInfo, Poll, SamplingOrder

GPU = Device("gpu", "GPU-0")
END_S = 100.0


def test_wait_until_settled_reads_polls_after_the_exporter_was_stopped() -> None:
    live = LiveState()
    live.gpus[GPU.id] = GpuHealth(GpuInfo("0", GPU.id, "test", "", "", ""), GPU, END_S)
    live.energy.push([Poll(GPU, END_S - 0.05, END_S - 0.05, 1_000.0, 70.0)])

    def instants_s() -> Iterator[float]:
        yield from (END_S, END_S)  # of the constructor, and of the first check
        yield from (END_S + 5.0, END_S + 5.0)  # the process was stopped for 5 s
        live.energy.push(
            [Poll(GPU, END_S + 5.1, END_S + 5.1, 1_350.0, 70.0)]
        )  # then it reads the next poll
        while True:
            yield END_S + 5.1

    instants = instants_s()
    hub = SensorHub(live, [], None, clock=lambda: next(instants))
    asyncio.run(hub.wait_until_settled([GPU], END_S))
    latest = live.energy.meters[GPU].latest

    assert latest is not None
    assert latest.after_s > END_S


class CpuEnergy:
    name = "rapl"

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Batch:
        self.reads += 1
        return Batch((), ())


def test_read_cpu_energy_soon_repeats_no_read_that_is_under_way() -> None:
    source = CpuEnergy()
    hub = SensorHub(LiveState(), [PolledSource(source, 1.0, has_run_energy=True)], None)

    async def read() -> None:
        for _ in range(3):
            hub.read_cpu_energy_soon()
        await asyncio.gather(*hub._updates)
        await asyncio.sleep(0)
        hub.read_cpu_energy_soon()
        await asyncio.gather(*hub._updates)

    asyncio.run(read())

    assert source.reads == 2


class Worker:
    """Worker that keeps its orders."""

    restarts = 0

    def __init__(self) -> None:
        self.orders: list[SamplingOrder] = []

    def send(self, order: SamplingOrder) -> None:
        self.orders.append(order)

    async def run(self) -> None:
        pass


def push_fast_polls(live: LiveState, seconds: float, *, counts: bool = True) -> None:
    """Push polls each 47 ms of a GPU at 300 W, whose counter is updated each 0.1 s, and take a
    mark, as the begin of a run does.
    """
    for number in range(int(seconds / FAST_S)):
        t_s = END_S + number * FAST_S
        counter_j = 30.0 * int((t_s - 0.003) / 0.1) if counts else None
        live.energy.push([Poll(GPU, t_s, t_s + 0.0002, counter_j, 300.0)])
    live.energy.meters[GPU].mark(t_s)


def test_wait_for_update_polls_in_a_burst_until_the_updates_are_known() -> None:
    live = LiveState()
    live.gpus[GPU.id] = GpuHealth(GpuInfo("0", GPU.id, "test", "", "", ""), GPU, END_S)
    worker = Worker()
    hub = SensorHub(live, [], worker)
    demand = PollingDemand(has_runs=True)

    asyncio.run(hub.wait_for_update(demand))
    assert worker.orders[-1] == demand.order(BURST_S)
    assert worker.orders[-1].locates_updates

    push_fast_polls(live, 20.0)
    asyncio.run(hub.wait_for_update(demand))
    assert worker.orders[-1].locates_updates

    push_fast_polls(live, 31.0)
    asyncio.run(hub.wait_for_update(demand))
    assert worker.orders[-1] == demand.order(BURST_S, locates_updates=False)


def test_wait_for_update_polls_in_a_burst_while_a_gpu_has_no_counter() -> None:
    live = LiveState()
    live.gpus[GPU.id] = GpuHealth(GpuInfo("0", GPU.id, "test", "", "", ""), GPU, END_S)
    worker = Worker()
    hub = SensorHub(live, [], worker)
    push_fast_polls(live, 31.0, counts=False)

    asyncio.run(hub.wait_for_update(PollingDemand(has_runs=True)))
    assert worker.orders[-1].locates_updates
