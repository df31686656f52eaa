"""A calibration from a meter: what it corrects, what it refuses, and that the headline stays what was read."""

import json
from dataclasses import replace

import pytest

from analyzer.energy.calibration import CalibrationError, parse
from analyzer.model.devices import Calibration
from analyzer.output.documents import report_document
from analyzer.output.sections.report import report_tables
from tests.analyzer.node import Gpu, Run
from tests.analyzer.reported import BOX, codes, found, report_of

HEAD = "uuid,gain,offset_watts,uncertainty_percent,source\n"
FIRST, SECOND = (Gpu(BOX, index=index) for index in "01")
CARD = Calibration(FIRST.uuid, gain=0.96, offset_w=12, uncertainty_percent=0.5, source="bench 3")


def test_the_energy_is_corrected_beside_the_one_that_was_read(tmp_path):
    """(6,000 J - 12 W x 20 s) / 0.96 = 6,000 J: 5,760 J / 0.96; half of the interval 10 J / 0.96."""
    report = report_of(tmp_path, calibrations=[CARD])

    (gpu,) = report.gpus
    assert report.headline.value == gpu.energy.value == 6_000
    assert gpu.calibrated.value == pytest.approx(6_000)
    assert gpu.calibrated.half == pytest.approx(10 / 0.96)
    assert report.calibrated.per_unit["generated_tokens"].value == pytest.approx(6)
    assert gpu.budget.residual_j == pytest.approx(30)  # 0.5 %


def test_the_run_is_the_sum_of_its_cards_each_by_its_own_calibration(tmp_path):
    """6,000 J and, by a card that reads twice what it draws, 3,000 J."""
    other = Calibration(SECOND.uuid, gain=2, offset_w=0)

    report = report_of(tmp_path, gpus=(FIRST, SECOND), calibrations=[CARD, other])

    assert report.calibrated.energy.value == pytest.approx(9_000)
    assert report.headline.value == 12_000


def test_a_card_without_calibration_leaves_the_run_without_a_calibrated_energy(tmp_path):
    report = report_of(tmp_path, gpus=(FIRST, SECOND), calibrations=[CARD])

    assert report.calibrated.energy is None
    assert report.calibrated.per_unit == {}
    ((subject, _),) = found(report, "not_calibrated")
    assert subject == "GPU 1"


def test_work_that_was_done_in_a_phase_is_corrected_over_the_phases_time(tmp_path):
    """10 s of it: (3,000 J - 12 W x 10 s) / 0.96 = 3,000 J over 1,000 tokens."""
    run = Run(phases={"load": (10, 3_000), "measure": (10, 3_000)}, phase_work={"measure": {"generated_tokens": 1_000}})

    report = report_of(tmp_path, run, calibrations=[CARD])

    assert report.work[0].phases == ("measure",)
    assert report.calibrated.per_unit["generated_tokens"].value == pytest.approx(3)


def test_a_card_that_had_no_part_in_the_run_is_named(tmp_path):
    report = report_of(tmp_path, calibrations=[CARD, replace(CARD, uuid="GPU-elsewhere")])

    ((_, text),) = found(report, "calibration_unused")
    assert text == "the calibration of GPU-elsewhere is not used: the GPU is not in this run"
    assert "not_calibrated" not in codes(report)


def test_a_calibration_of_other_cards_alone_is_refused(tmp_path):
    with pytest.raises(CalibrationError, match=rf"has none of the run's GPUs \({FIRST.uuid}\); see their UUIDs"):
        report_of(tmp_path, calibrations=[replace(CARD, uuid="GPU-elsewhere")])


def test_calibration_table_has_energy_as_read_and_calibrated(tmp_path):
    report = report_of(tmp_path, calibrations=[CARD])

    shown = next(section for section in report_tables(report) if section.title == "Calibrated energy")
    data = report_document(report)

    assert [cell.text for cell in shown.rows[0][3:]] == ["0.96, +12 W", "± 0.5 %", "bench 3"]
    assert shown.notes[0].startswith("All other figures of this report are as read")
    assert data["energy"]["gpu"]["energy_joules"] == 6_000
    assert data["calibrated"]["energy_joules"] == pytest.approx(6_000)
    assert data["calibrated"]["devices"][0]["gain"] == 0.96


def test_budget_calibrated_gpu_has_no_calibration_advice(tmp_path):
    """Its ± 0.5 % of 6,000 J are more than the ± 10 J of the ledger."""
    tables = report_tables(report_of(tmp_path, calibrations=[CARD]))
    shown = next(table for table in tables if table.title == "Uncertainty budget")

    assert "Largest part: residual of the calibration." in " ".join(shown.notes)
    assert "--calibration" not in " ".join(shown.notes)


def test_a_csv_and_a_yaml_file_say_the_same():
    csv = parse(f"# by the meter of bench 3\n{HEAD}GPU-0,0.954,-1.2,0.5,bench 3\nGPU-1,1.01,0,,\n", "cards.csv")
    yaml = parse(
        "cards:\n- {uuid: GPU-0, gain: 0.954, offset_watts: -1.2, uncertainty_percent: 0.5, source: bench 3}\n"
        "- {uuid: GPU-1, gain: 1.01, offset_watts: 0}\n",
        "cards.yaml",
    )

    assert csv == yaml
    assert csv[0] == Calibration("GPU-0", 0.954, -1.2, 0.5, "bench 3")
    assert csv[1].uncertainty_percent is None


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (f"{HEAD}GPU-0,0,0,,\n", "c.csv", "c.csv, entry 1: gain is 0; it is the ratio of reading to true power"),
        (f"{HEAD}GPU-0,-1,0,,\n", "c.csv", "gain is -1"),
        (f"{HEAD}GPU-0,nan,0,,\n", "c.csv", "gain is 'nan'; it must be a number"),
        (f"{HEAD}GPU-0,1,0,,\nGPU-0,1,1,,\n", "c.csv", "c.csv, entry 2: GPU-0 occurs twice"),
        (f"{HEAD}GPU-a,1,0,,\ngpu-A,1,1,,\n", "c.csv", "c.csv, entry 2: gpu-A occurs twice"),
        (f"{HEAD}GPU-0,1,,,\n", "c.csv", "offset_watts is missing"),
        (f"{HEAD}GPU-0,1,0,-2,\n", "c.csv", "uncertainty_percent is -2"),
        ("uuid,gain,offset_watts,colour\nGPU-0,1,0,red\n", "c.csv", "unknown key 'colour'; the keys are uuid, gain"),
        (f"{HEAD}GPU-0,1,0,,,,\n", "c.csv", "unknown key 'None'; the keys are"),
        ("", "c.csv", "c.csv has no calibration; it needs rows of"),
        ("[1, 2]", "c.yaml", "c.yaml is not a list of GPUs"),
        ("a: [", "c.yaml", "c.yaml is not valid YAML"),
        ("- {uuid: GPU-0, gain: [1], offset_watts: 0}", "c.yaml", "gain is [1]; it must be a number"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused_in_one_line(text, name, reason):
    with pytest.raises(CalibrationError) as refused:
        parse(text, name)

    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def options(steady_history):
    return ["report", "--source", steady_history, "--since", "9000d", "--run-id", "train-1"]


def test_the_command_takes_the_file_and_refuses_a_bad_one_as_a_usage_error(analyzer, options, tmp_path):
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(f"{HEAD}{FIRST.uuid},2,0,,\n{SECOND.uuid},2,0,,\n")
    bad.write_text(f"{HEAD}{FIRST.uuid},0,0,,\n")

    told = analyzer(*options, "--calibration", good, "--format", "json")
    refused = analyzer(*options, "--calibration", bad)
    absent = analyzer(*options, "--calibration", tmp_path / "absent.csv")

    assert json.loads(told.stdout)["calibrated"]["energy_joules"] == 6_000  # 2 x 6,000 J read, by a gain of 2
    assert (refused.returncode, absent.returncode) == (2, 2)
    assert "gain is 0" in refused.stderr
    assert "No such file" in absent.stderr
    assert "Traceback" not in refused.stderr + absent.stderr
