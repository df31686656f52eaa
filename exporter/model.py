"""What a source yields, and how it fails."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from exporter.contract.metrics import Metric

Component = Literal["gpu", "cpu", "dram"]
DeviceKind = Literal["gpu", "package", "core", "uncore", "dram", "psys", "hwmon"]
_COMPONENT: dict[str, Component] = {"gpu": "gpu", "package": "cpu", "dram": "dram"}


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """Something with an energy of its own: a GPU by UUID, a RAPL zone by the number of its package, `CHIP/SENSOR`."""

    kind: DeviceKind
    id: str

    @property
    def component(self) -> Component | None:
        """None for zones that overlap others and so are never counted into a run."""
        return _COMPONENT.get(self.kind)


class Reading(NamedTuple):
    """One sample of a metric; `labels` are the values in the order of `metric.labels`."""

    metric: Metric
    labels: tuple[str, ...]
    value: float
    extra: tuple[tuple[str, str], ...] = ()
    """Labels on top of the metric's own, where it has open labels."""


class Poll(NamedTuple):
    """One look at a device's energy: the call lay between `before_s` and `after_s` (CLOCK_BOOTTIME).

    A tuple, being made 200 times a second, at a third of a dataclass's cost.
    """

    device: Device
    before_s: float
    after_s: float
    counter_j: float | None = None
    """The counter as the hardware gives it, in joules; it may wrap at `counter_range_j` and fall to 0."""
    power_w: float | None = None
    """The most instantaneous power."""
    average_w: float | None = None
    """The driver's averaged power."""
    counter_range_j: float | None = None


class GpuProcess(NamedTuple):
    """A process on a GPU, as this PID namespace numbers it; None is what the card does not tell.

    `instance` is the UUID of the MIG instance it runs on, or empty.
    """

    pid: int
    memory_bytes: int | None = None
    utilization: float | None = None
    """Share of time in which its kernels ran since the last look, 0 to 1."""
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one read gave. `problems` are parts that could not be read: cause and remedy, one line each."""

    readings: tuple[Reading, ...] = ()
    polls: tuple[Poll, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """The carbon intensity of [begin_s, end_s) in Unix seconds, gCO2eq/kWh."""

    begin_s: float
    end_s: float
    grams_per_kwh: float
    region: str
    provider: str
    basis: Literal["average", "marginal"]
    quality: Literal["actual", "forecast", "estimated", "static"]


class SourceError(Exception):
    """The source as a whole cannot be read now. `remedy` is what to type or where to look."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy


class Source(Protocol):
    """Blocking: the poll loop calls `read` in a thread. Raises SourceError."""

    name: str

    def read(self) -> Batch: ...


def boottime() -> float:
    """Seconds on the clock that goes on through suspend and that no one sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as it introduces itself, once."""

    index: str
    uuid: str
    name: str
    architecture: str
    pci_bus_id: str
    driver_version: str
