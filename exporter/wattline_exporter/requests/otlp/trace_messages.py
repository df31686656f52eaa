"""Messages of trace requests, with the attributes of their spans and resources by key.

In the encoding of protobuf, a list of pairs and a map are equal. Reading a map by key is faster
than an object for each pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, MessageOptions
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

Attributes = Mapping[str, common_pb2.AnyValue]
AttributesOf = Callable[[Any], Attributes]
"""Reader of the attributes of a span or resource; of several with one key, the last one counts."""
_FILES: tuple[ModuleType, ...] = (common_pb2, resource_pb2, trace_pb2, trace_service_pb2)
_WITH_MAPS = frozenset({"Span", "Resource"})
_ENTRY = "AttributesEntry"


class FurtherFieldsError(Exception):
    """Attributes that are no entries of a map, since they have more than a key and a value."""


def attributes_of_map(holder: Any) -> Attributes:
    """Return the attributes in a message of `trace_request_class`. Raises FurtherFieldsError."""
    if len(UnknownFieldSet(holder)):
        raise FurtherFieldsError
    found: Attributes = holder.attributes
    return found


def attributes_of_pairs(holder: Any) -> Attributes:
    """Return the attributes in a message of OpenTelemetry's own classes."""
    return {pair.key: pair.value for pair in holder.attributes}


@cache
def trace_request_class() -> Any:
    """Return the class of ExportTraceServiceRequest in which attributes of spans and resources are
    maps.
    """
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
