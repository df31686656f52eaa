"""Requests of spans with one layout, by column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from exporter.contract.requests.served import MAX_REQUEST_ID
from exporter.otlp import spans as of_spans
from exporter.otlp.attributes import RUN_ID
from exporter.otlp.span_layouts import DOUBLE, END, INTEGER, NAME, PARENT_ID, SPAN_ID, START, TEXT, Bytes, SpanLayout
from exporter.otlp.spans import Origin, SpanRow, role_of, short_id
from exporter.request_energy.pieces import FloatArray, IntArray

_COUNTS = (
    (of_spans.INPUT, of_spans.PROMPT),
    (of_spans.CACHED, of_spans.CACHE_READ),
    (of_spans.OUTPUT, of_spans.COMPLETION),
)
"""Attributes of the counts, of which the first one that a span has counts."""
_TIMES = (of_spans.LATENCY, of_spans.FIRST_TOKEN, of_spans.FIRST_CHUNK)
_FIXED = (of_spans.OPERATION, RUN_ID)
"""Attributes that have the same text in all spans of a layout."""
_T = TypeVar("_T")


class SpanColumns(NamedTuple):
    """Requests of N spans: ids, values (6, N) of `RequestColumns`, numbers of the spans, and origins."""

    ids: list[str]
    values: FloatArray
    numbers: list[int]
    origins: list[Origin]
    origin_of: IntArray
    """Positions of each one's origin."""

    @classmethod
    def of(cls, rows: Sequence[SpanRow]) -> SpanColumns:
        """Return the columns of rows."""
        ids, *values, numbers, origins = map(list, zip(*rows, strict=True)) if rows else ([] for _ in range(9))
        return cls(ids, np.array(values, dtype=np.float64), numbers, *_numbered(origins))


def _numbered(origins: Iterable[Origin]) -> tuple[list[Origin], IntArray]:
    """Return the different origins, and the position of each one's equal."""
    positions: dict[Origin, int] = {}
    numbers = [positions.setdefault(origin, len(positions)) for origin in origins]
    return list(positions), np.array(numbers, dtype=np.intp)


class EncodedColumns(NamedTuple):
    """Spans of one layout: words (10, N), and ids and origins if they are requests.

    The words are the ids of the spans and of their parents, begin, end, _TIMES and _COUNTS, as they are encoded.
    """

    words: npt.NDArray[np.uint64]
    ids: list[str]
    origins: list[Origin]
    origin_of: IntArray

    @property
    def links(self) -> list[tuple[int, int]]:
        """Ids of spans with those of their parents."""
        if not self.words[1].any():
            return []
        numbers, parents = self.words[:2].byteswap()
        chosen = (parents != 0) & (parents != numbers)
        return list(zip(numbers[chosen].tolist(), parents[chosen].tolist(), strict=True))


def layout_of(span: bytes, label_keys: Collection[str]) -> SpanLayout | None:
    """Return the layout of a valid span for `read_columns`, None if there is none."""
    texts = (of_spans.RESPONSE_ID, of_spans.REQUEST_ID, *_FIXED, *label_keys)
    counts = (key for keys in _COUNTS for key in keys)
    types = {**dict.fromkeys(texts, TEXT), **dict.fromkeys(_TIMES, DOUBLE), **dict.fromkeys(counts, INTEGER)}
    return SpanLayout.of(span, types, _FIXED)


def read_columns(layout: SpanLayout, spans: Bytes, label_keys: Collection[str]) -> EncodedColumns:
    """Return the spans of a layout."""
    keys, count = layout.fields, len(spans)
    counts = [first if first in keys else second for first, second in _COUNTS]
    words = layout.words(spans, (SPAN_ID, PARENT_ID, START, END, *_TIMES, *counts))
    if not _are_requests(layout, spans, *counts):
        return EncodedColumns(words, [], [], np.empty(0, dtype=np.intp))
    ids = layout.texts(spans, of_spans.RESPONSE_ID)
    ids = layout.texts(spans, of_spans.REQUEST_ID) if ids == [""] else ids
    ids = layout.span_ids(spans) if ids == [""] else _each(ids, count)
    if len(ids[0]) > MAX_REQUEST_ID:  # those of one layout have one length
        ids = [short_id(each) for each in ids]
    return EncodedColumns(words, ids, *_origins(layout, spans, label_keys))


def _are_requests(layout: SpanLayout, spans: Bytes, prompt: str, _: str, made: str) -> bool:
    """Return what `SpanReader.read` decides by the attributes of a span."""
    operation, has_end = _text(layout, spans, of_spans.OPERATION), {made, of_spans.LATENCY} & layout.fields.keys()
    is_one = prompt in layout.fields and operation not in of_spans.NOT_REQUESTS
    return is_one and (bool(has_end) or operation in of_spans.WITHOUT_OUTPUT)


def decoded(parts: Sequence[EncodedColumns]) -> SpanColumns:
    """Return the requests of parts, of which each one has some: what `SpanReader.read` does for each span."""
    words = np.concatenate([part.words for part in parts], axis=1)
    begin_at, end_at = words[2:4] * of_spans.NS
    seconds = words[4:7].view(np.float64)
    seconds = np.where((seconds > 0.0) & (seconds < of_spans.INFINITE), seconds, 0.0)
    latency_s, token_s, chunk_s = seconds
    first_s = np.where(token_s > 0.0, token_s, chunk_s)
    values = (
        begin_at,
        np.where(first_s > 0.0, begin_at + first_s, of_spans.NAN),
        np.where(latency_s > 0.0, begin_at + latency_s, end_at),
        *_integers(words[7:]),
    )
    firsts = np.cumsum([0, *(len(part.origins) for part in parts)]).tolist()
    return SpanColumns(
        [each for part in parts for each in part.ids],
        np.array(values, dtype=np.float64),
        words[0].byteswap().tolist(),
        [each for part in parts for each in part.origins],
        np.concatenate([part.origin_of + first for part, first in zip(parts, firsts, strict=False)]),
    )


def _integers(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return numbers with seven bits in each byte, the lowest ones first."""
    seven_bits = np.uint64(0x7F)
    numbers = words & seven_bits
    for place in range(1, 8):
        digits = words >> np.uint64(8 * place)
        if not digits.any():
            break
        numbers |= (digits & seven_bits) << np.uint64(7 * place)
    return numbers


def _origins(layout: SpanLayout, spans: Bytes, label_keys: Collection[str]) -> tuple[list[Origin], IntArray]:
    """Return the different origins of spans, and the position of each one's."""
    count, run_id = len(spans), _text(layout, spans, RUN_ID)
    texts = [layout.texts(spans, key) if key in layout.fields else [None] for key in label_keys]
    roles = [role_of(name) for name in layout.texts(spans, NAME)]
    if all(len(each) == 1 for each in (roles, *texts)):
        return [(run_id, tuple([each[0] for each in texts]), roles[0])], np.zeros(count, dtype=np.intp)
    labels = zip(*(_each(each, count) for each in texts), strict=True)
    return _numbered((run_id, *each) for each in zip(labels, _each(roles, count), strict=True))


def _text(layout: SpanLayout, spans: Bytes, key: str) -> str | None:
    """Return the text that all spans have, None without the attribute."""
    return layout.texts(spans, key)[0] if key in layout.fields else None


def _each(values: list[_T], count: int) -> list[_T]:
    """Return a value for each of the spans, where one value is that of all."""
    return values * count if len(values) == 1 else values
