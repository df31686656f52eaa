"""Ranges in an exporter's history, with 15 s between samples when no run is active."""

import json

import numpy as np
import pytest

from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline_analyzer.core.samples import clean, rests_s
from wattline_analyzer.report.chart import Resolution, break_at_gaps, line_points

RUN = NodeRun(end_s=START_S + 300)
CARD = NodeGpu([(START_S - 10_000, 60), (START_S, 300), (RUN.end_s, 60)])
DENSE = scrape_times(1, START_S - 60, RUN.end_s + 60)
SPARSE = [
    *scrape_times(15, START_S - 1_266, START_S - 61),
    *scrape_times(15, RUN.end_s + 69, RUN.end_s + 1_200),
]


@pytest.fixture
def read(analyzer, tmp_path):
    """Return gap findings and integral of a range from 1,000 s before to 1,000 s after a run."""

    def of(times):
        history = write_history(
            tmp_path, series_of_scrapes((t, scrape([CARD], RUN, t)) for t in sorted(times))
        )
        span = ["--start", START_S - 1_000, "--end", RUN.end_s + 1_000]
        completed = analyzer("report", "--source", history, *span, "--format", "json")
        assert completed.returncode == 0, completed.stderr
        document = json.loads(completed.stdout)
        assert document["energy"]["gpu"]["energy_joules"] == pytest.approx(300 * 300 + 2_000 * 60)
        texts = [finding["text"] for finding in document["findings"] if finding["code"] == "gap"]
        return texts, document["devices"][0]["integrated_energy_joules"]

    return of


def test_history_interval_at_rest_is_not_a_gap(read):
    assert read(DENSE + SPARSE) == ([], pytest.approx(300 * 300 + 2_000 * 60, rel=0.005))


def test_minute_without_samples_at_rest_is_a_gap(read):
    (text,), integral_j = read(DENSE + [t for t in SPARSE if not START_S - 500 < t < START_S - 440])

    assert integral_j is None
    assert text.startswith("1 gap between samples, the longest 75.0 s")


def test_charts_connect_samples_at_rest_but_not_over_gaps():
    times = [*range(0, 150, 15), *range(150, 900), *range(1_000, 1_090, 15)]
    t = np.array(times, dtype=float)
    series = clean(t, t % 7)

    _, values = line_points(series, Resolution(10_000, 1), least_s=rests_s("", untagged=True))
    line, _ = break_at_gaps(series.t, series.value, rests_s("", untagged=True))

    assert values.count(None) == 1
    assert len(line) == len(times) + 1
