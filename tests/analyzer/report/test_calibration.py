"""Calibration of GPU power sensors, and its file."""

from dataclasses import replace

import pytest

from tests.analyzer.node import NodeGpu, NodeRun
from tests.analyzer.run_reports import POWER_STEPS, finding_codes, finding_texts, run_report
from wattline_analyzer.core.devices import Calibration
from wattline_analyzer.report.calibration import CalibrationError, parse_calibrations
from wattline_analyzer.report.document import report_document
from wattline_analyzer.report.sections.report import report_tables

HEAD = "uuid,gain,offset_watts,uncertainty_percent,source\n"
FIRST, SECOND = (NodeGpu(POWER_STEPS, index=index) for index in "01")
CALIBRATION = Calibration(
    FIRST.uuid, gain=0.96, offset_w=12, uncertainty_percent=0.5, source="bench 3"
)


def test_calibration_corrects_energy_and_keeps_headline_as_read(tmp_path):
    """(6,000 J - 12 W x 20 s) / 0.96 = 6,000 J; the half-width is 10 J / 0.96."""
    report = run_report(tmp_path, calibrations=[CALIBRATION])

    (gpu,) = report.gpus
    assert report.headline.value == gpu.energy.value == 6_000
    calibrated = report.calibrated.gpus[gpu.key].energy
    assert calibrated.value == pytest.approx(6_000)
    assert calibrated.half_width == pytest.approx(10 / 0.96)
    assert report.calibrated.per_unit["generated_tokens"].value == pytest.approx(6)
    assert report.budgets[gpu.key].residual_j == pytest.approx(30)  # 0.5 %


def test_calibration_run_energy_sums_gpus_with_separate_calibrations(tmp_path):
    """6,000 J, and 3,000 J of a GPU whose sensor reads twice the true power."""
    other = Calibration(SECOND.uuid, gain=2, offset_w=0)

    report = run_report(tmp_path, gpus=(FIRST, SECOND), calibrations=[CALIBRATION, other])

    assert report.calibrated.energy.value == pytest.approx(9_000)
    assert report.headline.value == 12_000


def test_calibration_missing_for_one_gpu_leaves_run_uncalibrated(tmp_path):
    report = run_report(tmp_path, gpus=(FIRST, SECOND), calibrations=[CALIBRATION])

    assert report.calibrated.energy is None
    assert report.calibrated.per_unit == {}
    ((subject, _),) = finding_texts(report, "not_calibrated")
    assert subject == "GPU 1"


def test_calibration_phase_work_is_corrected_over_phase_time(tmp_path):
    """10 s in the phase: (3,000 J - 12 W x 10 s) / 0.96 = 3,000 J for 1,000 tokens."""
    run = NodeRun(
        phases={"load": (10, 3_000), "measure": (10, 3_000)},
        phase_work={"measure": {"generated_tokens": 1_000}},
    )

    report = run_report(tmp_path, run, calibrations=[CALIBRATION])

    assert report.work[0].phases == ("measure",)
    assert report.calibrated.per_unit["generated_tokens"].value == pytest.approx(3)


def test_calibration_of_gpu_outside_run_is_reported_unused(tmp_path):
    report = run_report(
        tmp_path, calibrations=[CALIBRATION, replace(CALIBRATION, uuid="GPU-elsewhere")]
    )

    ((_, text),) = finding_texts(report, "calibration_unused")
    assert text == "the calibration of GPU-elsewhere is not used: the GPU is not in this run"
    assert "not_calibrated" not in finding_codes(report)


def test_calibration_without_gpu_of_run_is_rejected(tmp_path):
    with pytest.raises(
        CalibrationError, match=rf"has none of the run's GPUs \({FIRST.uuid}\); see their UUIDs"
    ):
        run_report(tmp_path, calibrations=[replace(CALIBRATION, uuid="GPU-elsewhere")])


def test_calibration_offset_above_mean_power_is_rejected(tmp_path):
    """The GPU reads 300 W for 20 s: an offset of 301 W would leave -20 J."""
    with pytest.raises(
        CalibrationError,
        match=r"negative energy: its offset of 301 W is above the mean power of 300",
    ):
        run_report(tmp_path, calibrations=[replace(CALIBRATION, offset_w=301)])


def test_calibration_table_has_energy_as_read_and_calibrated(tmp_path):
    report = run_report(tmp_path, calibrations=[CALIBRATION])

    table = next(
        section for section in report_tables(report) if section.title == "Calibrated energy"
    )
    data = report_document(report)

    assert [cell.text for cell in table.rows[0][3:]] == ["0.96, +12 W", "± 0.5 %", "bench 3"]
    assert table.notes[0].startswith("All other figures of this report are as read")
    assert data["energy"]["gpu"]["energy_joules"] == 6_000
    assert data["calibrated"]["energy_joules"] == pytest.approx(6_000)
    assert data["calibrated"]["devices"][0]["gain"] == 0.96


def test_budget_calibrated_gpu_has_no_calibration_advice(tmp_path):
    """Its ± 0.5 % of 6,000 J are more than the ± 10 J of the ledger."""
    tables = report_tables(run_report(tmp_path, calibrations=[CALIBRATION]))
    table = next(table for table in tables if table.title == "Uncertainty budget")

    assert "Largest part: residual of the calibration." in " ".join(table.notes)
    assert "--calibration" not in " ".join(table.notes)


def test_parse_csv_and_yaml_give_same_calibrations():
    csv = parse_calibrations(
        f"# by the meter of bench 3\n{HEAD}GPU-0,0.954,-1.2,0.5,bench 3\nGPU-1,1.01,0,,\n",
        "gpus.csv",
    )
    yaml = parse_calibrations(
        "gpus:\n- {uuid: GPU-0, gain: 0.954, offset_watts: -1.2, uncertainty_percent: 0.5, "
        "source: bench 3}\n"
        "- {uuid: GPU-1, gain: 1.01, offset_watts: 0}\n",
        "gpus.yaml",
    )

    assert csv == yaml
    assert csv[0] == Calibration("GPU-0", 0.954, -1.2, 0.5, "bench 3")
    assert csv[1].uncertainty_percent is None


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (
            f"{HEAD}GPU-0,0,0,,\n",
            "c.csv",
            "c.csv, entry 1: gain is 0; it is the ratio of reading to true power",
        ),
        (f"{HEAD}GPU-0,-1,0,,\n", "c.csv", "gain is -1"),
        (f"{HEAD}GPU-0,1e-308,0,,\n", "c.csv", "gain is 1e-308"),
        (
            f"{HEAD}GPU-0,1,-1e308,,\n",
            "c.csv",
            "offset_watts is -1e+308; it is in W, at most 10000",
        ),
        (f"{HEAD}GPU-0,nan,0,,\n", "c.csv", "gain is 'nan'; it must be a number"),
        (f"{HEAD}GPU-0,1,0,,\nGPU-0,1,1,,\n", "c.csv", "c.csv, entry 2: GPU-0 occurs twice"),
        (f"{HEAD}GPU-a,1,0,,\ngpu-A,1,1,,\n", "c.csv", "c.csv, entry 2: gpu-A occurs twice"),
        (f"{HEAD}GPU-0,1,,,\n", "c.csv", "offset_watts is missing"),
        (f"{HEAD}GPU-0,1,0,-2,\n", "c.csv", "uncertainty_percent is -2"),
        (
            "uuid,gain,offset_watts,colour\nGPU-0,1,0,red\n",
            "c.csv",
            "unknown key 'colour'; the keys are uuid, gain",
        ),
        (f"{HEAD}GPU-0,1,0,,,,\n", "c.csv", "unknown key 'None'; the keys are"),
        ("", "c.csv", "c.csv has no calibration; it needs rows of"),
        ("[1, 2]", "c.yaml", "c.yaml is not a list of GPUs"),
        ("a: [", "c.yaml", "c.yaml is not valid YAML"),
        (
            "- {uuid: GPU-0, gain: [1], offset_watts: 0}",
            "c.yaml",
            "gain is [1]; it must be a number",
        ),
    ],
)
def test_parse_invalid_file_is_rejected_in_one_line(text, name, reason):
    with pytest.raises(CalibrationError) as raised:
        parse_calibrations(text, name)

    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)
