"""Latest values of all sensors, their energy meters and their health."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from exporter.contract.metrics import (
    CPU_ENERGY_METHOD,
    GPU_POWER_LIMIT,
    GPU_XID_ERRORS,
    HOST_CPU_UTILIZATION,
)
from exporter.energy.counters import CounterTotal, MonotonicCounters, SeriesKey
from exporter.energy.emissions import EmissionKey, SlotLookup, split_over_slots
from exporter.energy.marks import ZERO_TOTALS, MeterTotals
from exporter.energy.meter import LIMIT_MARGIN, DeviceMeter
from exporter.energy.plausibility import REASON_TEXTS, sensor_share
from exporter.model import Batch, Device, Gpu, Poll, SourceError, boottime
from exporter.nvml_worker.protocol import DriverGone, ReadingChanges, WorkerMessage
from exporter.sensors.health import GpuHealth, SourceHealth
from exporter.sensors.snapshot import DeviceSnapshot, GpuEnergySnapshot, GpuSnapshot, SensorSnapshot

FAST_S = 0.047
SLOW_S = 1.0
RAPL_UPDATE_S = 0.001
_LATE_PERIODS = 3.0
GPU_LATE_S = 2.5
"""Age of the last poll at which a GPU counts as silent."""
SILENT_S = 5.0
IDLE_RATIO = 0.05
"""Utilization below which the CPUs count as idle."""

log = logging.getLogger(__name__)


class PowerSample(NamedTuple):
    """Power of a GPU at one poll (CLOCK_BOOTTIME)."""

    uuid: str
    t_s: float
    power_w: float


class LiveState:
    """Latest values of all sensors.

    The totals are those of the previous exporter on this state folder, saved at `saved_s`; None after a reboot.
    """

    def __init__(
        self,
        totals: Mapping[Device, MeterTotals] | None = None,
        emissions: Mapping[EmissionKey, float] | None = None,
        counters: Mapping[SeriesKey, CounterTotal] | None = None,
        saved_s: float | None = None,
        *,
        slots_at: SlotLookup = lambda _: (),
    ) -> None:
        self.lines = {device: _line(device, total, saved_s) for device, total in (totals or {}).items()}
        self.emissions = dict(emissions or {})
        self.counters = MonotonicCounters(dict(counters or {}))
        self.gpus: dict[str, GpuHealth] = {}
        self.sources: dict[str, SourceHealth] = {}
        self.seen: set[Device] = set()
        """Devices that were polled at least once."""
        self.power_w: dict[Device, float] = {}
        self.expected_gpus: int | None = None
        """Number of GPUs that the driver listed."""
        self.slots_at = slots_at
        self.simulation: str | None = None
        """Path of the simulated GPUs' state file, if the GPUs are simulated."""
        self._power_samples: list[PowerSample] = []
        self._polled_by: dict[Device, str] = {}
        self._introduced: set[str] = set()
        self._unattached: dict[int, str] = {}
        self._period_s = SLOW_S

    # -- input

    def set_period(self, period_s: float) -> None:
        """Set the period at which GPUs are polled from now on."""
        self._period_s = period_s
        for device, line in self.lines.items():
            if device.kind == "gpu":
                line.period_s = self._period_of(line)

    def _period_of(self, line: DeviceMeter) -> float:
        """Return the polling period of a GPU: one without a counter is always polled fast."""
        return self._period_s if line.has_counter else min(self._period_s, FAST_S)

    def take_worker(self, message: WorkerMessage) -> None:
        source = self.source("nvml", SLOW_S)
        for counted in message.gpu_counts:
            self.expected_gpus, self._introduced, self._unattached = counted.count, set(), {}
        for gpu in message.gpus:
            self._attach(gpu)
        if message.polls:
            self._take_polls(source, message.polls)
        self._take_slow_values(message)
        for failure in message.gpu_failures:
            source.count("failed", 0.0)
            self._down(failure.index, failure.reason)
        for gone in message.driver_gone:
            self._driver_gone(gone)

    def _take_slow_values(self, message: WorkerMessage) -> None:
        for changes in message.reading_changes:
            self._take_readings(changes)
        for listed in message.process_lists:
            self.gpus[listed.uuid].processes = listed.processes
        for error in message.xid_errors:
            self._take_xid(error.uuid, error.xid)

    def _take_readings(self, changes: ReadingChanges) -> None:
        gpu = self.gpus[changes.uuid]
        for key in changes.removed:
            gpu.readings.pop(key, None)
        for reading in self.counters.accumulate(changes.changed, from_zero=False):
            gpu.readings[reading.metric.name, reading.labels] = reading
            if reading.metric is GPU_POWER_LIMIT and reading.labels[2] == "enforced" and gpu.device in self.lines:
                self.lines[gpu.device].max_w = LIMIT_MARGIN * reading.value

    def _take_xid(self, uuid: str, xid: int) -> None:
        gpu = self.gpus.get(uuid)
        if gpu:
            log.warning("GPU %s: XID %d; see dmesg, and NVIDIA's list of XID errors", gpu.info.index, xid)
            self.counters.add(GPU_XID_ERRORS, (gpu.info.index, uuid, str(xid)), 1.0)

    def _driver_gone(self, gone: DriverGone) -> None:
        if gone.unloaded:
            for device, line in self.lines.items():
                line.counter_restarts = device.kind == "gpu"
        for gpu in self.gpus.values():
            gpu.up = False
        self.failed("nvml", SourceError(gone.reason, "waiting for the driver"), 0.0, SLOW_S)

    def _take_polls(self, source: SourceHealth, polls: tuple[Poll, ...]) -> None:
        for poll in polls:
            gpu = self.gpus[poll.device.id]
            self._push(poll)
            source.count("ok", poll.after_s - poll.before_s)
            gpu.read_s = poll.after_s
            if not gpu.up:
                gpu.up = True
                log.info("GPU %s answers again", gpu.info.index)
        self._succeeded("nvml", source)

    def _attach(self, gpu: Gpu) -> None:
        self.gpus[gpu.uuid] = GpuHealth(gpu, Device("gpu", gpu.uuid), boottime())
        self._unattached.pop(int(gpu.index), None)
        self._introduced.add(gpu.uuid)
        self._line(Device("gpu", gpu.uuid)).sensor_share = sensor_share(gpu.name, gpu.architecture)
        if len(self._introduced) == self.expected_gpus:  # all are there: others are bound elsewhere, or taken out
            self.gpus = {uuid: state for uuid, state in self.gpus.items() if uuid in self._introduced}
        log.info("GPU %s answers: %s, %s", gpu.index, gpu.name, gpu.uuid)

    def take_batch(self, name: str, batch: Batch, took_s: float, period_s: float) -> None:
        source = self.source(name, period_s)
        source.count("ok", took_s)
        for poll in batch.polls:
            self._polled_by[poll.device] = name
            self._push(poll, period_s)
        for problem in set(batch.problems) - set(source.batch.problems):
            log.warning("source=%s %s", name, problem)
        source.batch = replace(batch, readings=tuple(self.counters.accumulate(batch.readings, from_zero=True)))
        self._succeeded(name, source)

    def failed(self, name: str, error: SourceError, took_s: float, period_s: float) -> None:
        source = self.source(name, period_s)
        source.count("failed", took_s)
        if source.up or source.trouble != str(error):
            log.warning("source=%s down: %s", name, error)
        if source.up:
            source.changed_s = boottime()
        source.up, source.trouble, source.batch = False, str(error), Batch()

    def has_read_gpus(self) -> bool:
        """Return True once each GPU, or the driver as a whole, has answered or failed."""
        source = self.sources.get("nvml")
        if source is None or self.expected_gpus is None:
            return source is not None and bool(source.trouble)
        answered = sum(Device("gpu", uuid) in self.seen for uuid in self.gpus)
        return answered + len(self._unattached) >= self.expected_gpus

    def source(self, name: str, period_s: float) -> SourceHealth:
        return self.sources.setdefault(name, SourceHealth(period_s, changed_s=boottime()))

    def _succeeded(self, name: str, source: SourceHealth) -> None:
        source.read_at, source.read_s = time.time(), boottime()
        if not source.up:
            if source.trouble:
                log.info("source=%s up after %.0f s", name, source.read_s - source.changed_s)
            source.up, source.trouble = True, ""

    def _down(self, index: int, reason: str) -> None:
        for gpu in self.gpus.values():
            if gpu.info.index == str(index):
                if gpu.up:
                    log.warning("GPU %s does not answer: %s", index, reason)
                gpu.up = False
                return
        if self._unattached.get(index) != reason:
            log.warning("GPU %s cannot be attached: %s", index, reason)
        self._unattached[index] = reason

    def _push(self, poll: Poll, period_s: float | None = None) -> None:
        device = poll.device
        line = self._line(device)
        last = line.latest
        if period_s is not None:
            line.period_s = period_s
        added_j = line.push(poll)
        if device.kind == "gpu":
            line.period_s = self._period_of(line)
        self.seen.add(device)
        if last and line.latest is poll and poll.after_s > last.after_s:
            if not (poll.counter_j is None and poll.display_w is None):
                self.power_w[device] = added_j / (poll.after_s - last.after_s)
            self._emit(device, added_j, poll.after_s - last.after_s)
        power_w = poll.display_w
        if device.kind == "gpu" and power_w is not None:
            self._power_samples.append(PowerSample(device.id, poll.after_s, power_w))

    def _line(self, device: Device) -> DeviceMeter:
        if device not in self.lines:
            self.lines[device] = _line(device, ZERO_TOTALS, None)
        return self.lines[device]

    def _emit(self, device: Device, joules: float, elapsed_s: float) -> None:
        """Add the emissions of energy used evenly over the last `elapsed_s`, at the carbon intensity of each slot."""
        component = device.component
        if not component or joules <= 0:
            return
        for share, slot in split_over_slots(self.slots_at, time.time(), elapsed_s):
            key = (component, device.id, slot.basis, slot.quality)
            self.emissions[key] = self.emissions.get(key, 0.0) + share * joules / 3.6e6 * slot.grams_per_kwh

    def is_read(self, device: Device) -> bool:
        """Return True if the device's energy is known up to now; a source that answers may lack one of its devices."""
        if device.kind == "gpu":
            return device.id in self.gpus and self.gpus[device.id].up
        name = self._polled_by.get(device)
        return name is not None and any(poll.device == device for poll in self.sources[name].batch.polls)

    def modelled_packages(self) -> list[str]:
        """Return the CPU packages whose energy is estimated."""
        rapl = self.sources.get("rapl")
        readings = rapl.batch.readings if rapl else ()
        return [r.labels[0] for r in readings if r.metric is CPU_ENERGY_METHOD and r.labels[1] == "model"]

    def energies(self) -> Iterator[tuple[Device, float, float]]:
        """Yield each device that runs can have, its energy in joules, and the time of its last poll."""
        for device, line in self.lines.items():
            if line.latest and device.component:
                yield device, line.totals.energy_j, line.latest.after_s

    def busy_devices(self) -> Iterator[Device]:
        """Yield the devices that are in use now, whose power is not their idle power."""
        host = self.sources.get("host")
        ratios = [r.value for r in host.batch.readings if r.metric is HOST_CPU_UTILIZATION] if host else []
        cpus_busy = not ratios or ratios[0] > IDLE_RATIO
        for device in self.lines:
            gpu = self.gpus.get(device.id)
            if (gpu.is_busy() if gpu else cpus_busy) and device.component:
                yield device

    def drain_power_samples(self) -> Collection[PowerSample]:
        """Return the GPUs' power samples since the last call, and forget them."""
        drained, self._power_samples = self._power_samples, []
        return drained

    # -- output

    def update(self, now_s: float) -> None:
        """Bring the health of all sources up to date, for a snapshot."""
        self.age(now_s)
        for name, source in self.sources.items():
            source.health = tuple(self.counters.accumulate(source.readings(name), from_zero=True))

    def snapshot(self) -> SensorSnapshot:
        readable = [device for device in self.lines if self.is_read(device)]
        return SensorSnapshot(
            gpus=tuple(self._gpu_snapshot(gpu) for gpu in self.gpus.values()),
            devices=tuple(
                DeviceSnapshot(device, self.lines[device].totals.energy_j, self.power_w.get(device))
                for device in readable
                if device.kind != "gpu"
            ),
            xid_errors=tuple(self.counters.readings(GPU_XID_ERRORS)),
            emissions_grams=dict(self.emissions),
            source_readings=tuple((*source.batch.readings, *source.health) for source in self.sources.values()),
            readable=frozenset(readable),
        )

    def _gpu_snapshot(self, gpu: GpuHealth) -> GpuSnapshot:
        line = self.lines.get(gpu.device)
        poll = line.latest if line else None
        if not gpu.up or line is None or poll is None:
            return GpuSnapshot(gpu.info, gpu.up)
        power_w = poll.display_w
        energy = GpuEnergySnapshot(
            line.totals.energy_j, line.totals.integrated_j, line.has_counter, power_w, frozenset(gpu.check.reasons)
        )
        return GpuSnapshot(gpu.info, up=True, energy=energy, readings=tuple(gpu.readings.values()))

    # -- liveness

    def age(self, now_s: float) -> None:
        """Mark silent GPUs and sources as down."""
        for gpu in self.gpus.values():
            if gpu.up and now_s - gpu.read_s > GPU_LATE_S:
                gpu.up = False
                self.source("nvml", SLOW_S).count("late", 0.0)
                log.warning("GPU %s has not answered for %.1f s", gpu.info.index, now_s - gpu.read_s)
        for name, source in self.sources.items():
            if source.read_s is None and not source.trouble and now_s - source.changed_s > SILENT_S:
                source.trouble = "no answer yet"
                log.warning("source=%s has not answered for %.0f s; see what nvidia-smi says", name, SILENT_S)
            late_s = _LATE_PERIODS * source.period_s + 1.0
            if source.up and source.read_s is not None and now_s - source.read_s > late_s:
                source.count("late", now_s - source.read_s)
                source.up, source.changed_s, source.trouble = False, now_s, "late"
                source.batch = Batch()
                log.warning("source=%s down: no answer for %.1f s", name, late_s)

    def check_energies(self, now_s: float) -> None:
        """Check the energy of each GPU for plausibility, about once a second."""
        for gpu in self.gpus.values():
            self._check(gpu, now_s)

    def _check(self, gpu: GpuHealth, now_s: float) -> None:
        line = self.lines.get(gpu.device)
        if line is None or not gpu.up:
            return
        before = gpu.check.reasons
        gpu.check.update(line, now_s)
        for reason in gpu.check.reasons - before:
            log.warning("GPU %s: its energy is not to be trusted: %s", gpu.info.index, REASON_TEXTS[reason])
        for reason in before - gpu.check.reasons:
            log.info("GPU %s: its energy is no longer %s", gpu.info.index, reason)


def _line(device: Device, totals: MeterTotals, saved_s: float | None) -> DeviceMeter:
    last = Poll(device, saved_s, saved_s, counter_j=totals.raw_j) if saved_s is not None else None
    if device.kind == "gpu":
        return DeviceMeter(totals, last=last)
    return DeviceMeter(totals, last=last, update_s=RAPL_UPDATE_S)
