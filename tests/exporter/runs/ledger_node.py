"""Ledger and sensors of a node with one GPU, in virtual time."""

from __future__ import annotations

import asyncio
import time

from wattline_exporter.attribution.cpu_time import CpuUsageReader
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.polling.health import GpuHealth
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.admission import RunEnd, RunStart
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.runs.service import RunService
from wattline_exporter.sensors.readings import ClockReading, Device, GpuInfo, Poll, boottime
from wattline_exporter.storage.state_file import StateFile

GPU = Device("gpu", "GPU-1")
POWER_W = 360.0


class FakeSensors:
    """Sensors whose update takes 0.3 s of virtual time."""

    def __init__(self, node) -> None:
        self.node = node

    async def wait_until_ready(self) -> None:
        pass

    async def wait_for_update(self, _) -> None:
        self.node.run_for(0.3)

    def read_cpu_energy_soon(self) -> None:
        pass

    async def wait_until_settled(self, *_) -> None:
        pass


class NoStorage:
    async def save_soon(self) -> bool:
        return True


class LedgerNode:
    """Sensors and ledger of a node with a 360 W GPU, in virtual time."""

    def __init__(self, file: StateFile, slots_at=lambda _: (), is_alive=lambda _: True) -> None:
        self.now_s = self.first_s = self.polled_s = boottime()
        self.first_at = time.time()
        self.live = LiveState(slots_at=slots_at)
        self.live.gpus[GPU.id] = GpuHealth(
            GpuInfo("0", GPU.id, "test", "", "", ""), GPU, self.now_s
        )
        self.counted_j, self.power_w = 0.0, POWER_W
        self.counter_ratio = 1.0
        """Ratio of the counter's rate to the power."""
        attribution = DeviceHolders(
            self.live, Attribution(), self.now_s, CpuUsageReader(clock=lambda: self.now_s)
        )
        self.ledger = Ledger(self.live, attribution, file, clock=self.now, is_alive=is_alive)
        self.service = RunService(
            self.ledger, FakeSensors(self), NoStorage(), stopping=asyncio.Event()
        )
        self.run_for(3)

    def now(self) -> ClockReading:
        return ClockReading(self.now_s, self.first_at + self.now_s - self.first_s, self.now_s)

    def begin(self, **request):
        values, _ = asyncio.run(self.service.begin(RunStart(workload="test", **request)))
        return self.ledger.runs[values.run_id]

    def end(self, run_id):
        asyncio.run(self.service.end(run_id, RunEnd()))
        return self.ledger.find(run_id)

    def run_for(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.now_s += 0.05
            self.counted_j += (self.now_s - self.polled_s) * self.power_w * self.counter_ratio
            self.polled_s = self.now_s
            poll = Poll(GPU, self.now_s, self.now_s, self.counted_j, self.power_w, self.power_w)
            self.live.energy.push([poll])
