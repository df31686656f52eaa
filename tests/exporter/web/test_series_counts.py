import json

from tests.exporter.web.series_counts import FILE, count_series


def test_series_of_node_runs_and_owners_are_those_of_the_document(tmp_path):
    assert count_series(tmp_path) == json.loads(FILE.read_text())
