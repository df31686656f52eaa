"""Messages of trace requests: their spans as bytes, and the attributes of spans and resources by key.

In the encoding of protobuf, a list of pairs and a map are equal. Reading a map by key is faster than an object for each
pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MessageOptions
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

Attributes = Mapping[str, common_pb2.AnyValue]
"""Values by key; of several with one key, the last one counts."""
_FILES: tuple[ModuleType, ...] = (common_pb2, resource_pb2, trace_pb2, trace_service_pb2)
_WITH_MAPS = frozenset({"Span", "Resource"})
_AS_BYTES = {"ResourceSpans": "resource", "ScopeSpans": "spans"}
_ENTRY = "AttributesEntry"


class _Messages(NamedTuple):
    """Classes of ExportTraceServiceRequest, in which spans and resources are bytes, and of these with maps."""

    request: Any
    span: Any
    resource: Any


def parse(body: bytes) -> Any:
    """Return a trace request whose spans and resources are bytes. Raises DecodeError."""
    return _messages().request.FromString(body)


def has_more_parts(request: Any, most: int) -> bool:
    """Return True if a trace request has more resources, scopes or spans; it takes little time for any number."""
    resources = request.resource_spans
    if len(resources) > most or sum(len(each.scope_spans) for each in resources) > most:
        return True
    return sum(len(scope.spans) for each in resources for scope in each.scope_spans) > most


def resource_spans(request: Any) -> Iterator[tuple[Attributes, Sequence[bytes]]]:
    """Yield the attributes of each resource with its encoded spans. Raises DecodeError."""
    for of_resource in request.resource_spans:
        resource = b"".join(of_resource.resource)  # protobuf merges a message that is there several times
        _, attributes = _read(resource, _messages().resource, resource_pb2.Resource)
        yield attributes, [*chain.from_iterable(of_scope.spans for of_scope in of_resource.scope_spans)]


def read_span(encoded: bytes) -> tuple[Any, Attributes]:
    """Return a span with its attributes. Raises DecodeError."""
    return _read(encoded, _messages().span, trace_pb2.Span)


def _read(encoded: bytes, with_map: Any, with_pairs: Any) -> tuple[Any, Attributes]:
    found = with_map.FromString(encoded)
    if not len(UnknownFieldSet(found)):
        return found, found.attributes
    found = with_pairs.FromString(encoded)  # pairs that have more than a key and a value are no entries of a map
    return found, {pair.key: pair.value for pair in found.attributes}


@cache
def _messages() -> _Messages:
    pool = DescriptorPool()
    for module in _FILES:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            if message.name in _WITH_MAPS:
                _set_map(message, f".{file.package}.{message.name}.{_ENTRY}")
            for field in message.field:
                if field.name == _AS_BYTES.get(message.name):
                    field.type, field.label = FieldDescriptorProto.TYPE_BYTES, FieldDescriptorProto.LABEL_REPEATED
                    field.ClearField("type_name")
        pool.Add(file)
    kinds = trace_service_pb2.ExportTraceServiceRequest, trace_pb2.Span, resource_pb2.Resource
    names = (kind.DESCRIPTOR.full_name for kind in kinds)
    return _Messages(*(GetMessageClass(pool.FindMessageTypeByName(name)) for name in names))


def _set_map(message: DescriptorProto, entry_name: str) -> None:
    """Change the type of the field `attributes` to a map with the key and the value of KeyValue."""
    pair = DescriptorProto()
    common_pb2.KeyValue.DESCRIPTOR.CopyToProto(pair)
    entry = message.nested_type.add(name=_ENTRY, options=MessageOptions(map_entry=True))
    entry.field.extend(field for field in pair.field if field.name in ("key", "value"))
    for field in message.field:
        if field.name == "attributes":
            field.type_name = entry_name
