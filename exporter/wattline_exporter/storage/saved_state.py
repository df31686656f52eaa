"""State that is saved each second, and the whole of it that a later exporter loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from wattline.counters import CounterTotal
from wattline_exporter.attribution.owner_counters import OwnerAmount
from wattline_exporter.attribution.policy import AttributedKey, AttributionChanges
from wattline_exporter.meter.emissions import EmissionKey
from wattline_exporter.meter.totals import LastPoll, MeterTotals
from wattline_exporter.sensors.exported_counters import SeriesKey
from wattline_exporter.sensors.readings import ClockReading, Device, ReadingKey


class StoredRun(NamedTuple):
    """A run as JSON, with the columns by which it is found.

    A final run no longer changes: its body is that of the run API. The body of another one is the
    ledger's record with its marks.
    """

    run_id: str
    started_at: float
    is_open: bool
    is_final: bool
    request: str
    """Digest of the request that began it."""
    body: str


@dataclass(frozen=True, slots=True)
class SavedState:
    """Everything that a previous exporter saved. `totals` have no raw values if the machine was
    restarted since.
    """

    totals: dict[Device, MeterTotals]
    emissions: dict[EmissionKey, float]
    runs: list[str]
    """Runs that are not final, as JSON."""
    counters: dict[SeriesKey, CounterTotal]
    attributed: dict[AttributedKey, int]
    """Microjoules."""
    idle_w: dict[Device, float]
    boot_id: str | None
    saved_at: float
    saved_s: float
    polls: dict[Device, LastPoll]
    owners: dict[ReadingKey, OwnerAmount] = field(default_factory=dict)
    short_windows: set[Device] = field(default_factory=set)
    """GPUs whose instantaneous power was seen to have a shorter window than an update."""


@dataclass(frozen=True, slots=True)
class StateChanges:
    """Data saved each second: all totals, and the changes of runs, counters and attribution."""

    totals: dict[Device, MeterTotals]
    emissions: dict[EmissionKey, float]
    runs: list[StoredRun]
    counters: dict[SeriesKey, CounterTotal | None]
    attributed: AttributionChanges
    idle_w: dict[Device, float]
    now: ClockReading
    """Instant of the changes, which may be written later."""
    polls: dict[Device, LastPoll] = field(default_factory=dict)
    short_windows: set[Device] = field(default_factory=set)
