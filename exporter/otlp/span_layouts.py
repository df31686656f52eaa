"""Layouts of encoded spans, by which the values of many spans are read at once.

Protobuf decodes a span by its tags, lengths, keys and the continuation bits of its numbers. Spans of one length that
are equal in these have each value in the same bytes, which a layout has from one span that protobuf decoded. Spans that
differ, and encodings that are not listed here, are left to protobuf.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from exporter.request_energy.pieces import Mask

Bytes = npt.NDArray[np.uint8]
"""Encoded spans of one length, (N, length)."""

SPAN_ID, PARENT_ID, NAME, START, END = 0x12, 0x22, 0x2A, 0x39, 0x41
TEXT, INTEGER, DOUBLE = 0x0A, 0x18, 0x21
"""Tags of the fields of a Span and of an AnyValue: 8 times the field's number, plus its type."""
_ATTRIBUTE, _KEY, _VALUE = 0x4A, 0x0A, 0x12
_ANY, _ASCII, _FIXED = 0x00, 0x80, 0xFF
"""Bits of a byte that are equal in all spans of a layout: of ASCII, which is valid UTF-8, and of the bytes of a number,
the first bit."""
_OF_SPAN = {
    **dict.fromkeys((0x0A, SPAN_ID, PARENT_ID, START, END, 0x85), _ANY),  # 0x0A: trace_id, 0x85: flags
    NAME: _ASCII,
    **dict.fromkeys((0x1A, 0x30, 0x50, 0x5A, 0x60, 0x6A, 0x70, 0x7A), _FIXED),  # trace_state, kind, events, links, ...
}
_OF_VALUE = {
    0: _FIXED,
    DOUBLE: _ANY,
    **dict.fromkeys((TEXT, INTEGER, 0x10), _ASCII),  # 0x10: bool
    **dict.fromkeys((0x2A, 0x32, 0x3A), _FIXED),  # array, list of pairs, bytes
}
_ID_BYTES = 8
_MAX_VARINT = 8
"""Bytes of a number of up to 56 bits."""


class _Field(NamedTuple):
    tag: int
    begin: int
    end: int
    """Bytes of the content, without the tag and the length."""


_NONE = _Field(0, 0, 0)


class _OtherEncodingError(Exception):
    """A span in an encoding of which there are no layouts."""


@dataclass(frozen=True, slots=True)
class SpanLayout:
    """Bits that spans have in common, and the places of their values.

    Keys are the tags of the fields of a Span, and the keys of its attributes, whose tags are those of an AnyValue, or 0
    for an empty one. Of several with one key, the last one counts, as in protobuf.
    """

    common: Bytes
    mask: Bytes
    fields: Mapping[int | str, _Field]

    @classmethod
    def of(cls, span: bytes, types: Mapping[str, int], fixed: Collection[str]) -> SpanLayout | None:
        """Return the layout of a valid span; None for another encoding, or without an id of 8 bytes.

        `types` are the tags that attributes with these keys have. Those with the keys `fixed` are equal in all spans.
        """
        mask = np.full(len(span), _FIXED, np.uint8)
        fields: dict[int | str, _Field] = {}
        try:
            for outer in _fields(span, 0, len(span)):
                if outer.tag == _ATTRIBUTE:
                    key, field = _attribute(span, outer)
                    bits = _OF_VALUE.get(field.tag) if types.get(key, field.tag) == field.tag else None
                    fields[key] = field
                else:
                    key, field, bits = "", outer, _OF_SPAN.get(outer.tag)
                    fields[outer.tag] = field
                bits = _common_bits(bits, span[field.begin : field.end], field.tag)
                mask[field.begin : field.end] = _FIXED if key in fixed else bits
        except _OtherEncodingError:
            return None
        sizes = {key: each.end - each.begin for key, each in fields.items()}
        if sizes.get(SPAN_ID) != _ID_BYTES or sizes.get(PARENT_ID, 0) not in (0, _ID_BYTES):
            return None
        return cls(np.frombuffer(span, np.uint8) & mask, mask, fields)

    def matches(self, spans: Bytes) -> Mask:
        """Return which spans have the layout."""
        if not (np.bitwise_or.reduce(spans ^ self.common, axis=0) & self.mask).any():
            return np.ones(len(spans), dtype=bool)
        fits: Mask = ((spans ^ self.common) & self.mask == 0).all(axis=1)
        return fits

    def words(self, spans: Bytes, keys: Sequence[int | str]) -> npt.NDArray[np.uint64]:
        """Return values of up to eight bytes as they are encoded, (K, N); 0 for a field that spans lack."""
        words = np.zeros((len(keys), len(spans)), "<u8")
        for content, key in zip(words.view(np.uint8).reshape(len(keys), -1, 8), keys, strict=True):
            _, begin, end = self.fields.get(key, _NONE)
            content[:, : end - begin] = spans[:, begin:end]
        return words

    def texts(self, spans: Bytes, key: int | str) -> list[str]:
        """Return the texts of a field, one text if all are equal; an empty one for a field that spans lack."""
        _, begin, end = self.fields.get(key, _NONE)
        content = spans[:, begin:end]
        if (content == content[0]).all():
            return [content[0].tobytes().decode()]
        return _parts(content.tobytes().decode("ascii"), end - begin)

    def span_ids(self, spans: Bytes) -> list[str]:
        """Return the ids of spans in hexadecimal."""
        _, begin, end = self.fields[SPAN_ID]
        return _parts(spans[:, begin:end].tobytes().hex(), 2 * _ID_BYTES)


def _parts(joined: str, size: int) -> list[str]:
    return [joined[at : at + size] for at in range(0, len(joined), size)]


def _attribute(span: bytes, field: _Field) -> tuple[str, _Field]:
    """Return the key and the value of an attribute. Raises _OtherEncodingError."""
    parts = list(_fields(span, field.begin, field.end))
    if [part.tag for part in parts] != [_KEY, _VALUE]:
        raise _OtherEncodingError
    key, value = parts
    found = list(_fields(span, value.begin, value.end)) or [_Field(0, value.end, value.end)]
    if len(found) > 1:
        raise _OtherEncodingError
    return span[key.begin : key.end].decode(), found[0]


def _common_bits(bits: int | None, content: bytes, tag: int) -> int:
    """Return the common bits of the bytes of a value. Raises _OtherEncodingError."""
    is_number = not tag & 7
    if bits is None or (is_number and len(content) > _MAX_VARINT):
        raise _OtherEncodingError
    return bits if bits != _ASCII or is_number or content.isascii() else _FIXED


def _fields(span: bytes, at: int, end: int) -> Iterator[_Field]:
    """Yield the fields of a valid message, which is a part of a span. Raises _OtherEncodingError."""
    while at < end:
        tag, at = _varint(span, at)
        begin = at
        match tag & 7:
            case 0:
                _, at = _varint(span, at)
            case 1:
                at += 8
            case 2:
                size, begin = _varint(span, at)
                at = begin + size
            case 5:
                at += 4
            case _:
                raise _OtherEncodingError
        yield _Field(tag, begin, at)


def _varint(span: bytes, at: int) -> tuple[int, int]:
    """Return a number in a valid message, and the place behind it."""
    number = shift = 0
    while True:
        number |= (span[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if span[at - 1] < 0x80:
            return number, at
