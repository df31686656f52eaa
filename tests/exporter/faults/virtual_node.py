"""GPUs with faults in virtual time: polls, the daemon's state, and one run on each GPU."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pynvml

from tests.exporter.faults.faulty_gpu import START_S, FaultyGpu
from tests.laboratory.clients import open_run
from tests.laboratory.loads import BURSTS
from wattline.contract.api import RunGpu
from wattline.contract.metrics import GPU_POWER_LIMIT, GPU_UTILIZATION
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs import marks as run_marks
from wattline_exporter.runs.lifecycle import note_doubts
from wattline_exporter.sensors.nvml.card import GpuHandle, driver_is_gone
from wattline_exporter.sensors.nvml.gpu import NvmlGpu
from wattline_exporter.sensors.nvml.messages import MessageWriter
from wattline_exporter.sensors.nvml.polling_threads import PolledGpu
from wattline_exporter.sensors.nvml.schedule import SamplingSchedule
from wattline_exporter.sensors.readings import (
    ClockReading,
    Device,
    GpuCount,
    GpuFailure,
    GpuInfo,
    Poll,
    Reading,
    ReadingChanges,
)
from wattline_exporter.simulation import (
    PRODUCTS,
    Constant,
    Segment,
    SimulatedGpuState,
    Square,
    make_gpus,
)
from wattline_exporter.simulation.gpu import energy_j

LEAD_S = 6.0
FAST_S, BURST_S, SLOW_S = 0.047, 0.013, 1.0
REPLACED_S = 2.5
"""Time until a new worker polls after the driver is gone."""


class ItemList(MessageWriter):
    """Keeps the items instead of writing them."""

    def __init__(self) -> None:
        super().__init__(SamplingSchedule())
        self.polls: list[Poll] = []

    def put(self, item) -> None:
        self.polls.append(item)


@dataclass
class Outcome:
    """Run on one GPU: error and half-width as shares of the true energy, and its declarations."""

    error: float
    half_width: float
    declared: bool

    @property
    def is_inside(self) -> bool:
        return abs(self.error) <= self.half_width


class VirtualGpu:
    """Polling loop of one GPU, and its run from a random instant after LEAD_S on."""

    def __init__(self, faulty: FaultyGpu, live: LiveState, begin_s: float, seconds: float) -> None:
        gpu = faulty.gpu
        self.faulty = faulty
        self.begin_s, self.end_s = begin_s, begin_s + seconds
        self.device = Device("gpu", gpu.uuid)
        architecture = "Hopper" if faulty.has_average else "Turing"
        self.info = GpuInfo(str(gpu.index), gpu.uuid, gpu.product.name, architecture, "", "")
        self._live = live
        self._polled, self._items = PolledGpu(gpu.index), ItemList()
        self._polled.attach(
            NvmlGpu(GpuHandle(faulty, object(), self.info, faulty.has_average, faulty.now))
        )
        self._run = open_run(
            [self.device],
            begin_s,
            f"run-{gpu.index}",
            gpus={gpu.uuid: RunGpu(gpu=str(gpu.index), uuid=gpu.uuid, name="test")},
        )
        self._tick_s = START_S
        self._doubts = run_marks.LateDoubts()
        self._finish_s = self.end_s + (0.3 if faulty.has_counter else 0.7)
        """When the final marks are taken, as the sensor hub waits for the delayed power where there
        is no counter.
        """

    @property
    def is_done(self) -> bool:
        return self.faulty.clock_s >= self.end_s + self.faulty.watched_s

    def step(self) -> None:
        """Poll once, hand the poll to the daemon, and wait for the next one."""
        faulty, t = self.faulty, self.faulty.clock_s
        if t >= self.begin_s and not self._run.begin:
            self._live.energy.set_period(FAST_S)
            meters = self._live.energy.meters
            self._run.begin = self._run.cuts[0].marks = run_marks.take_marks(
                self._run, meters, self.begin_s, {}
            )
        self._poll()
        if faulty.clock_s >= self._finish_s:
            self._finish()
        if not self.is_done:
            self._deliver()
        fast = t >= self.begin_s or self._polled.needs_fast_polls
        burst = any(at <= t < at + 0.6 for at in (self.begin_s, self.end_s))
        period_s = BURST_S if burst else FAST_S if fast else SLOW_S
        wake_s = (
            faulty.clock_s
            + period_s
            - faulty.clock_s % period_s
            + faulty.rng.uniform(0.0001, 0.002)
        )
        faulty.clock_s = self.begin_s + 0.001 if faulty.clock_s < self.begin_s < wake_s else wake_s

    def _poll(self) -> None:
        t = self.faulty.clock_s
        try:
            self._polled.poll(self._items)
        except pynvml.NVMLError as error:
            if driver_is_gone(error):
                self.faulty.clock_s += REPLACED_S
            if self._polled.has_failed("poll", t, error=True):
                failure = GpuFailure(self.faulty.gpu.index, str(error))
                self._live.take_worker([failure])
        else:
            self._polled.has_failed("poll", t, error=False)

    def _deliver(self) -> None:
        polls, self._items.polls = self._items.polls, []
        if polls:
            self._live.take_worker(polls)
        if self.faulty.clock_s >= self._tick_s:
            self._tick(self.faulty.clock_s)

    def _tick(self, t: float) -> None:
        self._tick_s = t + 1.0
        labels = self.info.index, self.info.uuid
        readings = (
            Reading(GPU_POWER_LIMIT, (*labels, "enforced"), self.faulty.gpu.limit_w),
            Reading(GPU_UTILIZATION, (*labels, "gpu"), 1.0),
        )
        self._live.take_worker([ReadingChanges.of(labels[1], readings)])
        self._live.age(t)
        self._live.check_energies(t)
        if not self._run.is_open:
            self._doubts.check(self._run, self._live.energy.meters, t)
        elif t >= self.begin_s:
            run_marks.settle(self._run, self._live.energy.meters, t)
            note_doubts(self._run, self._live)

    def _finish(self) -> None:
        """End the run, once, with the polls so far."""
        run, until_s = self._run, self._finish_s
        if run.is_open:
            self._tick(until_s)
            run.end_s, run.ended_at, run.outcome = self.end_s, 1.79e9, "ok"
            note_doubts(run, self._live)
            run_marks.finish(run, self._live.energy.meters)
            self._doubts.watch(run, until_s)

    def outcome(self) -> Outcome:
        """Compare the energy of the ended run with the true value."""
        run = self._run
        self._tick(self.faulty.clock_s)
        truth = energy_j(self.faulty.gpu, self.begin_s, self.end_s)
        energy = energy_between(run.begin[self.device], run.final[self.device])
        return Outcome(
            (energy.joules - truth) / truth, energy.half_width_j / truth, bool(run.notes)
        )


def measure(gpus: list[FaultyGpu], seconds: float, begin_s: float) -> list[Outcome]:
    """Measure one run on each GPU with one daemon in virtual time."""
    now = [START_S]
    live = LiveState(clock=lambda: ClockReading(now[0], 1.79e9 + now[0], now[0]))
    virtual = [VirtualGpu(gpu, live, begin_s, seconds) for gpu in gpus]
    live.take_worker([GpuCount(len(gpus)), *(gpu.info for gpu in virtual)])
    while running := [gpu for gpu in virtual if not gpu.is_done]:
        earliest = min(running, key=lambda gpu: gpu.faulty.clock_s)
        now[0] = earliest.faulty.clock_s
        earliest.step()
    return [gpu.outcome() for gpu in virtual]


LOADS = (
    Constant(500.0),
    BURSTS,
    Square(72.0, 640.0, 0.31, 0.6),
    Constant(620.0),
)


def make_gpu(rng: random.Random, load, index: int = 0, **changes) -> SimulatedGpuState:
    """Return an H200 with other properties, which starts the load before the run, with random
    phases.
    """
    gpu = make_gpus(max(2, index + 1), replace(PRODUCTS["H200"], **changes))[index]
    if isinstance(load, Square):
        load = replace(load, phase_s=rng.uniform(0, load.period_s))
    idle_w = gpu.product.idle_w
    segments = (
        Segment(0.0, 0.0, gpu.limit_w, 0.0, Constant(idle_w)),
        Segment(START_S, START_S * idle_w, gpu.limit_w, START_S, load),
    )
    phases = {
        "sensor_phase_s": rng.uniform(0, gpu.product.sensor_period_s),
        "counter_phase_s": rng.uniform(0, gpu.product.counter_period_s),
    }
    return replace(gpu, **phases, segments=segments, changes=2)
