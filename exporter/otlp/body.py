"""Bodies of OTLP/HTTP: trace requests in protobuf and JSON, their responses, and errors.

Specification: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from exporter.otlp.attributes import RESOURCE_KEYS, Value, Values, scalar_values
from exporter.otlp.raw_attributes import trace_request_class
from exporter.otlp.spans import Role, SpanReader, SpanRow

if TYPE_CHECKING:  # numpy is imported with the first request
    from exporter.request_energy.columns import RequestColumns


class BodyError(Exception):
    """A body that is not a trace request; the text has the cause."""


@dataclass(frozen=True, slots=True)
class SpanSource:
    """Resource of spans, and the run that they name, if any."""

    resource: Values
    run_id: str | None


@dataclass(slots=True)
class TraceBody:
    """Requests in a body with the ids of their spans and the positions of their sources; parents of all its spans."""

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
            body = Parse(body, ExportTraceServiceRequest(), ignore_unknown_fields=True).SerializeToString()
        return _read(trace_request_class().FromString(body), reader, is_json=is_json)
    except (DecodeError, ParseError, UnicodeDecodeError, RecursionError, ValueError, struct.error) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BodyError(f"the body is not an ExportTraceServiceRequest: {reason}") from error


def _read(message: Any, reader: SpanReader, *, is_json: bool) -> TraceBody:
    """Return the requests in a message. Raises BodyError, DecodeError, UnicodeDecodeError and struct.error."""
    keys = RESOURCE_KEYS | reader.resource_keys
    rows, spans = _Rows(reader), 0
    for of_resource in message.resource_spans:
        rows.begin_resource(scalar_values(of_resource.resource.attributes, keys))
        for of_scope in of_resource.scope_spans:
            spans += len(of_scope.spans)
            for span in of_scope.spans:
                if is_json:
                    span.span_id, span.parent_span_id = _from_hex(span.span_id), _from_hex(span.parent_span_id)
                number, parent = int.from_bytes(span.span_id), span.parent_span_id
                if parent and parent != span.span_id:
                    rows.links.append((number, int.from_bytes(parent)))
                if row := reader.read(span):
                    rows.add(row, number)
    return rows.body(spans)


@dataclass(slots=True)
class _Rows:
    """Requests in the order of their spans."""

    reader: SpanReader
    links: list[tuple[int, int]] = field(default_factory=list)
    _rows: list[SpanRow] = field(default_factory=list)
    _span_ids: list[int] = field(default_factory=list)
    _sources: list[SpanSource] = field(default_factory=list)
    _source_of: list[int] = field(default_factory=list)
    _known_sources: dict[str | None, int] = field(default_factory=dict)
    """Positions of the sources of the latest resource, by the run that spans name."""
    _label_sets: list[tuple[dict[str, str], Role | None]] = field(default_factory=list)
    _set_numbers: list[int] = field(default_factory=list)
    _known_sets: dict[tuple[tuple[Value | None, ...], Role | None], int] = field(default_factory=dict)
    _resource: Values = field(default_factory=dict)

    def begin_resource(self, resource: Values) -> None:
        self._resource = resource
        self._known_sources, self._known_sets = {}, {}

    def add(self, row: SpanRow, span_id: int) -> None:
        """Add the request of a span."""
        run_id, labels = row[9], row[7:9]
        source = self._known_sources.get(run_id)
        if source is None:
            source = self._known_sources[run_id] = len(self._sources)
            self._sources.append(SpanSource(self._resource, run_id))
        number = self._known_sets.get(labels)
        if number is None:
            number = self._known_sets[labels] = len(self._label_sets)
            self._label_sets.append((self.reader.labels(labels[0], self._resource), labels[1]))
        self._rows.append(row)
        self._span_ids.append(span_id)
        self._source_of.append(source)
        self._set_numbers.append(number)

    def body(self, spans: int) -> TraceBody:
        """Return all that was added."""
        from exporter.request_energy.columns import LabelSet, RequestColumns

        sets = [LabelSet(*each) for each in self._label_sets]
        ids, *values = list(zip(*self._rows, strict=True))[:7] or [()] * 7
        columns = RequestColumns.of_values(ids, values, self._set_numbers, sets)
        return TraceBody(columns, self._span_ids, self._source_of, self._sources, self.links, spans)


def _from_hex(parsed: bytes) -> bytes:
    """Return an id: OTLP's JSON has ids in hexadecimal, which the parser of protobuf's JSON reads as base64."""
    try:
        return bytes.fromhex(base64.b64encode(parsed).decode())
    except ValueError as error:
        raise BodyError("spanId: expected 16 hexadecimal digits") from error


def encode_response(rejected: int, message: str, *, is_json: bool) -> bytes:
    """Return the body of a response with status 200; empty `message` and 0 `rejected` for a full success."""
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
