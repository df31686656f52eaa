"""Snapshots of the node, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from wattline.contract.metrics import (
    BUILD_INFO,
    CPU_ENERGY,
    CPU_POWER,
    EMISSIONS,
    GPU_ENERGY,
    GPU_ENERGY_METHOD,
    GPU_ENERGY_SUSPECT,
    GPU_INFO,
    GPU_INTEGRATED_ENERGY,
    GPU_POWER,
    GPU_UP,
    HWMON_ENERGY,
    RUN_ATTRIBUTED_ENERGY,
    RUN_COVERED_RATIO,
    RUN_DURATION,
    RUN_EMISSIONS,
    RUN_END,
    RUN_ENERGY,
    RUN_ENERGY_BEFORE_USE,
    RUN_ENERGY_UNCERTAINTY,
    RUN_GPU_INFO,
    RUN_INFO,
    RUN_INTEGRATED_ENERGY,
    RUN_OUTCOME,
    RUN_PHASE_ENERGY,
    RUN_PHASE_ENERGY_UNCERTAINTY,
    RUN_PHASE_SECONDS,
    RUN_PHASE_START,
    RUN_PHASE_WORK,
    RUN_POWER_MAX,
    RUN_RESULT,
    RUN_START,
    RUN_WORK,
    RUN_WORK_TIMESTAMP,
    RUN_WORK_UNIT,
)
from wattline.contract.run import Run
from wattline_exporter.meter.plausibility import REASONS
from wattline_exporter.polling.health import DeviceSnapshot, GpuSnapshot, SensorSnapshot
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.readings import ClockReading, Device, Reading, read_clocks
from wattline_exporter.storage.writer import HistorySecond
from wattline_exporter.web.metrics_page import CollectedSeries, RenderedSeries, group_families


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """Everything that the metrics show at one instant, but for the runs that have ended."""

    version: str
    sensors: SensorSnapshot
    attribution: tuple[Reading, ...]
    services: tuple[Reading, ...]
    """Metrics of storage, push and carbon intensities."""
    runs: tuple[Run, ...]


def node_readings(snapshot: NodeSnapshot) -> Iterator[Reading]:
    """Yield all metrics of the snapshot."""
    yield Reading(BUILD_INFO, (snapshot.version,), 1.0)
    sensors = snapshot.sensors
    for gpu in sensors.gpus:
        yield from _gpu_readings(gpu)
    yield from sensors.xid_errors
    for device in sensors.devices:
        yield from _device_readings(device)
    for key, grams in sensors.emissions_grams.items():
        yield Reading(EMISSIONS, key, grams)
    yield from snapshot.attribution
    for readings in sensors.source_readings:
        yield from readings
    yield from snapshot.services
    for run in snapshot.runs:
        yield from run_readings(run)


def _gpu_readings(gpu: GpuSnapshot) -> Iterator[Reading]:
    info, energy = gpu.info, gpu.energy
    labels = (info.index, info.uuid)
    yield Reading(GPU_UP, labels, float(gpu.up))
    if energy is None:
        return
    yield Reading(
        GPU_INFO,
        (*labels, info.uuid, info.name, info.architecture, info.pci_bus_id, info.driver_version),
        1.0,
    )
    if energy.power_w is not None:
        yield Reading(GPU_POWER, labels, energy.power_w)
    if energy.energy_j is not None:
        yield Reading(GPU_ENERGY, labels, energy.energy_j)
    if energy.integrated_j is not None:
        yield Reading(GPU_INTEGRATED_ENERGY, labels, energy.integrated_j)
    yield Reading(
        GPU_ENERGY_METHOD, (*labels, "counter" if energy.has_counter else "integral"), 1.0
    )
    for reason in REASONS:
        yield Reading(GPU_ENERGY_SUSPECT, (*labels, reason), float(reason in energy.suspect))
    yield from gpu.readings


def _device_readings(snapshot: DeviceSnapshot) -> Iterator[Reading]:
    device = snapshot.device
    if device.kind == "hwmon":
        chip, _, sensor = device.id.rpartition("/")
        yield Reading(HWMON_ENERGY, (chip, sensor), snapshot.energy_j)
        return
    yield Reading(CPU_ENERGY, (device.id, device.kind), snapshot.energy_j)
    if snapshot.power_w is not None:
        yield Reading(CPU_POWER, (device.id, device.kind), snapshot.power_w)


def run_readings(run: Run) -> Iterator[Reading]:
    """Yield the series of one run."""
    identity = (run.run_id,)
    labels = tuple((f"label_{name}", value) for name, value in run.labels.items())
    yield Reading(RUN_INFO, (run.run_id, run.workload), 1.0, labels)
    yield Reading(RUN_START, identity, run.started_at)
    yield Reading(RUN_DURATION, identity, run.duration_s)
    if run.ended_at is not None:
        yield Reading(RUN_END, identity, run.ended_at)
        yield Reading(RUN_OUTCOME, (run.run_id, run.outcome or "interrupted"), 1.0)
    yield from _run_energy_readings(run)
    for emission in run.emissions:
        labels_of = (run.run_id, emission.component, emission.basis, emission.quality)
        yield Reading(RUN_EMISSIONS, labels_of, emission.grams)
    for unit, amount in run.work.items():
        yield Reading(RUN_WORK, (run.run_id, unit), amount)
    if run.work_unit is not None:
        yield Reading(RUN_WORK_UNIT, (run.run_id, run.work_unit), 1.0)
    if run.work_reported_at is not None:
        yield Reading(RUN_WORK_TIMESTAMP, identity, run.work_reported_at)
    for name, value in run.results.items():
        yield Reading(RUN_RESULT, (run.run_id, name), value)
    yield from _phase_readings(run)


def _phase_readings(run: Run) -> Iterator[Reading]:
    for phase in run.phases:
        yield Reading(RUN_PHASE_SECONDS, (run.run_id, phase.name), phase.duration_s)
        if phase.last_started_at is not None:
            yield Reading(RUN_PHASE_START, (run.run_id, phase.name), phase.last_started_at)
        for component, energy in phase.energies_j.items():
            labels = (run.run_id, phase.name, component)
            if energy.value is not None:
                yield Reading(RUN_PHASE_ENERGY, labels, energy.value)
            if energy.half_width is not None:
                yield Reading(RUN_PHASE_ENERGY_UNCERTAINTY, labels, energy.half_width)
        for unit, amount in phase.work.items():
            yield Reading(RUN_PHASE_WORK, (run.run_id, phase.name, unit), amount)


def _run_energy_readings(run: Run) -> Iterator[Reading]:
    integrated_j = {device.device_id: device.integrated_j for device in run.devices}
    for gpu in run.gpus:
        labels = (run.run_id, gpu.gpu, gpu.uuid)
        yield Reading(RUN_GPU_INFO, labels, 1.0)
        if (gpu_integrated_j := integrated_j.get(gpu.uuid)) is not None:
            yield Reading(RUN_INTEGRATED_ENERGY, labels, gpu_integrated_j)
        if gpu.uuid in run.power_max_w:
            yield Reading(RUN_POWER_MAX, labels, run.power_max_w[gpu.uuid])
    for device in run.devices:
        labels = (run.run_id, device.component, device.device_id)
        energy = device.energy_j
        if energy.value is not None:
            yield Reading(RUN_ENERGY, labels, energy.value)
        if device.before_use_j > 0:
            yield Reading(RUN_ENERGY_BEFORE_USE, labels, device.before_use_j)
        if energy.half_width is not None:
            yield Reading(RUN_ENERGY_UNCERTAINTY, labels, energy.half_width)
        yield Reading(RUN_COVERED_RATIO, labels, energy.covered_ratio)


class ReadingSource(Protocol):
    """Service that has metrics."""

    def readings(self) -> Iterable[Reading]: ...


class SeriesLimits(Protocol):
    """Limits of the series of runs. See `wattline_exporter.runs.limits`."""

    def omits(self, reading: Reading, *, recorded: bool) -> bool:
        """Return True for a series of a run that is left out."""


class RunSource(Protocol):
    """Ledger of runs. See `wattline_exporter.runs.ledger`."""

    def update(self) -> None:
        """Bring sensors, attribution and runs up to date."""

    def attribution_readings(
        self, readable: Collection[Device], *, recorded: bool
    ) -> Iterable[Reading]:
        """Return the attributed energies; `readable` are the devices whose energy is known up to
        now.

        `recorded`: for the local history, which has new series above 0 earlier than the page of
        metrics.
        """

    def ids(self) -> tuple[list[str], list[str]]:
        """Return the ids of the open and of the ended runs; that of a revised run is another
        one.
        """

    @property
    def limits(self) -> SeriesLimits: ...

    def hidden(self, *, recorded: bool) -> Collection[str]:
        """Return the ids of the runs that have no series."""

    def snapshot(self, run_id: str) -> Run: ...


@dataclass(frozen=True, slots=True)
class _EndedRun:
    """Series of an ended run in the local history and in /metrics, made once since they do not
    change.
    """

    recorded: tuple[Reading, ...]
    shown: RenderedSeries


class SeriesCollector:
    """Takes snapshots of sensors, attribution, runs and `services`."""

    def __init__(
        self,
        version: str,
        live: LiveState,
        ledger: RunSource,
        services: Sequence[ReadingSource] = (),
        *,
        clock: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        self._version = version
        self._live = live
        self._ledger = ledger
        self._services = services
        self._clock = clock
        self._ended: dict[str, _EndedRun] = {}

    def series(self) -> CollectedSeries:
        """Bring all values up to date and return the series of the metrics."""
        snapshot, ended = self._snapshot(recorded=False)
        return CollectedSeries(
            self._listed(node_readings(snapshot), recorded=False),
            [run.shown for run in ended.values()],
        )

    def second(self) -> HistorySecond:
        """Bring all values up to date and return the input of the local history."""
        snapshot, ended = self._snapshot(recorded=True)
        now = self._clock()
        return HistorySecond(
            at=now.at,
            s=now.s,
            readings=list(self._listed(node_readings(snapshot), recorded=True)),
            ended={run_id: run.recorded for run_id, run in ended.items()},
            run_open=bool(snapshot.runs),
        )

    def _snapshot(self, *, recorded: bool) -> tuple[NodeSnapshot, dict[str, _EndedRun]]:
        self._ledger.update()
        sensors = self._live.snapshot()
        open_ids, ended_ids = self._ledger.ids()
        hidden = self._ledger.hidden(recorded=recorded)
        snapshot = NodeSnapshot(
            version=self._version,
            sensors=sensors,
            attribution=tuple(
                reading
                for reading in self._ledger.attribution_readings(
                    sensors.readable, recorded=recorded
                )
                if reading.metric is not RUN_ATTRIBUTED_ENERGY or reading.labels[0] not in hidden
            ),
            services=tuple(reading for service in self._services for reading in service.readings()),
            runs=tuple(
                self._ledger.snapshot(run_id) for run_id in open_ids if run_id not in hidden
            ),
        )
        self._ended = {
            run_id: self._ended.get(run_id) or self._render_ended(run_id) for run_id in ended_ids
        }
        shown = {
            run_id: run
            for run_id, run in self._ended.items()
            if run_id.partition(" ")[0] not in hidden
        }
        return snapshot, shown

    def _render_ended(self, run_id: str) -> _EndedRun:
        readings = tuple(run_readings(self._ledger.snapshot(run_id)))
        recorded = tuple(self._listed(readings, recorded=True))
        shown = tuple(self._listed(readings, recorded=False))
        return _EndedRun(recorded, RenderedSeries(shown, group_families(shown)))

    def _listed(self, readings: Iterable[Reading], *, recorded: bool) -> Iterator[Reading]:
        return (
            reading
            for reading in readings
            if not self._ledger.limits.omits(reading, recorded=recorded)
        )
