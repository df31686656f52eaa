"""List of runs."""

from exporter.contract import metrics as m
from tests.analyzer.node import START_S, series_of_scrapes, write_history


def test_runs_of_source_without_runs_has_a_remedy(analyzer, tmp_path):
    history = write_history(tmp_path, series_of_scrapes([(START_S, [(m.BUILD_INFO, {"version": "1"}, 1.0)])]))

    completed = analyzer("runs", "--source", history, "--since", "36500d")

    assert completed.returncode == 0
    assert completed.stderr.startswith("analyzer: no run at ")
    assert "start one with workloads run" in completed.stderr
