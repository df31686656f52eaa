"""Options with figures that the user supplies."""

import json

import pytest

from tests.analyzer.report.test_calibration import FIRST, HEAD, SECOND


def test_report_pue_and_price_are_used_and_invalid_values_rejected(analyzer, steady_history):
    valid = analyzer(
        *("report", "--run-id", "train-1", "--source", steady_history, "--format", "json"),
        *("--since", "36500d", "--pue", "1.5", "--price", "0.3", "--currency", "EUR"),
    )
    below = analyzer("report", "--run-id", "train-1", "--source", steady_history, "--pue", "0.9")
    alone = analyzer(
        "report", "--run-id", "train-1", "--source", steady_history, "--currency", "EUR"
    )

    assert valid.stderr == ""
    energies = {
        entry["name"]: entry["energy_joules"] for entry in json.loads(valid.stdout)["boundaries"]
    }
    assert energies == {"gpu": 12_000, "gpu × PUE 1.5": 18_000}
    assert (below.returncode, below.stdout) == (2, "")
    assert (
        "--price: expected a finite number, not inf"
        in analyzer("report", "--run-id", "x", "--price", "inf").stderr
    )
    assert (alone.returncode, alone.stderr.count("\n")) == (2, 1)
    assert "--price" in alone.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--price", "1e308"], "--price: expected at most 1e+09, not 1e+308"),
        (
            ["--embodied-kg", "1e308", "--lifetime-years", "4"],
            "--embodied-kg: expected at most 1e+09, not 1e+308",
        ),
        (
            ["--embodied-kg", "1", "--lifetime-years", "1e-308"],
            "--lifetime-years: expected at least 0.01, such as 4",
        ),
        (["--carbon", "1e308"], "less than or equal to 5000"),
        (["--carbon", "nan"], "--carbon"),
        (
            ["--restate", "gb", "--restate", "static:GB"],
            "--restate: average intensities of several providers cannot be added; name one",
        ),
        (
            ["--restate", "watttime", "--restate", "gb", "--restate", "nowhere"],
            "--restate: nowhere is neither a provider (electricitymaps, energy-charts, gb, ",
        ),
    ],
)
def test_report_figure_beyond_its_range_is_rejected_in_one_line(call, options, message):
    code, stdout, stderr = call("report", "--run-id", "train-1", *options)

    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert message in stderr


@pytest.fixture
def report_options(steady_history):
    return ["report", "--source", steady_history, "--since", "9000d", "--run-id", "train-1"]


def test_report_calibration_file_is_used_and_invalid_file_rejected(
    analyzer, report_options, tmp_path
):
    valid, invalid = tmp_path / "good.csv", tmp_path / "bad.csv"
    valid.write_text(f"{HEAD}{FIRST.uuid},2,0,,\n{SECOND.uuid},2,0,,\n")
    invalid.write_text(f"{HEAD}{FIRST.uuid},0,0,,\n")

    completed = analyzer(*report_options, "--calibration", valid, "--format", "json")
    rejected = analyzer(*report_options, "--calibration", invalid)
    absent = analyzer(*report_options, "--calibration", tmp_path / "absent.csv")

    assert (
        json.loads(completed.stdout)["calibrated"]["energy_joules"] == 6_000
    )  # 2 x 6,000 J read, by a gain of 2
    assert (rejected.returncode, absent.returncode) == (2, 2)
    assert "gain is 0" in rejected.stderr
    assert "No such file" in absent.stderr
    assert "Traceback" not in rejected.stderr + absent.stderr


def test_report_embodied_emissions_need_mass_and_lifetime(analyzer, steady_history):
    call = (
        "report",
        "--run-id",
        "train-1",
        "--since",
        "36500d",
        "--source",
        steady_history,
        "--format",
        "json",
    )

    complete = analyzer(
        *call, "--carbon", "360", "--embodied-kg", "1576.8", "--lifetime-years", "4"
    )
    half = analyzer(*call, "--embodied-kg", "1500")

    (sci,) = json.loads(complete.stdout)["software_carbon_intensity"]
    assert sci["operational_grams"] == pytest.approx(1.2)  # two GPUs
    assert sci["embodied_grams"] == pytest.approx(0.25)
    assert sci["sci_grams_per_unit"]["generated_tokens"] == pytest.approx(0.00145)
    assert sci["sci_uncertainty_grams_per_run"] == pytest.approx(
        1.2 * 20 / 12_000
    )  # ± 10 J of each GPU are 20 J
    assert sci["sci_uncertainty_grams_per_unit"]["generated_tokens"] == pytest.approx(
        1.2 * 20 / 12_000 / 1_000
    )
    assert (half.returncode, half.stderr.count("\n")) == (2, 1)
    assert "--lifetime-years" in half.stderr
