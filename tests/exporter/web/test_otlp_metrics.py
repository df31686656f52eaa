"""OTLP metrics of an exporter, as an HTTP server receives them and OpenTelemetry's own messages
decode them.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.semconv._incubating.attributes import hw_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics

from tests.exporter.commands import SIMULATED, assert_one_line, exporter
from tests.polling import eventually
from tests.simulation.virtual_time import VirtualLoop, VirtualTime
from wattline.contract import metrics as m
from wattline_exporter.sensors.readings import Reading
from wattline_exporter.web.otlp_metrics import (
    HARDWARE_METRICS,
    MAX_CAUSES,
    FirstOfEachCause,
    OtlpMetrics,
    metrics_data,
)

T_NS = 1_790_000_000 * 10**9
GPU = ("0", "GPU-1")
CONVENTIONAL_GPU = {"hw.id": "GPU-1", "hw.name": "GPU 0", "hw.type": "gpu"}


class Collector(ThreadingHTTPServer):
    """Receiver of OTLP/HTTP; `answers` are the status codes of the next requests."""

    def __init__(self):
        self.requests, self.answers, self.headers = [], [], []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1/metrics"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.server.answers.pop(0) if self.server.answers else 200
        if answer == 200:
            self.server.headers.append(dict(self.headers))
            self.server.requests.append(
                ExportMetricsServiceRequest.FromString(gzip.decompress(body))
            )
        content = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(answer)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def collector():
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes_of(holder):
    return {one.key: one.value.string_value for one in holder.attributes}


def points_of(request):
    """Return {metric: [(attributes, value)]} of a request."""
    found = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        data = getattr(metric, metric.WhichOneof("data"))
        found[metric.name] = [(attributes_of(one), one.as_double) for one in data.data_points]
    return found


def metrics_of(readings):
    """Return {name: metric} of OpenTelemetry's SDK."""
    data = metrics_data(readings, T_NS, Resource({}))
    return {one.name: one for one in data.resource_metrics[0].scope_metrics[0].metrics}


def test_collector_receives_the_series_of_the_metrics_page(start, collector):
    environment = {
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=team",
        "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=node-7,cluster=north",
    }
    with start("--otlp.metrics-url", collector.url, env=environment) as node:
        eventually(lambda: len(collector.requests) >= 3)
        page = node.metrics()
        uuid = page["wattline_gpu_info"][0][0]["uuid"]
        energy_j = node.value("wattline_gpu_energy_joules_total", uuid=uuid)

    last = points_of(collector.requests[-1])
    assert page.keys() - last.keys() == set()
    own = {one["uuid"]: value for one, value in last["wattline_gpu_energy_joules_total"]}
    hardware = {one["hw.id"]: value for one, value in last["hw.energy"]}
    assert own[uuid] >= energy_j  # sent once more when the exporter stopped
    assert hardware[uuid] == own[uuid]
    resource = attributes_of(collector.requests[-1].resource_metrics[0].resource)
    assert (resource["service.name"], resource["service.instance.id"], resource["cluster"]) == (
        "wattline",
        "node-7",
        "north",
    )
    assert collector.headers[-1]["x-tenant"] == "team"


def test_collector_that_refuses_is_named_once_and_asked_again(start, collector):
    collector.answers = [401, 401, 401]
    environment = {"OTEL_METRIC_EXPORT_INTERVAL": "1000"}
    with start("--otlp.metrics-url", collector.url, env=environment) as node:
        eventually(lambda: collector.requests)
        eventually(lambda: "accepts metrics again" in node.log())
        log = node.log()

    assert log.count("code: 401") == 1


def failure(cause):
    return logging.LogRecord("otlp", logging.ERROR, "", 0, "code: 400, reason: %s", (cause,), None)


def test_stop_waits_1_5_s_for_readings_that_do_not_come():
    virtual = VirtualTime(random.Random(1), begin_s=100.0)
    loop = VirtualLoop(virtual)
    never = loop.create_future()
    sender = OtlpMetrics("http://127.0.0.1:9/v1/metrics", lambda: never)

    loop.run_until_complete(sender.stop())

    assert virtual.s == pytest.approx(101.5, abs=0.001)  # the loop's timers are up to 0.1 ms late
    never.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_causes_that_all_differ_are_logged_and_kept_up_to_a_limit():
    causes = FirstOfEachCause()
    logged = [number for number in range(1_000) if causes.filter(failure(f"request {number}"))]

    assert logged == list(range(MAX_CAUSES))
    assert len(causes.causes) == MAX_CAUSES

    causes.causes.clear()
    assert causes.filter(failure("request 1"))


def test_interval_that_is_no_number_is_a_usage_error(tmp_path):
    url = "http://127.0.0.1:9/v1/metrics"
    options = ("serve", *SIMULATED, "--state.path", str(tmp_path), "--otlp.metrics-url", url)

    assert_one_line(
        exporter(*options, OTEL_METRIC_EXPORT_INTERVAL="1m"),
        2,
        "OTEL_METRIC_EXPORT_INTERVAL=1m: expected milliseconds from 1000 to 3600000",
    )


def test_missing_package_is_named(tmp_path):
    code = (
        "import sys; sys.modules['opentelemetry'] = None; "
        "from wattline_exporter.cli.main import main; sys.argv = sys.argv[1:]; main()"
    )
    options = ["--state.path", str(tmp_path), "--otlp.metrics-url", "http://127.0.0.1:9/v1/metrics"]
    result = subprocess.run(
        [sys.executable, "-c", code, "exporter", "serve", *options],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 1
    assert result.stderr == (
        "exporter: --otlp.metrics-url: opentelemetry.exporter is not installed; in the clone of "
        "Wattline, run: pip install '.[otlp]'\n"
    )


def test_counters_are_cumulative_sums_and_others_gauges():
    metrics = metrics_of(
        [
            Reading(m.GPU_ENERGY, GPU, 300.0),
            Reading(m.GPU_POWER, GPU, 250.0),
            Reading(m.GPU_MEMORY_USED, GPU, 2.0**30),
            Reading(m.REQUEST_ENERGY_BUCKET, ("llama", "", "10.0"), 3.0),
        ]
    )

    energy = metrics["hw.energy"]
    (point,) = energy.data.data_points
    assert (point.value, point.time_unix_nano, point.attributes) == (300.0, T_NS, CONVENTIONAL_GPU)
    assert (energy.unit, energy.data.is_monotonic, energy.data.aggregation_temporality) == (
        "J",
        True,
        2,
    )
    assert type(metrics["hw.power"].data).__name__ == "Gauge"
    memory = metrics["hw.gpu.memory.usage"]
    assert (memory.unit, memory.data.is_monotonic) == ("By", False)
    assert metrics["wattline_request_energy_joules_bucket"].data.is_monotonic


def test_zones_that_overlap_the_package_have_no_hardware_energy():
    metrics = metrics_of(
        [
            Reading(m.CPU_ENERGY, ("0", "package"), 11.0),
            Reading(m.CPU_ENERGY, ("0", "core"), 5.0),
            Reading(m.GPU_UTILIZATION, (*GPU, "gpu"), 0.5),
            Reading(m.GPU_UTILIZATION, (*GPU, "memory"), 0.25),
        ]
    )

    energies = [(one.attributes, one.value) for one in metrics["hw.energy"].data.data_points]
    cpu = {"hw.id": "cpu-0/package", "hw.name": "CPU 0 package", "hw.type": "cpu"}
    assert energies == [(cpu, 11.0)]
    loads = [(one.attributes, one.value) for one in metrics["hw.gpu.utilization"].data.data_points]
    assert loads == [(CONVENTIONAL_GPU | {"hw.gpu.task": "general"}, 0.5)]
    assert len(metrics["wattline_cpu_energy_joules_total"].data.data_points) == 2


@pytest.mark.parametrize("one", HARDWARE_METRICS, ids=lambda one: f"{one.metric.name}")
def test_name_and_attributes_are_those_of_the_semantic_conventions(one):
    names = {value for name, value in vars(hw_metrics).items() if name.startswith("HW_")}
    known = {value for name, value in vars(hw_attributes).items() if name.startswith("HW_")}
    attributes = {
        *one.attributes,
        *(key for by in one.values.values() for value in by.values() for key in value),
    }

    assert one.name in names
    assert attributes <= known | {"network.io.direction", "error.type"}
    assert "hw.id" in attributes
