"""Search for runs by labels: wait for the scrape of a run that has just ended."""

from dataclasses import replace

import pytest

from analyzer.assess.run import assess
from analyzer.model.catalog import parse_selector
from analyzer.sources.base import FetchError
from analyzer.sources.runs.find import find_runs, load_runs
from tests.analyzer.node import START_S, NodeRun, scrape, scrape_times, series_of_scrapes, write_history
from tests.analyzer.sources.runs.test_load import GPU, Reopened, Waiting

RUN = NodeRun(run_id="short", start_s=START_S + 100, end_s=START_S + 103, labels={"experiment": "ci"})
NOW_S = START_S + 107
"""The last scrape was at 97 s, before the run; the next comes at 112 s."""


@pytest.fixture
def waiting(tmp_path):
    def upto(at_s):
        (tmp_path / "history.sqlite").unlink(missing_ok=True)
        times = [t for t in scrape_times(15, START_S - 53, START_S + 200) if t <= at_s]
        write_history(tmp_path, series_of_scrapes(((t, scrape([GPU], RUN, t)) for t in times), "a:9847"))

    upto(NOW_S)
    return Waiting(NOW_S, upto)


def found_by(folder, selector, waiting):
    return find_runs(Reopened(folder), parse_selector(selector), 86_400, waiting.clock, waiting.messages.append)


def test_find_runs_waits_for_run_that_is_not_scraped_yet(tmp_path, waiting):
    sightings = found_by(tmp_path, "experiment=ci", waiting)

    [frames] = load_runs(Reopened(tmp_path), sightings, waiting.clock, waiting.messages.append)
    assert assess(frames).headline.value == pytest.approx(3 * 60)
    assert START_S + 112 <= waiting.now_s <= START_S + 114
    [message] = waiting.messages
    assert message.startswith("experiment=ci: no such run at the history yet; waiting up to 8 s for the next scrape, ")


def test_find_runs_without_a_match_waits_for_one_scrape(tmp_path, waiting):
    with pytest.raises(FetchError, match="no run with experiment=other at"):
        found_by(tmp_path, "experiment=other", waiting)

    assert 5 <= waiting.now_s - NOW_S <= 9


def test_find_runs_no_wait_answers_at_once(tmp_path, waiting):
    waiting.clock = replace(waiting.clock, waits=False)

    with pytest.raises(FetchError, match="no run with experiment=ci at"):
        found_by(tmp_path, "experiment=ci", waiting)

    assert (waiting.messages, waiting.now_s) == ([], NOW_S)
