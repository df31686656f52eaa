"""Bodies of OTLP/HTTP: trace requests in protobuf and JSON, their responses, and errors.

Specification: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from exporter.otlp.attributes import RESOURCE_KEYS, Values, scalar_values
from exporter.otlp.spans import SpanReader
from exporter.otlp.trace_messages import parse, resource_spans

if TYPE_CHECKING:  # numpy is imported with the first request
    from exporter.request_energy.columns import RequestColumns
    from exporter.request_energy.pieces import IntArray

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
    """Requests in a body with the ids of their spans and the positions of their sources; parents of all its spans."""

    requests: RequestColumns
    span_ids: list[int]
    source_of: IntArray
    sources: list[SpanSource]
    links: list[tuple[int, int]]
    spans: int


def decode(body: bytes, reader: SpanReader, *, is_json: bool) -> TraceBody:
    """Return the requests in a body. Raises BodyError."""
    return read_requests(parse_body(body, is_json=is_json), reader)


def parse_body(body: bytes, *, is_json: bool) -> Any:
    """Return the trace request in a body. Raises BodyError."""
    with _body_errors():
        return parse(_of_json(body) if is_json else body)


def read_requests(request: Any, reader: SpanReader) -> TraceBody:
    """Return the requests in a trace request. Raises BodyError."""
    import numpy as np

    from exporter.otlp.span_batch import read_spans
    from exporter.request_energy.columns import LabelSet, RequestColumns

    wanted = RESOURCE_KEYS | reader.resource_keys
    spans, resources, ends = list[bytes](), list[Values](), list[int]()
    with _body_errors():
        for attributes, of_one in resource_spans(request):
            resources.append(scalar_values(attributes, wanted))
            spans += of_one
            ends.append(len(spans))
        found, positions, links = read_spans(spans, reader)
    of_resource = np.searchsorted(ends, positions, side="right")
    count = len(found.origins)
    pairs, pair_of = np.unique(of_resource * count + found.origin_of, return_inverse=True)
    origins = [(number // count, *found.origins[number % count]) for number in pairs.tolist()]
    sources, source_of = _numbered([(number, run_id) for number, run_id, *_ in origins])
    labels, set_of = _numbered([(number, texts, role) for number, _, texts, role in origins])
    sets = [LabelSet(reader.labels(texts, resources[number]), role) for number, texts, role in labels]
    return TraceBody(
        RequestColumns(found.ids, found.values, set_of[pair_of], sets),
        found.numbers,
        source_of[pair_of],
        [SpanSource(resources[number], run_id) for number, run_id in sources],
        links,
        len(spans),
    )


@contextmanager
def _body_errors() -> Iterator[None]:
    """Raise BodyError for errors of the decoders."""
    try:
        yield
    except (DecodeError, ParseError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BodyError(f"the body is not an ExportTraceServiceRequest: {reason}") from error


def _numbered(values: Sequence[_T]) -> tuple[Iterable[_T], IntArray]:
    """Return the different values, and the number of each value."""
    import numpy as np

    numbers: dict[_T, int] = {}
    return numbers, np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.intp)


def _of_json(body: bytes) -> bytes:
    """Return a body of JSON as protobuf. Raises BodyError and ParseError."""
    message = Parse(body, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    for of_resource in message.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                span.span_id, span.parent_span_id = _from_hex(span.span_id), _from_hex(span.parent_span_id)
    encoded: bytes = message.SerializeToString()
    return encoded


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
