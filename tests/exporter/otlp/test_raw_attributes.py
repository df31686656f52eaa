"""Attributes of spans as bytes, compared with those that protobuf reads."""

from __future__ import annotations

import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from exporter.otlp.raw_attributes import AttributeReader, trace_request_class

PLACES = {"a": 0, "text": 1, "count": 2, "k" * 127: 3, "k" * 128: 4, "\u00e9": 5}
KEYS = st.sampled_from([*PLACES, "b", "tex", "text.more", ""])
SCALARS = st.one_of(
    st.builds(AnyValue, string_value=st.text(max_size=3) | st.sampled_from(["x" * size for size in range(120, 132)])),
    st.builds(AnyValue, int_value=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20_000)),
    st.builds(AnyValue, double_value=st.floats(allow_nan=False)),
    st.builds(AnyValue, bool_value=st.booleans()),
)
OTHERS = st.sampled_from([AnyValue(), AnyValue(bytes_value=b"x"), AnyValue(array_value=ArrayValue())])
SPANS = st.lists(st.lists(st.tuples(KEYS, SCALARS | OTHERS), max_size=5), max_size=6)


def expected(attributes):
    """Return the last value of each wanted key, None for other types than text, number and bool."""
    found = [None] * len(PLACES)
    for key, value in attributes:
        if key in PLACES:
            kind = value.WhichOneof("value")
            is_scalar = kind in ("string_value", "int_value", "double_value", "bool_value")
            found[PLACES[key]] = getattr(value, kind) if is_scalar else None
    return found


@given(SPANS)
def test_attributes_equal_those_of_protobuf(spans):
    reader = AttributeReader(PLACES)

    for attributes in [*spans, *spans]:
        raw = [KeyValue(key=key, value=value).SerializeToString() for key, value in attributes]
        found = reader.values(raw)
        assert found == expected(attributes)
        assert [type(each) for each in found] == [type(each) for each in expected(attributes)]


def test_attributes_of_another_span_with_as_many_are_found():
    reader = AttributeReader(PLACES)
    first = [KeyValue(key="a", value=AnyValue(int_value=1)), KeyValue(key="b", value=AnyValue(int_value=2))]
    second = [KeyValue(key="b", value=AnyValue(int_value=3)), KeyValue(key="count", value=AnyValue(int_value=4))]

    found = [reader.values([each.SerializeToString() for each in one]) for one in (first, second, first)]

    assert [each[:3] for each in found] == [[1, None, None], [None, None, 4], [1, None, None]]


@pytest.mark.parametrize("values", [(0.5, 3), (3, 0.5), (0.5, 1.5)])
def test_attributes_with_one_key_the_last_one_counts(values):
    kinds = {int: "int_value", float: "double_value"}
    raw = [KeyValue(key="a", value=AnyValue(**{kinds[type(value)]: value})).SerializeToString() for value in values]

    assert AttributeReader(PLACES).values(raw)[0] == values[1]


def test_attribute_with_its_value_before_its_key_is_found():
    value = KeyValue(value=AnyValue(double_value=0.5)).SerializeToString()
    raw = value + KeyValue(key="a").SerializeToString()

    assert AttributeReader(PLACES).values([raw])[0] == 0.5


@pytest.mark.parametrize("cut", [1, 5, 8])
def test_attribute_that_is_cut_is_an_error(cut):
    reader = AttributeReader(PLACES)
    raw = KeyValue(key="a", value=AnyValue(double_value=0.5)).SerializeToString()

    assert reader.values([raw])[0] == 0.5
    with pytest.raises((DecodeError, struct.error)):
        reader.values([raw[:-cut]])


KEY_A, KEY_B = KeyValue(key="a").SerializeToString(), KeyValue(key="b").SerializeToString()
ONE = KeyValue(value=AnyValue(int_value=1)).SerializeToString()
HALF = KeyValue(value=AnyValue(double_value=0.5)).SerializeToString()


@pytest.mark.parametrize(
    "odd", [b"", ONE, KEY_A, ONE + KEY_A, KEY_A + ONE + KEY_B, KEY_A + ONE + HALF, KEY_A + b"\x12\x00"]
)
@pytest.mark.parametrize("usual", [KEY_A + ONE, KEY_A + HALF, KEY_B + ONE])
def test_attributes_in_unusual_encoding_equal_those_of_protobuf(odd, usual):
    reader = AttributeReader(PLACES)

    for raw in (usual, odd, usual, odd, usual):
        read = KeyValue.FromString(raw)
        assert reader.values([raw]) == expected([(read.key, read.value)])


@pytest.mark.parametrize("value", [b"\x12\x03\x18\x05\x08", b"\x12", b"\x12\x05\x18\x05"])
def test_attribute_that_is_damaged_is_an_error(value):
    reader = AttributeReader(PLACES)
    assert reader.values([KEY_A + ONE])[0] == 1

    with pytest.raises(DecodeError):
        reader.values([KEY_A + value])


def test_request_class_has_attributes_of_spans_only_as_bytes():
    span = Span(name="s")
    span.attributes.add(key="a", value=AnyValue(int_value=1))
    message = trace_request_class()()
    of_resource = message.resource_spans.add()
    of_resource.resource.attributes.add(key="r")
    of_resource.scope_spans.add().spans.add().ParseFromString(span.SerializeToString())

    [read] = trace_request_class().FromString(message.SerializeToString()).resource_spans
    assert [each.key for each in read.resource.attributes] == ["r"]
    assert list(read.scope_spans[0].spans[0].attributes) == [span.attributes[0].SerializeToString()]
