"""Ranges with partial samples, idle time around them, and runs within them."""

import pytest

from tests.analyzer.report.untagged.foreign_exporters import TRUE_ENERGY_J, uuid
from tests.analyzer.report.untagged.range_reports import is_exact
from tests.analyzer.run_reports import finding_codes, finding_texts, terminal_text
from wattline_analyzer.core.devices import Calibration
from wattline_analyzer.core.run_report import UserInputs


def test_gpu_with_samples_in_part_has_energy_of_that_part(report_of):
    report = report_of("stops")

    assert report.gpus[0].covered_ratio == pytest.approx(0.49, abs=0.02)
    assert report.energy["gpu"].value == pytest.approx(0.49 * TRUE_ENERGY_J, rel=0.04)
    assert report.energies.from_raw_samples is None
    assert report.mean_power_w.value == pytest.approx(300, rel=0.02)
    assert "over the time that the samples cover" in terminal_text(report)
    assert "without an estimate for the rest" in finding_texts(report, "uncovered")[0][1]
    assert not {"coverage", "gap"} & set(finding_codes(report))


@pytest.mark.parametrize("case", ["stops", "smi-stops"])
def test_net_and_calibrated_energy_is_of_covered_part(report_of, case):
    """The last scrape is at 289 s: 240 W above idle until then, and an offset of 10 W."""
    report = report_of(case, inputs=UserInputs(calibrations=(Calibration(uuid(), 1.0, 10.0),)))

    (gpu,) = report.gpus
    assert gpu.net.value == pytest.approx(240 * 289, rel=0.02)
    calibrated = report.calibrated.gpus[gpu.key].energy
    assert gpu.energy.value - calibrated.value == pytest.approx(10 * 289, abs=0.1)
    assert gpu.mean_power_w.value == pytest.approx(300, rel=0.02)


def test_power_that_stops_is_not_extrapolated(report_of):
    report = report_of("smi-stops")

    assert report.energy["gpu"].value == pytest.approx(0.49 * TRUE_ENERGY_J, rel=0.04)
    assert "coverage" in finding_codes(report)


def test_idle_power_is_from_idle_time_around_range(report_of):
    report = report_of("dcgm")

    assert report.gpus[0].idle_power_w.value == pytest.approx(60.2, abs=0.4)
    assert is_exact(report.energies.net, TRUE_ENERGY_J - 600 * 60.2)


def test_steady_load_without_utilization_is_not_idle(report_of):
    report = report_of("no-utilization")

    assert is_exact(report.energy["gpu"], 200 * 600)
    assert report.energies.net is None
    assert "idle_unknown" in finding_codes(report)


def test_runs_within_range_are_named_and_not_subtracted(report_of):
    report = report_of("tagged")

    assert is_exact(report.energy["gpu"], TRUE_ENERGY_J)
    assert not report.gpus[0].shared
    assert "train-7" in finding_texts(report, "tagged_runs")[0][1]


def test_emissions_are_energy_times_given_intensity(report_of):
    """180,000 J are 0.05 kWh: 20 g at 400 g/kWh."""
    report = report_of("dcgm", inputs=UserInputs(grams_per_kwh=400.0))

    assert [emission.mass_g.value for emission in report.emissions] == [pytest.approx(20, rel=0.02)]
