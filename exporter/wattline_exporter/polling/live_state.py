"""Latest values of all sensors, their energy meters and their health."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

from wattline.contract.metrics import CPU_ENERGY_METHOD, GPU_POWER_LIMIT, HOST_CPU_UTILIZATION
from wattline_exporter.meter.counter_track import MAX_DEVICE_W
from wattline_exporter.meter.emissions import SlotLookup
from wattline_exporter.meter.meter import LIMIT_MARGIN
from wattline_exporter.meter.plausibility import REASON_TEXTS, has_short_window, sensor_share
from wattline_exporter.polling.health import (
    DeviceSnapshot,
    GpuEnergySnapshot,
    GpuHealth,
    GpuSnapshot,
    SensorSnapshot,
    SourceHealth,
    count_xid,
    xid_readings,
)
from wattline_exporter.polling.meters import SLOW_S, EnergyMeters, SavedTotals
from wattline_exporter.sensors.exported_counters import ExportedCounters
from wattline_exporter.sensors.readings import (
    Batch,
    ClockReading,
    Device,
    DriverGone,
    GpuCount,
    GpuFailure,
    GpuInfo,
    GpuProcessList,
    Poll,
    Reading,
    ReadingChanges,
    SourceError,
    WorkerItem,
    XidError,
    XidReporting,
    read_clocks,
)

_LATE_PERIODS = 3.0
GPU_LATE_S = 2.5
"""Age of the last poll at which a GPU counts as silent."""
SILENT_S = 5.0
STOPPED_S = 2.0
"""Time between two checks of liveness above which this process itself was stopped; they are a
second apart.
"""
IDLE_RATIO = 0.05
"""Utilization below which the CPUs count as idle."""

log = logging.getLogger(__name__)


class LiveState:
    """Latest values of all sensors: energy meters, readings of the GPUs, health of the sources."""

    def __init__(
        self,
        saved: SavedTotals | None = None,
        *,
        slots_at: SlotLookup = lambda _: (),
        clock: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        saved = saved or SavedTotals()
        self.energy = EnergyMeters(saved, slots_at, clock)
        self.counters = ExportedCounters(dict(saved.counters))
        self.gpus: dict[str, GpuHealth] = {}
        self.sources: dict[str, SourceHealth] = {}
        self.expected_gpus: int | None = None
        """Number of GPUs that the driver listed."""
        self.simulation: str | None = None
        """Path of the simulated GPUs' state file, if the GPUs are simulated."""
        self._clock = clock
        self._polled_by: dict[Device, str] = {}
        self._introduced: set[str] = set()
        self._unattached: dict[int, str] = {}
        self._aged_s: float | None = None
        self._awake_s = -math.inf
        """Time since which this process has run without a stop, as by SIGSTOP."""

    # -- input

    def take_worker(self, items: Sequence[WorkerItem]) -> None:
        """Take the items of one frame in order; adjacent polls together."""
        source = self.source("nvml", SLOW_S)
        for kind, group in groupby(items, key=type):
            if kind is Poll:
                self._take_polls(source, cast("list[Poll]", list(group)))
            else:
                for item in group:
                    self._take_item(source, item)

    def _take_item(self, source: SourceHealth, item: WorkerItem) -> None:
        match item:
            case GpuCount(count):
                self.expected_gpus = count
                self._introduced = set()
                self._unattached = {}
            case GpuInfo():
                self._attach(item)
            case ReadingChanges():
                self._take_readings(item)
            case GpuProcessList():
                self.gpus[item.uuid].take_processes(item)
            case XidReporting(uuid):
                self.gpus[uuid].reports_xids = True
            case XidError(uuid, xid):
                self._take_xid(uuid, xid)
            case GpuFailure(index, reason):
                source.count("failed", 0.0)
                self._down(index, reason)
            case DriverGone():
                self._driver_gone(item)

    def _take_readings(self, changes: ReadingChanges) -> None:
        gpu = self.gpus[changes.uuid]
        for key in changes.removed:
            gpu.readings.pop(key, None)
        for reading in self.counters.accumulate(changes.changed(), from_zero=False):
            gpu.readings[reading.metric.name, reading.labels] = reading
            if reading.metric is GPU_POWER_LIMIT:
                self._take_limit(gpu, reading)
        self.energy.meter(gpu.device).note_busy(self._clock().s, is_busy=gpu.is_busy())

    def _take_limit(self, gpu: GpuHealth, reading: Reading) -> None:
        """Bound the GPU's power by its highest limit; the current one may just have been
        lowered.
        """
        meter = self.energy.meter(gpu.device)
        if reading.labels[2] in ("enforced", "default", "max") and 0 < reading.value < MAX_DEVICE_W:
            max_w = LIMIT_MARGIN * reading.value
            meter.max_w = max_w if meter.max_w == MAX_DEVICE_W else max(meter.max_w, max_w)

    def _take_xid(self, uuid: str, xid: int) -> None:
        if gpu := self.gpus.get(uuid):
            count_xid(self.counters, gpu.info, xid, self._clock().at)

    def _driver_gone(self, gone: DriverGone) -> None:
        if gone.unloaded:
            self.energy.expect_new_counters()
        for gpu in self.gpus.values():
            gpu.up = False
        self.failed("nvml", SourceError(gone.reason, "waiting for the driver"), 0.0, SLOW_S)

    def _take_polls(self, source: SourceHealth, polls: Sequence[Poll]) -> None:
        self.energy.push(polls)
        source.count("ok", math.fsum([poll.after_s - poll.before_s for poll in polls]), len(polls))
        for poll in polls:
            gpu = self.gpus[poll.device.id]
            gpu.read_s = poll.after_s
            if not gpu.up:
                gpu.up = True
                gpu.failure = ""
                log.info("GPU %s answers again", gpu.info.index)
        self._succeeded("nvml", source)

    def _attach(self, gpu: GpuInfo) -> None:
        self.gpus[gpu.uuid] = GpuHealth(gpu, Device("gpu", gpu.uuid), self._clock().s)
        self._unattached.pop(int(gpu.index), None)
        self._introduced.add(gpu.uuid)
        meter = self.energy.meter(Device("gpu", gpu.uuid))
        meter.sensor_share = sensor_share(gpu.name, gpu.architecture)
        meter.windows.is_short_by_model = has_short_window(gpu.name, gpu.architecture)
        if (
            len(self._introduced) == self.expected_gpus
        ):  # complete: GPUs beyond these are bound elsewhere, or removed
            self.gpus = {
                uuid: state for uuid, state in self.gpus.items() if uuid in self._introduced
            }
        log.info("GPU %s answers: %s, %s", gpu.index, gpu.name, gpu.uuid)

    def take_batch(self, name: str, batch: Batch, took_s: float, period_s: float) -> None:
        source = self.source(name, period_s)
        source.count("ok", took_s)
        self._polled_by |= {poll.device: name for poll in batch.polls}
        self.energy.push(batch.polls, period_s)
        for problem in set(batch.problems) - set(source.batch.problems):
            log.warning("source=%s %s", name, problem)
        source.batch = replace(
            batch, readings=tuple(self.counters.accumulate(batch.readings, from_zero=True))
        )
        self._succeeded(name, source)

    def failed(self, name: str, error: SourceError, took_s: float, period_s: float) -> None:
        source = self.source(name, period_s)
        source.count("failed", took_s)
        if source.up or source.failure != str(error):
            log.warning("source=%s down: %s", name, error)
        if source.up:
            source.changed_s = self._clock().s
        source.up, source.failure, source.batch = False, str(error), Batch()

    def has_read_gpus(self) -> bool:
        """Return True once each GPU, or the driver as a whole, has answered or failed."""
        source = self.sources.get("nvml")
        if source is None or self.expected_gpus is None:
            return source is not None and bool(source.failure)
        answered = sum(Device("gpu", uuid) in self.energy.polled for uuid in self.gpus)
        return answered + len(self._unattached) >= self.expected_gpus

    def source(self, name: str, period_s: float) -> SourceHealth:
        """Return the source's health, a new one if it has none."""
        source = self.sources.get(name)
        if source is None:
            source = SourceHealth(period_s, changed_s=self._clock().s)
            self.sources[name] = source
        return source

    def _succeeded(self, name: str, source: SourceHealth) -> None:
        now = self._clock()
        source.read_at = now.at
        source.read_s = now.s
        if not source.up:
            if source.failure:
                log.info("source=%s up after %.0f s", name, source.read_s - source.changed_s)
            source.up = True
            source.failure = ""

    def _down(self, index: int, reason: str) -> None:
        for gpu in self.gpus.values():
            if gpu.info.index == str(index):
                if gpu.up or not gpu.failure:
                    log.warning("GPU %s does not answer: %s", index, reason)
                gpu.up = False
                gpu.failure = reason
                return
        if self._unattached.get(index) != reason:
            log.warning("GPU %s cannot be attached: %s", index, reason)
        self._unattached[index] = reason

    def is_read(self, device: Device) -> bool:
        """Return True if the device itself was read; its source may answer without it."""
        if device.kind == "gpu":
            return device.id in self.gpus and self.gpus[device.id].up
        name = self._polled_by.get(device)
        return name is not None and any(
            poll.device == device for poll in self.sources[name].batch.polls
        )

    def modelled_packages(self) -> list[str]:
        """Return the CPU packages whose energy is estimated."""
        rapl = self.sources.get("rapl")
        readings = rapl.batch.readings if rapl else ()
        return [
            r.labels[0]
            for r in readings
            if r.metric is CPU_ENERGY_METHOD and r.labels[1] == "model"
        ]

    def busy_devices(self) -> Iterator[Device]:
        """Yield the devices that are in use now, whose power is not their idle power."""
        host = self.sources.get("host")
        ratios = (
            [r.value for r in host.batch.readings if r.metric is HOST_CPU_UTILIZATION]
            if host
            else []
        )
        cpus_busy = not ratios or ratios[0] > IDLE_RATIO
        for device in self.energy.meters:
            gpu = self.gpus.get(device.id)
            if (gpu.is_busy() if gpu else cpus_busy) and device.component:
                yield device

    # -- output

    def update(self, now_s: float) -> None:
        """Bring the health of all sources up to date, for a snapshot."""
        self.age(now_s)
        self.energy.start_emissions()
        for name, source in self.sources.items():
            source.health = tuple(self.counters.accumulate(source.readings(name), from_zero=True))

    def snapshot(self) -> SensorSnapshot:
        readable = [device for device in self.energy.meters if self.is_read(device)]
        now_s = self._clock().s
        return SensorSnapshot(
            gpus=tuple(self._gpu_snapshot(gpu, now_s) for gpu in self.gpus.values()),
            devices=tuple(
                DeviceSnapshot(
                    device,
                    self.energy.meters[device].totals.energy_j,
                    self.energy.power_w.get(device),
                )
                for device in readable
                if device.kind != "gpu"
            ),
            xid_errors=tuple(xid_readings(self.gpus.values(), self.counters)),
            emissions_grams=dict(self.energy.emissions_grams),
            source_readings=tuple(
                (*source.batch.readings, *source.health) for source in self.sources.values()
            ),
            readable=frozenset(readable),
        )

    def _gpu_snapshot(self, gpu: GpuHealth, now_s: float) -> GpuSnapshot:
        meter = self.energy.meters.get(gpu.device)
        poll = meter.latest if meter else None
        if not gpu.up or meter is None or poll is None:
            return GpuSnapshot(gpu.info, gpu.up)
        reasons = frozenset(gpu.check.reasons)
        totals = meter.totals
        is_old = (
            now_s - poll.after_s > GPU_LATE_S
        )  # and up: this process was stopped, or the GPU was attached again
        energy_j, integrated_j = (
            None if is_old else each for each in (totals.energy_j, totals.integrated_j)
        )
        energy = GpuEnergySnapshot(
            energy_j, integrated_j, meter.has_counter, poll.display_w, reasons
        )
        return GpuSnapshot(gpu.info, up=True, energy=energy, readings=tuple(gpu.readings.values()))

    # -- liveness

    def age(self, now_s: float) -> None:
        """Mark silent GPUs and sources as down, unless this process was stopped and could not read
        their answers.
        """
        if self._aged_s is not None and now_s - self._aged_s > STOPPED_S:
            self._awake_s = now_s
        self._aged_s = now_s
        for gpu in self.gpus.values():
            if gpu.up and now_s - max(gpu.read_s, self._awake_s) > GPU_LATE_S:
                gpu.up = False
                self.source("nvml", SLOW_S).count("late", 0.0)
                log.warning(
                    "GPU %s has not answered for %.1f s", gpu.info.index, now_s - gpu.read_s
                )
        for name, source in self.sources.items():
            if source.read_s is None and not source.failure and now_s - source.changed_s > SILENT_S:
                source.failure = "no answer yet"
                log.warning(
                    "source=%s has not answered for %.0f s; check it with nvidia-smi",
                    name,
                    SILENT_S,
                )
            late_s = _LATE_PERIODS * source.period_s + 1.0
            if (
                source.up
                and source.read_s is not None
                and now_s - max(source.read_s, self._awake_s) > late_s
            ):
                source.count("late", now_s - source.read_s)
                source.up = False
                source.changed_s = now_s
                source.failure = "late"
                source.batch = Batch()
                log.warning("source=%s down: no answer for %.1f s", name, late_s)

    def check_energies(self, now_s: float) -> None:
        """Check the energy of each GPU for plausibility, about once a second."""
        for gpu in self.gpus.values():
            self._check(gpu, now_s)

    def _check(self, gpu: GpuHealth, now_s: float) -> None:
        meter = self.energy.meters.get(gpu.device)
        if meter is None or not gpu.up:
            return
        before = gpu.check.reasons
        gpu.check.update(meter, now_s)
        for reason in gpu.check.reasons - before:
            log.warning("GPU %s: unreliable energy: %s", gpu.info.index, REASON_TEXTS[reason])
        for reason in before - gpu.check.reasons:
            log.info("GPU %s: energy is no longer %s", gpu.info.index, reason)
