"""Snapshots of the node, for the metrics and for the local history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from exporter.exposition.readings import NodeSnapshot, node_readings, run_readings
from exporter.exposition.render import CollectedSeries, Families, group_families
from exporter.model import ClockReading, Reading, read_clocks
from exporter.runs.ledger import Ledger
from exporter.sensors.live_state import LiveState
from exporter.storage.history_writer import HistorySecond


class ReadingSource(Protocol):
    """Service that has metrics."""

    def readings(self) -> Iterable[Reading]: ...


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
        ledger: Ledger,
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
        runs = self._ledger.runs.values()
        snapshot = NodeSnapshot(
            version=self._version,
            sensors=sensors,
            attribution=tuple(self._ledger.attribution.energies.readings(sensors.readable)),
            services=tuple(reading for service in self._services for reading in service.readings()),
            runs=tuple(self._ledger.snapshots(run for run in runs if run.is_open)),
        )
        ended = [run for run in runs if not run.is_open]
        new = [run for run in ended if run.run_id not in self._ended]
        made = {
            run.run.run_id: _EndedRun(readings := tuple(run_readings(run)), group_families(readings))
            for run in self._ledger.snapshots(new)
        }
        self._ended = {run.run_id: self._ended.get(run.run_id) or made[run.run_id] for run in ended}
        return snapshot, self._ended
