"""The JSON of reports and studies of a fixed history, compared with golden files."""

import json

import pytest

from tests.analyzer.golden import documents


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return documents.unpack(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", documents.COMMANDS)
def test_json_document_fixed_history_equals_golden_file(name, history):
    found = documents.leaves(documents.without_texts(json.loads(documents.output(name, history))))
    expected = documents.leaves(documents.golden(name))
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-9)
