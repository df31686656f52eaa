"""Choice of the source; search, wait and loading of runs."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

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
from tests.analyzer.series_source import SeriesSource
from wattline.contract.history import STATE_FILE, Series
from wattline_analyzer.core.runs.load import Clock, last_scrapes, load_run
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.report.assess import assess

LATER_S = START_S + 86_400
GPU = NodeGpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)])


class Waiting:
    """Clock that advances only by sleep and calls `after` each sleep."""

    def __init__(self, now_s, after=lambda _: None):
        self.now_s, self.after, self.messages = now_s, after, []
        self.clock = Clock(lambda: self.now_s, self.sleep)

    def sleep(self, seconds):
        self.now_s += seconds
        self.after(self.now_s)


@pytest.fixture
def loaded():
    def call(path, run_id="train-1", waiting=None):
        waiting = waiting or Waiting(LATER_S)
        source = HistorySource(path)
        try:
            return load_run(source, run_id, 30 * 86_400, waiting.clock, waiting.messages.append)
        finally:
            source.close()

    return call


def test_load_run_includes_samples_around_run(steady_history, loaded):
    frames = loaded(steady_history)

    assert frames.run.ended_at == START_S + 20
    assert frames.raw.t.min() < START_S - 50
    assert frames.raw.t.max() > START_S + 50


def test_load_run_ended_does_not_wait(steady_history, loaded):
    waiting = Waiting(LATER_S)

    loaded(steady_history, waiting=waiting)

    assert waiting.messages == []
    assert waiting.now_s == LATER_S


def live(tmp_path, upto_s, interval_s=5.0):
    """Write a history with the samples up to `upto_s`."""
    times = [t for t in scrape_times(interval_s, START_S - 60.5, START_S + 60) if t <= upto_s]
    (tmp_path / "history.sqlite").unlink(missing_ok=True)
    return write_history(
        tmp_path, series_of_scrapes((t, scrape([GPU], NodeRun(), t)) for t in times)
    )


class Reopened(SeriesSource):
    """Source that opens the history again for each request."""

    def __init__(self, folder):
        self.folder, self.name = folder, "the history"

    def parts(self, metrics, matchers, start_s, end_s):
        source = HistorySource(self.folder)
        try:
            yield from source.parts(metrics, matchers, start_s, end_s)
        finally:
            source.close()


def test_load_run_waits_for_scrape_after_end_and_logs(tmp_path):
    now_s = (
        START_S + 20.2
    )  # the run has just ended; the last scrape was at 19.5 s, the next comes at 24.5 s
    waiting = Waiting(now_s, lambda at_s: live(tmp_path, at_s))
    live(tmp_path, now_s)

    frames = load_run(Reopened(tmp_path), "train-1", 86_400, waiting.clock, waiting.messages.append)

    assert waiting.messages == [
        (
            "run train-1: its end is not at the history yet; waiting up to 10 s for the next "
            "sample; "
            "skip with --no-wait"
        )
    ]
    assert waiting.now_s <= START_S + 26
    assert assess(frames).headline.value == pytest.approx(6_000)


def test_load_run_scrape_without_end_shortens_wait(tmp_path):
    now_s = START_S + 9
    waiting = Waiting(now_s, lambda at_s: live(tmp_path, at_s))
    live(tmp_path, now_s)

    frames = load_run(Reopened(tmp_path), "train-1", 86_400, waiting.clock, waiting.messages.append)

    assert waiting.now_s <= START_S + 14  # the scrape at 9.5 s, and 3 s for it to be found
    assert assess(frames).ended_at_s is None


def test_load_run_active_returns_after_two_intervals(tmp_path, loaded):
    path = live(tmp_path, START_S + 12)
    waiting = Waiting(START_S + 12)

    frames = loaded(path, waiting=waiting)

    assert 10 <= waiting.now_s - (START_S + 12) <= 12.5
    report = assess(frames)
    assert report.ended_at_s is None
    assert report.headline.value == pytest.approx(300 * 9.5)  # the last scrape was at 9.5 s
    assert "not_ended" in {finding.code for finding in report.findings}


def test_load_run_known_as_open_does_not_wait(tmp_path, loaded):
    path = live(tmp_path, START_S + 12)
    with closing(sqlite3.connect(path.parent / STATE_FILE)) as connection, connection:
        connection.execute("CREATE TABLE run (run_id TEXT PRIMARY KEY, running INTEGER)")
        connection.execute("INSERT INTO run VALUES ('train-1', 1)")
    waiting = Waiting(START_S + 12)

    report = assess(loaded(path, waiting=waiting))

    assert (waiting.messages, waiting.now_s) == ([], START_S + 12)
    (text,) = (finding.text for finding in report.findings if finding.code == "not_ended")
    assert text == "the run has not ended: the figures are from its last scrape"


def test_load_run_stopped_scraping_does_not_wait(tmp_path, loaded):
    path = live(tmp_path, START_S + 12)
    waiting = Waiting(LATER_S)

    assert assess(loaded(path, waiting=waiting)).ended_at_s is None
    assert waiting.messages == []


def test_load_run_unknown_id_lists_known_runs(steady_history, loaded):
    with pytest.raises(
        FetchError,
        match=r"no run 'resnet' at .* in the last 30 days; known runs: train-1; see: analyzer runs",
    ):
        loaded(steady_history, "resnet")


def refused(source, run_id, waiting):
    with pytest.raises(FetchError, match=f"no run '{run_id}' at"):
        load_run(source, run_id, 86_400, waiting.clock, waiting.messages.append)


def test_load_run_exporter_at_rest_does_not_wait(tmp_path):
    """During a run the history has a sample per second; the newest is 9 s old, so no run is
    active.
    """
    waiting = Waiting(START_S + 69)
    source = HistorySource(live(tmp_path, START_S + 60, interval_s=15.0))

    refused(source, "train-2", waiting)
    source.close()

    assert waiting.messages == []
    assert waiting.now_s == START_S + 69


def write_scrapes(tmp_path, targets, upto_s):
    """Return the samples up to `upto_s` of a server that scrapes each target every 15 s in its time
    range.
    """
    (tmp_path / "history.sqlite").unlink(missing_ok=True)
    series = []
    for instance, (from_s, until_s) in targets.items():
        times = [t for t in scrape_times(15, START_S + from_s, START_S + until_s) if t <= upto_s]
        series += series_of_scrapes(((t, scrape([GPU], NodeRun(), t)) for t in times), instance)
    return write_history(
        tmp_path,
        [Series({k: v for k, v in s.labels.items() if k != "job"}, s.samples) for s in series],
    )


TARGETS = {"a:9847": (-53, 600)}


def test_load_run_unknown_id_waits_for_one_scrape(tmp_path):
    now_s = START_S + 107  # the last scrape was at 97 s, the next comes at 112 s
    waiting = Waiting(now_s, lambda at_s: write_scrapes(tmp_path, TARGETS, at_s))
    write_scrapes(tmp_path, TARGETS, now_s)

    refused(Reopened(tmp_path), "train-2", waiting)

    expected = (
        "waiting up to 8 s for the next sample, in case it began after the last one; skip "
        "with --no-wait"
    )
    assert expected in waiting.messages[0]  # 5 s, and 3 s for it to be found
    assert 5 <= waiting.now_s - now_s <= 9


def test_load_run_no_wait_answers_at_once(tmp_path):
    write_scrapes(tmp_path, TARGETS, START_S + 100)
    waiting = Waiting(START_S + 100)
    waiting.clock = replace(waiting.clock, waits=False)

    refused(Reopened(tmp_path), "train-2", waiting)

    assert (waiting.messages, waiting.now_s) == ([], START_S + 100)


def test_load_run_dead_target_does_not_extend_wait(tmp_path):
    targets = {**TARGETS, "dead:9847": (-53, 80)}
    now_s = START_S + 107
    waiting = Waiting(now_s, lambda at_s: write_scrapes(tmp_path, targets, at_s))
    write_scrapes(tmp_path, targets, now_s)

    refused(Reopened(tmp_path), "train-2", waiting)

    assert waiting.now_s - now_s <= 9


@pytest.mark.parametrize(("began_s", "waits"), [(60, False), (105, True)])
def test_load_run_generated_id_of_past_run_does_not_wait(tmp_path, began_s, waits):
    now_s = START_S + 107
    waiting = Waiting(now_s, lambda at_s: write_scrapes(tmp_path, TARGETS, at_s))
    write_scrapes(tmp_path, TARGETS, now_s)
    began = datetime.fromtimestamp(START_S + began_s, UTC)

    refused(Reopened(tmp_path), f"{began:%Y%m%d-%H%M%S}-00aa11", waiting)

    assert (waiting.now_s > now_s) == waits


def test_load_run_id_with_invalid_time_waits(tmp_path):
    now_s = START_S + 107
    waiting = Waiting(now_s, lambda at_s: write_scrapes(tmp_path, TARGETS, at_s))
    write_scrapes(tmp_path, TARGETS, now_s)

    refused(Reopened(tmp_path), "20269999-999999-00aa11", waiting)

    assert waiting.messages


def test_load_run_unscraped_short_run_waits(tmp_path):
    run = NodeRun(run_id="short", start_s=START_S + 100, end_s=START_S + 103)

    def upto(at_s):
        (tmp_path / "history.sqlite").unlink(missing_ok=True)
        times = [t for t in scrape_times(15, START_S - 53, START_S + 200) if t <= at_s]
        write_history(
            tmp_path, series_of_scrapes(((t, scrape([GPU], run, t)) for t in times), "a:9847")
        )

    waiting = Waiting(START_S + 107, upto)
    upto(START_S + 107)

    frames = load_run(Reopened(tmp_path), "short", 86_400, waiting.clock, waiting.messages.append)

    assert assess(frames).headline.value == pytest.approx(3 * 60)
    assert waiting.now_s <= START_S + 114


def test_load_run_empty_history_reports_no_runs(tmp_path, loaded):
    with pytest.raises(FetchError, match=r"nor any other run; check that its exporter is scraped"):
        loaded(write_history(tmp_path, []), "train-1")


def test_load_run_started_before_since_is_found(steady_history):
    source = HistorySource(steady_history)
    rows = last_scrapes(source, START_S + 10, START_S + 30)
    source.close()

    assert [(row.labels["run_id"], row.value) for row in rows] == [("train-1", START_S)]
