"""Simulated GPUs with driver faults, and the NVML worker process that polls them in virtual time.

The worker uses the product's polls, schedule and messages. Its threads are chains of events, one
for each GPU.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any

import pynvml

from tests.exporter.faults.faulty_gpu import Fault, FaultyGpu
from tests.exporter.faults.virtual_node import make_gpu
from tests.simulation.virtual_time import VirtualTime
from wattline.contract.metrics import GPU_POWER_LIMIT, GPU_UTILIZATION
from wattline_exporter.sensors.nvml.card import GpuHandle, driver_is_gone, is_unloaded
from wattline_exporter.sensors.nvml.gpu import NvmlGpu
from wattline_exporter.sensors.nvml.messages import (
    EXIT_NO_DRIVER,
    decode_order,
    encode_items,
    read_frames,
)
from wattline_exporter.sensors.nvml.polling_threads import PolledGpu
from wattline_exporter.sensors.nvml.schedule import (
    FAST_S,
    SHORT_WAIT_S,
    SamplingSchedule,
)
from wattline_exporter.sensors.readings import (
    DriverGone,
    GpuCount,
    GpuFailure,
    GpuInfo,
    GpuProcess,
    Reading,
    WorkerItem,
)
from wattline_exporter.simulation import Constant, Load
from wattline_exporter.simulation.gpu import with_load

FIRST_RETRY_S, RETRY_S = 0.1, 5.0
MAX_CALL_S = 20.0  # after which a hang ends
_IDLE = Constant(78.0)


class SimulatedGpu(FaultyGpu):
    """GPU with its true energy over all time, and the driver's faults."""

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, virtual: VirtualTime, index: int, *, has_counter: bool) -> None:
        state = make_gpu(virtual.rng, _IDLE, index)
        super().__init__(state, virtual.rng, clock_s=virtual.s, has_counter=has_counter)
        self._segments = list(state.segments)
        self.virtual = virtual
        self.call_s = virtual.rng.choice([0.0001, 0.03, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25])
        """Duration of a call without a fault: a slow driver limits the rate of polls, and so the
        simulation's cost.
        """
        self.polls = 0
        self.processes: dict[int, float] = {}
        self.silent_since_s: float | None = None
        """Start of the current series of failed or hanging calls."""
        self.info = GpuInfo(str(index), state.uuid, state.product.name, "Hopper", "", "")

    @property
    def uuid(self) -> str:
        return self.gpu.uuid

    def set_load(self, load: Load) -> None:
        """Change the load now, or after the current driver call, which has read the sensor
        already.
        """
        self.gpu = with_load(
            self.gpu, load, max(self.virtual.s, self.clock_s, self._segments[-1].begin_s)
        )
        self._segments.append(self.gpu.segments[-1])

    def energy_j(self, t_s: float) -> float:
        """Return the true energy since the start."""
        place = bisect_right(self._segments, t_s, key=lambda segment: segment.begin_s)
        return self._segments[max(0, place - 1)].energy_j(t_s)

    def start_fault(self, fault: Fault, seconds: float) -> None:
        self.fault, self.fault_s, self.memory = fault, self.virtual.s, {}

        def end() -> None:
            if self.fault is fault:
                self.fault = None

        self.virtual.after(seconds, end)

    def answer(self, call: str) -> None:  # another call, which fails as the fault says
        self._answers(call)

    def _answers(self, call: str):
        before_s = self.clock_s
        try:
            return super()._answers(call)
        finally:
            took_s = self.clock_s - before_s
            self.clock_s = before_s + min(max(took_s, self.call_s), MAX_CALL_S)


class _AttachedGpu(NvmlGpu):
    """Attached GPU whose slow values are few: its limit, its utilization and its processes."""

    def __init__(self, faulty: SimulatedGpu) -> None:
        super().__init__(GpuHandle(faulty, object(), faulty.info, True, faulty.now))
        self._faulty = faulty

    def readings(self):
        self._faulty.answer("readings")
        labels = self.info.index, self.info.uuid
        yield Reading(GPU_POWER_LIMIT, (*labels, "enforced"), self._faulty.gpu.limit_w)
        busy = min(1.0, sum(self._faulty.processes.values())) or float(
            self._faulty.gpu.segments[-1].load != _IDLE
        )
        yield Reading(GPU_UTILIZATION, (*labels, "gpu"), busy)

    def processes(self):
        self._faulty.answer("processes")
        return [GpuProcess(pid, 1 << 30, share) for pid, share in self._faulty.processes.items()]


class _Items:
    """Items that wait for the next frame."""

    def __init__(self) -> None:
        self.waiting: list[WorkerItem] = []

    def put(self, item: WorkerItem) -> None:
        self.waiting.append(item)


class Worker:
    """Worker process: transport of its pipes for the supervisor, and the polling of each GPU."""

    def __init__(
        self,
        virtual: VirtualTime,
        gpus: list[SimulatedGpu],
        protocol: Any,
        deliver: Callable[..., None],
    ) -> None:
        self._virtual, self._gpus, self._protocol, self._deliver = virtual, gpus, protocol, deliver
        self.schedule, self._items = SamplingSchedule(), _Items()
        self.returncode: int | None = None
        self.stopped_until_s = 0.0
        self._is_flushing, self._turn = False, 0
        self._polled: dict[SimulatedGpu, PolledGpu] = {}
        self.started_s = virtual.s
        protocol.connection_made(self)
        virtual.after(virtual.rng.uniform(0.2, 0.6), self._start)

    # -- pipes and process, as asyncio sees them

    def get_pipe_transport(self, _fd: int):
        return self

    def get_pid(self) -> int:
        return 4_711

    def get_returncode(self) -> int | None:
        return self.returncode

    async def _wait(self) -> int | None:
        """Wait for the end of the process, as asyncio does for its own transports."""
        while self.returncode is None:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.01)
        return self.returncode

    def is_closing(self) -> bool:
        return self.returncode is not None

    def write(self, data: bytes) -> None:
        """Take an order; as in the product, it ends a long wait early."""
        if self.returncode is None:
            self._virtual.after(0.0005, lambda: self._follow(data))

    def close(self) -> None:  # of stdin, which ends the worker
        self.end(0)

    def send_signal(self, number: int) -> None:
        self.end(-number)

    def pause_reading(self) -> None:
        """Do nothing: the pipe has no limit."""

    resume_reading = pause_reading

    def _follow(self, frame: bytes) -> None:
        if self.returncode is None:
            (content,) = read_frames(BytesIO(frame))
            self.schedule.follow(decode_order(content))
            self._turn += 1
            for gpu in self._polled:
                self._virtual.after(0.0002, partial(self._round, gpu, self._turn))

    def end(self, code: int, part: float = 1.0) -> None:
        """End the process after a share of its last frame."""
        if self.returncode is not None:
            return
        frame = encode_items(self._items.waiting) if self._items.waiting else b""
        self._write(frame[: int(part * len(frame))])
        self.returncode = code
        self._deliver(self._protocol.pipe_connection_lost, 1, None)
        self._deliver(self._protocol.process_exited)

    def _write(self, data: bytes) -> None:
        if data:
            self._deliver(self._protocol.pipe_data_received, 1, data)

    # -- polling

    def _start(self) -> None:
        if self.returncode is None:
            self._put(GpuCount(len(self._gpus)))
            for gpu in self._gpus:
                self._attach(gpu, FIRST_RETRY_S)

    def _put(self, item: WorkerItem) -> None:
        self._take([item])

    def _take(self, items: list[WorkerItem]) -> None:
        self._items.waiting += items
        if not self._is_flushing and self._items.waiting and self.returncode is None:
            self._is_flushing = True
            self._virtual.after(self.schedule.coalesce_s(), self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self.returncode is None and self._items.waiting:
            items, self._items.waiting = self._items.waiting, []
            self._write(encode_items(items))

    def _attach(self, gpu: SimulatedGpu, wait_s: float) -> None:
        if self._is_stopped(lambda: self._attach(gpu, wait_s)):
            return
        gpu.clock_s = self._virtual.s
        try:
            gpu.answer("attach")
        except pynvml.NVMLError as error:
            self._fail(gpu, error)
            if self.returncode is None:
                self._virtual.at(
                    gpu.clock_s + wait_s, lambda: self._attach(gpu, min(2 * wait_s, RETRY_S))
                )
            return
        self._virtual.at(gpu.clock_s, partial(self._add, gpu))

    def _add(self, gpu: SimulatedGpu) -> None:
        """Announce an attached GPU and poll it."""
        if self.returncode is None:
            gpu.silent_since_s = (
                None if gpu.silent_since_s is None else self._virtual.s
            )  # it has answered
            self._polled[gpu] = PolledGpu(gpu.gpu.index)
            self._polled[gpu].attach(_AttachedGpu(gpu))
            self._put(gpu.info)
            self._round(gpu, self._turn)

    def _is_stopped(self, again: Callable[[], None]) -> bool:
        """Return True if the process has ended, or is stopped: then `again` runs later."""
        if self.returncode is None and self._virtual.s < self.stopped_until_s:
            self._virtual.at(self.stopped_until_s, again)
            return True
        return self.returncode is not None

    def _round(self, gpu: SimulatedGpu, turn: int) -> None:
        """Poll the GPU once, and read its other values where they are due."""
        if (
            turn != self._turn
            or gpu not in self._polled
            or self._is_stopped(lambda: self._round(gpu, turn))
        ):
            return
        if gpu.clock_s > self._virtual.s:  # its last call is still under way
            self._virtual.at(gpu.clock_s, lambda: self._round(gpu, turn))
            return
        gpu.clock_s, gpu.polls, polled = self._virtual.s, gpu.polls + 1, self._polled[gpu]
        every_s = self.schedule.processes_every_s
        items = _Items()
        answered = self._call(gpu, polled, "poll", lambda: polled.poll(items))
        if answered and polled.overdue_s(self._virtual.s, every_s) >= 0:
            self._call(gpu, polled, "read", lambda: polled.read(items, every_s))
        if gpu.clock_s - self._virtual.s < 0.005:
            self._take(items.waiting)
        else:
            self._virtual.at(gpu.clock_s, lambda: self._take(items.waiting))
        if self.returncode is not None or gpu not in self._polled:
            return
        self._virtual.at(self._next_s(gpu.clock_s, polled), lambda: self._round(gpu, turn))

    def _next_s(self, now_s: float, polled: PolledGpu) -> float:
        schedule = self.schedule
        period_s = schedule.round_s(FAST_S if polled.needs_fast_polls else None)
        late_s = self._virtual.rng.uniform(0.0001, 0.002) if period_s > SHORT_WAIT_S else 0.0003
        return now_s + period_s - now_s % period_s + late_s

    def _call(
        self, gpu: SimulatedGpu, polled: PolledGpu, name: str, call: Callable[[], None]
    ) -> bool:
        before_s = gpu.clock_s
        try:
            call()
        except pynvml.NVMLError as error:
            gpu.silent_since_s = before_s if gpu.silent_since_s is None else gpu.silent_since_s
            has_failed = polled.has_failed(name, gpu.clock_s, error=True)
            if driver_is_gone(error) or has_failed:
                self._fail(gpu, error)
            if has_failed and self.returncode is None:
                del self._polled[gpu]
                self._virtual.at(gpu.clock_s, lambda: self._attach(gpu, FIRST_RETRY_S))
            return False
        gpu.silent_since_s = None
        if gpu.clock_s - before_s > 1.5:
            gpu.silent_since_s = before_s
            self._virtual.at(gpu.clock_s, partial(self._end_silence, gpu, before_s))
        polled.has_failed(name, gpu.clock_s, error=False)
        return True

    def _end_silence(self, gpu: SimulatedGpu, since_s: float) -> None:
        """Note the answer of a call that hung since `since_s`."""
        if self.returncode is None and gpu.silent_since_s == since_s:
            gpu.silent_since_s = None

    def _fail(self, gpu: SimulatedGpu, error: pynvml.NVMLError) -> None:
        self._put(GpuFailure(gpu.gpu.index, str(error)))
        if driver_is_gone(error):
            self._put(DriverGone(str(error), unloaded=is_unloaded(error)))
            self.end(EXIT_NO_DRIVER)
