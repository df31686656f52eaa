"""Notes of `analyzer usage` on nodes without samples at the edges of a short window."""

import json

import pytest

from tests.analyzer.small_fleet import BEGIN_S

NEW_S, GONE_S = BEGIN_S + 3_000, BEGIN_S + 3_000


@pytest.fixture
def usage(call, fleet_addresses, fleet_history):
    def run(source, start_s, end_s):
        place = {**fleet_addresses, "history": fleet_history}[source]
        window = ("--since", start_s, "--until", end_s, "--format", "json")
        code, stdout, stderr = call("usage", "--source", place, "--by", "user", *window)
        assert code == 0, stderr
        return json.loads(stdout)

    return run


@pytest.mark.parametrize("source", ["prometheus", "victoria-metrics", "history"])
def test_usage_short_window_names_nodes_without_half_of_it(usage, source):
    """Node `new` is scraped from the middle of 6 min on, node `gone` until then; the others every
    15 s.
    """
    document = usage(source, NEW_S - 180, NEW_S + 180)

    assert document["nodes_without_samples_at_start"] == ["new:9847"]
    assert document["nodes_without_samples_at_end"] == ["gone:9847"]
    start = [
        note
        for note in document["notes"]
        if note.startswith("no samples at the start of the window: new:9847 counts from 10:50:11")
    ]
    assert len(start) == 1


@pytest.mark.parametrize("source", ["prometheus", "victoria-metrics", "history"])
def test_usage_short_window_with_all_scrapes_has_no_such_note(usage, source):
    document = usage(source, NEW_S + 300.2, NEW_S + 420.1)

    assert document["nodes_without_samples_at_start"] == []
    assert document["nodes_without_samples_at_end"] == []
    assert not any("no samples" in note for note in document["notes"])
