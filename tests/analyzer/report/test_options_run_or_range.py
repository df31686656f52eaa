"""Options of a run or a time range."""

import time

import pytest
import typer

from wattline_analyzer.core.options import moment_option
from wattline_analyzer.report.options import RunOrRangeOptions
from wattline_analyzer.report.untagged.request import SCHEMA_NAMES, TOKEN_SERVER_NAMES
from wattline_analyzer.report.untagged.schemas import BY_NAME
from wattline_analyzer.report.untagged.tokens import TOKEN_SERVERS


def test_option_names_equal_schema_names():
    assert tuple(BY_NAME) == SCHEMA_NAMES
    assert tuple(TOKEN_SERVERS) == TOKEN_SERVER_NAMES


def test_request_of_run_id_is_the_id():
    assert RunOrRangeOptions(run_id="train-1").request() == "train-1"


@pytest.mark.parametrize(
    ("start", "end", "begin_s", "duration_s"),
    [
        ("2026-09-10T00:26:40Z", "2026-09-10T02:36:40+02:00", 1_789_000_000, 600),
        ("1789000000", "1789000000.5", 1_789_000_000, 0.5),
    ],
)
def test_request_accepts_iso_with_zone_and_unix_seconds(start, end, begin_s, duration_s, capsys):
    request = RunOrRangeOptions(start=start, end=end).request()

    assert (request.start_s, request.end_s - request.start_s) == (begin_s, duration_s)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("zone", "start", "expected"),
    [
        ("Asia/Tokyo", "2026-09-10T09:26:40", (1_789_000_000, "+0900")),
        ("Europe/Berlin", "2026-07-01T10:00", (1_782_892_800, "+0200")),
        ("Europe/Berlin", "2026-11-01T10:00", (1_793_523_600, "+0100")),
    ],
)
def test_request_time_without_zone_is_local_with_message(local_zone, capsys, zone, start, expected):
    """The offset is the one at that time, in summer and in winter."""
    local_zone(zone)

    assert moment_option(start, "--start", time.time()) == expected[0]
    assert (
        f"--start names no time zone: using local time ({expected[1]})" in capsys.readouterr().err
    )


def test_request_time_in_repeated_hour_names_both_offsets(local_zone):
    local_zone("Europe/Berlin")

    with pytest.raises(
        typer.BadParameter, match=r"--start: .*occurs twice.*02:30:00\+02:00 or .*02:30:00\+01:00"
    ):
        RunOrRangeOptions(start="2025-10-26T02:30", end="2025-10-26T05:00").request()
    request = RunOrRangeOptions(
        start="2025-10-26T02:30+02:00", end="2025-10-26T02:30+01:00"
    ).request()
    assert request.end_s - request.start_s == 3_600


def test_request_accepts_times_relative_to_now():
    before_s = time.time()
    request = RunOrRangeOptions(start="-2h", end="-90m").request()
    until_now = RunOrRangeOptions(start="-2h").request()

    assert before_s - 7_200 <= request.start_s <= time.time() - 7_200
    assert request.end_s - request.start_s == pytest.approx(1_800)
    assert before_s <= until_now.end_s <= time.time()


def test_request_parses_labels_and_rapl_ranges():
    request = RunOrRangeOptions(
        start="-1h",
        gpus="0, GPU-3F2A9C1E-0b7d-4e55-9d1a-5a6b7c8d9e00",
        matching='{cluster="a, b",pod="say \\"x\\""}',
        tokens="vllm",
        tokens_matching='model_name="m"',
        rapl_range_joules="package=262143.32885,dram=65712.999613",
    ).request()

    assert request.gpus == ("0", "GPU-3F2A9C1E-0b7d-4e55-9d1a-5a6b7c8d9e00")
    assert request.matching == {"cluster": "a, b", "pod": 'say "x"'}
    assert request.tokens_matching == {"model_name": "m"}
    assert request.rapl_ranges_j == {"package": 262_143.32885, "dram": 65_712.999613}
    both = RunOrRangeOptions(start="-1h", rapl_range_joules="65536").request()
    assert both.rapl_ranges_j == {"package": 65_536.0, "dram": 65_536.0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"run_id": "x", "start": "-1h"}, "give one of them"),
        ({"end": "now"}, "also give --start"),
        ({"run_id": "x", "tokens": "vllm"}, "--tokens is for a time range"),
        ({}, "give its ID"),
        ({"start": "yesterday"}, "'yesterday' is neither a date nor a Unix time"),
        ({"start": "-1y"}, "--start: expected a duration above 0 in s, m, h or d"),
        ({"start": "-1h", "end": "-2h"}, "--end is not after --start"),
        ({"start": "-1h", "end": "2099-01-01"}, "lies in the future"),
        ({"start": "2099-01-01"}, "--start is not before now"),
        ({"start": "-1h", "schema": "telegraf"}, "--schema: expected one of auto, wattline"),
        ({"start": "-1h", "tokens": "triton"}, "--tokens: expected one of vllm"),
        ({"start": "-1h", "matching": "pod=x"}, '--matching: expected label="value"'),
        ({"start": "-1h", "node": "gpu["}, "--node: expected a regular expression"),
        ({"start": "-1h", "rapl_range_joules": "core=7"}, "--rapl-range-joules: expected joules"),
        ({"start": "-1h", "rapl_range_joules": "-7"}, "--rapl-range-joules: expected joules"),
    ],
)
def test_request_invalid_option_names_cause(options, expected):
    with pytest.raises(typer.BadParameter) as error:
        RunOrRangeOptions(**options).request()

    assert expected in str(error.value)


def test_request_usage_error_is_one_line_with_exit_code_2(analyzer):
    completed = analyzer("report", "--run-id", "x", "--start", "-1h")

    assert completed.returncode == 2
    assert completed.stderr.count("\n") == 1
    assert "give one of them" in completed.stderr
