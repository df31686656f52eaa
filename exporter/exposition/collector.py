"""Snapshots of the node, for the metrics and for the local history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from exporter.exposition.collector import NodeSnapshot, RunMetrics, node_readings, run_readings
from exporter.exposition.render import CollectedSeries, Families, group_families
from exporter.model import ClockReading, Device, Reading, read_clocks
from exporter.sensors.live_state import LiveState
from exporter.storage.writer import HistorySecond


class ReadingSource(Protocol):
    """Service that has metrics."""

    def readings(self) -> Iterable[Reading]: ...


class RunSource(Protocol):
    """Ledger of runs. See `exporter.runs.ledger`."""

    def update(self) -> None:
        """Bring sensors, attribution and runs up to date."""

    def attribution_readings(self, readable: Collection[Device]) -> Iterable[Reading]:
        """Return the attributed energies; `readable` are the devices whose energy is known up to now."""

    def ids(self) -> tuple[list[str], list[str]]:
        """Return the ids of the open and of the ended runs."""

    def snapshot(self, run_id: str) -> RunMetrics: ...


@dataclass(frozen=True, slots=True)
class _EndedRun:
    """Series of an ended run, made once since they do not change."""

    readings: tuple[Reading, ...]
    families: Families


class Collector:
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
        snapshot, ended = self._snapshot()
        return CollectedSeries(node_readings(snapshot), [run.families for run in ended.values()])

    def second(self) -> HistorySecond:
        """Bring all values up to date and return the input of the local history."""
        snapshot, ended = self._snapshot()
        now = self._clock()
        return HistorySecond(
            at=now.at,
            s=now.s,
            readings=list(node_readings(snapshot)),
            ended={run_id: run.readings for run_id, run in ended.items()},
            run_open=bool(snapshot.runs),
        )

    def _snapshot(self) -> tuple[NodeSnapshot, dict[str, _EndedRun]]:
        self._ledger.update()
        sensors = self._live.snapshot()
        open_ids, ended_ids = self._ledger.ids()
        snapshot = NodeSnapshot(
            version=self._version,
            sensors=sensors,
            attribution=tuple(self._ledger.attribution_readings(sensors.readable)),
            services=tuple(reading for service in self._services for reading in service.readings()),
            runs=tuple(self._ledger.snapshot(run_id) for run_id in open_ids),
        )
        self._ended = {run_id: self._ended.get(run_id) or self._render_ended(run_id) for run_id in ended_ids}
        return snapshot, self._ended

    def _render_ended(self, run_id: str) -> _EndedRun:
        readings = tuple(run_readings(self._ledger.snapshot(run_id)))
        return _EndedRun(readings, group_families(readings))
