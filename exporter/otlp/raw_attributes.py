"""Attributes of OTLP spans as bytes: those of spans with equal keys are found without reading each key.

An object for each attribute and its value takes more time than all else of a body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from exporter.otlp.attributes import Value, scalar

_FILES: tuple[ModuleType, ...] = (common_pb2, resource_pb2, trace_pb2, trace_service_pb2)
_KEY, _VALUE = b"\n", b"\x12"
"""Tags of the fields of a KeyValue."""
_TEXT, _INTEGER = 0x0A, 0x18
"""Tags of fields of an AnyValue."""
_OF_DOUBLE, _DOUBLE_LENGTH = b"\x09!", 10
"""Begin of an AnyValue with a double, its length and tag; length of all."""
_DOUBLE = Struct("<d")
_MAX_SHORT = 127
"""Largest length, and number, in one byte."""
_MAX_SHAPES = 64


@cache
def trace_request_class() -> Any:
    """Return the class of ExportTraceServiceRequest in which attributes of spans are serialized KeyValue messages."""
    pool = DescriptorPool()
    for module in _FILES:
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in message.field:
                if (message.name, field.name) == ("Span", "attributes"):
                    field.type = FieldDescriptorProto.TYPE_BYTES
                    field.ClearField("type_name")
        pool.Add(file)
    request = trace_service_pb2.ExportTraceServiceRequest.DESCRIPTOR.full_name
    return GetMessageClass(pool.FindMessageTypeByName(request))


class _Shape(NamedTuple):
    """First bytes of each attribute, with its key, and wanted ones: position, begin of the value, and place.

    The first bytes of `doubles` have their type as well.
    """

    heads: Sequence[bytes]
    doubles: Sequence[tuple[int, int, int]]
    others: Sequence[tuple[int, int, int]]


class AttributeReader:
    """Reader of wanted attributes, whose values have the `places` of their keys.

    It knows the keys of the last span with each number of attributes.
    """

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = places
        self._shapes: dict[int, _Shape] = {}

    def values(self, attributes: Sequence[bytes]) -> list[Value | None]:
        """Return the texts, numbers and bools by place. Raises DecodeError, UnicodeDecodeError and struct.error."""
        shape = self._shapes.get(len(attributes))
        if shape is None or not all(map(bytes.startswith, attributes, shape.heads)):
            return self._read(attributes)
        values: list[Value | None] = [None] * len(self._places)
        for position, begin, place in shape.doubles:
            if len(attributes[position]) != begin + _DOUBLE.size:
                return self._read(attributes)
            values[place] = _DOUBLE.unpack_from(attributes[position], begin)[0]
        for position, begin, place in shape.others:
            attribute = attributes[position]
            length = len(attribute) - begin - 1
            if not 0 <= length <= _MAX_SHORT or attribute[begin] != length:
                return self._read(attributes)
            values[place] = _value(attribute, begin)
        return values

    def _read(self, attributes: Sequence[bytes]) -> list[Value | None]:
        """Read each attribute, and remember the keys if all are encoded as usual: the key, then the value."""
        values: list[Value | None] = [None] * len(self._places)
        heads: list[bytes] = []
        wanted: dict[str, tuple[bool, tuple[int, int, int]]] = {}  # of several with one key, the last one counts
        for position, each in enumerate(attributes):
            read = common_pb2.KeyValue.FromString(each)
            place = self._places.get(read.key)
            encoded = read.key.encode()
            head = _KEY + bytes([min(len(encoded), _MAX_SHORT)]) + encoded + _VALUE
            is_double = each.startswith(head + _OF_DOUBLE) and len(each) == len(head) + _DOUBLE_LENGTH
            if place is not None:
                values[place] = scalar(read.value)
                head += _OF_DOUBLE if is_double else b""
                wanted[read.key] = is_double, (position, len(head), place)
            heads.append(head)
        if all(map(bytes.startswith, attributes, heads)):
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            parts = ([at for is_double, at in wanted.values() if is_double == kind] for kind in (True, False))
            self._shapes[len(attributes)] = _Shape(heads, *parts)
        return values


def _value(attribute: bytes, begin: int) -> Value | None:
    """Return the value of a KeyValue that ends with an AnyValue, whose length is at `begin`; None for other types."""
    length = len(attribute) - begin - 1
    if length > 1:
        kind, first = attribute[begin + 1], attribute[begin + 2]
        if kind == _TEXT and first == length - 2:
            return attribute[begin + 3 :].decode()
        if kind == _INTEGER and length == 2 and first <= _MAX_SHORT:
            return first
        if kind == _INTEGER and length == 3 and first > _MAX_SHORT >= attribute[-1]:
            return (first & _MAX_SHORT) | attribute[-1] << 7
    return scalar(common_pb2.KeyValue.FromString(attribute).value)
