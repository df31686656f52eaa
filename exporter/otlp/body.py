"""Bodies of OTLP/HTTP: trace requests in protobuf and JSON, their responses, and errors.

Specification: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from exporter.contract.requests.served import ServedRequest
from exporter.otlp.attributes import RESOURCE_KEYS, Values, scalar_values
from exporter.otlp.spans import SpanReader


class BodyError(Exception):
    """A body that is not a trace request; the text has the cause."""


@dataclass(frozen=True, slots=True)
class SpanRequest:
    """A request with the resource and the id of its span, and the run that the span names, if any."""

    request: ServedRequest
    span: int
    resource: Values
    run_id: str | None


@dataclass(frozen=True, slots=True)
class TraceBody:
    """Requests in a body, the parents of all its spans, and the number of spans."""

    requests: list[SpanRequest]
    links: list[tuple[int, int]]
    spans: int


def decode(body: bytes, reader: SpanReader, *, is_json: bool) -> TraceBody:
    """Return the requests in a body. Raises BodyError."""
    message = ExportTraceServiceRequest()
    try:
        if is_json:
            Parse(body, message, ignore_unknown_fields=True)
        else:
            message.ParseFromString(body)
    except (DecodeError, ParseError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BodyError(f"the body is not an ExportTraceServiceRequest: {reason}") from error
    keys = RESOURCE_KEYS | reader.resource_keys
    requests: list[SpanRequest] = []
    links: list[tuple[int, int]] = []
    spans = 0
    for of_resource in message.resource_spans:
        resource = scalar_values(of_resource.resource.attributes, keys)
        for of_scope in of_resource.scope_spans:
            spans += len(of_scope.spans)
            for span in of_scope.spans:
                if is_json:
                    span.span_id, span.parent_span_id = _from_hex(span.span_id), _from_hex(span.parent_span_id)
                number = int.from_bytes(span.span_id)
                if span.parent_span_id and span.parent_span_id != span.span_id:
                    links.append((number, int.from_bytes(span.parent_span_id)))
                if found := reader.read(span, resource):
                    requests.append(SpanRequest(found[0], number, resource, found[1]))
    return TraceBody(requests, links, spans)


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
