"""Durations and times as users and tools write them."""

from datetime import UTC, timedelta, timezone

import pytest

from analyzer.model.time_text import NoTimeZoneError, names_zone, parse_date, parse_duration, parse_moment

AT_S = 1_789_000_000  # 2026-09-10T00:26:40Z


@pytest.mark.parametrize(("text", "duration_s"), [("90s", 90), ("1.5m", 90), ("12h", 43_200), ("30d", 2_592_000)])
def test_parse_duration_returns_seconds(text, duration_s):
    assert parse_duration(text) == duration_s


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
    [("1789000000", True), ("2026-09-10T00:26:40Z", True), ("2026-09-10T00:26+0100", True), ("2026-09-10", False)],
)
def test_names_zone_tells_whether_a_zone_is_needed(text, expected):
    assert names_zone(text) is expected
