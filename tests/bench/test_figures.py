"""Table of the benchmark's figures."""

from tests.bench.figures import Figure, table


def test_table_shows_seconds_and_gigabytes():
    lines = table([Figure("time", "s", 1.5), Figure("memory", "GB", 2e9, goal=1e9)]).splitlines()

    assert lines[1].split() == ["time", "1.50", "s"]
    assert lines[2].split() == ["memory", "2.00", "GB", "≤", "1.00", "GB", "NO"]
