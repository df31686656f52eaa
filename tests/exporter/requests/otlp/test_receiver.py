"""Traces over HTTP, sent by the OpenTelemetry SDK, become requests of runs."""

import gzip
import json

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.exporter.requests.otlp.receiver_node import one_span, post
from tests.exporter.requests.otlp.senders import (
    LITELLM,
    SEMCONV,
    T0,
    VLLM,
    emit,
    encoded,
    http_exporter,
    provider,
)
from tests.exporter.requests.otlp.test_run_match import run
from wattline_exporter.sensors.readings import RunError


@pytest.mark.parametrize("compression", [Compression.Gzip, Compression.NoCompression])
def test_spans_of_the_sdk_become_requests(node, url, compression):
    with provider(http_exporter(url, compression=compression), {"service.name": "vllm"}) as tracer:
        for index in range(600):  # more than one batch of the SDK
            emit(
                tracer,
                "llm_request",
                {**VLLM, "gen_ai.request.id": f"chatcmpl-{index}"},
                start=T0 + index,
            )
            emit(tracer, "GET /health", {})

    found = node.sink.received["bench-1"]
    assert sorted(each.request_id for each in found) == sorted(
        f"chatcmpl-{index}" for index in range(600)
    )
    assert {(each.prompt_tokens, each.generated_tokens) for each in found} == {(1200, 80)}
    assert node.counts() == {"accepted": 600.0, "ignored": 600.0}


def test_gateway_above_the_server_counts_once(node, url):
    with provider(http_exporter(url), {"service.name": "litellm"}) as gateway:
        above = emit(gateway, "litellm_request", LITELLM)
        with provider(http_exporter(url), {"service.name": "vllm"}) as server:
            emit(server, "llm_request", VLLM, parent=above)

    assert [each.first_token_at for each in node.sink.received["bench-1"]] == [T0 + 0.25]
    assert node.counts() == {"accepted": 1.0, "duplicate": 1.0}


def test_json_body_is_answered_in_json(node, url):
    span = {
        "traceId": "5B8EFFF798038103D269B633813FC60C",
        "spanId": "EEE19B7EC3C1B174",
        "name": "chat m1",
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000002000000000",
        "attributes": [
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}},
            {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "6"}},
            {"key": "wattline.run_id", "value": {"stringValue": "none-such"}},
        ],
    }
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()

    answer = post(
        url, gzip.compress(body), **{"Content-Type": "application/json", "Content-Encoding": "gzip"}
    )

    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    partial = answer.json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    assert "no run 'none-such' is open" in partial["errorMessage"]


def test_full_success_has_an_empty_message(url):
    answer = post(url, one_span())

    assert (answer.status_code, answer.content, answer.headers["Content-Type"]) == (
        200,
        b"",
        "application/x-protobuf",
    )


def test_rejected_spans_are_reported_and_logged_once(node, url, caplog):
    node.runs.clear()

    for _ in range(2):
        answer = post(url, one_span())
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert (answer.status_code, partial.rejected_spans) == (200, 1)
        assert "no run was open" in partial.error_message

    assert [record.message.count("no run was open") for record in caplog.records] == [1]
    assert node.counts() == {"no_run": 2.0}


def test_invalid_request_is_rejected_with_the_field(node, url):
    answer = post(
        url, one_span({**SEMCONV, "gen_ai.usage.cache_read.input_tokens": 5_000}, "chat m1")
    )

    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (partial.rejected_spans, partial.error_message) == (
        1,
        "1 of the spans: cached_tokens: expected at most prompt_tokens",
    )
    assert node.counts() == {"invalid": 1.0}


def test_spans_of_one_body_go_to_the_runs_open_at_their_times(node, url):
    """The first run ends at T0 + 50; requests last for 2 s, so that two of them are within both
    runs.
    """
    node.runs = [run("first", ended_at=T0 + 50), run("second", started_at=T0 + 51)]
    with provider(http_exporter(url)) as tracer:
        for second in (0, 48, 50, 51, 90):
            emit(
                tracer,
                "llm_request",
                {**VLLM, "gen_ai.request.id": f"r-{second}"},
                start=T0 + second,
            )

    found = {
        run_id: [each.request_id for each in received]
        for run_id, received in node.sink.received.items()
    }
    assert found == {"first": ["r-0", "r-48"], "second": ["r-51", "r-90"]}
    assert node.counts() == {"accepted": 4.0, "no_run": 1.0}


@pytest.mark.parametrize("character", ["\x00", "\x1f", "\x7f", "\u202e", "\u2069"])
def test_id_with_control_character_is_rejected(node, url, character):
    ids = [f"r{character}", "r~", "r \u00e9", "r\t"]
    post(
        url,
        encoded(
            lambda tracer: [emit(tracer, "s", {**VLLM, "gen_ai.request.id": each}) for each in ids]
        ),
    )

    assert [each.request_id for each in node.sink.received["bench-1"]] == ids[1:]
    assert node.counts() == {"accepted": 3.0, "invalid": 1.0}


def test_valid_requests_count_beside_invalid_ones_in_a_body(node, url):
    with provider(http_exporter(url)) as tracer:
        for cached in (0, 1201, 7):
            emit(tracer, "llm_request", {**VLLM, "gen_ai.usage.cached_tokens": cached})
        emit(tracer, "llm_request", {**VLLM, "gen_ai.request.id": "r\x1b[31m"})

    assert [each.cached_tokens for each in node.sink.received["bench-1"]] == [0, 7]
    assert node.counts() == {"accepted": 2.0, "invalid": 2.0}


def test_span_repeated_in_a_body_counts_once(node, url):
    message = ExportTraceServiceRequest.FromString(one_span())
    spans = message.resource_spans[0].scope_spans[0].spans
    spans.append(spans[0])

    assert post(url, message.SerializeToString()).status_code == 200

    assert len(node.sink.received["bench-1"]) == 1
    assert node.counts() == {"accepted": 1.0, "duplicate": 1.0}


def test_requests_that_the_run_refuses_are_reported(node, url):
    node.sink.late = 1

    partial = ExportTraceServiceResponse.FromString(post(url, one_span()).content).partial_success

    assert (partial.rejected_spans, partial.error_message) == (
        1,
        "1 of the spans: reported too late",
    )
    assert node.counts() == {"refused": 1.0}


def test_request_that_the_run_knows_is_a_duplicate_and_a_success(node, url, caplog):
    """So it is after a restart of the exporter, which forgets spans but no requests, and for a
    gateway's span.
    """
    node.sink.repeated = 1

    answer = post(url, one_span())

    assert (answer.status_code, answer.content, caplog.records) == (200, b"", [])
    assert node.counts() == {"duplicate": 1.0}


def test_full_store_is_answered_with_429_and_the_repetition_counts(node, url):
    node.sink.error = RunError(429, "too many requests", 2)
    body = one_span()

    answer = post(url, body)

    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")
    assert (Status.FromString(answer.content).code, Status.FromString(answer.content).message) == (
        8,
        "too many requests",
    )
    node.sink.error = None
    assert post(url, body).status_code == 200
    assert post(url, body).status_code == 200
    assert len(node.sink.received["bench-1"]) == 1


def test_repeated_body_of_two_runs_counts_each_span_as_accepted(node, url):
    """The second run refuses its request once; that of the first run is saved by then."""
    node.runs = [run("first", ended_at=T0 + 50), run("second", started_at=T0 + 51)]
    body = encoded(
        lambda tracer: [emit(tracer, "llm_request", VLLM, start=T0 + second) for second in (0, 90)]
    )
    errors = [RunError(429, "too many requests", 1)]

    async def report(run_id, accepted, inner=node.sink.report_columns):
        if run_id == "second" and errors:
            raise errors.pop()
        return await inner(run_id, accepted)

    node.sink.report_columns = report

    assert [post(url, body).status_code for _ in range(2)] == [429, 200]

    assert {run_id: len(received) for run_id, received in node.sink.received.items()} == {
        "first": 1,
        "second": 1,
    }
    assert node.counts() == {"accepted": 2.0, "duplicate": 1.0}


def test_sdk_repeats_after_429(node, url):
    node.sink.error = RunError(429, "too many requests", 1)
    refusals = []

    async def report(run_id, accepted, inner=node.sink.report_columns):
        try:
            return await inner(run_id, accepted)
        except RunError:
            refusals.append(run_id)
            node.sink.error = None
            raise

    node.sink.report_columns = report
    with provider(http_exporter(url)) as tracer:
        emit(tracer, "llm_request", VLLM)

    assert (refusals, len(node.sink.received["bench-1"])) == (["bench-1"], 1)
