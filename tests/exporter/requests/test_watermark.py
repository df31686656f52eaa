"""Time up to which the energy of a server can be divided for good, by the reports of its requests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wattline_exporter.requests.watermark import Watermark


def watermark(*calls, window_s=120.0, lateness_s=0.0):
    """Return the watermark after calls: the instant of each one, with arrivals and ends."""
    found = Watermark(window_s, lateness_s)
    for now_s, *spans in calls:
        arrived_s, ended_s = np.array(spans, dtype=float).T
        found.report(arrived_s, ended_s, now_s)
    return found


def test_watermark_waits_for_30_s_in_the_first_minute():
    """Then without a report: 5 s, twice the lag of 1 s, and the longest request of 4 s."""
    found = watermark((5.0, (0.0, 4.0)))

    assert [found.closed_s(each) for each in (20.0, 64.0)] == [-10.0, 34.0]
    assert [found.wait_s(each) for each in (64.0, 65.0)] == [30.0, 11.0]


def test_watermark_rises_with_the_latest_reported_end():
    """A request that is not reported ends at 98 s at the earliest, and lasts for up to 4 s."""
    found = watermark((5.0, (0.0, 4.0)), (100.0, (96.0, 99.0)))

    assert [found.closed_s(each) for each in (100.0, 104.0)] == [94.0, 94.0]


def test_watermark_of_a_quiet_server_rises_with_the_time():
    """The usual lag is 1 s, and the longest request has 4 s: 5 + 2 + 4 s."""
    found = watermark((5.0, (0.0, 4.0)), (100.0, (96.0, 99.0)))

    assert found.wait_s(200.0) == 11.0
    assert found.closed_s(200.0) == 189.0


def test_watermark_knows_the_disorder_of_reports():
    """A request that ended 4 s before a reported one came after it."""
    found = watermark((5.0, (0.0, 4.0)), (100.0, (96.0, 99.0)), (101.0, (93.0, 95.0)))

    assert found.closed_s(101.0) == 99.0 - 4.0 - 4.0


def test_watermark_waits_for_the_next_call_of_a_rare_reporter():
    """Each call has the requests of 30 s; the longest one lasts for 2 s."""
    calls = [(each, (each - 30.0, each - 29.5), (each - 2.0, each)) for each in (30.0, 60.0, 90.0)]
    found = watermark(*calls)

    assert [found.closed_s(each) for each in (90.0, 119.0)] == [87.0, 87.0]


def test_watermark_never_waits_longer_than_the_window_and_a_request_in_it():
    """A request of 6 s that ended 20 s ago can be reported; one of 90 s counts as 20 s."""
    short = watermark((100.0, (0.0, 6.0)), window_s=20.0)
    long = watermark((100.0, (0.0, 90.0)), window_s=20.0)

    assert short.closed_s(200.0) == 174.0
    assert long.closed_s(200.0) == 160.0


def test_watermark_waits_for_the_lateness_that_is_set():
    """Reports come 1 s after the ends, at most 40 s are waited for; the longest request has 4 s."""
    found = watermark((5.0, (0.0, 4.0)), (100.0, (96.0, 99.0)), lateness_s=40.0)
    found.end(300.0)

    assert found.closed_s(100.0) == 100.0 - 40.0 - 4.0
    assert found.wait_s(200.0) == 44.0
    assert found.closed_s(200.0) == 156.0
    assert [found.closed_s(each) == math.inf for each in (340.4, 340.5)] == [False, True]


def test_watermark_after_a_restart_waits_for_reports_that_could_not_come():
    """The run ended at 300 s, and the exporter started again at 400 s; reports come 1 s after."""
    found = watermark((5.0, (0.0, 4.0)), (250.0, (246.0, 249.0)))
    found.end(300.0)
    found.restart(400.0)

    assert found.closed_s(401.4) == 401.4 - 30.0
    assert found.closed_s(401.5) == math.inf


@pytest.mark.parametrize(
    ("calls", "closed_s"),
    [
        ([(20.5, (1.0, 5.0), (18.0, 20.0))], 301.0),  # one call with all requests
        # one call every 30 s, and the rest just before the end
        ([(270.0, (1.0, 240.0), (260.0, 270.0)), (299.5, (270.0, 271.0), (280.0, 299.0))], 301.5),
        # the same, but the last call is of a second reporter
        (
            [
                (270.0, (1.0, 240.0), (260.0, 270.0)),
                (290.0, (270.0, 271.0), (280.0, 289.0)),
                (299.5, (280.0, 299.0)),
            ],
            300.5 + 19.0,
        ),
        # each call has requests that ended 60 s ago
        ([(298.5, (230.0, 238.5)), (299.5, (230.0, 239.5))], 300.5 + 60.0),
        ([(20.5, (18.0, 20.0)), (99.0, (90.0, 98.0))], 301.5),  # each request after 1 s at most
        ([(30.0, (1.0, 30.0)), (60.0, (1.0, 31.0), (40.0, 59.0))], 300.5 + 29.0),  # each 30 s
    ],
)
def test_watermark_after_the_end_of_a_run_waits_for_the_usual_lag(calls, closed_s):
    found = watermark(*calls)
    found.end(300.0)

    assert found.closed_s(closed_s - 0.01) < 300.0
    assert found.closed_s(closed_s) == math.inf


def test_watermark_forgets_a_lag_after_ten_minutes():
    found = watermark((50.0, (0.0, 1.0)), *((each, (each - 2, each)) for each in (351.0, 652.0)))

    assert found.wait_s(660.0) == 5.0 + 2.0
