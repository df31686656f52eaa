"""Bodies of OTLP/HTTP: trace requests in protobuf and JSON, their responses, and errors.

Specification: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from wattline_exporter.requests.otlp.attributes import RESOURCE_KEYS, Values, scalar_values
from wattline_exporter.requests.otlp.spans import SpanReader, SpanRow
from wattline_exporter.requests.otlp.trace_messages import (
    AttributesOf,
    FurtherFieldsError,
    attributes_of_map,
    attributes_of_pairs,
    trace_request_class,
)

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.columns import RequestColumns

_T = TypeVar("_T")


class BodyError(Exception):
    """A body that is not a trace request; the text has the cause."""


@dataclass(frozen=True, slots=True)
class SpanSource:
    """Resource of spans, and the run that they name, if any."""

    resource: Values
    run_id: str | None


@dataclass(slots=True)
class TraceBody:
    """Requests in a body with the ids of their spans and the positions of their sources; parents of
    all its spans.
    """

    requests: RequestColumns
    span_ids: list[int]
    source_of: list[int]
    sources: list[SpanSource]
    links: list[tuple[int, int]]
    spans: int


def decode(body: bytes, reader: SpanReader, *, is_json: bool) -> TraceBody:
    """Return the requests in a body. Raises BodyError."""
    try:
        if is_json:
            message = Parse(body, ExportTraceServiceRequest(), ignore_unknown_fields=True)
            return _read(message, attributes_of_pairs, reader, is_json=True)
        try:
            return _read(trace_request_class().FromString(body), attributes_of_map, reader)
        except FurtherFieldsError:
            return _read(ExportTraceServiceRequest.FromString(body), attributes_of_pairs, reader)
    except (DecodeError, ParseError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BodyError(f"the body is not an ExportTraceServiceRequest: {reason}") from error


def _read(
    message: Any, attributes_of: AttributesOf, reader: SpanReader, *, is_json: bool = False
) -> TraceBody:
    """Return the requests in a message. Raises BodyError and FurtherFieldsError."""
    from wattline_exporter.requests.division.columns import LabelSet, RequestColumns

    resource_keys = RESOURCE_KEYS | reader.resource_keys
    rows: list[SpanRow] = []
    sources = list[SpanSource]()
    source_of = list[int]()
    sets = list[LabelSet]()
    set_numbers = list[int]()
    links = list[tuple[int, int]]()
    spans = 0
    for of_resource in message.resource_spans:
        resource = scalar_values(attributes_of(of_resource.resource), resource_keys)
        begin = len(rows)
        for of_scope in of_resource.scope_spans:
            spans += len(of_scope.spans)
            for span in of_scope.spans:
                if is_json:
                    span.span_id, span.parent_span_id = (
                        _from_hex(span.span_id),
                        _from_hex(span.parent_span_id),
                    )
                number = int.from_bytes(span.span_id)
                parent = span.parent_span_id
                if parent and parent != span.span_id:
                    links.append((number, int.from_bytes(parent)))
                if row := reader.read(span, attributes_of(span), number):
                    rows.append(row)
        run_ids, numbers = _numbered([row[-2] for row in rows[begin:]], len(sources))
        sources += [SpanSource(resource, run_id) for run_id in run_ids]
        source_of += numbers
        labels, numbers = _numbered([row[-1] for row in rows[begin:]], len(sets))
        sets += [LabelSet(reader.labels(texts, resource), role) for texts, role in labels]
        set_numbers += numbers
    ids, *values, span_ids = list(zip(*rows, strict=True))[:8] or [()] * 8
    columns = RequestColumns.of_values(ids, values, set_numbers, sets)
    return TraceBody(columns, list(span_ids), source_of, sources, links, spans)


def _numbered(values: Sequence[_T], first: int) -> tuple[Iterable[_T], list[int]]:
    """Return the different values, and of each value the number of its equal, counted from
    `first`.
    """
    numbers: dict[_T, int] = {}
    return numbers, [numbers.setdefault(value, first + len(numbers)) for value in values]


def _from_hex(parsed: bytes) -> bytes:
    """Return an id: OTLP's JSON has ids in hexadecimal, which the parser of protobuf's JSON reads
    as base64.
    """
    try:
        return bytes.fromhex(base64.b64encode(parsed).decode())
    except ValueError as error:
        raise BodyError("spanId: expected 16 hexadecimal digits") from error


def encode_response(rejected: int, message: str, *, is_json: bool) -> bytes:
    """Return the body of a response with status 200; empty `message` and 0 `rejected` for a full
    success.
    """
    response = ExportTraceServiceResponse()
    if rejected or message:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = message
    return _encode(response, is_json=is_json)


def encode_error(code: int, message: str, *, is_json: bool) -> bytes:
    """Return a google.rpc.Status, as OTLP/HTTP requires for errors; `code` is one of gRPC's."""
    return _encode(Status(code=code, message=message), is_json=is_json)


def _encode(message: Message, *, is_json: bool) -> bytes:
    return MessageToJson(message, indent=None).encode() if is_json else message.SerializeToString()
