"""Matrices of Prometheus's JSON, parsed without a Python object per sample.

Each `"values":[[…]]` of a compact body is cut out, its brackets and quotes are removed, and the
rest is parsed as a list of numbers. A body with another layout is parsed as JSON.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np

from wattline_analyzer.core.samples import FloatArray, Series

_RESULT = b'"result":['
_METRIC = b'{"metric":'
_VALUES = b',"values":[['
_END = b'"]]}'
_PUNCTUATION = b'[]"'


class NotJsonError(ValueError):
    """Body that is not JSON."""


def parse_matrix(body: bytes) -> tuple[Any, list[Series]]:
    """Return the JSON document with an empty `result`, and the series of a matrix. Raises
    NotJsonError.
    """
    try:
        return parse_compact_matrix(body) or _loaded(body)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error


def parse_compact_matrix(body: bytes) -> tuple[Any, list[Series]] | None:
    """Return as `parse_matrix`, None if the body has another layout.

    Quotes in strings are escaped, so no mark can begin or end within a label.
    """
    start = body.find(_RESULT)
    if start < 0:
        return None
    position = start + len(_RESULT)
    found: list[Series] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # text after the last number
        try:
            while body[position : position + 1] != b"]":
                one, position = _one(body, position)
                found.append(one)
            around = json.loads(body[: start + len(_RESULT)] + body[position:])
        except (ValueError, DeprecationWarning):
            return None
    data = around.get("data") if isinstance(around, dict) else None
    is_matrix = (
        isinstance(data, dict) and data.get("resultType") == "matrix" and data.get("result") == []
    )
    return (around, found) if is_matrix else None


def _one(body: bytes, position: int) -> tuple[Series, int]:
    """Return the series at `position` and the position after it. Raises ValueError."""
    if not body.startswith(_METRIC, position):
        raise ValueError
    values = body.index(_VALUES, position)
    end = body.index(_END, values)
    labels = json.loads(body[position + len(_METRIC) : values])
    text = body[values + len(_VALUES) : end]
    numbers = np.fromstring(text.translate(None, _PUNCTUATION), sep=",")
    pairs = text.count(b"],[") + 1
    if (
        not isinstance(labels, dict)
        or len(numbers) != 2 * pairs
        or text.count(b'"') != 2 * pairs - 1
    ):
        raise ValueError
    position = end + len(_END)
    if body.startswith(b",{", position):
        position += 1
    elif body[position : position + 1] != b"]":
        raise ValueError
    return (labels, numbers[::2].copy(), numbers[1::2].copy()), position


def _loaded(body: bytes) -> tuple[Any, list[Series]]:
    around = json.loads(body)
    data = around.get("data") if isinstance(around, dict) else None
    if not isinstance(data, dict) or data.get("resultType") != "matrix":
        return around, []
    try:
        found: list[Series] = [
            (dict(one["metric"]), *_pairs(one.get("values", []))) for one in data["result"] or []
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"invalid series: {error!r}") from error
    return {**around, "data": {**data, "result": []}}, found


def _pairs(values: list[list[Any]]) -> tuple[FloatArray, FloatArray]:
    return (
        np.array([float(t_s) for t_s, _ in values], dtype=np.float64),
        np.array([float(text) for _, text in values], dtype=np.float64),
    )
