"""Request bodies of Prometheus remote write and of VictoriaMetrics' text import."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wattline.contract.metrics import escape
from wattline_exporter.storage.push_queue import QueuedSample

SeriesLabels = Mapping[int, Mapping[str, str]]
"""Labels by series id, including `__name__`."""


@dataclass(frozen=True, slots=True)
class PushFormat:
    """Headers and encoder of one protocol."""

    headers: dict[str, str]
    body: Callable[[Sequence[QueuedSample], SeriesLabels], bytes]
    rejection: Callable[[bytes], str] = lambda _: ""
    """Function that returns why a successful response has rejected samples; empty if it has not."""


def encode_text(samples: Sequence[QueuedSample], labels: SeriesLabels) -> bytes:
    """Return one line per sample with its time in milliseconds, compressed with gzip."""
    names = {series_id: _selector(of) for series_id, of in labels.items()}
    lines = [
        f"{names[s.series_id]} {_format_number(s.value)} {s.t_ms}\n"
        for s in samples
        if s.series_id in names
    ]
    return gzip.compress("".join(lines).encode(), compresslevel=3, mtime=0)


def _selector(labels: Mapping[str, str]) -> str:
    inner = ",".join(
        f'{name}="{escape(value)}"'
        for name, value in labels.items()
        if value and name != "__name__"
    )
    return f"{labels['__name__']}{{{inner}}}"


def _format_number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def encode_remote_write(samples: Sequence[QueuedSample], labels: SeriesLabels) -> bytes:
    """Return a WriteRequest of remote write 1.0, compressed with snappy. Labels are sorted, empty
    ones left out.
    """
    import cramjam  # here, since only few exporters push

    from wattline_exporter.push.remote_write_pb2 import TimeSeries, WriteRequest

    series: dict[int, TimeSeries] = {}
    request = WriteRequest()
    for sample in samples:
        if sample.series_id not in labels:
            continue
        if sample.series_id not in series:
            series[sample.series_id] = request.timeseries.add()
            for name, value in sorted(labels[sample.series_id].items()):
                if value:
                    series[sample.series_id].labels.add(name=name, value=value)
        series[sample.series_id].samples.add(value=sample.value, timestamp=sample.t_ms)
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


TEXT = PushFormat(
    {"Content-Type": "text/plain; charset=utf-8", "Content-Encoding": "gzip"}, encode_text
)
REMOTE_WRITE = PushFormat(
    {
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    },
    encode_remote_write,
)
