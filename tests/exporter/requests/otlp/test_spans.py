"""Requests in the spans of servers and gateways."""

import hashlib
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.exporter.requests.otlp.senders import (
    LITELLM,
    LITELLM_V2,
    SEMCONV,
    SGLANG,
    T0,
    VLLM,
    emit,
    encoded,
)
from tests.workloads.wattline.contract.packed_requests import requests_of
from wattline.contract.requests.served import ServedRequest, request_error
from wattline_exporter.requests.otlp.attributes import label_rules
from wattline_exporter.requests.otlp.body import BodyError, decode
from wattline_exporter.requests.otlp.spans import SpanReader

READER = SpanReader(label_rules(["user", "route", "team", "api_key"]))


def read(name, attributes, *, reader=READER, seconds=2.5, resource=None):
    body = encoded(lambda tracer: emit(tracer, name, attributes, seconds=seconds), resource)
    return requests_of(decode(body, reader, is_json=False).requests)


def test_vllm_span_has_times_and_tokens():
    assert read("llm_request", VLLM) == [
        ServedRequest("chatcmpl-7", T0, T0 + 2.0, 1200, 80, first_token_at=T0 + 0.25)
    ]


def test_sglang_span_has_model_and_cached_tokens():
    assert read(" Req 5e0c", SGLANG) == [
        ServedRequest("5e0c", T0, T0 + 2.0, 1200, 80, T0 + 0.25, 1024, {"model": "qwen"})
    ]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_sglang_disaggregated_span_has_role(role):
    assert [each.role for each in read(f"{role} Req 5e0c", SGLANG)] == [role]


def test_litellm_span_has_labels_and_hashed_key():
    (found,) = read("litellm_request", LITELLM)

    hashed = hashlib.sha256(str(LITELLM["metadata.user_api_key_hash"]).encode()).hexdigest()[:16]
    assert found.labels == {"model": "m1", "user": "alice", "team": "blue", "api_key": hashed}
    assert (found.started_at, found.ended_at, found.first_token_at) == (T0, T0 + 2.5, None)


def test_litellm_v2_span_of_the_proxy_has_labels():
    reader = SpanReader(label_rules(["user", "route", "team", "api_key", "user_api_key_alias"]))

    (found,) = read("chat m1", LITELLM_V2, reader=reader)

    hashed = hashlib.sha256(str(LITELLM_V2["litellm.api_key.hash"]).encode()).hexdigest()[:16]
    assert found.labels == {
        "model": "m1",
        "user": "alice",
        "route": "/v1/chat/completions",
        "team": "blue",
        "api_key": hashed,
        "user_api_key_alias": "key-1",
    }


def test_semconv_span_has_first_chunk_and_cache_read():
    (found,) = read("chat m1", SEMCONV)

    assert (found.first_token_at, found.cached_tokens, found.labels) == (
        T0 + 0.25,
        1024,
        {"model": "m1"},
    )


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("raw_gen_ai_request", {"llm.openai.model": "m1"}),
        ("invoke_agent", {**SEMCONV, "gen_ai.operation.name": "invoke_agent"}),
        (
            "generate",
            {"total_time": "2s", "queue_time": "1ms", "inference_time": "1.9s"},
        ),  # TGI has no tokens
        (
            "chat m1",
            {key: SEMCONV[key] for key in ("gen_ai.operation.name", "gen_ai.usage.input_tokens")},
        ),
        ("chat m1", {**SEMCONV, "gen_ai.usage.input_tokens": "1200"}),
        ("chat m1", {**SEMCONV, "gen_ai.usage.input_tokens": True}),
    ],
)
def test_span_that_is_no_request_is_left_out(name, attributes):
    body = encoded(lambda tracer: emit(tracer, name, attributes))

    decoded = decode(body, READER, is_json=False)

    assert (len(decoded.requests), decoded.spans) == (0, 1)


def test_embeddings_span_without_output_has_zero_generated():
    (found,) = read(
        "embeddings e5", {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 7}
    )

    assert (found.prompt_tokens, found.generated_tokens) == (7, 0)


def test_span_without_request_id_has_its_span_id():
    (found,) = read(
        "chat m1", {key: value for key, value in SEMCONV.items() if key != "gen_ai.response.id"}
    )

    assert len(found.request_id) == 16
    assert request_error(found) is None


def test_long_request_ids_stay_different_and_are_the_same_each_time():
    ids = ["y" * 128, "y" * 128 + "1", "y" * 128 + "2", "y" * 128 + "2"]
    found = [read("chat m1", {**SEMCONV, "gen_ai.response.id": each})[0].request_id for each in ids]

    assert [len(each) for each in found] == [128] * 4
    assert found[0] == ids[0]
    assert len(set(found)) == 3


@pytest.mark.parametrize("latency", [float("nan"), float("inf"), -1.0, 0.0, True])
def test_span_impossible_latency_is_unknown(latency):
    (found,) = read(
        "llm_request",
        {**VLLM, "gen_ai.latency.time_to_first_token": latency, "gen_ai.latency.e2e": latency},
    )

    assert (found.first_token_at, found.ended_at) == (None, T0 + 2.5)


@pytest.mark.parametrize("name", ["user", "team", "route", "service", "tier"])
def test_labels_fall_back_to_attributes_of_their_name(name):
    reader = SpanReader(label_rules([name]))

    (found,) = read("llm_request", {**VLLM, name: "red"}, reader=reader)

    assert found.labels == {name: "red"}


def test_labels_have_only_allowed_attributes():
    attributes = {
        **LITELLM,
        "http.route": "/v1/chat/completions",
        "user.id": "bob\x1b[31m",
        "metadata.tier": "gold",
    }
    reader = SpanReader(label_rules(["user", "tier", "service"]))

    (found,) = read(
        "litellm_request",
        attributes,
        reader=reader,
        resource={"service.name": "gateway", "tenant": "x"},
    )

    assert found.labels == {
        "model": "m1",
        "user": "bob\N{REPLACEMENT CHARACTER}[31m",
        "tier": "gold",
        "service": "gateway",
    }


def test_captured_vllm_spans_equal_usage_and_histograms_of_the_server():
    """The expected tokens are from the `usage` of vLLM's answers, the sums from its histograms."""
    body = (Path(__file__).parent / "captured/vllm-0.32.0.pb").read_bytes()

    requests = requests_of(decode(body, READER, is_json=False).requests)

    assert [(each.prompt_tokens, each.generated_tokens) for each in requests] == [
        (5, 8),
        (8, 3),
        (305, 5),
        (305, 2),
    ]
    assert requests[0].request_id == "chatcmpl-927664f9e3435191"
    latencies = [each.ended_at - each.started_at for each in requests]
    first_tokens = [each.first_token_at - each.started_at for each in requests]
    assert sum(latencies) == pytest.approx(
        0.8989553451538086, abs=1e-6
    )  # vllm:e2e_request_latency_seconds_sum
    assert sum(first_tokens) == pytest.approx(
        0.3133673667907715, abs=1e-6
    )  # vllm:time_to_first_token_seconds_sum


@pytest.mark.parametrize(
    ("mode", "user", "cached", "first_token"),
    [("default", "bob", 0, False), ("semconv", "bob", 0, False), ("v2", None, 1024, True)],
)
def test_captured_litellm_spans_become_one_request_each(mode, user, cached, first_token):
    body = (Path(__file__).parent / f"captured/litellm-1.106.2-{mode}.pb").read_bytes()

    _, streamed = requests_of(decode(body, READER, is_json=False).requests)

    assert (streamed.request_id, streamed.prompt_tokens, streamed.generated_tokens) == (
        "chatcmpl-s",
        1234,
        3,
    )
    assert (streamed.labels["model"], streamed.labels.get("user"), streamed.cached_tokens) == (
        "m1",
        user,
        cached,
    )
    assert (streamed.first_token_at is not None) == first_token
    assert 0.2 < streamed.ended_at - streamed.started_at < 10


def test_json_example_of_the_specification_is_decoded():
    body = b"""{"resourceSpans": [{"resource": {"attributes": [
        {"key": "service.name", "value": {"stringValue": "my.service"}}]},
      "scopeSpans": [{"scope": {"name": "my.library"}, "spans": [{
        "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174",
        "parentSpanId": "EEE19B7EC3C1B173", "name": "chat m1", "kind": 2, "unknownField": 1,
        "startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000002000000000",
        "attributes": [
          {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "1200"}},
          {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 80}}]}]}]}]}"""

    decoded = decode(body, READER, is_json=True)

    (found,) = requests_of(decoded.requests)
    assert found == ServedRequest("eee19b7ec3c1b174", T0, T0 + 2.0, 1200, 80)
    assert decoded.links == [(0xEEE19B7EC3C1B174, 0xEEE19B7EC3C1B173)]


@pytest.mark.parametrize(
    ("body", "is_json"),
    [
        (b"\xff\xff", False),
        (b"{", True),
        (b"\xff", True),
        (b"[" * 5_000, True),
        (b'{"resourceSpans": 3}', True),
        (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"zzzz"}]}]}]}', True),
    ],
)
def test_body_that_is_no_trace_request_is_an_error(body, is_json):
    with pytest.raises(BodyError, match=r"ExportTraceServiceRequest|spanId"):
        decode(body, READER, is_json=is_json)


def test_damaged_attribute_of_a_later_span_is_an_error():
    """The text of an attribute that no request needs is not UTF-8 in the second of two similar
    spans.
    """
    body = encoded(
        lambda tracer: [emit(tracer, "s", {**SEMCONV, "other": text}) for text in ("abc", "abd")]
    )

    assert len(decode(body, READER, is_json=False).requests) == 2
    with pytest.raises(BodyError, match="ExportTraceServiceRequest"):
        decode(body.replace(b"abd", b"ab\xff"), READER, is_json=False)


def test_label_values_of_different_types_are_different_labels():
    body = encoded(
        lambda tracer: [
            emit(tracer, "s", {**SEMCONV, "http.route": value}) for value in (1, True, 1.0)
        ]
    )

    found = requests_of(decode(body, READER, is_json=False).requests)

    assert [each.labels["route"] for each in found] == ["1", "True", "1.0"]


def test_attribute_with_further_fields_is_read():
    """Each attribute has the index of its key in a table, a field that later versions of OTLP have
    added.
    """
    message = ExportTraceServiceRequest.FromString(
        encoded(lambda tracer: emit(tracer, "s", SEMCONV))
    )
    for pair in message.resource_spans[0].scope_spans[0].spans[0].attributes:
        pair.key_strindex = 7

    (found,) = requests_of(decode(message.SerializeToString(), READER, is_json=False).requests)

    assert (found.prompt_tokens, found.generated_tokens, found.cached_tokens) == (1200, 80, 1024)


@pytest.mark.parametrize("is_json", [False, True])
def test_attribute_with_one_key_the_last_one_counts(is_json):
    message = ExportTraceServiceRequest.FromString(
        encoded(lambda tracer: emit(tracer, "s", SEMCONV))
    )
    [span] = message.resource_spans[0].scope_spans[0].spans
    span.attributes.add(key="gen_ai.usage.output_tokens").value.int_value = 90
    span.span_id = span.trace_id = b""
    body = MessageToJson(message).encode() if is_json else message.SerializeToString()

    (found,) = requests_of(decode(body, READER, is_json=is_json).requests)

    assert (found.prompt_tokens, found.generated_tokens) == (1200, 90)
