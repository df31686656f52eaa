"""Polls of `analyzer watch`."""

import contextlib
import time

import numpy as np
import pytest

from tests.analyzer.node import (
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from tests.analyzer.series_source import SeriesSource
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.watch import command as watch
from wattline_analyzer.watch.source import find_nodes


class SourceWithGaps(SeriesSource):
    """Source that lacks the run's series in some polls; the run ends before the last poll."""

    name = "here"

    def __init__(self, *with_run):
        self._with_run, self._begun_s = list(with_run), time.time()

    def parts(self, metrics, matchers, start_s, end_s):
        is_poll = len(metrics) > 1
        present = self._with_run.pop(0) if is_poll else True
        run = NodeRun(
            start_s=self._begun_s - 20, end_s=None if self._with_run else self._begun_s - 1
        )
        names = {metric.name for metric in metrics}
        if not present:
            names = {name for name in names if not name.startswith("wattline_run_")}
        gpus = [NodeGpu([(0.0, 300.0)])]
        times = [self._begun_s + t for t in range(-10, 1)]
        yield [
            (one.labels, *np.array(one.samples, dtype=np.float64).T)
            for one in series_of_scrapes(((t, scrape(gpus, run, t)) for t in times), "node:9847")
            if one.labels["__name__"] in names
        ]


def test_watch_run_missing_in_one_poll_has_not_ended():
    updates = [*watch._poll(SourceWithGaps(True, False, True), None, "train-1", 0.01)]

    assert [[run.state for run in update.found.runs] for update in updates] == [["running"], ["ok"]]


def test_watch_run_missing_in_the_first_poll_has_ended():
    with pytest.raises(FetchError, match="run 'train-1' has ended"):
        next(watch._poll(SourceWithGaps(False, True), None, "train-1", 0.01))


@pytest.mark.parametrize(
    ("end_s", "run_id", "cause"),
    [
        (
            -3_000.0,
            "train-1",
            (
                "run 'train-1' ended at .*, so it has no live values; see: analyzer report "
                "--run-id "
                "train-1"
            ),
        ),
        (
            None,
            "train-1",
            "run 'train-1' has no sample since .*: its exporter is down, or is not scraped; see: ",
        ),
        (None, "train-2", "no run 'train-2' at .* in the last 30 days; did you mean train-1"),
    ],
)
def test_watch_run_without_recent_samples_names_the_cause(tmp_path, end_s, run_id, cause):
    now_s = time.time()
    run = NodeRun(start_s=now_s - 3_100, end_s=None if end_s is None else now_s + end_s)
    times = scrape_times(1.0, now_s - 3_110, now_s - 2_950)
    scrapes = ((t, scrape([NodeGpu([(0.0, 300.0)])], run, t)) for t in times)
    source = HistorySource(write_history(tmp_path, series_of_scrapes(scrapes)))

    with contextlib.closing(source), pytest.raises(FetchError, match=cause):
        find_nodes(source, now_s, None, run_id)
