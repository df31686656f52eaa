"""Receiver of traces with runs and a sink of the test, and bodies to send."""

from collections import defaultdict

import requests

from tests.exporter.requests.otlp.senders import T0, VLLM, emit, encoded
from tests.exporter.requests.otlp.test_run_match import run
from tests.workloads.wattline.contract.packed_requests import requests_of
from wattline.contract.metrics import OTLP_SPANS
from wattline_exporter.requests.intake import REASONS
from wattline_exporter.requests.otlp.attributes import label_rules
from wattline_exporter.requests.otlp.receiver import OtlpReceiver
from wattline_exporter.requests.otlp.run_match import RunMatcher
from wattline_exporter.requests.otlp.spans import SpanReader
from wattline_exporter.requests.views import RequestReceipt
from wattline_exporter.sensors.exported_counters import ExportedCounters

PROTOBUF = {"Content-Type": "application/x-protobuf"}


class Sink:
    def __init__(self):
        self.received = defaultdict(list)
        self.error = None
        self.late = self.repeated = 0

    async def report_columns(self, run_id, requests):
        if self.error:
            raise self.error
        self.received[run_id] += requests_of(requests)
        reasons = {"reported too late": self.late, REASONS["duplicate"]: self.repeated}
        refused = self.late + self.repeated
        return RequestReceipt(
            accepted=len(requests) - refused,
            duplicate=self.repeated,
            late=self.late,
            rejected=0,
            reasons={reason: count for reason, count in reasons.items() if count},
        )


class Node:
    """Receiver with two runs, of which only `bench-1` is open at T0."""

    def __init__(self):
        self.sink = Sink()
        self.counters = ExportedCounters()
        self.runs = [run("bench-1"), run("next", started_at=T0 + 1_000)]

    def receiver(self):
        reader = SpanReader(label_rules(["user"]))
        return OtlpReceiver(
            reader, RunMatcher(lambda: self.runs, host="node-1"), self.sink, self.counters
        )

    def counts(self):
        return {each.labels[0]: each.value for each in self.receiver_readings() if each.value}

    def receiver_readings(self):
        return self.counters.readings(OTLP_SPANS)


def post(url, body, **headers):
    return requests.post(f"{url}/v1/traces", data=body, headers={**PROTOBUF, **headers}, timeout=30)


def one_span(attributes=VLLM, name="llm_request", resource=None):
    return encoded(lambda tracer: emit(tracer, name, attributes), resource)
