"""Snapshots of the node, and their metrics."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    Metric,
)
from wattline.contract.run import Run
from wattline.contract.run_series import to_rows
from wattline_exporter.meter.plausibility import REASONS
from wattline_exporter.polling.health import DeviceSnapshot, GpuSnapshot, SensorSnapshot
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.readings import ClockReading, Device, Reading, read_clocks
from wattline_exporter.storage.writer import HistorySecond
from wattline_exporter.web.metrics_page import CollectedSeries, RenderedSeries, ended_families

MAX_SHARED = 10_000
"""Labels that ended runs share, after which new runs no longer share those of older ones."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """Everything that the metrics show at one instant, but for the runs that have ended."""

    version: str
    sensors: SensorSnapshot
    attribution: tuple[Reading, ...]
    services: tuple[Reading, ...]
    """Metrics of storage and carbon intensities."""
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
    info = gpu.info
    energy = gpu.energy
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
    """Yield the series of one run, except the attributed energies.

    These are the attribution's own counters, which also exist for devices that nothing else uses.
    """
    for metric, labels, value in to_rows(run):
        if metric is RUN_ATTRIBUTED_ENERGY:
            continue
        own = tuple([labels[name] for name in metric.labels])
        if metric.open_labels:
            extra = {name: text for name, text in labels.items() if name not in metric.labels}
            yield Reading(metric, own, value, tuple(extra.items()))
        else:
            yield Reading(metric, own, value)


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
        """Return the attributed energies that may still change; `readable` are the devices whose
        energy is known up to now.

        `recorded`: for the local history, which has new series above 0 earlier than the page of
        metrics.
        """

    def ended_attribution(self, run_id: str) -> Iterable[Reading]:
        """Return the energies attributed to an ended run."""

    def ids(self) -> tuple[list[str], list[str]]:
        """Return the ids of the runs whose series may still change, and of the ended ones; that of
        a revised run is another one.
        """

    @property
    def limits(self) -> SeriesLimits: ...

    def hidden(self, *, recorded: bool) -> Collection[str]:
        """Return the ids of the runs that have no series."""

    def snapshot(self, run_id: str) -> Run: ...


class _SharedLabels(NamedTuple):
    """Metric and labels of a run's series, except its first label, the run's ID."""

    metric: Metric
    labels: tuple[str, ...]
    extra: tuple[tuple[str, str], ...]


class _EndedReadings:
    """Readings of an ended run. Runs on the same devices share their metrics and labels `shared`,
    by metric name and labels: 600 s of short runs on eight GPUs have 20,000 readings.
    """

    __slots__ = ("_run_id", "_series", "_values")

    def __init__(
        self,
        run_id: str,
        readings: Iterable[Reading],
        shared: dict[tuple[object, ...], _SharedLabels],
    ) -> None:
        self._run_id = run_id
        series = []
        values = array("d")
        for metric, (_, *labels), value, extra in readings:
            key = (metric.name, *labels, extra)
            if key not in shared:
                shared[key] = _SharedLabels(metric, tuple(labels), extra)
            series.append(shared[key])
            values.append(value)
        self._series = tuple(series)
        self._values = values

    def __iter__(self) -> Iterator[Reading]:
        for (metric, labels, extra), value in zip(self._series, self._values, strict=True):
            yield Reading(metric, (self._run_id, *labels), value, extra)

    def __len__(self) -> int:
        return len(self._series)


@dataclass(frozen=True, slots=True)
class _EndedRun:
    """Series of an ended run in the local history and in /metrics, made once since they do not
    change.
    """

    recorded: _EndedReadings
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
        self._shared: dict[tuple[object, ...], _SharedLabels] = {}

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
        readings = (
            *run_readings(self._ledger.snapshot(run_id)),
            *self._ledger.ended_attribution(run_id),
        )
        if len(self._shared) > MAX_SHARED:
            self._shared = {}
        plain_id = readings[0].labels[0]
        recorded = _EndedReadings(plain_id, self._listed(readings, recorded=True), self._shared)
        listed = list(self._listed(readings, recorded=False))
        shown = recorded
        if len(listed) < len(recorded):
            shown = _EndedReadings(plain_id, listed, self._shared)
        return _EndedRun(recorded, RenderedSeries(shown, ended_families(listed)))

    def _listed(self, readings: Iterable[Reading], *, recorded: bool) -> Iterator[Reading]:
        return (
            reading
            for reading in readings
            if not self._ledger.limits.omits(reading, recorded=recorded)
        )
