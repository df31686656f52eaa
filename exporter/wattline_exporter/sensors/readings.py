"""Types that the folders exchange: readings, polls, GPUs, messages of the NVML worker, services and
errors.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self

import msgspec

from wattline.contract.metrics import METRICS, Metric

Component = Literal["gpu", "cpu", "dram"]
DeviceKind = Literal["gpu", "package", "core", "uncore", "dram", "psys", "hwmon"]
_COMPONENT: dict[str, Component] = {"gpu": "gpu", "package": "cpu", "dram": "dram"}
_METRIC = {metric.name: metric for metric in METRICS}


class WorkerMessage(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Message between daemon and NVML worker: an array of its class's name and its fields.

    The garbage collector ignores messages, since none refers to itself.
    """


class Device(NamedTuple):
    """Device with its own energy: a GPU by UUID, a RAPL zone by its package number, a board sensor
    as `CHIP/SENSOR`.

    A tuple, since it is the key of many lookups for each poll.
    """

    kind: DeviceKind
    id: str

    @property
    def component(self) -> Component | None:
        """Component of a run's energy; None for zones that overlap others and are never added to a
        run.
        """
        return _COMPONENT.get(self.kind)


class Reading(NamedTuple):
    """Sample of a metric; `labels` are the values in the order of `metric.labels`."""

    metric: Metric
    labels: tuple[str, ...]
    value: float
    extra: tuple[tuple[str, str], ...] = ()
    """Additional labels of a metric with open labels."""


class NativeBuckets(NamedTuple):
    """Buckets of a native histogram: number i has the values from its predecessor's end to 2 ** (i
    / 2 ** schema).
    """

    metric: Metric
    labels: tuple[str, ...]
    extra: tuple[tuple[str, str], ...]
    schema: int
    zero_threshold: float
    zero_count: int
    counts: Mapping[int, int]


class Poll(WorkerMessage, frozen=True):
    """Poll of a device's energy and power, whose call lay between `before_s` and `after_s`
    (CLOCK_BOOTTIME).

    200 are made a second, each in a tenth of the time of a named tuple.
    """

    device: Device
    before_s: float
    after_s: float
    counter_j: float | None = None
    """Raw energy counter, in joules; it may wrap at `counter_range_j` or restart from 0."""
    instant_w: float | None = None
    """Most instantaneous power that the device reports."""
    average_w: float | None = None
    """Power that the driver averages over a window."""
    counter_range_j: float | None = None

    @property
    def display_w(self) -> float | None:
        """Power to display: instantaneous, else averaged."""
        return self.instant_w if self.instant_w is not None else self.average_w

    @property
    def integrand_w(self) -> float | None:
        """Power to integrate: averaged, which misses no time between updates, else
        instantaneous.
        """
        return self.average_w if self.average_w is not None else self.instant_w

    def _replace(self, **changes: Any) -> Poll:
        """Return a poll with other values in these fields, as a named tuple does."""
        return msgspec.structs.replace(self, **changes)


class GpuProcess(NamedTuple):
    """Process on a GPU, by its PID in this namespace. Values that the driver does not report are
    None.
    """

    pid: int
    memory_bytes: int | None = None
    utilization: float | None = None
    """Share of time in which its kernels ran since the previous read, 0 to 1."""
    instance: str = ""
    """UUID of the MIG instance on which it runs, or empty."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Result of one read. `problems` are the parts that could not be read: cause and remedy, one
    line each.
    """

    readings: tuple[Reading, ...] = ()
    polls: tuple[Poll, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """Carbon intensity of [begin_s, end_s) in Unix seconds, gCO2eq/kWh."""

    begin_s: float
    end_s: float
    grams_per_kwh: float
    region: str
    provider: str
    basis: Literal["average", "marginal"]
    quality: Literal["actual", "forecast", "estimated", "static"]


class SourceError(Exception):
    """Error of a source that cannot be read at all now. `remedy` is a command or a place to
    check.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy


class RunError(Exception):
    """A request of the run API that cannot be fulfilled. `status`: the HTTP status of the
    response.
    """

    def __init__(self, status: int, detail: str, retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


class Source(Protocol):
    """Source of readings and polls. `read` blocks, is called in a thread, and raises
    SourceError.
    """

    name: str

    def read(self) -> Batch: ...


class Service:
    """Part of the daemon. It is started once, runs in the background until it is cancelled, and is
    stopped once.
    """

    async def start(self) -> None:
        """Prepare. Raises OperationError where that fails."""

    async def run(self) -> None:
        """Run until cancelled; return at once where there is nothing to do."""

    async def stop(self) -> None:
        """Release what `start` and `run` took."""


def boottime() -> float:
    """Return seconds of CLOCK_BOOTTIME, which counts suspended time and is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ClockReading(NamedTuple):
    """One instant on three clocks: CLOCK_BOOTTIME, Unix time and CLOCK_MONOTONIC, which stops in
    system sleep.
    """

    s: float
    at: float
    awake_s: float

    def earlier(self, s: float) -> ClockReading:
        """Return the reading of all clocks at the earlier time `s` (CLOCK_BOOTTIME)."""
        age_s = max(0.0, self.s - s)
        return ClockReading(self.s - age_s, self.at - age_s, self.awake_s - age_s)


def read_clocks() -> ClockReading:
    return ClockReading(boottime(), time.time(), time.monotonic())


class RunDevices(NamedTuple):
    """Devices of a run, and its begin and end in Unix seconds; the end is None while it runs."""

    devices: tuple[Device, ...]
    begin_at: float
    end_at: float | None


class GpuInfo(WorkerMessage, frozen=True):
    """Static properties of a GPU, reported when it is attached."""

    index: str
    uuid: str
    name: str
    architecture: str
    pci_bus_id: str
    driver_version: str


# -- messages of the NVML worker

ReadingKey = tuple[str, tuple[str, ...]]
"""Metric name and label values."""


class SamplingOrder(WorkerMessage, frozen=True):
    """Polling rates that the daemon wants. For `burst_s` the worker sends its polls at once and
    lists the processes often. With `locates_updates` it also polls as fast as useful, to find out
    when the sensors update.
    """

    period_s: float = 1.0
    burst_s: float = 0.0
    locates_updates: bool = True
    processes_every_s: float = 5.0


class GpuCount(WorkerMessage, frozen=True):
    """Number of GPUs that the driver listed when NVML was initialized."""

    count: int


class ReadingChanges(WorkerMessage, frozen=True):
    """Readings of one GPU that changed or disappeared since the previous message about it."""

    uuid: str
    values: tuple[tuple[str, tuple[str, ...], float], ...]
    """Metric name, label values and value of each reading that changed."""
    removed: tuple[ReadingKey, ...] = ()

    @classmethod
    def of(cls, uuid: str, changed: Iterable[Reading], removed: Iterable[ReadingKey] = ()) -> Self:
        """Return the message of these readings, which have no additional labels."""
        values = tuple((reading.metric.name, reading.labels, reading.value) for reading in changed)
        return cls(uuid, values, tuple(removed))

    def changed(self) -> tuple[Reading, ...]:
        return tuple(Reading(_METRIC[name], labels, value) for name, labels, value in self.values)


class GpuProcessList(WorkerMessage, frozen=True):
    """All processes on one GPU, read at `read_s` (CLOCK_BOOTTIME)."""

    uuid: str
    processes: tuple[GpuProcess, ...]
    read_s: float


class XidError(WorkerMessage, frozen=True):
    """XID error that the driver reported for one GPU."""

    uuid: str
    xid: int


class XidReporting(WorkerMessage, frozen=True):
    """GPU whose XID errors the worker reports from now on."""

    uuid: str


class GpuFailure(WorkerMessage, frozen=True):
    """Failed driver call on one GPU, named by its index since it may never have been attached."""

    index: int
    reason: str


class DriverGone(WorkerMessage, frozen=True):
    """Last message of a worker: the driver is no longer usable.

    `unloaded`: the driver was not loaded, so its energy counters restart from 0.
    """

    reason: str
    unloaded: bool = False


WorkerItem = (
    GpuCount
    | GpuInfo
    | Poll
    | ReadingChanges
    | GpuProcessList
    | XidReporting
    | XidError
    | GpuFailure
    | DriverGone
)


_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text as a label value: without control characters, bidirectional ones and lone
    surrogates.
    """
    return text if text.isprintable() else _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)
