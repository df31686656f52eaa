"""Latest readings and health of each GPU and source, and immutable snapshots of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from wattline.contract.metrics import (
    GPU_MIG_INFO,
    GPU_UTILIZATION,
    GPU_XID_ERRORS,
    GPU_XID_TIMESTAMP,
    SOURCE_READ_SECONDS,
    SOURCE_READ_TIMESTAMP,
    SOURCE_READS,
    SOURCE_RESTARTS,
    SOURCE_UP,
)
from wattline_exporter.meter.emissions import EmissionKey
from wattline_exporter.meter.plausibility import EnergyCheck
from wattline_exporter.sensors.exported_counters import ExportedCounters
from wattline_exporter.sensors.readings import (
    Batch,
    Device,
    GpuInfo,
    GpuProcess,
    GpuProcessList,
    Reading,
)

log = logging.getLogger(__name__)

LISTS_S = 12.0
"""Time for which lists of processes are kept, as long as polls."""
HARDWARE_XIDS = (48, 74, 79, 94, 95, 119)
"""XIDs after which a GPU must be reset or replaced; their counters exist from the start."""


@dataclass
class GpuHealth:
    """A GPU that has been attached; `read_s` is the time of its last answer (CLOCK_BOOTTIME)."""

    info: GpuInfo
    device: Device
    read_s: float
    readings: dict[tuple[str, tuple[str, ...]], Reading] = field(default_factory=dict)
    """By metric and labels."""
    processes: tuple[GpuProcess, ...] = ()
    lists: deque[GpuProcessList] = field(default_factory=deque)
    """Lists of the latest LISTS_S, with one before them, oldest first; `processes` is from the last
    one.
    """
    up: bool = True
    failure: str = ""
    """Cause that the driver gave for the last failure; empty while the GPU answers, or if it is
    silent.
    """
    check: EnergyCheck = field(default_factory=EnergyCheck)
    reports_xids: bool = False

    def take_processes(self, listed: GpuProcessList) -> None:
        self.processes = listed.processes
        self.lists.append(listed)
        while len(self.lists) > 1 and self.lists[1].read_s < listed.read_s - LISTS_S:
            self.lists.popleft()

    def utilization(self) -> float | None:
        """Return the utilization at the last reading, 0 to 1; None if the GPU does not report
        it.
        """
        reading = self.readings.get(
            (GPU_UTILIZATION.name, (self.info.index, self.info.uuid, "gpu"))
        )
        return None if reading is None else reading.value

    def is_busy(self) -> bool:
        """Return True if anything ran on the GPU at the last reading, as far as it reports that."""
        if self.utilization():
            return True
        return any(process.utilization != 0 for process in self.processes)

    def instances(self) -> list[str]:
        """Return the UUIDs of the MIG instances."""
        return [labels[1] for name, labels in self.readings if name == GPU_MIG_INFO.name]


def count_xid(counters: ExportedCounters, gpu: GpuInfo, xid: int, at: float) -> None:
    """Count and log an XID error at a Unix time."""
    log.warning("GPU %s: XID %d; see dmesg, and NVIDIA's list of XID errors", gpu.index, xid)
    labels = gpu.index, gpu.uuid, str(xid)
    counters.add(GPU_XID_ERRORS, labels, 1.0)
    counters.set(GPU_XID_TIMESTAMP, labels, at)


def xid_readings(gpus: Iterable[GpuHealth], counters: ExportedCounters) -> Iterator[Reading]:
    """Yield XID errors and their times.

    Hardware XIDs without an error have the count 0, so that `increase()` sees the first one.
    """
    counted = {reading.labels: reading for reading in counters.readings(GPU_XID_ERRORS)}
    for gpu in gpus:
        if gpu.reports_xids and gpu.up:
            for xid in HARDWARE_XIDS:
                labels = (gpu.info.index, gpu.info.uuid, str(xid))
                counted.setdefault(labels, Reading(GPU_XID_ERRORS, labels, 0.0))
    yield from counted.values()
    yield from counters.readings(GPU_XID_TIMESTAMP)


@dataclass
class SourceHealth:
    """Health of a source, and its last readings other than energies."""

    period_s: float
    up: bool = False
    read_at: float | None = None
    read_s: float | None = None
    changed_s: float = 0.0
    batch: Batch = field(default_factory=Batch)
    health: tuple[Reading, ...] = ()
    """The source's own metrics, with counters that continue over restarts."""
    reads: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    failure: str = ""

    def count(self, outcome: str, took_s: float, reads: int = 1) -> None:
        """Count reads, which took `took_s` together."""
        self.reads[outcome] = self.reads.get(outcome, 0) + reads
        self.seconds[outcome] = self.seconds.get(outcome, 0.0) + took_s

    def readings(self, name: str) -> Iterator[Reading]:
        """Yield the source's own metrics; its counters start at 0 with this process."""
        yield Reading(SOURCE_UP, (name,), float(self.up))
        if self.read_at is not None:
            yield Reading(SOURCE_READ_TIMESTAMP, (name,), self.read_at)
        for outcome, count in self.reads.items():
            yield Reading(SOURCE_READS, (name, outcome), float(count))
            yield Reading(SOURCE_READ_SECONDS, (name, outcome), self.seconds[outcome])
        yield Reading(SOURCE_RESTARTS, (name,), float(self.restarts))


@dataclass(frozen=True, slots=True)
class GpuEnergySnapshot:
    """Energies of a GPU that answers, and their quality. `suspect`: reasons to doubt the energy.

    Energies are None while the last poll is too old: they would belong to another time.
    """

    energy_j: float | None
    integrated_j: float | None
    has_counter: bool
    power_w: float | None
    suspect: frozenset[str]


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """A GPU. One that does not answer has no energy and no readings."""

    info: GpuInfo
    up: bool
    energy: GpuEnergySnapshot | None = None
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """Energy of a device other than a GPU, and its mean power between the last two polls."""

    device: Device
    energy_j: float
    power_w: float | None


@dataclass(frozen=True, slots=True)
class SensorSnapshot:
    gpus: tuple[GpuSnapshot, ...]
    devices: tuple[DeviceSnapshot, ...]
    xid_errors: tuple[Reading, ...]
    emissions_grams: Mapping[EmissionKey, float]
    source_readings: tuple[tuple[Reading, ...], ...]
    """Per source: its own readings, and those of its health."""
    readable: frozenset[Device]
    """Devices whose energy is known up to now."""
