"""Durations and times as users and tools write them."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_analyzer.core.times import (
    LocalTimeError,
    LogTimes,
    NoTimeZoneError,
    SystemZone,
    names_zone,
    parse_date,
    parse_duration,
    parse_moment,
)

AT_S = 1_789_000_000  # 2026-09-10T00:26:40Z


@pytest.mark.parametrize(
    ("text", "duration_s"), [("90s", 90), ("1.5m", 90), ("12h", 43_200), ("30d", 2_592_000)]
)
def test_parse_duration_returns_seconds(text, duration_s):
    assert parse_duration(text) == duration_s


@pytest.mark.parametrize(("text", "duration_s"), [("5", 5), ("0.5", 0.5), ("5m", 300)])
def test_parse_duration_number_alone_has_the_unit(text, duration_s):
    assert parse_duration(text, unit="s") == duration_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("soon", "expected a duration above 0"),
        ("0d", "expected a duration above 0"),
        ("5", "expected a duration above 0"),
        ("-5m", "expected a duration above 0"),
        ("1000000d", "expected at most 100000d"),
    ],
)
def test_parse_duration_invalid_names_expected_form(text, expected):
    with pytest.raises(ValueError, match=expected):
        parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "1789000000",
        "1789000000.0",
        "1789000000000",
        "1789000000000000",
        "1789000000000000000",
        "2026-09-10T00:26:40Z",
        "2026-09-10T02:26:40+02:00",
        "2026/09/10 00:26:40.000",
        " 2026-09-10T00:26:40 ",
    ],
)
def test_parse_moment_accepts_unix_times_and_dates(text):
    assert parse_moment(text, UTC) == AT_S


def test_parse_moment_date_without_zone_uses_given_zone():
    assert parse_moment("2026-09-10T00:26:40", timezone(timedelta(hours=1))) == AT_S - 3_600


@pytest.mark.parametrize("text", ["yesterday", "", "5", "12:00"])
def test_parse_moment_invalid_is_rejected(text):
    with pytest.raises(ValueError, match="is neither a date nor a Unix time"):
        parse_moment(text, UTC)


def test_parse_date_without_any_zone_is_rejected():
    with pytest.raises(NoTimeZoneError, match="has no time zone"):
        parse_date("2026-09-10T00:26:40")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1789000000", True),
        ("2026-09-10T00:26:40Z", True),
        ("2026-09-10T00:26+0100", True),
        ("2026-09-10", False),
    ],
)
def test_names_zone_tells_whether_a_zone_is_needed(text, expected):
    assert names_zone(text) is expected


BERLIN = ZoneInfo("Europe/Berlin")
SET_BACK_S = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
"""Time at which clocks in Berlin are set back from 03:00 to 02:00."""


@pytest.fixture(params=["zoneinfo", "system"])
def berlin(request, local_zone):
    """Berlin's time zone, by name and as the local one."""
    if request.param == "zoneinfo":
        return BERLIN
    local_zone("Europe/Berlin")
    return SystemZone()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-07-01T10:00", "2026-07-01T08:00Z"),
        ("2026-12-01T10:00", "2026-12-01T09:00Z"),
        ("2026-10-25T01:59:59", "2026-10-24T23:59:59Z"),
        ("2026-10-25T03:00", "2026-10-25T02:00Z"),
        ("2026-10-25T02:30+02:00", "2026-10-25T00:30Z"),
        ("2026-10-25T02:30+01:00", "2026-10-25T01:30Z"),
        ("2026-03-29T03:00", "2026-03-29T01:00Z"),
    ],
)
def test_parse_moment_uses_the_offset_valid_at_that_time(berlin, text, expected):
    assert parse_moment(text, berlin) == parse_moment(expected, UTC)


def test_parse_moment_in_repeated_hour_is_refused_with_both_offsets(berlin):
    with pytest.raises(
        LocalTimeError, match=r"occurs twice.*02:30:00\+02:00 or 2026-10-25T02:30:00\+01:00"
    ) as error:
        parse_moment("2026-10-25T02:30", berlin)

    assert (error.value.first_s, error.value.second_s) == (SET_BACK_S - 1_800, SET_BACK_S + 1_800)


def test_parse_moment_in_skipped_hour_is_refused(berlin):
    with pytest.raises(LocalTimeError, match="does not exist"):
        parse_moment("2026-03-29T02:30", berlin)


@given(
    st.sampled_from(["2026-10-25T01:00Z", "2026-03-29T01:00Z", "2026-07-01T01:00Z"]),
    st.integers(-10_000, -3_601),
    st.floats(0.5, 900),
    st.integers(2, 40),
)
def test_log_times_that_rise_across_a_change_are_exact(change, first_s, step_s, count):
    """The local times of a log that begins before the repeated hour give back its Unix times."""
    times_s = [round(parse_moment(change, UTC) + first_s + step_s * n, 3) for n in range(count)]
    log = LogTimes(BERLIN)

    parsed_s = [
        log.parse(f"{datetime.fromtimestamp(t_s, BERLIN):%Y/%m/%d %H:%M:%S.%f}"[:-3])
        for t_s in times_s
    ]

    assert parsed_s == pytest.approx(times_s, abs=0.0011)
    assert all(after > before for before, after in pairwise(parsed_s))
