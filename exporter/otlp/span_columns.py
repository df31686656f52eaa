"""Requests of spans with one layout, by column."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from exporter.contract.requests.served import MAX_REQUEST_ID
from exporter.otlp import spans as of_spans
from exporter.otlp.attributes import RUN_ID
from exporter.otlp.span_layouts import DOUBLE, END, INTEGER, NAME, SPAN_ID, START, TEXT, Bytes, SpanLayout
from exporter.otlp.spans import Origin, SpanRow, role_of, short_id
from exporter.request_energy.pieces import FloatArray, IntArray

_COUNTS = (
    *(of_spans.INPUT, of_spans.PROMPT, of_spans.OUTPUT, of_spans.COMPLETION),
    *(of_spans.CACHED, of_spans.CACHE_READ),
)
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
        return cls(ids, np.array(values, dtype=np.float64), numbers, origins, np.arange(len(rows)))


def layout_of(span: bytes, label_keys: Collection[str]) -> SpanLayout | None:
    """Return the layout of a valid span for `read_columns`, None if there is none."""
    texts = (of_spans.RESPONSE_ID, of_spans.REQUEST_ID, *_FIXED, *label_keys)
    types = {**dict.fromkeys(texts, TEXT), **dict.fromkeys(_TIMES, DOUBLE), **dict.fromkeys(_COUNTS, INTEGER)}
    return SpanLayout.of(span, types, _FIXED)


def read_columns(layout: SpanLayout, spans: Bytes, label_keys: Collection[str]) -> SpanColumns:
    """Return what `SpanReader.read` does for each span of a layout; nothing if they are no requests."""
    keys, count = layout.fields, len(spans)
    prompt = _first_of(keys, of_spans.INPUT, of_spans.PROMPT)
    made = _first_of(keys, of_spans.OUTPUT, of_spans.COMPLETION)
    cached = _first_of(keys, of_spans.CACHED, of_spans.CACHE_READ)
    operation = _text(layout, spans, of_spans.OPERATION)
    if prompt not in keys or operation in of_spans.NOT_REQUESTS:
        return SpanColumns.of([])
    if made not in keys and of_spans.LATENCY not in keys and operation not in of_spans.WITHOUT_OUTPUT:
        return SpanColumns.of([])
    begin_at, end_at = (layout.column(spans, key, "<u8") * of_spans.NS for key in (START, END))
    latency_s, token_s, chunk_s = (_durations(layout.column(spans, key, "<f8")) for key in _TIMES)
    first_s = np.where(token_s > 0.0, token_s, chunk_s)
    values = (
        begin_at,
        np.where(first_s > 0.0, begin_at + first_s, of_spans.NAN),
        np.where(latency_s > 0.0, begin_at + latency_s, end_at),
        *(layout.integers(spans, key) for key in (prompt, cached, made)),
    )
    ids = layout.texts(spans, of_spans.RESPONSE_ID)
    ids = layout.texts(spans, of_spans.REQUEST_ID) if ids == [""] else ids
    ids = layout.span_ids(spans) if ids == [""] else _each(ids, count)
    if len(ids[0]) > MAX_REQUEST_ID:  # those of one layout have one length
        ids = [short_id(each) for each in ids]
    numbers = layout.column(spans, SPAN_ID, ">u8").tolist()
    origins = _origins(layout, spans, label_keys)
    origin_of = np.arange(count) if len(origins) == count else np.zeros(count, dtype=np.intp)
    return SpanColumns(ids, np.array(values, dtype=np.float64), numbers, origins, origin_of)


def _origins(layout: SpanLayout, spans: Bytes, label_keys: Collection[str]) -> list[Origin]:
    """Return the origins of spans, one if all are equal."""
    count, run_id = len(spans), _text(layout, spans, RUN_ID)
    texts = [layout.texts(spans, key) if key in layout.fields else [None] for key in label_keys]
    roles = [role_of(name) for name in layout.texts(spans, NAME)]
    if all(len(each) == 1 for each in (roles, *texts)):
        return [(run_id, tuple([each[0] for each in texts]), roles[0])]
    labels = zip(*(_each(each, count) for each in texts), strict=True)
    return [(run_id, *each) for each in zip(labels, _each(roles, count), strict=True)]


def _text(layout: SpanLayout, spans: Bytes, key: str) -> str | None:
    """Return the text that all spans have, None without the attribute."""
    return layout.texts(spans, key)[0] if key in layout.fields else None


def _each(values: list[_T], count: int) -> list[_T]:
    """Return a value for each of the spans, where one value is that of all."""
    return values * count if len(values) == 1 else values


def _first_of(keys: Collection[int | str], first: str, second: str) -> str:
    return first if first in keys else second


def _durations(seconds: npt.NDArray[Any]) -> FloatArray:
    """Return durations; 0 for those that are unknown."""
    return np.where((seconds > 0.0) & (seconds < of_spans.INFINITE), seconds, 0.0)
