"""Search for runs by labels: wait for the scrape of a run that has just ended."""

from dataclasses import replace

import pytest

from tests.analyzer.core.runs.test_load import GPU, Reopened, Waiting
from tests.analyzer.node import (
    START_S,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline_analyzer.core.run_catalog import parse_selector
from wattline_analyzer.core.runs.find import find_runs, find_sweep_runs, load_runs
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.report.assess import assess

RUN = NodeRun(
    run_id="short", start_s=START_S + 100, end_s=START_S + 103, labels={"experiment": "ci"}
)
NOW_S = START_S + 107
"""The last scrape was at 97 s, before the run; the next comes at 112 s."""


def clock_with_scrapes(folder, *earlier):
    """Return the clock at the call, before the next scrape; `earlier` are other runs."""

    def values(t):
        yield from scrape([GPU], RUN, t)
        for run in earlier:
            if run.start_s <= t:
                yield from run_series([GPU], run, t)

    def upto(at_s):
        (folder / "history.sqlite").unlink(missing_ok=True)
        times = [t for t in scrape_times(15, START_S - 53, START_S + 200) if t <= at_s]
        write_history(folder, series_of_scrapes(((t, values(t)) for t in times), "a:9847"))

    upto(NOW_S)
    return Waiting(NOW_S, upto)


@pytest.fixture
def waiting(tmp_path):
    return clock_with_scrapes(tmp_path)


def found_by(folder, selector, waiting):
    return find_runs(
        Reopened(folder), parse_selector(selector), 86_400, waiting.clock, waiting.messages.append
    )


def test_find_runs_waits_for_run_that_is_not_scraped_yet(tmp_path, waiting):
    sightings = found_by(tmp_path, "experiment=ci", waiting)

    [frames] = load_runs(Reopened(tmp_path), sightings, waiting.clock, waiting.messages.append)
    assert assess(frames).headline.value == pytest.approx(3 * 60)
    assert START_S + 112 <= waiting.now_s <= START_S + 114
    [message] = waiting.messages
    assert message.startswith(
        "experiment=ci: no such run at the history yet; waiting up to 8 s for the next sample, "
    )


def test_find_runs_without_a_match_waits_for_one_scrape(tmp_path, waiting):
    with pytest.raises(FetchError, match="no run with experiment=other at"):
        found_by(tmp_path, "experiment=other", waiting)

    assert 5 <= waiting.now_s - NOW_S <= 9


def test_find_runs_no_wait_answers_at_once(tmp_path, waiting):
    waiting.clock = replace(waiting.clock, waits=False)

    with pytest.raises(FetchError, match="no run with experiment=ci at"):
        found_by(tmp_path, "experiment=ci", waiting)

    assert (waiting.messages, waiting.now_s) == ([], NOW_S)


def earlier_run(seconds):
    return NodeRun("earlier", START_S + 5, START_S + 5 + seconds, labels={"experiment": "ci"})


def test_find_runs_of_group_with_short_run_waits_for_next_scrape(tmp_path):
    waiting = clock_with_scrapes(tmp_path, earlier_run(5))

    found = found_by(tmp_path, "experiment=ci", waiting)

    assert [one.run_id for one in found] == ["earlier", "short"]
    assert found[0].first_s == START_S + 7, "the scrapes before the call count"
    [message] = waiting.messages
    assert message == (
        "experiment=ci: a run that has just ended may not be at the history yet; "
        "waiting up to 8 s for the next sample; skip with --no-wait"
    )


def test_find_runs_of_group_with_long_runs_answers_at_once(tmp_path):
    """A run of 60 s would have been scraped, at an interval of 15 s."""
    waiting = clock_with_scrapes(tmp_path, earlier_run(60))

    assert [one.run_id for one in found_by(tmp_path, "experiment=ci", waiting)] == ["earlier"]
    assert (waiting.messages, waiting.now_s) == ([], NOW_S)


def test_find_runs_of_second_group_does_not_wait_again(tmp_path):
    waiting = clock_with_scrapes(tmp_path, earlier_run(5))
    waiting.clock = replace(waiting.clock, called_s=NOW_S)

    for _ in range(2):
        assert len(found_by(tmp_path, "experiment=ci", waiting)) == 2

    assert len(waiting.messages) == 1
    assert waiting.now_s <= START_S + 112 + 4  # the next scrape, and 3 s for it to be found


def test_find_sweep_runs_waits_for_run_that_is_not_scraped_yet(tmp_path):
    for earlier in ([], [earlier_run(5)]):
        waiting = clock_with_scrapes(tmp_path, *earlier)

        found = find_sweep_runs(
            Reopened(tmp_path), "ci", 86_400, waiting.clock, waiting.messages.append
        )

        assert list(found) == [*(run.run_id for run in earlier), "short"]
        assert len(waiting.messages) == 1
