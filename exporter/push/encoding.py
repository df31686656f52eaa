"""Samples as the servers take them: VictoriaMetrics' lines of text, and Prometheus's remote write."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exporter.contract.metrics import escape
from exporter.storage.push_queue import QueuedSample

Labels = Mapping[int, Mapping[str, str]]
"""Those of each series by its id; `__name__` among them."""

_LITERAL_BYTES = 65_536
_LITERAL_TAG = 61 << 2
"""Of one whose length follows in two bytes, https://github.com/google/snappy/blob/main/format_description.txt"""
_SAMPLE_BYTES = b"\x09"
_TIMESTAMP = b"\x10"


@dataclass(frozen=True, slots=True)
class Form:
    headers: dict[str, str]
    body: Callable[[Sequence[QueuedSample], Labels], bytes]


def text(samples: Sequence[QueuedSample], labels: Labels) -> bytes:
    """A line a sample with its time in milliseconds, compressed by gzip."""
    names = {series_id: _named(of) for series_id, of in labels.items()}
    lines = [f"{names[s.series_id]} {_number(s.value)} {s.t_ms}\n" for s in samples if s.series_id in names]
    return gzip.compress("".join(lines).encode(), compresslevel=3, mtime=0)


def _named(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items() if value and name != "__name__")
    return f"{labels['__name__']}{{{inner}}}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def remote_write(samples: Sequence[QueuedSample], labels: Labels) -> bytes:
    """A WriteRequest of version 1, https://prometheus.io/docs/specs/prw/remote_write_spec/, by hand: it is small."""
    series: dict[int, list[bytes]] = {series_id: [] for series_id in labels}
    for sample in samples:
        if sample.series_id in series:
            number = struct.pack("<d", sample.value)
            series[sample.series_id].append(
                _field(2, _SAMPLE_BYTES + number + _TIMESTAMP + _varint(sample.t_ms & 0xFFFF_FFFF_FFFF_FFFF))
            )
    parts = [
        _field(1, _labels(labels[series_id]) + b"".join(encoded)) for series_id, encoded in series.items() if encoded
    ]
    return snappy(b"".join(parts))


def _labels(labels: Mapping[str, str]) -> bytes:
    """Sorted, as the server wants them; one without a value is none."""
    pairs = sorted((name, value) for name, value in labels.items() if value)
    return b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in pairs)


def snappy(data: bytes) -> bytes:
    """In the format, though not compressed: literals only."""
    parts = [_varint(len(data))]
    for at in range(0, len(data), _LITERAL_BYTES):
        literal = data[at : at + _LITERAL_BYTES]
        parts += (struct.pack("<BH", _LITERAL_TAG, len(literal) - 1), literal)
    return b"".join(parts)


def _field(number: int, data: bytes) -> bytes:
    """One whose length stands before it."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


TEXT = Form({"Content-Type": "text/plain; charset=utf-8", "Content-Encoding": "gzip"}, text)
REMOTE_WRITE = Form(
    {
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    },
    remote_write,
)
