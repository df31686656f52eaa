"""The JSON of reports and studies of a fixed history, compared with golden files."""

import json

import pytest

from tests.analyzer.golden import documents


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return documents.unpack(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", documents.COMMANDS)
def test_json_document_fixed_history_equals_golden_file(name, history):
    result = documents.leaves(documents.without_texts(json.loads(documents.output(name, history))))
    expected = documents.leaves(documents.golden(name))
    assert list(result) == list(expected)
    figures = {path for path, value in expected.items() if isinstance(value, float)}
    assert _only(result, result.keys() - figures) == _only(expected, expected.keys() - figures)
    assert _only(result, figures) == pytest.approx(_only(expected, figures), rel=1e-9)


@pytest.mark.parametrize("name", documents.COMMANDS)
def test_golden_file_has_no_digits_of_rounding_errors(name):
    assert documents.golden(name) == documents.rounded(documents.golden(name))


def test_rounded_removes_rounding_errors():
    assert documents.rounded({"a": [0.1 + 0.2, 7, None]}) == {"a": [0.3, 7, None]}


def _only(leaves, paths):
    return {path: leaves[path] for path in paths}
