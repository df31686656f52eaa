"""Attributes of spans and resources by key, compared with those that OpenTelemetry's own classes
read.
"""

from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from wattline_exporter.requests.otlp.trace_messages import (
    FurtherFieldsError,
    attributes_of_map,
    attributes_of_pairs,
    trace_request_class,
)

CAPTURED = [path.read_bytes() for path in sorted((Path(__file__).parent / "captured").glob("*.pb"))]
VALUES = st.one_of(
    st.builds(AnyValue, string_value=st.text(max_size=3)),
    st.builds(AnyValue, int_value=st.integers(-(2**63), 2**63 - 1)),
    st.builds(AnyValue, double_value=st.floats(allow_nan=False)),
    st.builds(AnyValue, bool_value=st.booleans()),
    st.sampled_from([AnyValue(), AnyValue(bytes_value=b"x"), AnyValue(array_value=ArrayValue())]),
)
PAIRS = st.builds(KeyValue, key=st.sampled_from(["a", "b", "", "\u00e9", "k" * 128]), value=VALUES)


def request(*spans, resource=()):
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=resource), scope_spans=[ScopeSpans(spans=list(spans))]
            )
        ]
    )


def holders(message):
    """Return the resources and spans."""
    return [
        each
        for of_resource in message.resource_spans
        for each in (
            of_resource.resource,
            *(span for scope in of_resource.scope_spans for span in scope.spans),
        )
    ]


def attributes(message, attributes_of=attributes_of_pairs):
    """Return the attributes of each resource and span."""
    return [
        {key: value.SerializeToString() for key, value in attributes_of(each).items()}
        for each in holders(message)
    ]


def expected(body):
    """Return the attributes by OpenTelemetry's class, None if it refuses the body."""
    try:
        return attributes(ExportTraceServiceRequest.FromString(body))
    except DecodeError:
        return None


def read(body):
    """Return the attributes by maps, those by pairs where maps do not have them all, None for a
    refused body.
    """
    try:
        return attributes(trace_request_class().FromString(body), attributes_of_map)
    except FurtherFieldsError:
        return expected(body)
    except DecodeError:
        return None


@given(st.lists(PAIRS, max_size=5), st.lists(PAIRS, max_size=3))
def test_attributes_equal_those_of_opentelemetry(of_span, of_resource):
    body = request(Span(attributes=of_span), resource=of_resource).SerializeToString()

    assert read(body) == expected(body)


@given(st.sampled_from(CAPTURED), st.data())
def test_body_with_changed_bytes_is_read_as_opentelemetry_does(body, data):
    changed = bytearray(body)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=3)):
        changed[place : place + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=2))

    assert read(bytes(changed)) == expected(bytes(changed))


def with_pair(pair):
    """Return a body whose only span has another attribute and then this encoded pair."""
    body = request(Span(attributes=[KeyValue(key="other", value=AnyValue(int_value=1))]))
    [span] = body.resource_spans[0].scope_spans[0].spans
    raw = span.SerializeToString() + b"\x4a" + bytes([len(pair)]) + pair  # field 9
    return b"".join(
        [
            b"\x0a",
            bytes([len(raw) + 4]),
            b"\x12",
            bytes([len(raw) + 2]),
            b"\x12",
            bytes([len(raw)]),
            raw,
        ]
    )


KEY, ONE = b"\x0a\x01a", b"\x12\x02\x18\x01"


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        (KEY + ONE, {"a": b"\x18\x01"}),
        (ONE + KEY, {"a": b"\x18\x01"}),
        (b"\x0a\x81\x80\x00a" + ONE, {"a": b"\x18\x01"}),  # length in three bytes instead of one
        (b"\x8a\x00\x01a" + ONE, {"a": b"\x18\x01"}),
        (KEY + b"\x12\x04\x18\x81\x80\x00", {"a": b"\x18\x01"}),
        (KEY + ONE + b"\x0a\x01b", {"b": b"\x18\x01"}),
        (KEY + ONE + b"\x12\x02\x18\x02", {"a": b"\x18\x02"}),
        (KEY, {"a": b""}),
        (b"", {"": b""}),
    ],
)
def test_pair_in_unusual_encoding_is_read(pair, value):
    body = with_pair(pair)

    assert read(body) == expected(body) == [{}, {"other": b"\x18\x01", **value}]


@pytest.mark.parametrize(
    "further", [b"\x18\x05", b"\x78\x05", b"\x7b\x7c"]
)  # key_strindex; unknown fields; a group
def test_pair_with_further_fields_is_no_entry_of_a_map(further):
    body = with_pair(KEY + ONE + further)

    assert attributes(ExportTraceServiceRequest.FromString(body)) == [
        {},
        {"other": b"\x18\x01", "a": b"\x18\x01"},
    ]
    with pytest.raises(FurtherFieldsError):
        attributes(trace_request_class().FromString(body), attributes_of_map)


@pytest.mark.parametrize(
    "pair",
    [
        b"\x0a\x01\xff" + ONE,
        KEY + b"\x12\x03\x0a\x01\xff",
        KEY + b"\x12\x03\x18\x01",
        b"\x0a\x05a",
        KEY + b"\x00\x01",
    ],
)
def test_damaged_pair_is_refused(pair):
    body = with_pair(pair)

    assert (read(body), expected(body)) == (None, None)
