"""Requests of many spans by column, compared with those of each span by protobuf."""

import math
import struct

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from exporter.otlp.attributes import label_rules
from exporter.otlp.span_batch import MAX_LENGTH, MAX_LENGTHS, MIN_ALIKE, read_spans
from exporter.otlp.spans import SpanReader
from exporter.otlp.trace_messages import read_span
from tests.exporter.otlp.senders import LITELLM, SEMCONV, SGLANG, VLLM

T0_NS = 1_700_000_000_000_000_000
FIELDS = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value", bytes: "bytes_value"}


def reader():
    return SpanReader(label_rules(["user", "operation"]))


def value_of(value):
    if isinstance(value, list | dict):
        array = {"array_value": ArrayValue(values=map(value_of, value))}
        return AnyValue(**array) if isinstance(value, list) else AnyValue(kvlist_value={"values": pairs_of(value)})
    return AnyValue() if value is None else AnyValue(**{FIELDS[type(value)]: value})


def pairs_of(attributes):
    return [KeyValue(key=key, value=value_of(value)) for key, value in attributes.items()]


def span_of(number, attributes, **fields):
    """Return an encoded span of two seconds."""
    times = {"start_time_unix_nano": T0_NS + number, "end_time_unix_nano": T0_NS + number + 2 * 10**9}
    ids = {"trace_id": bytes(16), "span_id": (number + 1).to_bytes(8)}
    others = {"name": "llm_request", "kind": 2, "flags": 256, "status": Status(), **fields}
    return Span(attributes=pairs_of(attributes), **{**ids, **times, **others}).SerializeToString()


def numbered(attributes, number):
    """Return the attributes of a request with values of its own, of the same size."""
    ids = {"gen_ai.request.id": f"chatcmpl-{number:04}"}
    return {**attributes, **ids, "gen_ai.usage.prompt_tokens": 1000 + number, "gen_ai.latency.e2e": 1.0 + number}


def rows_of_batch(spans, by):
    batch = read_spans(spans, by)
    found, positions = batch.requests, batch.positions.tolist()
    origins = [found.origins[each] for each in found.origin_of.tolist()]
    rows = list(zip(positions, found.ids, *found.values.tolist(), found.numbers, origins, strict=True))
    return list(map(comparable, rows)), sorted(batch.links)


def rows_of_each(spans, by):
    """Return the requests by protobuf, one span after the other."""
    rows, links = [], []
    for position, encoded in enumerate(spans):
        span, attributes = read_span(encoded)
        number, parent = int.from_bytes(span.span_id), int.from_bytes(span.parent_span_id)
        if parent and parent != number:
            links.append((number, parent))
        if row := by.read(span, attributes, number):
            request_id, *times_and_tokens, span_number, origin = row
            rows.append(comparable((position, request_id, *map(float, times_and_tokens), span_number, origin)))
    return rows, sorted(links)


def comparable(row):
    """Return a row without NaN, which differs from itself."""
    return tuple(None if isinstance(each, float) and math.isnan(each) else each for each in row)


def result(read, spans, by):
    try:
        return read(spans, by)
    except DecodeError:
        return "refused"


def check(spans, by=None):
    """Check that a batch has the requests that protobuf reads from each span, with new and with known layouts."""
    by = by or reader()
    expected = result(rows_of_each, spans, by)
    assert result(rows_of_batch, spans, by) == expected
    assert result(rows_of_batch, spans, by) == expected
    return expected


@pytest.mark.parametrize("attributes", [VLLM, SGLANG, LITELLM, SEMCONV], ids=str)
def test_spans_of_one_layout_equal_protobuf(attributes):
    by = reader()

    rows, _ = check([span_of(number, numbered(attributes, number)) for number in range(2 * MIN_ALIKE)], by)

    assert (len(by.layouts), len(rows)) == (1, 2 * MIN_ALIKE)


def test_spans_of_one_layout_have_their_own_values():
    requests = read_spans([span_of(number, numbered(VLLM, number)) for number in range(MIN_ALIKE)], reader()).requests

    assert requests.ids == [f"chatcmpl-{number:04}" for number in range(MIN_ALIKE)]
    assert requests.values[3].tolist() == [1000.0 + number for number in range(MIN_ALIKE)]
    assert requests.values[2] == pytest.approx(1_700_000_001.0 + np.arange(MIN_ALIKE), abs=1e-6)


def test_numbers_of_other_widths_equal_protobuf():
    widths = [1, 127, 128, 16_383, 16_384, 2**21, 2**35, 2**53 + 1, 2**62, 2**63 - 1, 0, -1, -(2**63)]

    rows, _ = check([span_of(n, {**VLLM, "gen_ai.usage.prompt_tokens": widths[n % 13]}) for n in range(260)])

    assert {row[5] for row in rows} == {float(each) for each in widths}


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 0.0, 5e-324, 1.7e308, 1, True, "2", None])
@pytest.mark.parametrize(
    "key", ["gen_ai.latency.e2e", "gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk"]
)
def test_unusual_durations_equal_protobuf(key, seconds):
    by = reader()
    usual = [span_of(number, {**VLLM, key: 1.0 + number}) for number in range(MIN_ALIKE)]

    check([*usual, span_of(99, {**VLLM, key: seconds})], by)
    check([span_of(number, {**VLLM, key: seconds}) for number in range(MIN_ALIKE)], by)


def test_signalling_nan_equals_protobuf():
    signalling = struct.pack("<Q", 0x7FF0_0000_0000_0001)
    spans = [span_of(n, numbered(VLLM, n)).replace(struct.pack("<d", 1.0 + n), signalling) for n in range(MIN_ALIKE)]

    check(spans)


@pytest.mark.parametrize(
    "fields",
    [
        {"parent_span_id": b"\x07" * 8},
        {"parent_span_id": bytes(8)},
        {"parent_span_id": (5).to_bytes(8)},  # that of a span with this id itself as well
        {"parent_span_id": b"short"},
        {"span_id": b""},
        {"span_id": bytes(16)},
        {"name": "prefill Req 5e0c"},
        {"name": "h\u00e9llo"},
        {"name": ""},
        {"start_time_unix_nano": 2**64 - 1},
        {"start_time_unix_nano": 0, "end_time_unix_nano": 0},
        {"trace_state": "a=b", "dropped_attributes_count": 3},
        {"events": [Span.Event(name="e", time_unix_nano=1)], "links": [Span.Link(trace_id=b"t")]},
    ],
    ids=str,
)
def test_fields_of_spans_equal_protobuf(fields):
    check([span_of(number, numbered(VLLM, number), **fields) for number in range(2 * MIN_ALIKE)])


@pytest.mark.parametrize(
    "users", [["a"], ["\u00e9\u00e9"], ["bob", "eve"], [""], ["b", "\u00e9"], [1], [True], [None], [["x"]]]
)
@pytest.mark.parametrize("key", ["user.id", "gen_ai.response.id", "gen_ai.request.id", "wattline.run_id", "any"])
def test_texts_equal_protobuf(key, users):
    check([span_of(n, {**VLLM, key: users[n % len(users)]}) for n in range(3 * MIN_ALIKE)])


def test_long_request_ids_equal_protobuf():
    check([span_of(n, {**VLLM, "gen_ai.response.id": f"{n:0200}"}) for n in range(MIN_ALIKE)])


@pytest.mark.parametrize("operation", ["chat", "embeddings", "execute_tool", ["chat"], 5], ids=str)
def test_operations_equal_protobuf(operation):
    without_output = {"gen_ai.usage.input_tokens": 7, "gen_ai.operation.name": operation}

    check([span_of(number, without_output) for number in range(MIN_ALIKE)])
    check([span_of(number, {**SEMCONV, "gen_ai.operation.name": operation}) for number in range(MIN_ALIKE)])


def test_order_of_mixed_spans_is_kept():
    kinds = [VLLM, SGLANG, SEMCONV]

    rows, _ = check([span_of(n, numbered(kinds[n % 4], n) if n % 4 < 3 else {"other": n}) for n in range(80)])

    assert [row[0] for row in rows] == [number for number in range(80) if number % 4 < 3]


KINDS = [VLLM, {**LITELLM, "list": ["stop"], "map": {"a": 1}}, {**SEMCONV, "flag": True, "empty": None, "raw": b"\xff"}]


@given(st.sampled_from(KINDS), st.data())
def test_spans_with_changed_bytes_equal_protobuf(attributes, data):
    spans = [bytearray(span_of(number, numbered(attributes, number))) for number in range(2 * MIN_ALIKE)]
    place = st.integers(0, len(spans[0]) - 1)
    for each, at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(spans) - 1), place, st.integers(0, 255)))):
        spans[each][at] = byte
    for at, byte in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=2)):
        for span in spans:
            span[at] = byte

    check([bytes(span) for span in spans])


@given(st.sampled_from(KINDS), st.data())
def test_known_layout_of_changed_spans_equals_protobuf(attributes, data):
    by = reader()
    usual = [span_of(number, numbered(attributes, number)) for number in range(MIN_ALIKE)]
    check(usual, by)
    changed = bytearray(usual[0])
    for at in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=3)):
        changed[at] ^= data.draw(st.sampled_from([0x01, 0x08, 0x40, 0x80, 0xFF]))

    check([*usual, bytes(changed)], by)


def varint(number, width):
    """Return an encoded number in a number of bytes, with zeros at its end."""
    return bytes([(number >> 7 * place & 0x7F) | (0x80 if place < width - 1 else 0) for place in range(width)])


def field(tag, content, width=1):
    return tag + varint(len(content), width) + content


def attribute(key, value, *, width=1):
    return field(b"\x4a", field(b"\x0a", key) + field(b"\x12", value, width))


PROMPT, MADE = b"gen_ai.usage.input_tokens", b"gen_ai.usage.output_tokens"
ID = field(b"\x12", b"12345678")
UNUSUAL = {
    "padded number": lambda n: attribute(PROMPT, b"\x18" + varint(n, 5)),
    "number of nine bytes": lambda n: attribute(PROMPT, b"\x18" + varint(n, 9)),
    "number of ten bytes": lambda n: attribute(PROMPT, b"\x18" + varint(n, 10)),
    "number out of range": lambda n: attribute(PROMPT, b"\x18" + varint(n | 1 << 69, 10)),
    "number of eleven bytes": lambda n: attribute(PROMPT, b"\x18" + varint(n, 11)),
    "padded length": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1), width=3),
    "padded tag": lambda n: b"\xca\x00" + attribute(PROMPT, b"\x18" + varint(n, 1))[1:],
    "value before key": lambda n: field(b"\x4a", field(b"\x12", b"\x18" + varint(n, 1)) + field(b"\x0a", PROMPT)),
    "two keys": lambda n: field(b"\x4a", field(b"\x0a", MADE) + attribute(PROMPT, b"\x18" + varint(n, 1))[2:]),
    "two values": lambda n: attribute(PROMPT, b"\x18\x05\x18" + varint(n, 1)),
    "two messages": lambda n: field(
        b"\x4a", attribute(PROMPT, b"\x18\x05")[2:] + field(b"\x12", b"\x18" + varint(n, 1))
    ),
    "two types": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1) + b"\x0a\x01a"),
    "text after number": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1)) + attribute(PROMPT, b"\x0a\x01a"),
    "number after text": lambda n: attribute(PROMPT, b"\x0a\x01a") + attribute(PROMPT, b"\x18" + varint(n, 1)),
    "two attributes": lambda n: (
        attribute(PROMPT, b"\x18" + varint(n, 1)) + attribute(PROMPT, b"\x18" + varint(2 * n, 1))
    ),
    "unknown value": lambda n: attribute(PROMPT, b"\x78" + varint(n, 1)),
    "number and unknown": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1) + b"\x78" + varint(n, 1)),
    "further field": lambda n: field(b"\x4a", attribute(PROMPT, b"\x18" + varint(n, 1))[2:] + b"\x18" + varint(n, 1)),
    "unknown field": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1)) + b"\xf8\x01" + varint(n, 1),
    "group": lambda n: b"\xfb\x01\x08" + varint(n, 1) + b"\xfc\x01" + attribute(PROMPT, b"\x18" + varint(n, 1)),
    "open group": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1)) + b"\xfb\x01",
    "wrong type": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1)) + b"\x49" + bytes(8),
    "long field": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1)) + b"\x22\x7f",
    "two ids": lambda n: attribute(PROMPT, b"\x18" + varint(n, 1)) + field(b"\x12", b"1234567" + varint(n, 1)),
    "two parents": lambda n: (
        field(b"\x22", bytes(7) + varint(n, 1)) + field(b"\x22", b"") + attribute(PROMPT, b"\x18\x05")
    ),
    "two times": lambda n: attribute(PROMPT, b"\x18\x05") + b"\x39" + bytes(8) + b"\x39" + varint(n, 1) + bytes(7),
}


@pytest.mark.parametrize("encode", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_encoding_equals_protobuf(encode):
    made = attribute(MADE, b"\x18\x05")

    check([ID + made + encode(number) for number in range(1, 2 * MIN_ALIKE)])
    check([ID + encode(number) + made for number in range(1, 2 * MIN_ALIKE)])


def test_text_that_is_no_utf8_in_a_later_span_is_refused():
    spans = [span_of(number, {**VLLM, "other": f"{number:04}"}) for number in range(MIN_ALIKE)]
    damaged = spans[-1].replace(b"0015", b"001\xff")
    assert check([*spans[:-1], damaged]) == "refused"


def test_empty_spans_are_no_requests():
    assert check([b""] * MIN_ALIKE) == ([], [])
    assert check([]) == ([], [])


def test_known_layouts_are_limited():
    by = reader()
    for size in range(2 * MAX_LENGTHS):
        read_spans([span_of(number, {"other": "x" * size}) for number in range(MIN_ALIKE)], by)
    for number in range(20):
        read_spans([span_of(each, {f"other-{number:02}": 1}) for each in range(MIN_ALIKE)], by)
    read_spans([span_of(number, {"other": "x" * MAX_LENGTH}) for number in range(MIN_ALIKE)], by)

    assert len(by.layouts) <= MAX_LENGTHS
    assert max(map(len, by.layouts.values())) == 4
    assert max(by.layouts) <= MAX_LENGTH
