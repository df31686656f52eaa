"""Samples that end within the range, idle time around it, and runs within it."""

import pytest

from analyzer.energy.calibration import Calibration
from analyzer.model.user_inputs import Given
from tests.analyzer.ranges.foreign import TRUTH_J, uuid
from tests.analyzer.ranges.reporting import holds
from tests.analyzer.reported import codes, found


def test_a_card_whose_samples_end_in_the_range_has_the_energy_of_that_part_and_no_more(report_of):
    report = report_of("stops")

    assert report.gpus[0].covered_ratio == pytest.approx(0.49, abs=0.02)
    assert report.energy["gpu"].value == pytest.approx(0.49 * TRUTH_J, rel=0.04)
    assert report.own is None
    assert "no energy is made up" in found(report, "uncovered")[0][1]


@pytest.mark.parametrize("case", ["stops", "smi-stops"])
def test_what_is_net_of_idle_or_calibrated_is_of_the_part_that_has_samples(report_of, case):
    """The last scrape comes after 289 s: 240 W above idle for so long, and an offset of 10 W."""
    report = report_of(case, given=Given(calibrations=(Calibration(uuid(), 1.0, 10.0),)))

    (gpu,) = report.gpus
    assert gpu.net.value == pytest.approx(240 * 289, rel=0.02)
    assert gpu.energy.value - gpu.calibrated.value == pytest.approx(10 * 289, abs=0.1)
    assert gpu.mean_power_w.value == pytest.approx(300, rel=0.02)


def test_power_that_stops_is_not_carried_on(report_of):
    report = report_of("smi-stops")

    assert report.energy["gpu"].value == pytest.approx(0.49 * TRUTH_J, rel=0.04)
    assert "coverage" in codes(report)


def test_idle_power_is_that_of_the_quiet_time_around_the_range(report_of):
    report = report_of("dcgm")

    assert report.gpus[0].idle_power_w.value == pytest.approx(60.2, abs=0.4)
    assert holds(report.net, TRUTH_J - 600 * 60.2)


def test_a_steady_load_without_a_known_utilization_is_not_taken_for_idle(report_of):
    report = report_of("no-utilization")

    assert holds(report.energy["gpu"], 200 * 600)
    assert report.net is None
    assert "idle_unknown" in codes(report)


def test_tagged_runs_within_the_range_are_named_and_take_nothing_from_it(report_of):
    report = report_of("tagged")

    assert holds(report.energy["gpu"], TRUTH_J)
    assert not report.gpus[0].shared
    assert "train-7" in found(report, "tagged_runs")[0][1]


def test_emissions_are_the_energy_times_the_given_intensity(report_of):
    """180,000 J are 0.05 kWh: 20 g at 400 g/kWh."""
    report = report_of("dcgm", given=Given(grams_per_kwh=400.0))

    assert [emission.mass_g.value for emission in report.emissions] == [pytest.approx(20, rel=0.02)]
