"""Encoding of the messages between the NVML worker process and the daemon, as JSON lines.

The worker writes one `WorkerMessage` a line to stdout. The daemon writes one `SamplingOrder` a line
to its stdin. Polls are most of a message. They are a text of `marshal`, which takes less time than
JSON. Both processes run the same Python, as `marshal` requires.
"""

from __future__ import annotations

import json
import marshal
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple
from functools import lru_cache
from typing import Any

from wattline.contract.metrics import METRICS
from wattline_exporter.sensors.readings import (
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
    XidReporting,
)

EXIT_BEHIND = 1
"""Exit code of a worker whose parent did not read for too long."""
EXIT_NO_DRIVER = 3
"""Exit code of a worker that lost the driver."""

_METRIC = {metric.name: metric for metric in METRICS}
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_items(items: Iterable[WorkerItem]) -> bytes:
    """Return the items as one line of JSON."""
    groups: dict[str, Any] = {}
    polls = []
    for item in items:
        if isinstance(item, Poll):
            polls.append(
                (item.device.id, *item[1:6])
            )  # all but the counter's range, which no GPU has
            continue
        group, encode = _ENCODERS[type(item)]
        groups.setdefault(group, []).append(encode(item))
    if polls:
        groups["polls"] = b2a_base64(marshal.dumps(polls), newline=False).decode()
    return _to_json(groups).encode() + b"\n"


def decode_message(line: bytes) -> WorkerMessage:
    groups = json.loads(line)
    polls = groups.pop("polls", None)
    return WorkerMessage(
        polls=_decode_polls(polls) if polls else (),
        **{group: tuple(map(_DECODERS[group], items)) for group, items in groups.items()},
    )


def encode_order(order: SamplingOrder) -> bytes:
    return json.dumps(asdict(order)).encode() + b"\n"


def decode_order(line: str) -> SamplingOrder:
    return SamplingOrder(**json.loads(line))


@lru_cache(maxsize=1024)
def _gpu_device(uuid: str) -> Device:
    return Device("gpu", uuid)


def _decode_polls(text: str) -> tuple[Poll, ...]:
    rows = marshal.loads(a2b_base64(text))  # noqa: S302  # of its own worker
    return tuple([Poll(_gpu_device(uuid), *values) for uuid, *values in rows])


def _encode_readings(changes: ReadingChanges) -> list[Any]:
    changed = [(reading.metric.name, reading.labels, reading.value) for reading in changes.changed]
    return [changes.uuid, changed, changes.removed]


def _decode_readings(item: list[Any]) -> ReadingChanges:
    uuid, changed, removed = item
    readings = tuple(
        Reading(_METRIC[name], tuple(labels), value) for name, labels, value in changed
    )
    return ReadingChanges(uuid, readings, tuple((name, tuple(labels)) for name, labels in removed))


def _decode_processes(item: list[Any]) -> GpuProcessList:
    return GpuProcessList(item[0], tuple(GpuProcess(*process) for process in item[1]), item[2])


_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    GpuCount: ("gpu_counts", astuple),
    GpuInfo: ("gpus", astuple),
    ReadingChanges: ("reading_changes", _encode_readings),
    GpuProcessList: ("process_lists", lambda item: (item.uuid, item.processes, item.read_s)),
    XidReporting: ("xid_reporting", astuple),
    XidError: ("xid_errors", astuple),
    GpuFailure: ("gpu_failures", astuple),
    DriverGone: ("driver_gone", astuple),
}
_DECODERS: dict[str, Callable[[list[Any]], Any]] = {
    "gpu_counts": lambda item: GpuCount(*item),
    "gpus": lambda item: GpuInfo(*item),
    "reading_changes": _decode_readings,
    "process_lists": _decode_processes,
    "xid_reporting": lambda item: XidReporting(*item),
    "xid_errors": lambda item: XidError(*item),
    "gpu_failures": lambda item: GpuFailure(*item),
    "driver_gone": lambda item: DriverGone(*item),
}
