"""Request bodies of OTLP/HTTP: hardware metrics of the semantic conventions, and all series under
their own names.

Specifications: https://opentelemetry.io/docs/specs/otlp/#otlphttp,
https://opentelemetry.io/docs/specs/semconv/hardware/.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from wattline_exporter.push.hardware_conventions import HARDWARE_METRICS, HardwareMetric
from wattline_exporter.push.remote_write import PushFormat, SeriesLabels
from wattline_exporter.storage.push_queue import QueuedSample

_MS_NS = 1_000_000
_RESOURCE = {"instance": "service.instance.id", "job": "service.name"}
"""Resource attributes of these labels, from which Prometheus restores the labels."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """Metric and attributes of one series."""

    name: str
    unit: str
    kind: str
    attributes: tuple[tuple[str, str], ...]


def otlp_format(host: str, added: Mapping[str, str]) -> PushFormat:
    """Return the format for a node; `added` are the labels that the push adds to each series."""
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    return PushFormat(headers, partial(_encode_otlp, host, added), rejection)


def rejection(body: bytes) -> str:
    """Return the count and cause of data points that a successful response rejects; empty for none
    or no OTLP.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceResponse,
    )

    try:
        partial_success = ExportMetricsServiceResponse.FromString(body).partial_success
    except DecodeError:
        return ""
    if not partial_success.rejected_data_points:
        return ""
    return (
        f"{partial_success.rejected_data_points} data points rejected: "
        f"{partial_success.error_message}"
    )


def _encode_otlp(
    host: str, added: Mapping[str, str], samples: Sequence[QueuedSample], labels: SeriesLabels
) -> bytes:
    """Return an ExportMetricsServiceRequest, compressed with gzip."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest()
    if samples:
        resource = request.resource_metrics.add()
        attributes = {
            "host.name": host,
            **{_RESOURCE.get(name, name): value for name, value in added.items()},
        }
        _add_attributes(resource.resource, attributes.items())
        scope = resource.scope_metrics.add()
        scope.scope.name = "wattline"
        _add_points(
            scope.metrics.add, samples, {one: _streams(of, added) for one, of in labels.items()}
        )
    return gzip.compress(request.SerializeToString(), compresslevel=3, mtime=0)


def _add_points(
    new_metric: Callable[[], Any],
    samples: Sequence[QueuedSample],
    streams: Mapping[int, Sequence[_Stream]],
) -> None:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

    points: dict[str, Any] = {}
    for sample in samples:
        for stream in streams.get(sample.series_id, ()):
            if stream.name not in points:
                metric = new_metric()
                metric.name, metric.unit = stream.name, stream.unit
                data = metric.gauge if stream.kind == "gauge" else metric.sum
                if stream.kind != "gauge":
                    data.is_monotonic = stream.kind == "counter"
                    data.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
                points[stream.name] = data.data_points
            point = points[stream.name].add(
                time_unix_nano=sample.t_ms * _MS_NS, as_double=sample.value
            )
            _add_attributes(point, stream.attributes)


def _streams(labels: Mapping[str, str], added: Mapping[str, str]) -> list[_Stream]:
    """Return the metrics of a series: its own, and that of the semantic conventions if there is
    one.
    """
    name = labels["__name__"]
    own = {
        label: value
        for label, value in labels.items()
        if value and label != "__name__" and label not in added
    }
    kind = "counter" if name.endswith("_total") else "gauge"
    streams = [_Stream(name, "", kind, tuple(own.items()))]
    for one in HARDWARE_METRICS:
        attributes = _hardware_attributes(one, labels) if one.metric.name == name else None
        if attributes is not None:
            streams.append(_Stream(one.name, one.unit, one.instrument, tuple(attributes.items())))
    return streams


def _hardware_attributes(one: HardwareMetric, labels: Mapping[str, str]) -> dict[str, str] | None:
    """Return the attributes; None for a value of a label that the conventions do not have."""
    values: dict[str, str] = {}
    for label, names in one.values.items():
        if labels.get(label, "") not in names:
            return None
        values |= names[labels[label]]
    return {name: text.format_map(labels) for name, text in one.attributes.items()} | values


def _add_attributes(target: Any, pairs: Any) -> None:
    for key, value in pairs:
        target.attributes.add(key=key).value.string_value = value
