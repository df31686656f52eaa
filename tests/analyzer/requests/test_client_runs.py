"""Time of a long run that is analyzed for a part of it."""

import sqlite3
from contextlib import closing

import pytest

from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    series_of_scrapes,
    write_history,
)
from tests.workloads.wattline.contract.packed_requests import packed
from wattline.contract.history import REQUESTS_FILE
from wattline.contract.requests.served import CLIENT_RUN_LABEL, ServedRequest
from wattline.contract.requests.stored import REQUESTS_SCHEMA
from wattline_analyzer.core.runs.load import Clock
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.requests.client_runs import load_run_requests, requests_in_range
from wattline_analyzer.requests.loaded_run import RunSearch
from wattline_analyzer.requests.stored import read_stored_requests

HOUR_S, DAY_S = 3_600.0, 86_400.0
RUN_S = (START_S, START_S + 5 * DAY_S)
JOB_S = (START_S + 2 * DAY_S, START_S + 2 * DAY_S + 3 * HOUR_S)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Run of a server of five days with a request each hour, and the run of a client, which sent
    three of them.
    """
    folder = tmp_path_factory.mktemp("long")
    gpu = NodeGpu([(START_S - DAY_S, 100.0)])
    server, job = NodeRun("server-1", *RUN_S), NodeRun("job-1", *JOB_S)

    def values(t):
        yield from scrape([gpu], server, t)
        if JOB_S[0] <= t <= JOB_S[1] + HOUR_S:
            yield from run_series([gpu], job, t)

    times = [START_S + k * HOUR_S / 2 for k in range(5 * 48 + 2)]
    with sqlite3.connect(folder / REQUESTS_FILE) as connection:
        connection.executescript(REQUESTS_SCHEMA)
        for hour in range(5 * 24):
            started_at = START_S + (hour + 0.25) * HOUR_S
            labels = {CLIENT_RUN_LABEL: "job-1"} if JOB_S[0] < started_at < JOB_S[1] else {}
            request = ServedRequest(
                f"r{hour}", started_at, started_at + 60.0, 50, 40, labels=labels
            )
            connection.execute(
                "INSERT INTO batch (run_id, first_end, last_end, requests, body) VALUES "
                "('server-1', ?, ?, 1, ?)",
                (request.ended_at, request.ended_at, packed([request])),
            )
    connection.close()
    return write_history(folder, series_of_scrapes((t, values(t)) for t in times))


@pytest.fixture
def load(history):
    with closing(HistorySource(history)) as source:
        clock = Clock(lambda: RUN_S[1] + DAY_S, lambda _: None, waits=False)
        yield lambda run_id, *arguments: load_run_requests(
            source, RunSearch(run_id, 30 * DAY_S, clock, print), *(arguments or [None])
        )


def test_whole_run_is_analyzed_with_all_requests(load):
    found = load("server-1")

    assert (found.time_s, found.counted, len(found.table.spans)) == (RUN_S, None, 120)


def test_part_of_a_long_run_is_analyzed_with_a_day_around_it(load):
    part_s = (START_S + 2 * DAY_S, START_S + 2 * DAY_S + 5 * HOUR_S)

    found = load("server-1", None, part_s)

    assert found.time_s == (START_S + DAY_S, START_S + 3 * DAY_S + 5 * HOUR_S)
    assert (len(found.table.spans), int(found.counted.sum())) == (24 + 5 + 24, 5)


def test_client_of_a_long_run_is_analyzed_with_a_day_around_it(load):
    found = load("job-1")

    assert (found.run.run_id, found.client) == ("server-1", "job-1")
    assert found.time_s == (JOB_S[0] - DAY_S, JOB_S[1] + DAY_S)
    assert (len(found.table.spans), int(found.counted.sum())) == (24 + 3 + 24, 3)


def test_part_at_the_start_of_a_run_is_analyzed_from_the_start(load):
    found = load("server-1", None, (float("-inf"), START_S + HOUR_S))

    assert found.time_s == (START_S, START_S + DAY_S + HOUR_S)
    assert int(found.counted.sum()) == 1


def test_part_after_the_run_is_refused(load):
    with pytest.raises(FetchError, match="no samples of the run are in the time from"):
        load("server-1", None, (RUN_S[1] + HOUR_S, RUN_S[1] + 2 * HOUR_S))


def test_part_of_given_requests_is_analyzed_with_their_time(load, history):
    """Other requests of the run may be missing around those that are given."""
    with closing(HistorySource(history)) as source:
        given = read_stored_requests(source, "server-1", JOB_S)
    part_s = (JOB_S[0] + HOUR_S, JOB_S[0] + 1.5 * HOUR_S)

    for found in (load("server-1", given, part_s), requests_in_range(given, part_s)):
        assert found.time_s == (JOB_S[0] + 0.25 * HOUR_S, JOB_S[0] + 2.25 * HOUR_S + 60.0)
        assert found.counted.tolist() == [False, True, False]
