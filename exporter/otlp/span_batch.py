"""Requests of the spans in a body: by column for spans with one layout, else by protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from exporter.otlp.span_columns import EncodedColumns, SpanColumns, decoded, layout_of, read_columns
from exporter.otlp.span_layouts import SpanLayout
from exporter.otlp.spans import SpanReader, SpanRow
from exporter.otlp.trace_messages import read_span
from exporter.request_energy.pieces import IntArray, Mask

MIN_ALIKE = 16
"""Spans of one length, from which on layouts take less time than protobuf."""
MAX_LENGTHS, MAX_OF_LENGTH, MAX_LENGTH = 128, 4, 4_096
"""Limits of the layouts that are kept, and of the bytes of their spans."""


class SpanBatch(NamedTuple):
    """Requests of spans, their positions among all spans, and the parents of all spans."""

    requests: SpanColumns
    positions: IntArray
    links: list[tuple[int, int]]


def read_spans(spans: Sequence[bytes], reader: SpanReader) -> SpanBatch:
    """Return the requests of spans, in their order. Raises DecodeError."""
    by_length: dict[int, list[int]] = {}
    for position, span in enumerate(spans):
        by_length.setdefault(len(span), []).append(position)
    parts, places, left = list[EncodedColumns](), list[IntArray](), list[int]()
    for length, positions in by_length.items():
        if len(positions) < MIN_ALIKE or not 0 < length <= MAX_LENGTH:
            left += positions
        else:
            alike = _Alike(spans, np.array(positions), reader)
            alike.read(_known_layouts(reader, length))
            parts += alike.parts
            places += alike.places
            left += alike.left.tolist()
    each = _read_each(spans, left, reader)
    links = [*chain.from_iterable(part.links for part in parts), *each.links]
    parts = [part for part in parts if part.ids]
    if not parts:
        return SpanBatch(each.requests, each.positions, links)
    return _joined(SpanBatch(decoded(parts), np.concatenate(places), links), each)


def _known_layouts(reader: SpanReader, length: int) -> list[SpanLayout]:
    if len(reader.layouts) >= MAX_LENGTHS and length not in reader.layouts:
        reader.layouts.clear()
    return reader.layouts.setdefault(length, [])


class _Alike:
    """Spans of one length: parts that have a layout, the positions of their requests, and positions of the others."""

    def __init__(self, spans: Sequence[bytes], positions: IntArray, reader: SpanReader) -> None:
        self._spans, self._reader = spans, reader
        self.parts: list[EncodedColumns] = []
        self.places: list[IntArray] = []
        self.left = positions
        joined = b"".join([spans[position] for position in positions.tolist()])
        self._encoded = np.frombuffer(joined, np.uint8).reshape(len(positions), -1)

    def read(self, known: list[SpanLayout]) -> None:
        """Read the spans of known layouts, and those of new ones where many are left. Raises DecodeError."""
        for layout in [*known]:
            self._take(layout, layout.matches(self._encoded))
        for _ in range(MAX_OF_LENGTH):
            new = self._new_layout() if len(self.left) >= MIN_ALIKE else None
            if new is None:
                return
            self._take(new, new.matches(self._encoded))
            known.insert(0, new)
            del known[MAX_OF_LENGTH:]

    def _new_layout(self) -> SpanLayout | None:
        """Return the layout of the first span if many spans have it, and it gives what protobuf does.

        Raises DecodeError.
        """
        expected, *_ = _read_each(self._spans, self.left[:1].tolist(), self._reader)
        layout = layout_of(self._spans[self.left[0]], self._reader.label_keys)
        if layout is None or np.count_nonzero(layout.matches(self._encoded)) < MIN_ALIKE:
            return None
        part = read_columns(layout, self._encoded[:1], self._reader.label_keys)
        found = decoded([part]) if part.ids else SpanColumns.of([])
        is_right = np.array_equal(found.values, expected.values, equal_nan=True) and (
            (found.ids, found.numbers, found.origins) == (expected.ids, expected.numbers, expected.origins)
        )
        return layout if is_right else None

    def _take(self, layout: SpanLayout, fits: Mask) -> None:
        """Read the spans that have a layout."""
        if not fits.any():
            return
        encoded, positions = self._encoded, self.left
        if not fits.all():
            encoded, positions = encoded[fits], positions[fits]
        self._encoded, self.left = self._encoded[~fits], self.left[~fits]
        part = read_columns(layout, encoded, self._reader.label_keys)
        self.parts.append(part)
        self.places.append(positions[: len(part.ids)])


def _read_each(spans: Sequence[bytes], positions: Iterable[int], reader: SpanReader) -> SpanBatch:
    """Return the requests of spans by protobuf. Raises DecodeError."""
    rows, found, links = list[SpanRow](), list[int](), list[tuple[int, int]]()
    for position in sorted(positions):
        span, attributes = read_span(spans[position])
        number, parent = int.from_bytes(span.span_id), int.from_bytes(span.parent_span_id)
        if parent and parent != number:
            links.append((number, parent))
        if row := reader.read(span, attributes, number):
            rows.append(row)
            found.append(position)
    return SpanBatch(SpanColumns.of(rows), np.array(found, dtype=np.intp), links)


def _joined(first: SpanBatch, second: SpanBatch) -> SpanBatch:
    """Return the requests of two parts in the order of their spans, with the links of the first one."""
    positions = np.concatenate([first.positions, second.positions])
    order = np.argsort(positions)
    places = order.tolist()
    one, other = first.requests, second.requests
    ids, numbers, origins = one.ids + other.ids, one.numbers + other.numbers, one.origins + other.origins
    requests = SpanColumns(
        [ids[place] for place in places],
        np.concatenate([one.values, other.values], axis=1)[:, order],
        [numbers[place] for place in places],
        origins,
        np.concatenate([one.origin_of, other.origin_of + len(one.origins)])[order],
    )
    return SpanBatch(requests, positions[order], first.links)
