"""Metrics in Prometheus's protobuf format, the only one that has native histograms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wattline.contract.metrics import METRICS, Metric
from wattline_exporter.sensors.readings import NativeBuckets, Reading, printable
from wattline_exporter.web.metric_family_pb2 import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Bucket,
    BucketSpan,
    Histogram,
    LabelPair,
    MetricFamily,
    Value,
)
from wattline_exporter.web.metric_family_pb2 import Metric as Series

Labels = tuple[tuple[str, str], ...]
_TYPES = {"counter": COUNTER, "gauge": GAUGE, "histogram": HISTOGRAM}


def encode_protobuf(readings: Iterable[Reading], native: Iterable[NativeBuckets] = ()) -> bytes:
    """Return the families in the contract's order, each after its length as a varint."""
    grouped: dict[str, list[Reading]] = {}
    for reading in readings:
        grouped.setdefault(reading.metric.family or reading.metric.name, []).append(reading)
    buckets = {
        (each.metric.name, _labels(each.metric, each.labels, each.extra)): each for each in native
    }
    parts = []
    for metric in METRICS:
        if not (found := grouped.get(metric.name)):
            continue
        series = (
            _histograms(metric, found, buckets)
            if metric.kind == "histogram"
            else map(_value, found)
        )
        message = MetricFamily(
            name=metric.name, help=metric.help, type=_TYPES[metric.kind], metric=series
        )
        body = message.SerializeToString()
        parts += [_varint(len(body)), body]
    return b"".join(parts)


def _labels(metric: Metric, labels: tuple[str, ...], extra: Labels) -> Labels:
    """Return the labels, sorted by name, without those that are empty and without `le`."""
    every = (*zip(metric.labels, labels, strict=True), *extra)
    return tuple(
        sorted((name, printable(value)) for name, value in every if value and name != "le")
    )


def _pairs(labels: Labels) -> list[LabelPair]:
    return [LabelPair(name=name, value=value) for name, value in labels]


def _value(reading: Reading) -> Series:
    labels = _pairs(_labels(reading.metric, reading.labels, reading.extra))
    value = Value(value=reading.value)
    return (
        Series(label=labels, counter=value)
        if reading.metric.kind == "counter"
        else Series(label=labels, gauge=value)
    )


def _histograms(
    metric: Metric, readings: Iterable[Reading], native: Mapping[tuple[str, Labels], NativeBuckets]
) -> list[Series]:
    """Return a histogram for each set of labels, with its classic and its native buckets."""
    found: dict[Labels, Histogram] = {}
    for reading in readings:
        labels = _labels(reading.metric, reading.labels, reading.extra)
        histogram = found.setdefault(labels, Histogram())
        if reading.metric.name.endswith("_sum"):
            histogram.sample_sum = reading.value
        elif reading.metric.name.endswith("_count"):
            histogram.sample_count = round(reading.value)
        else:
            edge = float(reading.labels[reading.metric.labels.index("le")])
            histogram.bucket.append(Bucket(cumulative_count=round(reading.value), upper_bound=edge))
    for labels, histogram in found.items():
        if buckets := native.get((metric.name, labels)):
            _add_native(histogram, buckets)
    return [
        Series(label=_pairs(labels), histogram=histogram) for labels, histogram in found.items()
    ]


def _add_native(histogram: Histogram, buckets: NativeBuckets) -> None:
    histogram.schema = buckets.schema
    histogram.zero_threshold = buckets.zero_threshold
    histogram.zero_count = buckets.zero_count
    previous, following = 0, 0  # the count of the bucket before, and the index after it
    for index, count in sorted(buckets.counts.items()):
        if histogram.positive_span and index == following:
            histogram.positive_span[-1].length += 1
        else:
            histogram.positive_span.append(BucketSpan(offset=index - following, length=1))
        histogram.positive_delta.append(count - previous)
        previous = count
        following = index + 1


def _varint(number: int) -> bytes:
    """Return the number in groups of seven bits, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
