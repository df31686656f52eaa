"""Pages of metrics in Prometheus's protobuf format."""

import contextlib
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from tests.polling import eventually
from tests.servers import free_port, prometheus, query
from wattline.contract import metrics as m
from wattline_exporter.requests.counters import NEW_SERIES_S, RequestCounters
from wattline_exporter.requests.division.columns import LabelSet
from wattline_exporter.sensors.readings import NativeBuckets, Reading
from wattline_exporter.web.metric_family_pb2 import COUNTER, GAUGE, HISTOGRAM, MetricFamily
from wattline_exporter.web.metrics_page import (
    PROTOBUF,
    CollectedSeries,
    MetricsRenderer,
    RenderedSeries,
    ended_families,
)
from wattline_exporter.web.protobuf import encode_protobuf

NATIVE_FIRST = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
TEXT_FIRST = (
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,"
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.2"
)
POWER = Reading(m.GPU_POWER, ("0", "GPU-1"), 312.5)
ENERGY = Reading(m.GPU_ENERGY, ("0", "GPU-1"), 1234.5)


def decode(body):
    """Return the families of a page, by name."""
    families, place = {}, 0
    while place < len(body):
        length = shift = 0
        while True:
            byte = body[place]
            length, shift, place = length | (byte & 0x7F) << shift, shift + 7, place + 1
            if byte < 0x80:
                break
        family = MetricFamily.FromString(body[place : place + length])
        families[family.name], place = family, place + length
    return families


def labels_of(series):
    return {pair.name: pair.value for pair in series.label}


def request_readings():
    """Return the classic series of five requests: two of up to 1 J, two of up to 10 J, and one
    beyond.
    """
    labels = ("llama", "decode")
    buckets = [("1.0", 2.0), ("10.0", 4.0), ("+Inf", 5.0)]
    readings = [Reading(m.REQUEST_ENERGY_BUCKET, (*labels, edge), count) for edge, count in buckets]
    return [
        *readings,
        Reading(m.REQUEST_ENERGY_SUM, labels, 64.0),
        Reading(m.REQUEST_ENERGY_COUNT, labels, 5.0),
    ]


def test_page_gauge_and_counter_have_type_help_labels_and_value():
    families = decode(encode_protobuf([ENERGY, POWER]))

    assert list(families) == [m.GPU_POWER.name, m.GPU_ENERGY.name]  # the order of the contract
    power, energy = families.values()
    assert (power.type, power.help, energy.type) == (GAUGE, m.GPU_POWER.help, COUNTER)
    assert labels_of(power.metric[0]) == {"gpu": "0", "uuid": "GPU-1"}
    assert power.metric[0].gauge.value == 312.5
    assert energy.metric[0].counter.value == 1234.5


def test_page_labels_are_sorted_and_empty_ones_left_out():
    reading = Reading(m.RUN_INFO, ("r-1", ""), 1.0, (("label_b", "2"), ("label_a", "1")))
    [series] = decode(encode_protobuf([reading]))[m.RUN_INFO.name].metric

    assert [(pair.name, pair.value) for pair in series.label] == [
        ("label_a", "1"),
        ("label_b", "2"),
        ("run_id", "r-1"),
    ]


def test_page_family_of_many_series_has_a_length_of_several_bytes():
    readings = [Reading(m.RUN_START, (f"run-{number}",), float(number)) for number in range(2_000)]
    family = decode(encode_protobuf(readings))[m.RUN_START.name]

    assert [series.gauge.value for series in family.metric] == list(range(2_000))


def test_page_histogram_has_classic_and_native_buckets():
    native = NativeBuckets(
        m.REQUEST_ENERGY, ("llama", "decode"), (), 3, 0.001, 1, {0: 1, 1: 1, 24: 2}
    )
    family = decode(encode_protobuf(request_readings(), [native]))[m.REQUEST_ENERGY.name]
    [series] = family.metric
    found = series.histogram

    assert family.type == HISTOGRAM
    assert labels_of(series) == {"model": "llama", "role": "decode"}
    assert [(each.upper_bound, each.cumulative_count) for each in found.bucket] == [
        (1.0, 2),
        (10.0, 4),
        (math.inf, 5),
    ]
    assert (found.sample_count, found.sample_sum) == (5, 64.0)
    assert (found.schema, found.zero_threshold, found.zero_count) == (3, 0.001, 1)
    # buckets 0 and 1, then a gap of 22 to the bucket 24; counts 1, 1, 2 as differences
    assert [(span.offset, span.length) for span in found.positive_span] == [(0, 2), (22, 1)]
    assert list(found.positive_delta) == [1, 0, 1]


def test_page_native_buckets_of_another_label_set_are_not_mixed():
    native = NativeBuckets(m.REQUEST_ENERGY, ("llama", "prefill"), (), 3, 0.001, 0, {0: 5})
    [series] = decode(encode_protobuf(request_readings(), [native]))[m.REQUEST_ENERGY.name].metric

    assert not series.histogram.positive_span


@pytest.mark.parametrize(
    ("accept", "is_protobuf"), [(NATIVE_FIRST, True), (TEXT_FIRST, False), ("", False)]
)
def test_renderer_protobuf_is_served_to_a_server_that_prefers_it(accept, is_protobuf):
    ended = Reading(m.RUN_START, ("r-1",), 5.0)
    series = CollectedSeries([POWER], [RenderedSeries((ended,), ended_families([ended]))])
    page = MetricsRenderer(lambda: series).page(accept, compress=False)

    assert (page.content_type == PROTOBUF) == is_protobuf
    if is_protobuf:
        assert set(decode(page.body)) == {m.GPU_POWER.name, m.RUN_START.name}


@contextlib.contextmanager
def served(renderer):
    """Serve the pages of `renderer` at a free port, and yield it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            page = renderer.page(self.headers.get("Accept", ""), compress=False)
            self.send_response(200)
            self.send_header("Content-Type", page.content_type)
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", free_port()), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_prometheus_with_native_histograms_reads_requests_and_gpus(tmp_path):
    counters = RequestCounters(["user"])
    number = counters.number(LabelSet({"model": "llama", "user": "ann"}, "decode"))
    energies_j = np.array([8.0, 8.0, 8.0, 32.0, 0.0])
    counters.add(np.full(5, number), energies_j, np.ones(5, dtype=bool))
    counters.publish(counters.take_changes(), -NEW_SERIES_S)
    renderer = MetricsRenderer(
        lambda: CollectedSeries([POWER, ENERGY, *counters.readings(0.0)]),
        collect_native=lambda: counters.native_buckets(0.0),
    )
    with (
        served(renderer) as port,
        prometheus(
            tmp_path, [f"127.0.0.1:{port}"], flags=["--enable-feature=native-histograms"]
        ) as url,
    ):
        selector = m.REQUEST_ENERGY.selector(model="llama", role="decode", user="ann")

        def value(expression):
            [found] = query(url, expression)
            return found

        eventually(lambda: query(url, f"histogram_count({selector})"))
        assert value(f"histogram_count({selector})") == 5
        assert value(f"histogram_sum({selector})") == 56
        assert (
            7.33 < value(f"histogram_quantile(0.6, {selector})") <= 8
        )  # within the bucket that ends at 8 J
        assert value(f"histogram_fraction(16, 64, {selector})") == pytest.approx(1 / 5)
        assert value(m.GPU_POWER.selector(gpu="0", uuid="GPU-1")) == 312.5
        assert value(m.GPU_ENERGY.selector(gpu="0", uuid="GPU-1")) == 1234.5
