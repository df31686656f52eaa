"""Encoding of the messages between the NVML worker process and the daemon, as JSON lines.

The worker writes one `WorkerMessage` a line to stdout. The daemon writes one `SamplingOrder` a line to its stdin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple
from functools import lru_cache
from typing import Any

from exporter.contract.metrics import METRICS
from exporter.model import (
    Device,
    DriverGone,
    GpuCount,
    GpuFailure,
    GpuInfo,
    GpuProcess,
    GpuProcessList,
    Poll,
    Reading,
    ReadingChanges,
    SamplingOrder,
    WorkerItem,
    WorkerMessage,
    XidError,
)

EXIT_BEHIND = 1
"""Exit code of a worker whose parent did not read for too long."""
EXIT_NO_DRIVER = 3
"""Exit code of a worker that lost the driver."""

_METRIC = {metric.name: metric for metric in METRICS}


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
