"""Messages between the NVML worker process and the daemon, as JSON lines.

The worker writes one `WorkerMessage` a line to stdout. The daemon writes one `SamplingOrder` a line to its stdin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass, fields
from functools import lru_cache
from typing import Any

from exporter.contract.metrics import METRICS
from exporter.model import Device, GpuInfo, GpuProcess, Poll, Reading

EXIT_BEHIND = 1
"""Exit code of a worker whose parent did not read for too long."""
EXIT_NO_DRIVER = 3
"""Exit code of a worker that lost the driver."""

ReadingKey = tuple[str, tuple[str, ...]]
"""Metric name and label values."""

_METRIC = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True)
class SamplingOrder:
    """Polling rates that the daemon wants. For `burst_s` the worker polls as fast as useful."""

    period_s: float = 1.0
    burst_s: float = 0.0
    processes_every_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GpuCount:
    """Number of GPUs that the driver listed when NVML was initialized."""

    count: int


@dataclass(frozen=True, slots=True)
class ReadingChanges:
    """Readings of one GPU that changed or disappeared since the previous message about it."""

    uuid: str
    changed: tuple[Reading, ...]
    removed: tuple[ReadingKey, ...]


@dataclass(frozen=True, slots=True)
class GpuProcessList:
    """All processes on one GPU."""

    uuid: str
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class XidError:
    """XID error that the driver reported for one GPU."""

    uuid: str
    xid: int


@dataclass(frozen=True, slots=True)
class GpuFailure:
    """Failed driver call on one GPU, named by its index since it may never have been attached."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class DriverGone:
    """Last message of a worker: the driver is no longer usable.

    `unloaded`: the driver was not loaded, so its energy counters restart from 0.
    """

    reason: str
    unloaded: bool = False


WorkerItem = GpuCount | GpuInfo | Poll | ReadingChanges | GpuProcessList | XidError | GpuFailure | DriverGone


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """Items that the worker reported within a short time, grouped by type and in order within each type."""

    gpu_counts: tuple[GpuCount, ...] = ()
    gpus: tuple[GpuInfo, ...] = ()
    """GPUs that have been attached."""
    polls: tuple[Poll, ...] = ()
    reading_changes: tuple[ReadingChanges, ...] = ()
    process_lists: tuple[GpuProcessList, ...] = ()
    xid_errors: tuple[XidError, ...] = ()
    gpu_failures: tuple[GpuFailure, ...] = ()
    driver_gone: tuple[DriverGone, ...] = ()

    def extended(self, later: WorkerMessage) -> WorkerMessage:
        """Return one message with the items of both."""
        return WorkerMessage(*(getattr(self, f.name) + getattr(later, f.name) for f in fields(self)))


def encode_items(items: Iterable[WorkerItem]) -> bytes:
    """Return the items as one line of JSON."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        group, encode = _ENCODERS[type(item)]
        groups.setdefault(group, []).append(encode(item))
    return json.dumps(groups, separators=(",", ":")).encode() + b"\n"


def decode_message(line: bytes) -> WorkerMessage:
    groups = json.loads(line)
    return WorkerMessage(**{group: tuple(map(_DECODERS[group], items)) for group, items in groups.items()})


def encode_order(order: SamplingOrder) -> bytes:
    return json.dumps(asdict(order)).encode() + b"\n"


def decode_order(line: str) -> SamplingOrder:
    return SamplingOrder(**json.loads(line))


@lru_cache(maxsize=1024)
def _gpu_device(uuid: str) -> Device:
    return Device("gpu", uuid)


def _encode_poll(poll: Poll) -> list[Any]:
    """Encode all but the counter's range, which no GPU has."""
    return [poll.device.id, poll.before_s, poll.after_s, poll.counter_j, poll.instant_w, poll.average_w]


def _decode_poll(item: list[Any]) -> Poll:
    return Poll(_gpu_device(item[0]), *item[1:])


def _encode_readings(changes: ReadingChanges) -> list[Any]:
    changed = [(reading.metric.name, reading.labels, reading.value) for reading in changes.changed]
    return [changes.uuid, changed, changes.removed]


def _decode_readings(item: list[Any]) -> ReadingChanges:
    uuid, changed, removed = item
    readings = tuple(Reading(_METRIC[name], tuple(labels), value) for name, labels, value in changed)
    return ReadingChanges(uuid, readings, tuple((name, tuple(labels)) for name, labels in removed))


def _decode_processes(item: list[Any]) -> GpuProcessList:
    return GpuProcessList(item[0], tuple(GpuProcess(*process) for process in item[1]))


_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    GpuCount: ("gpu_counts", astuple),
    GpuInfo: ("gpus", astuple),
    Poll: ("polls", _encode_poll),
    ReadingChanges: ("reading_changes", _encode_readings),
    GpuProcessList: ("process_lists", lambda item: (item.uuid, item.processes)),
    XidError: ("xid_errors", astuple),
    GpuFailure: ("gpu_failures", astuple),
    DriverGone: ("driver_gone", astuple),
}
_DECODERS: dict[str, Callable[[list[Any]], Any]] = {
    "gpu_counts": lambda item: GpuCount(*item),
    "gpus": lambda item: GpuInfo(*item),
    "polls": _decode_poll,
    "reading_changes": _decode_readings,
    "process_lists": _decode_processes,
    "xid_errors": lambda item: XidError(*item),
    "gpu_failures": lambda item: GpuFailure(*item),
    "driver_gone": lambda item: DriverGone(*item),
}
