"""Fast parser of matrix results, compared with JSON."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_analyzer.core.sources import prometheus_matrix as matrix

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        'x},"values":[[1,"2"]]}',
        '"]]}',
        "a]]b",
        "[[",
        'back\\slash "quoted"',
        '{"metric":{',
        '"result":[',
        "\n\t",
    ]
)
NUMBERS = st.floats(allow_nan=False).map(repr) | st.sampled_from(
    ["NaN", "+Inf", "-Inf", "1e-07", "1.5E+3", "0", "-0"]
)
TIMES = st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1_000)
SERIES = st.fixed_dictionaries(
    {
        "metric": st.dictionaries(TEXTS, TEXTS, max_size=4),
        "values": st.lists(st.tuples(TIMES, NUMBERS), min_size=1, max_size=5),
    }
)
MORE = st.fixed_dictionaries(
    {},
    optional={
        "warnings": st.lists(TEXTS, max_size=2),
        "infos": st.lists(TEXTS, max_size=2),
        "isPartial": st.booleans(),
        "stats": st.dictionaries(TEXTS, st.integers(), max_size=2),
    },
)


def body_of(series, more=(), *, spaced=False, ascii_only=False):
    result = [{"metric": entry["metric"], "values": entry["values"]} for entry in series]
    body = {"status": "success", **dict(more), "data": {"resultType": "matrix", "result": result}}
    return json.dumps(
        body, separators=None if spaced else (",", ":"), ensure_ascii=ascii_only
    ).encode()


def same(result, expected):
    return [labels for labels, _, _ in result] == [labels for labels, _, _ in expected] and all(
        np.array_equal(first[place], second[place], equal_nan=True)
        for first, second in zip(result, expected, strict=True)
        for place in (1, 2)
    )


@given(st.lists(SERIES, max_size=4), MORE, st.booleans())
def test_parse_compact_matrix_equals_json_for_any_labels(series, more, ascii_only):
    body = body_of(series, more, ascii_only=ascii_only)

    parsed = matrix.parse_compact_matrix(body)
    expected_around, expected = matrix._loaded(body)

    assert parsed
    assert parsed[0] == expected_around
    assert same(parsed[1], expected)


@given(st.lists(SERIES, min_size=1, max_size=3), MORE)
def test_parse_matrix_body_with_spaces_is_read_as_json(series, more):
    body = body_of(series, more, spaced=True)

    assert matrix.parse_compact_matrix(body) is None
    assert same(matrix.parse_matrix(body)[1], matrix._loaded(body)[1])


def test_parse_matrix_accepts_any_key_order():
    body = b'{"data":{"result":[{"values":[[1.5,"2"]],"metric":{"a":"b"}}],"resultType":"matrix"},"status":"success"}'

    (labels, t, value), *rest = matrix.parse_matrix(body)[1]

    assert (labels, t.tolist(), value.tolist(), rest) == ({"a": "b"}, [1.5], [2.0], [])


@pytest.mark.parametrize(
    "values",
    [
        '[[1,"2"],[3]]',
        '[[1,"2"],[3,"four"]]',
        '[[1,"2"],3]',
        '[[1,"2","3"],[4]]',
        "[[1,2]]",
        "[]",
        '[[1,"2"]',
        "7",
    ],
)
def test_parse_matrix_invalid_values_are_rejected(values):
    body = f'{{"status":"success","data":{{"resultType":"matrix","result":[{{"metric":{{}},"values":{values}}}]}}}}'

    assert matrix.parse_compact_matrix(body.encode()) is None


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"status":"success"', b'{"data":{"resultType":"matrix","result":[{']
)
def test_parse_matrix_invalid_json_is_rejected(body):
    with pytest.raises(matrix.NotJsonError):
        matrix.parse_matrix(body)


@pytest.mark.parametrize("values", ['[[1,"2"],[3]]', '[[1,"x"]]', "7"])
def test_parse_matrix_invalid_series_is_rejected(values):
    body = f'{{"status":"success","data":{{"resultType":"matrix","result":[{{"metric":{{}},"values":{values}}}]}}}}'

    with pytest.raises(matrix.NotJsonError):
        matrix.parse_matrix(body.encode())


def test_parse_matrix_accepts_empty_series_and_histograms():
    body = (
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"histograms":[[1,{}]]},'
        b'{"metric":{"c":"d"},"values":[[1,"2"]],"histograms":[]}]}}'
    )

    assert [len(t) for _, t, _ in matrix.parse_matrix(body)[1]] == [0, 1]
