"""Command `best-start`."""

import json
import time
from datetime import UTC, datetime

import pytest

from tests.analyzer.forecasts import NIGHT_FORECAST, current_intensity, forecast_series
from tests.analyzer.node import START_S, NodeGpu, NodeRun, series_of_scrapes, write_history
from tests.analyzer.run_reports import run_frames

HOUR_S = 3_600.0
JOULES = 3.6e6


def exported_forecast(now_s, by_hour, **labels):
    return [*current_intensity(now_s, by_hour[0], **labels), *forecast_series(by_hour, **labels)]


def test_best_start_uses_newest_scrape_of_exporter(analyzer, tmp_path):
    """1 kWh over an hour: 300 g now, 90 g in 10 hours."""
    now_s = time.time()
    older = [500.0] * 49
    scrapes = [
        (now_s - 300, exported_forecast(now_s - 300, older)),
        (now_s - 5, exported_forecast(now_s - 5, NIGHT_FORECAST)),
    ]
    source = write_history(tmp_path, series_of_scrapes(scrapes))

    call = ("best-start", "--source", source, "--energy-kwh", "1", "--hours", "1")
    table, data = analyzer(*call), analyzer(*call, "--format", "json")

    result = json.loads(data.stdout)
    assert (table.returncode, table.stderr) == (0, "")
    assert table.stdout.startswith("start at ")
    assert "saves 70 % compared with now" in table.stdout
    assert result["now"]["emissions_grams"] == pytest.approx(300)
    assert result["best"]["emissions_grams"] == pytest.approx(90)
    assert (
        9.4 <= (result["best"]["start_unix_seconds"] - now_s) / HOUR_S <= 10.1
    )  # an hour's intensity applies from half an hour before
    assert result["forecast"]["age_seconds"] == pytest.approx(605, abs=60)
    assert result["forecast"]["basis"] == "average"


def test_best_start_takes_forecast_from_file_and_run_from_source(analyzer, tmp_path):
    """The run of 20 s and 6,000 J fits in one slot at any start: 6,000 J at 50 g/kWh at best."""
    gpu = NodeGpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)])
    run_frames(tmp_path, NodeRun(), gpus=[gpu])
    begin_s = time.time() // HOUR_S * HOUR_S
    rows = [
        f"{datetime.fromtimestamp(begin_s + n * HOUR_S, UTC).isoformat()},{grams}"
        for n, grams in enumerate([200] * 5 + [50] * 5)
    ]
    (tmp_path / "grid.csv").write_text("\n".join(["time,g_per_kwh", *rows, ""]))

    completed = analyzer(
        *(
            "best-start",
            "--run-id",
            "train-1",
            "--since",
            "36500d",
            "--source",
            tmp_path / "history.sqlite",
        ),
        *("--forecast", tmp_path / "grid.csv", "--format", "json"),
    )

    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert (result["boundary"], result["duration_seconds"]) == ("gpu", pytest.approx(20))
    assert result["best"]["emissions_grams"] == pytest.approx(6_000 / JOULES * 50)
    assert result["best"]["start_unix_seconds"] == pytest.approx(begin_s + 5 * HOUR_S)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "give --run-id of a similar run, or both --energy-kwh and --hours"),
        (["--energy-kwh", "1"], 2, "both --energy-kwh and --hours"),
        (["--energy-kwh", "inf", "--hours", "1"], 2, "--energy-kwh: expected more than 0, not inf"),
        (["--energy-kwh", "0", "--hours", "1"], 2, "--energy-kwh: expected more than 0, not 0"),
        (
            ["--energy-kwh", "1", "--hours", "1", "--forecast", "f.csv", "--region", "GB"],
            2,
            "leave it out with",
        ),
        (["--energy-kwh", "1", "--hours", "0"], 2, "--hours: expected more than 0"),
        (
            ["--energy-kwh", "1", "--hours", "1", "--run-id", "x"],
            2,
            "--run-id excludes --energy-kwh",
        ),
        (
            ["--energy-kwh", "1", "--hours", "1", "--within", "2"],
            2,
            "--within: expected a duration above 0 in s",
        ),
        (
            ["--energy-kwh", "1", "--hours", "1"],
            1,
            "has no forecast of average intensity from the last 24 h",
        ),
        (
            ["--energy-kwh", "1", "--hours", "1", "--forecast", "nowhere.csv"],
            1,
            "cannot read nowhere.csv",
        ),
    ],
)
def test_best_start_invalid_options_are_one_line_error(
    analyzer, steady_history, options, code, message
):
    completed = analyzer("best-start", "--source", steady_history, *options)

    assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (code, "", 1)
    assert message in completed.stderr


def test_best_start_two_regions_need_option_region(analyzer, tmp_path):
    now_s = time.time()
    both = [
        *exported_forecast(now_s - 5, NIGHT_FORECAST),
        *exported_forecast(now_s - 5, [100.0] * 49, region="London"),
    ]
    source = write_history(tmp_path, series_of_scrapes([(now_s - 5, both)]))
    call = (
        "best-start",
        "--source",
        source,
        "--energy-kwh",
        "1",
        "--hours",
        "1",
        "--format",
        "json",
    )

    neither, named = analyzer(*call), analyzer(*call, "--region", "London")

    assert neither.returncode == 1
    assert "has forecasts for GB, London; select one with --region" in neither.stderr
    assert json.loads(named.stdout)["best"]["emissions_grams"] == pytest.approx(100)
    assert json.loads(named.stdout)["clear"] is False
