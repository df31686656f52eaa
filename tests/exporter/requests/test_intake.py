from __future__ import annotations

import pytest

from wattline.contract.requests.served import ServedRequest
from wattline_exporter.requests import intake
from wattline_exporter.requests.division.columns import RequestColumns
from wattline_exporter.requests.intake import RequestIds, RunSpan
from wattline_exporter.sensors.readings import ClockReading

RUN = RunSpan(1_000.0, None)


def at(unix_s, step_s=0.0):
    """Return the clocks at a Unix time, after a step of the wall clock."""
    return ClockReading(unix_s - step_s, unix_s, unix_s - step_s)


def reported(ids, name, now_at, ended_at=None, step_s=0.0):
    ended_at = now_at if ended_at is None else ended_at
    found = ids.check(
        RequestColumns.of([ServedRequest(name, ended_at - 1, ended_at, 1, 1)]),
        RUN,
        at(now_at, step_s),
    )
    return dict(found.refused) or "accepted"


@pytest.mark.parametrize("interval_s", [7, 40, 119])
def test_ids_repeated_within_the_window_are_duplicates_then_late(interval_s):
    """A request is reported every `interval_s`, and each of them again 119 s and 121 s after its
    end.
    """
    ids, ends, repeats = RequestIds(120.0), range(2_000, 3_000, interval_s), []
    calls = sorted((end + delay, end, delay) for end in ends for delay in (0, 119, 121))
    for now_at, end, delay in calls:
        repeats.append((delay, reported(ids, f"r-{end}", float(now_at), float(end))))

    assert {found for delay, found in repeats if delay == 0} == {"accepted"}
    assert all(found == {"duplicate": 1} for delay, found in repeats if delay == 119)
    assert all(found == {"late": 1} for delay, found in repeats if delay == 121)


def test_more_ids_than_are_kept_shorten_the_window(monkeypatch):
    monkeypatch.setattr(intake, "MAX_HELD", 10)
    ids = RequestIds(120.0)
    for second in range(30):
        assert reported(ids, f"r-{second}", 2_000.0 + second) == "accepted"

    assert reported(ids, "r-0", 2_030.0, 2_000.0) == {"late": 1}
    assert reported(ids, "r-25", 2_030.0, 2_025.0) == {"duplicate": 1}
    assert reported(ids, "new", 2_030.0, 2_005.0) == {"late": 1}, (
        "a repeat of it could not be found"
    )


def test_ids_in_one_call_count_once_and_wrong_times_are_stated():
    requests = [
        ServedRequest("a", 2_000.0, 2_001.0, 1, 1),
        ServedRequest("a", 2_000.0, 2_001.0, 1, 1),
        ServedRequest("ahead", 2_000.0, 2_011.0, 1, 1),
        ServedRequest("order", 2_001.0, 2_000.0, 1, 1),
        ServedRequest("early", 998.0, 2_000.0, 1, 1),
        ServedRequest("b", 2_000.0, 2_001.0, 1, 1),
    ]
    ids = RequestIds(120.0)

    found = ids.check(RequestColumns.of(requests), RUN, at(2_002.0))

    assert list(found.accepted.ids) == ["a", "b"]
    assert dict(found.refused) == {"duplicate": 1, "future": 1, "order": 1, "before_run": 1}


def test_ids_of_requests_that_were_not_saved_are_accepted_again():
    ids = RequestIds(120.0)
    requests = RequestColumns.of(
        [ServedRequest(name, 2_000.0, 2_001.0, 1, 1) for name in ("a", "b")]
    )

    ids.withdraw(ids.check(requests, RUN, at(2_002.0)).id_hashes[:1])

    found = ids.check(requests, RUN, at(2_003.0))
    assert (list(found.accepted.ids), dict(found.refused)) == (["a"], {"duplicate": 1})


def test_calls_without_requests_refuse_nothing():
    found = RequestIds(120.0).check(RequestColumns.of([]), RUN, at(2_000.0))

    assert (len(found.accepted), dict(found.refused)) == (0, {})


def test_requests_after_a_clock_step_back_are_accepted():
    """The wall clock is set back by 600 s; a request of the time before the step would be refused
    as late.
    """
    ids = RequestIds(120.0)
    assert reported(ids, "before", 2_000.0) == "accepted"

    assert reported(ids, "after", 1_401.0, step_s=-600.0) == "accepted"
    assert reported(ids, "after", 1_402.0, 1_401.0, step_s=-600.0) == {"duplicate": 1}
    assert reported(ids, "old", 1_402.0, 1_281.0, step_s=-600.0) == {"late": 1}
