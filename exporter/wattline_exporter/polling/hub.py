"""Polling of all sensors, and waiting for their next update."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from wattline.contract.api import RunGpu
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.polling.meters import SLOW_S
from wattline_exporter.sensors.nvml.schedule import FAST_S
from wattline_exporter.sensors.readings import (
    Batch,
    Device,
    SamplingOrder,
    Service,
    Source,
    SourceError,
    boottime,
)

BURST_S = 0.6
UPDATE_WITHIN_S = 0.5
"""Longest wait for the sensors at the start and at the end of a run."""
SETTLE_CHECK_S = 0.02
READY_WITHIN_S = 5.0
PROCESSES_IDLE_S = 5.0
PROCESSES_SHARED_S = 1.0
PROCESSES_DISCOVERING_S = 0.5
FAILED_PERIODS = 10
"""A source that cannot be read is polled this many times less often."""


class PolledSource(NamedTuple):
    """A blocking source, and the period in seconds at which it is read.

    `has_run_energy`: its devices belong to runs, so that it is also read at the start and end of
    each run.
    """

    source: Source
    period_s: float
    has_run_energy: bool = False


class GpuPoller(Protocol):
    """Process that polls the GPUs, and its number of restarts."""

    restarts: int

    def send(self, order: SamplingOrder) -> None: ...

    async def run(self) -> None: ...


class PollingDemand(NamedTuple):
    """Needs of the runs that are open or have just ended."""

    has_runs: bool = False
    discovers_gpus: bool = False

    def order(self, burst_s: float = 0.0, *, locates_updates: bool = True) -> SamplingOrder:
        processes_s = PROCESSES_SHARED_S if self.has_runs else PROCESSES_IDLE_S
        return SamplingOrder(
            period_s=FAST_S if self.has_runs else SLOW_S,
            burst_s=burst_s,
            locates_updates=locates_updates,
            processes_every_s=PROCESSES_DISCOVERING_S if self.discovers_gpus else processes_s,
        )


class SensorHub(Service):
    """All sensors of the node. Their values are in `live`. `worker` is None where GPUs are not
    collected.
    """

    def __init__(
        self,
        live: LiveState,
        sources: Sequence[PolledSource],
        worker: GpuPoller | None,
        *,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.live = live
        self._sources = sources
        self._worker = worker
        self._clock = clock
        self._started_s = clock()
        self._order = SamplingOrder(period_s=0.0)
        self._reading: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._updates: set[asyncio.Future[Any]] = set()

    async def run(self) -> None:
        """Poll all sensors until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source, period_s, _ in self._sources:
                tasks.create_task(self._poll_periodically(source, period_s))
            if self._worker:
                tasks.create_task(self._worker.run())

    def tick(self) -> None:
        """Check the liveness and the energies of all sensors, about once a second."""
        self.live.age(self._clock())
        self.live.check_energies(self._clock())
        if self._worker:
            self.live.source("nvml", SLOW_S).restarts = self._worker.restarts

    def set_demand(self, demand: PollingDemand) -> None:
        """Set the polling rates that the open runs need."""
        if demand.order() != self._order:
            self._send(demand)

    def _send(self, demand: PollingDemand, burst_s: float = 0.0) -> None:
        self._order = demand.order()
        self.live.energy.set_period(self._order.period_s)
        if self._worker:
            locates_updates = not self._shows_updates()
            self._worker.send(demand.order(burst_s, locates_updates=locates_updates))

    def _shows_updates(self) -> bool:
        """Return True if the polls so far show when the counters of all GPUs change."""
        meters = self.live.energy.meters
        gpus = [gpu.device for gpu in self.live.gpus.values() if gpu.up]
        return bool(gpus) and all(
            device in meters and meters[device].shows_updates for device in gpus
        )

    # -- updates

    async def wait_for_update(self, demand: PollingDemand) -> None:
        """Poll all sensors at once: the GPUs in a burst, the CPU energy before this returns.

        Do not wait for a sensor that hangs; its read goes on, since a thread cannot be cancelled.
        """
        self._send(demand, BURST_S)
        update = self._start_update()
        with suppress(TimeoutError):
            async with asyncio.timeout(UPDATE_WITHIN_S):
                await asyncio.shield(update)

    def read_cpu_energy_soon(self) -> None:
        """Read the CPU energy near this instant, in the background, unless a read is under way."""
        if not self._updates:
            self._start_update()

    def _start_update(self) -> asyncio.Future[None]:
        update = asyncio.ensure_future(self._read_cpu_energy())
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)
        return update

    async def _read_cpu_energy(self) -> None:
        for source, period_s, has_run_energy in self._sources:
            if has_run_energy:
                await self._poll(source, period_s)

    async def wait_until_settled(self, devices: Iterable[Device], t_s: float) -> None:
        """Wait until the polls after `t_s` suffice for the devices' energies at `t_s`; at most
        UPDATE_WITHIN_S.

        The power of a GPU without a counter is delayed for longer, and has that much more time.
        """
        meters = [self.live.energy.meters[device] for device in devices if self._answers(device)]
        latest_s = t_s + UPDATE_WITHIN_S
        while (now_s := self._clock()) < (
            until_s := max([latest_s, *(t_s + m.settling_s() + FAST_S for m in meters)])
        ):
            if all(
                m.latest and m.latest.after_s >= min(t_s + m.settling_s(), until_s) for m in meters
            ):
                return
            await asyncio.sleep(min(SETTLE_CHECK_S, until_s - now_s))
            slept_s = self._clock() - now_s
            if (
                slept_s > UPDATE_WITHIN_S
            ):  # this process was stopped: the polls of that time are still to be read
                latest_s = now_s + slept_s + UPDATE_WITHIN_S

    def _answers(self, device: Device) -> bool:
        gpu = self.live.gpus.get(device.id)
        return device in self.live.energy.polled and (
            device.kind != "gpu" or (gpu is not None and gpu.up)
        )

    # -- readiness

    @property
    def is_ready(self) -> bool:
        """True once every source was read, or READY_WITHIN_S has passed."""
        is_read = {polled.source.name for polled in self._sources} <= set(self.live.sources)
        gpus_read = not self._worker or self.live.has_read_gpus()
        return (is_read and gpus_read) or self._clock() - self._started_s > READY_WITHIN_S

    async def wait_until_ready(self) -> None:
        while not self.is_ready:  # noqa: ASYNC110  # readiness also comes with time
            await asyncio.sleep(0.01)

    def answering_gpus(self) -> list[RunGpu]:
        up = [gpu.info for gpu in self.live.gpus.values() if gpu.up]
        gpus = [
            RunGpu(gpu=one.index, uuid=one.uuid, name=one.name, architecture=one.architecture)
            for one in up
        ]
        return sorted(gpus, key=lambda gpu: int(gpu.gpu))

    # -- polled sources

    async def _poll_periodically(self, source: Source, period_s: float) -> None:
        due_s = self._clock()
        while True:
            answered = await self._poll(source, period_s)
            due_s = max(due_s + period_s * (1 if answered else FAILED_PERIODS), self._clock())
            await asyncio.sleep(due_s - self._clock())

    async def _poll(self, source: Source, period_s: float) -> bool:
        """Read the source in a thread. Return True if it could be read."""
        async with self._reading[source.name]:  # a source is read by one thread at a time
            started_s = self._clock()
            try:
                batch: Batch = await asyncio.to_thread(source.read)
            except SourceError as error:
                self.live.failed(source.name, error, self._clock() - started_s, period_s)
                return False
            self.live.take_batch(source.name, batch, self._clock() - started_s, period_s)
            return True
