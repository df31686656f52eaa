"""OTLP metrics of a history, as an HTTP server receives them and OpenTelemetry's own messages
decode them.
"""

from __future__ import annotations

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.semconv._incubating.attributes import hw_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics

from tests.exporter.push.history_client import PushNode
from wattline.contract import metrics as m
from wattline_exporter.push.hardware_conventions import HARDWARE_METRICS
from wattline_exporter.sensors.readings import Reading

SECONDS = 5
GPU = ("0", "GPU-1")
READINGS = (
    (m.GPU_POWER, GPU, 300.0),
    (m.GPU_MEMORY_USED, GPU, 2.0**30),
    (m.GPU_UTILIZATION, (*GPU, "gpu"), 0.5),
    (m.GPU_UTILIZATION, (*GPU, "memory"), 0.25),
    (m.GPU_PCIE_BYTES, (*GPU, "rx"), 7.0),
    (m.CPU_ENERGY, ("0", "package"), 11.0),
    (m.CPU_ENERGY, ("0", "core"), 5.0),
)


class Collector(ThreadingHTTPServer):
    """Receiver of OTLP/HTTP; `answers` are the status codes of the next requests, a text is a
    partial success.
    """

    def __init__(self):
        self.requests, self.answers, self.headers = [], [], []
        super().__init__(("127.0.0.1", 0), _Handler)

    def points(self):
        """Return metric, unit and data points (time, value, attributes) of all accepted
        requests.
        """
        found = {}
        for request in self.requests:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        data = getattr(metric, metric.WhichOneof("data"))
                        for point in data.data_points:
                            attributes = tuple(sorted(attributes_of(point).items()))
                            found.setdefault((metric.name, attributes), []).append((point, metric))
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.server.answers.pop(0) if self.server.answers else 200
        response = ExportMetricsServiceResponse()
        if isinstance(answer, str):
            response.partial_success.rejected_data_points = 1
            response.partial_success.error_message = answer
        elif answer == 200:
            self.server.requests.append(
                ExportMetricsServiceRequest.FromString(gzip.decompress(body))
            )
            self.server.headers.append(dict(self.headers))
        content = response.SerializeToString()
        self.send_response(200 if isinstance(answer, str) else answer)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


def attributes_of(holder):
    return {one.key: one.value.string_value for one in holder.attributes}


@pytest.fixture
def collector():
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def node(collector, tmp_path):
    pushed = PushNode(
        tmp_path, f"http://127.0.0.1:{collector.server_port}/v1/metrics", "n-1"
    ).open()
    yield pushed
    pushed.history.close()


def add(node, begin_s):
    for second in range(SECONDS):
        energy = Reading(m.GPU_ENERGY, GPU, 300.0 * second)
        constant = [Reading(metric, labels, value) for metric, labels, value in READINGS]
        node.history.add(begin_s + second, [energy, *constant], run_open=True)


def test_metrics_arrive_after_errors_with_their_semantic_names(collector, node):
    begin_s = round(time.time()) - 600
    collector.answers = [429, 503, 200]
    add(node, begin_s)
    node.push()

    points = collector.points()
    gpu = {"hw.id": "GPU-1", "hw.name": "GPU 0", "hw.type": "gpu"}
    energy = points["hw.energy", tuple(sorted(gpu.items()))]
    assert [point.as_double for point, _ in energy] == [300.0 * second for second in range(SECONDS)]
    assert [point.time_unix_nano for point, _ in energy] == [
        (begin_s + second) * 10**9 for second in range(SECONDS)
    ]
    assert energy[0][1].sum.is_monotonic
    assert energy[0][1].unit == "J"
    assert points["hw.power", tuple(sorted(gpu.items()))][0][1].HasField("gauge")
    memory = points["hw.gpu.memory.usage", tuple(sorted(gpu.items()))][0][1]
    assert (memory.sum.is_monotonic, memory.unit) == (False, "By")
    by_name = {name: dict(attributes) for name, attributes in points}
    assert by_name["hw.gpu.utilization"] == gpu | {"hw.gpu.task": "general"}
    assert by_name["hw.gpu.io"] == gpu | {"network.io.direction": "receive"}
    cpu = {"hw.id": "cpu-0/package", "hw.name": "CPU 0 package", "hw.type": "cpu"}
    assert [dict(attributes) for name, attributes in points if name == "hw.energy"].count(cpu) == 1
    assert sum(name == "hw.energy" for name, _ in points) == 2, (
        "the zone core is a part of the package"
    )
    own = points["wattline_gpu_energy_joules_total", (("gpu", "0"), ("uuid", "GPU-1"))]
    assert [point.as_double for point, _ in own] == [point.as_double for point, _ in energy]
    assert collector.headers[0]["Content-Type"] == "application/x-protobuf"
    assert attributes_of(collector.requests[0].resource_metrics[0].resource) == {
        "host.name": "n-1",
        "service.instance.id": "n-1",
        "service.name": "wattline",
    }
    assert node.sample_counts() == {"accepted": SECONDS * 8, "refused": 0, "dropped": 0}


def test_partial_success_counts_the_rejected_samples_as_refused(collector, node):
    add(node, round(time.time()) - 600)
    node.push()
    collector.answers = ["too old"] * 2  # the whole batch, then its first half
    late = [Reading(m.GPU_POWER, GPU, 1.0), Reading(m.GPU_POWER, ("1", "b"), 2.0)]
    node.history.add(time.time() - 300, late, run_open=True)
    node.push()

    assert node.sample_counts() == {"accepted": SECONDS * 8 + 1, "refused": 1, "dropped": 0}


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
