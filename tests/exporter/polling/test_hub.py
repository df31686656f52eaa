"""Polls at the requests of runs."""

import asyncio
from collections.abc import Iterator

from wattline_exporter.polling.health import GpuHealth
from wattline_exporter.polling.hub import PolledSource, SensorHub
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.readings import Batch, Device, GpuInfo, Poll

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
