"""Reader of carbon intensities in CSV files."""

import json
from datetime import UTC, datetime

import pytest

from wattline_analyzer.carbon import intensity_file as carbon_file
from wattline_analyzer.core.sources.base import FetchError

REPORT = ("report", "--run-id", "train-1", "--since", "36500d", "--format", "json")


def write(path, *lines):
    path.write_text("\n".join([*lines, ""]))
    return path


def test_read_carbon_file_slot_ends_before_gap(tmp_path):
    path = write(
        tmp_path / "grid.csv",
        "time,g_per_kwh",
        "2026-09-10T00:00Z,100",
        "2026-09-10T02:30:00+02:00,200",
        f"{datetime(2026, 9, 10, 1, tzinfo=UTC).timestamp():.0f},300",
        "2026-09-10T09:00Z,400",
    )
    midnight_s = datetime(2026, 9, 10, tzinfo=UTC).timestamp()

    (result,) = carbon_file.read_carbon_file(path)

    assert [
        (s.start_s - midnight_s, s.end_s - midnight_s, s.grams_per_kwh) for s in result.slots
    ] == [
        (0, 1_800, 100),
        (1_800, 3_600, 200),
        (3_600, 5_400, 300),
        (32_400, 34_200, 400),
    ]
    assert (result.basis, result.slots[0].quality) == ("average", "unknown")


def test_read_carbon_file_separates_both_bases(tmp_path):
    rows = [
        f"{t},{grams},{basis},forecast,5"
        for t in (0, 300)
        for grams, basis in ((100, "average"), (400, "marginal"))
    ]

    result = carbon_file.read_carbon_file(
        write(tmp_path / "both.csv", "time,g_per_kwh,basis,quality,sigma_g_per_kwh", *rows)
    )

    assert [
        (entry.basis, entry.slots[0].grams_per_kwh, entry.slots[0].sigma_g_per_kwh)
        for entry in result
    ] == [
        ("average", 100, 5),
        ("marginal", 400, 5),
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["when,what", "1,2"], "it has the columns when, what"),
        (["time,g_per_kwh"], "it has no rows"),
        (["time,g_per_kwh", "2026-09-10T00:00,100"], "line 2: time has no time zone"),
        (["time,g_per_kwh", "yesterday,100"], "line 2: time: expected ISO 8601 or Unix seconds"),
        (
            ["time,g_per_kwh", "1789000000000,100", "1789001800000,100"],
            "line 2: time: expected Unix seconds, not 1789",
        ),
        (
            ["time,g_per_kwh", "0,100", "1800,many"],
            "line 3: g_per_kwh: expected a number, not 'many'",
        ),
        (["time,g_per_kwh", "0,nan"], "line 2: g_per_kwh: expected 0 to 5000 g/kWh, not nan"),
        (["time,g_per_kwh", "0,-5"], "expected 0 to 5000 g/kWh, not -5"),
        (["time,g_per_kwh", "0,5", "0,6"], "two rows of one time"),
        (["time,g_per_kwh", "0,5"], "it has one row"),
        (["time,g_per_kwh,basis", "0,5,mean"], "basis: expected average or marginal, not 'mean'"),
        (["time,g_per_kwh", "0"], "g_per_kwh: expected a number, not ''"),
    ],
)
def test_read_carbon_file_invalid_names_line(tmp_path, lines, expected):
    with pytest.raises(FetchError, match=r"\w") as raised:
        carbon_file.read_carbon_file(write(tmp_path / "bad.csv", *lines))

    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_report_restate_invalid_file_is_rejected(analyzer, steady_history, tmp_path):
    nothing = analyzer(*REPORT, "--source", steady_history, "--restate", "grid.csv")
    bad = write(tmp_path / "bad.csv", "time,g_per_kwh", "0,many")
    broken = analyzer(*REPORT, "--source", steady_history, "--restate", bad)

    assert (nothing.returncode, nothing.stdout, nothing.stderr.count("\n")) == (2, "", 1)
    assert "nor an existing file" in nothing.stderr
    assert (broken.returncode, broken.stdout, broken.stderr.count("\n")) == (1, "", 1)
    assert "line 2: g_per_kwh: expected a number" in broken.stderr


@pytest.mark.parametrize(
    ("hours", "reason"),
    [
        ((2, 3), "grid.csv starts at 2026-09-10T02:00:00Z, after the run"),
        ((-3, -2), "grid.csv ends at 2026-09-09T23:00:00Z, before the run"),
        ((-5, -4, 2, 3), "grid.csv has no value for the time of the run"),
    ],
)
def test_report_restate_file_without_the_run_is_not_restated(
    analyzer, steady_history, tmp_path, hours, reason
):
    """The run is at 00:26:40 UTC."""
    midnight_s = datetime(2026, 9, 10, tzinfo=UTC).timestamp()
    grid = write(
        tmp_path / "grid.csv",
        "time,g_per_kwh",
        *(f"{midnight_s + 3_600 * hour},200" for hour in hours),
    )

    completed = analyzer(*REPORT, "--source", steady_history, "--restate", grid, "--carbon", "360")
    document = json.loads(completed.stdout)

    (finding,) = [one for one in document["findings"] if one["code"] == "not_restated"]
    assert finding["text"].startswith(f"not restated: {reason}")
    assert document["restated_emissions"] == []
    assert [one["emissions_grams"] for one in document["emissions"]] == [pytest.approx(1.2)]
