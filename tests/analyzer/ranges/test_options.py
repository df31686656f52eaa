"""How a range is asked for on the command line."""

import time

import pytest
import typer

from analyzer.commands.options.time_range import _options
from analyzer.sources.untagged.schema_names import SCHEMA_NAMES, TOKEN_SERVER_NAMES
from analyzer.sources.untagged.schemas import BY_NAME
from analyzer.sources.untagged.token_servers import TOKEN_SERVERS


def test_the_names_that_are_typed_are_those_of_the_tables():
    assert tuple(BY_NAME) == SCHEMA_NAMES
    assert tuple(TOKEN_SERVERS) == TOKEN_SERVER_NAMES


def test_a_run_is_asked_for_by_its_id():
    assert _options(run_id="train-1") == "train-1"


@pytest.mark.parametrize(
    ("start", "end", "begin_s", "duration_s"),
    [
        ("2026-09-10T00:26:40Z", "2026-09-10T02:36:40+02:00", 1_789_000_000, 600),
        ("1789000000", "1789000000.5", 1_789_000_000, 0.5),
    ],
)
def test_times_are_iso_with_a_zone_or_unix_seconds(start, end, begin_s, duration_s, capsys):
    asked = _options(start=start, end=end)

    assert (asked.start_s, asked.end_s - asked.start_s) == (begin_s, duration_s)
    assert capsys.readouterr().err == ""


def test_a_time_without_a_zone_is_this_machines_and_that_is_said(monkeypatch, capsys):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        asked = _options(start="2026-09-10T09:26:40", end="2026-09-10T00:36:40Z")
        assert asked.start_s == 1_789_000_000
        assert "--start names no zone: it is read as this machine's (+0900)" in capsys.readouterr().err
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_may_be_told_from_now_on_backwards():
    before_s = time.time()
    asked = _options(start="-2h", end="-90m")
    until_now = _options(start="-2h")

    assert before_s - 7_200 <= asked.start_s <= time.time() - 7_200
    assert asked.end_s - asked.start_s == pytest.approx(1_800)
    assert before_s <= until_now.end_s <= time.time()


def test_labels_and_ranges_are_read_as_promql_and_sysfs_write_them():
    asked = _options(
        start="-1h",
        gpus="0, GPU-3F2A9C1E-0b7d-4e55-9d1a-5a6b7c8d9e00",
        matching='{cluster="a, b",pod="say \\"x\\""}',
        tokens="vllm",
        tokens_matching='model_name="m"',
        rapl_range_joules="package=262143.32885,dram=65712.999613",
    )

    assert asked.gpus == ("0", "GPU-3F2A9C1E-0b7d-4e55-9d1a-5a6b7c8d9e00")
    assert asked.matching == {"cluster": "a, b", "pod": 'say "x"'}
    assert asked.tokens_matching == {"model_name": "m"}
    assert asked.rapl_ranges_j == {"package": 262_143.32885, "dram": 65_712.999613}
    assert _options(start="-1h", rapl_range_joules="65536").rapl_ranges_j == {"package": 65_536.0, "dram": 65_536.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"run_id": "x", "start": "-1h"}, "give one of them"),
        ({"end": "now"}, "give its --start"),
        ({"run_id": "x", "tokens": "vllm"}, "--tokens is for a range"),
        ({}, "give --run-id"),
        ({"start": "yesterday"}, "'yesterday' is no time"),
        ({"start": "-1y"}, "--start is a number with s, m, h or d"),
        ({"start": "-1h", "end": "-2h"}, "--end is not after --start"),
        ({"start": "-1h", "end": "2099-01-01"}, "lies in the future"),
        ({"start": "2099-01-01"}, "--start is not before now"),
        ({"start": "-1h", "schema": "telegraf"}, "--schema is one of auto, wattline"),
        ({"start": "-1h", "tokens": "triton"}, "--tokens is one of vllm"),
        ({"start": "-1h", "matching": "pod=x"}, '--matching is label="value"'),
        ({"start": "-1h", "node": "gpu["}, "--node is a regular expression"),
        ({"start": "-1h", "rapl_range_joules": "core=7"}, "--rapl-range-joules is joules"),
        ({"start": "-1h", "rapl_range_joules": "-7"}, "--rapl-range-joules is joules"),
    ],
)
def test_what_cannot_be_understood_is_said(given, said):
    with pytest.raises(typer.BadParameter) as error:
        _options(**given)

    assert said in str(error.value)


def test_on_the_command_line_that_is_one_line_and_exit_code_2(analyzer):
    done = analyzer("report", "--run-id", "x", "--start", "-1h")

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "give one of them" in done.stderr
