"""Messages of trace requests, with the attributes of their spans and resources by key.

In the encoding of protobuf, a list of pairs and a map are equal. Reading a map by key is faster than an object for each
pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, MessageOptions
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import Parse
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

Attributes = Mapping[str, common_pb2.AnyValue]
AttributesOf = Callable[[Any], Attributes]
"""Attributes of a span or resource; of several with one key, the last one counts."""
_FILES: tuple[ModuleType, ...] = (common_pb2, resource_pb2, trace_pb2, trace_service_pb2)
_WITH_MAPS = frozenset({"Span", "Resource"})
_ENTRY = "AttributesEntry"


def parse_json(body: bytes) -> tuple[Any, AttributesOf]:
    """Return a request in JSON. Raises ParseError, UnicodeDecodeError, RecursionError and ValueError."""
    return Parse(body, trace_service_pb2.ExportTraceServiceRequest(), ignore_unknown_fields=True), _by_key


def parse_protobuf(body: bytes) -> tuple[Any, AttributesOf]:
    """Return a request in protobuf. Raises DecodeError."""
    message = trace_request_class().FromString(body)
    # a pair with further fields is no entry of a map, but an unknown field of the span
    if any(len(UnknownFieldSet(each)) for each in _with_attributes(message)):
        return trace_service_pb2.ExportTraceServiceRequest.FromString(body), _by_key
    return message, attrgetter("attributes")


def _with_attributes(message: Any) -> Iterator[Any]:
    for of_resource in message.resource_spans:
        yield of_resource.resource
        for of_scope in of_resource.scope_spans:
            yield from of_scope.spans


def _by_key(holder: Any) -> Attributes:
    return {pair.key: pair.value for pair in holder.attributes}


@cache
def trace_request_class() -> Any:
    """Return the class of ExportTraceServiceRequest in which attributes of spans and resources are maps."""
    pool = DescriptorPool()
    for module in _FILES:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            if message.name in _WITH_MAPS:
                _set_map(message, f".{file.package}.{message.name}.{_ENTRY}")
        pool.Add(file)
    request = trace_service_pb2.ExportTraceServiceRequest.DESCRIPTOR.full_name
    return GetMessageClass(pool.FindMessageTypeByName(request))


def _set_map(message: DescriptorProto, entry_name: str) -> None:
    """Change the type of the field `attributes` to a map with the key and the value of KeyValue."""
    pair = DescriptorProto()
    common_pb2.KeyValue.DESCRIPTOR.CopyToProto(pair)
    entry = message.nested_type.add(name=_ENTRY, options=MessageOptions(map_entry=True))
    entry.field.extend(field for field in pair.field if field.name in ("key", "value"))
    for field in message.field:
        if field.name == "attributes":
            field.type_name = entry_name
