"""The latest of every source, and its age."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from exporter.attribution.policy import AttributedKey, Attribution
from exporter.contract.metrics import (
    CPU_ENERGY_METHOD,
    GPU_POWER_LIMIT,
    GPU_XID_ERRORS,
)
from exporter.energy.counters import CounterTotal, MonotonicCounters, SeriesKey
from exporter.energy.emissions import SlotLookup, split_over_slots
from exporter.energy.marks import ZERO_TOTALS, MeterTotals
from exporter.energy.meter import LIMIT_MARGIN, DeviceMeter
from exporter.energy.plausibility import REASON_TEXTS, sensor_share
from exporter.latest_values import GpuState, SourceState
from exporter.model import Batch, Device, Gpu, Poll, SourceError, boottime
from exporter.nvml_worker.protocol import DriverGone, ReadingChanges, WorkerMessage
from exporter.storage.state_file import EmissionKey

FAST_S = 0.047
SLOW_S = 1.0
RAPL_UPDATE_S = 0.001
_LATE_PERIODS = 3.0
GPU_LATE_S = 2.5
"""A GPU that has been silent for so long shows nothing."""
SILENT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Past:
    """What the last exporter on this state folder left; `saved_s` is when, where that was since the machine booted."""

    totals: dict[Device, MeterTotals] = field(default_factory=dict)
    emissions: dict[EmissionKey, float] = field(default_factory=dict)
    counters: dict[SeriesKey, CounterTotal] = field(default_factory=dict)
    attributed: dict[AttributedKey, int] = field(default_factory=dict)
    idle_w: dict[Device, float] = field(default_factory=dict)
    saved_s: float | None = None


class Store:
    def __init__(self, past: Past, *, version: str, slots_at: SlotLookup = lambda _: ()) -> None:
        self.version = version
        self.lines = {device: _line(device, kept, past.saved_s) for device, kept in past.totals.items()}
        self.emissions = dict(past.emissions)
        self.counters = MonotonicCounters(past.counters)
        self.attribution = Attribution(
            past.attributed, {d: t.energy_j for d, t in past.totals.items()}, past.idle_w, past.saved_s
        )
        self.gpus: dict[str, GpuState] = {}
        self.sources: dict[str, SourceState] = {}
        self.seen: set[Device] = set()
        self.power_w: dict[Device, float] = {}
        self.expected_gpus: int | None = None
        """As many as the driver counts, once it has."""
        self.on_poll: Callable[[Poll], None] = lambda _: None
        self.slots_at = slots_at
        self._polled_by: dict[Device, str] = {}
        self._introduced: set[str] = set()
        self._unattached: dict[int, str] = {}
        self._period_s = SLOW_S

    # -- taking in

    def set_period(self, period_s: float) -> None:
        """How often GPUs are polled from now on."""
        self._period_s = period_s
        for device, line in self.lines.items():
            if device.kind == "gpu":
                line.period_s = self._period_of(line)

    def _period_of(self, line: DeviceMeter) -> float:
        """The sampler polls a GPU without a counter fast, run or no run."""
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

    def _take_polls(self, source: SourceState, polls: tuple[Poll, ...]) -> None:
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
        self.gpus[gpu.uuid] = GpuState(gpu, Device("gpu", gpu.uuid), boottime())
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
        """Whether each GPU has answered or failed to, or the driver has."""
        source = self.sources.get("nvml")
        if source is None or self.expected_gpus is None:
            return source is not None and bool(source.trouble)
        answered = sum(Device("gpu", uuid) in self.seen for uuid in self.gpus)
        return answered + len(self._unattached) >= self.expected_gpus

    def source(self, name: str, period_s: float) -> SourceState:
        return self.sources.setdefault(name, SourceState(period_s, changed_s=boottime()))

    def _succeeded(self, name: str, source: SourceState) -> None:
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
        self.on_poll(poll)

    def _line(self, device: Device) -> DeviceMeter:
        if device not in self.lines:
            self.lines[device] = _line(device, ZERO_TOTALS, None)
        return self.lines[device]

    def _emit(self, device: Device, joules: float, elapsed_s: float) -> None:
        """Grams for joules drawn evenly over the last `elapsed_s`, each at the intensity of its own slot."""
        component = device.component
        if not component or joules <= 0:
            return
        for share, slot in split_over_slots(self.slots_at, time.time(), elapsed_s):
            key = (component, device.id, slot.basis, slot.quality)
            self.emissions[key] = self.emissions.get(key, 0.0) + share * joules / 3.6e6 * slot.grams_per_kwh

    def is_read(self, device: Device) -> bool:
        """Whether its energy is known up to now: of a source that answers, one device may have gone."""
        if device.kind == "gpu":
            return device.id in self.gpus and self.gpus[device.id].up
        name = self._polled_by.get(device)
        return name is not None and any(poll.device == device for poll in self.sources[name].batch.polls)

    def modelled_packages(self) -> list[str]:
        """CPU packages whose energy is an estimate."""
        rapl = self.sources.get("rapl")
        readings = rapl.batch.readings if rapl else ()
        return [r.labels[0] for r in readings if r.metric is CPU_ENERGY_METHOD and r.labels[1] == "model"]

    def divide(self) -> None:
        """What the devices have drawn, among those who have held them up to now."""
        for device, line in self.lines.items():
            if line.latest and device.component:
                self.attribution.divide(device, line.totals.energy_j, line.latest.after_s)

    # -- growing old

    def age(self, now_s: float) -> None:
        """Marks as down what has been silent for too long."""
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
        """To be called about once a second."""
        for gpu in self.gpus.values():
            self._check(gpu, now_s)

    def _check(self, gpu: GpuState, now_s: float) -> None:
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
