"""Requests of the spans in a body: by column for spans with one layout, else by protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from exporter.otlp.span_columns import SpanColumns, layout_of, read_columns
from exporter.otlp.span_layouts import PARENT_ID, SPAN_ID, Bytes, SpanLayout
from exporter.otlp.spans import SpanReader, SpanRow
from exporter.otlp.trace_messages import read_span
from exporter.request_energy.pieces import IntArray

MIN_ALIKE = 10
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
    lengths = np.fromiter(map(len, spans), np.intp, len(spans))
    order = np.argsort(lengths, kind="stable")
    parts, left = list[SpanBatch](), list[int]()
    for positions in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        if len(positions) < MIN_ALIKE or not 0 < lengths[positions[0]] <= MAX_LENGTH:
            left += positions.tolist()
            continue
        alike = _Alike(spans, positions, reader)
        alike.read(_known_layouts(reader, int(lengths[positions[0]])))
        parts += alike.parts
        left += alike.left.tolist()
    return _joined([*parts, _read_each(spans, left, reader)])


def _known_layouts(reader: SpanReader, length: int) -> list[SpanLayout]:
    if len(reader.layouts) >= MAX_LENGTHS and length not in reader.layouts:
        reader.layouts.clear()
    return reader.layouts.setdefault(length, [])


class _Alike:
    """Spans of one length: parts that have a layout, and positions of those that are left."""

    def __init__(self, spans: Sequence[bytes], positions: IntArray, reader: SpanReader) -> None:
        self._spans, self._reader = spans, reader
        self.parts: list[SpanBatch] = []
        self.left = positions
        joined = b"".join([spans[position] for position in positions.tolist()])
        self._encoded = np.frombuffer(joined, np.uint8).reshape(len(positions), -1)

    def read(self, known: list[SpanLayout]) -> None:
        """Read the spans of known layouts, and those of new ones where many are left. Raises DecodeError."""
        for layout in [*known]:
            self._take(layout, 1)
        for _ in range(MAX_OF_LENGTH):
            new = self._new_layout() if len(self.left) >= MIN_ALIKE else None
            if new is None or not self._take(new, MIN_ALIKE):
                return
            known.insert(0, new)
            del known[MAX_OF_LENGTH:]

    def _new_layout(self) -> SpanLayout | None:
        """Return the layout of the first span if it gives what protobuf does. Raises DecodeError."""
        first = int(self.left[0])
        expected, *_ = _read_each(self._spans, [first], self._reader)
        layout = layout_of(self._spans[first], self._reader.label_keys)
        if layout is None:
            return None
        found = read_columns(layout, self._encoded[:1], self._reader.label_keys)
        is_same = np.array_equal(found.values, expected.values, equal_nan=True) and (
            (found.ids, found.numbers, found.origins) == (expected.ids, expected.numbers, expected.origins)
        )
        return layout if is_same else None

    def _take(self, layout: SpanLayout, least: int) -> bool:
        """Read the spans that have a layout, if there are as many."""
        fits = layout.matches(self._encoded)
        if np.count_nonzero(fits) < least:
            return False
        encoded, positions = self._encoded, self.left
        if not fits.all():
            encoded, positions = encoded[fits], positions[fits]
        self._encoded, self.left = self._encoded[~fits], self.left[~fits]
        requests = read_columns(layout, encoded, self._reader.label_keys)
        self.parts.append(SpanBatch(requests, positions[: len(requests.ids)], _links(layout, encoded)))
        return True


def _links(layout: SpanLayout, encoded: Bytes) -> list[tuple[int, int]]:
    if PARENT_ID not in layout.fields:
        return []
    numbers, parents = (layout.column(encoded, key, ">u8") for key in (SPAN_ID, PARENT_ID))
    has_parent = numbers != parents
    return list(zip(numbers[has_parent].tolist(), parents[has_parent].tolist(), strict=True))


def _read_each(spans: Sequence[bytes], positions: Iterable[int], reader: SpanReader) -> SpanBatch:
    """Return the requests of spans by protobuf. Raises DecodeError."""
    rows, found, links = list[SpanRow](), list[int](), list[tuple[int, int]]()
    for position in positions:
        span, attributes = read_span(spans[position])
        number, parent = int.from_bytes(span.span_id), span.parent_span_id
        if parent and parent != span.span_id:
            links.append((number, int.from_bytes(parent)))
        if row := reader.read(span, attributes, number):
            rows.append(row)
            found.append(position)
    return SpanBatch(SpanColumns.of(rows), np.array(found, dtype=np.intp), links)


def _joined(parts: Sequence[SpanBatch]) -> SpanBatch:
    """Return the requests of all parts in the order of their spans."""
    positions = np.concatenate([part.positions for part in parts])
    order = np.argsort(positions)
    places = order.tolist()
    all_ids, values, all_numbers, all_origins, origin_of = zip(*(part.requests for part in parts), strict=True)
    ids, numbers = list(chain.from_iterable(all_ids)), list(chain.from_iterable(all_numbers))
    firsts = np.cumsum([0, *map(len, all_origins)])
    requests = SpanColumns(
        [ids[place] for place in places],
        np.concatenate(values, axis=1)[:, order],
        [numbers[place] for place in places],
        list(chain.from_iterable(all_origins)),
        np.concatenate([each + first for each, first in zip(origin_of, firsts, strict=False)])[order],
    )
    return SpanBatch(requests, positions[order], list(chain.from_iterable(part.links for part in parts)))
