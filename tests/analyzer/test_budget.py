"""The error budget: each part worked out by hand."""

import numpy as np
import pytest

from analyzer.energy.error_budget import gap_limits_j, sampling_half_j, sensor_limits_j, total_budget
from analyzer.model.devices import UncertaintyBudget
from analyzer.model.samples import Gap, clean
from analyzer.output.documents import report_document
from analyzer.output.sections.report import report_tables
from exporter.contract.power_sensors import SystematicBand
from tests.analyzer import loads
from tests.analyzer.node import Run
from tests.analyzer.reported import report_of


def test_sampling_is_known_from_the_jumps_between_samples():
    """Two jumps of 240 W at 1 s: sd = 1 s x sqrt(2 x 240² / 12) = 97.98 J, and 1.96 of it."""
    power = clean(np.arange(6.0), np.array([60, 60, 300, 300, 60, 60.0]))

    assert sampling_half_j(power) == pytest.approx(192.04, abs=0.01)


def test_samples_faster_than_the_sensor_are_as_uncertain_as_its_updates():
    """Jumps of 200 W once a second for 10 s, of which no one can say when in 0.1003 s they were; the window of 25 ms
    makes some of them two smaller ones.
    """
    load = loads.square(2.0, 0.5, (100, 300), 10, 0.2)
    power = loads.log(load, 10, np.random.default_rng(3)).between(0, 10)
    by_hand_j = 1.96 * loads.UPDATE_S * np.sqrt(10 * 200**2 / 12)

    assert 0.6 * by_hand_j < sampling_half_j(power) < 1.1 * by_hand_j


def test_nine_of_ten_integrals_lie_in_the_interval_that_sampling_gives():
    rng, inside = np.random.default_rng(4), []
    for _ in range(200):
        load = loads.telegraph(rng, 5.0, 100, 300, 120)
        times = np.arange(rng.random() - 1, 121)
        watts = (load.energy_j(times + 1e-6) - load.energy_j(times)) / 1e-6
        power = clean(times, watts).between(0, 120)
        off_j = np.trapezoid(power.value, power.t) - (load.energy_j(power.t[-1]) - load.energy_j(power.t[0]))
        inside.append(abs(off_j) <= sampling_half_j(power))

    assert np.mean(inside) >= 0.9


def test_a_gap_holds_no_less_and_no_more_than_the_least_and_the_greatest_power_that_was_seen():
    power = clean(np.array([0, 1, 2, 12, 13.0]), np.array([60, 300, 300, 300, 60.0]))

    assert gap_limits_j(power, [Gap(2, 12)]) == (600, 3_000)
    assert gap_limits_j(power, []) is None


def test_the_sensors_band_is_of_the_reading_so_the_truth_lies_the_other_way():
    """A sensor that reads 6 % too low at most: 9,400 J are 10,000 J in truth."""
    low_j, high_j = sensor_limits_j(9_400, SystematicBand("GA100", -6, 3))

    assert high_j == pytest.approx(600)
    assert low_j == pytest.approx(9_400 / 1.03 - 9_400)


def test_random_parts_are_in_quadrature_and_limits_stand_apart():
    budget = UncertaintyBudget(1_000, edges_j=3, sampling_j=4, gaps_j=(10, 50), sensor_j=(-30, 60), aliasing_j=20)

    assert budget.random_j == 5
    assert budget.largest == "sensor"


def test_a_calibration_leaves_its_residual_in_place_of_the_sensors_band():
    budget = UncertaintyBudget(1_000, edges_j=3, gaps_j=(10, 50), sensor_j=(-30, 60), residual_j=5)

    assert budget.largest == "gaps"


def test_of_several_devices_parts_add_up_and_one_unknown_interval_leaves_the_sums_unknown():
    both = total_budget([UncertaintyBudget(1_000, edges_j=3, gaps_j=(1, 2)), UncertaintyBudget(500, sensor_j=(-5, 6))])

    assert both == UncertaintyBudget(1_500, gaps_j=(1, 2), sensor_j=(-5, 6))
    assert total_budget([UncertaintyBudget(1, edges_j=3), UncertaintyBudget(1, edges_j=4)]).edges_j == 7


def test_budget_table_has_parts_and_names_the_largest(tmp_path):
    """6,000 ± 10 J on an A100, whose reading is off by -6 to +3 %."""
    report = report_of(tmp_path, Run())

    shown = next(section for section in report_tables(report) if section.title == "Uncertainty budget")
    data = report_document(report)["error_budget"]

    assert [column.title for column in shown.columns] == ["Device", "Start/end, 95 % CI", "Sensor"]
    assert [[cell.text for cell in row] for row in shown.rows] == [
        ["GPU 0", "± 10 J (0.17 %)", "-170 to +380 J (6.4 %)"]
    ]
    assert "can be corrected (--calibration)" in " ".join(shown.notes)
    assert data["largest_part"] == "sensor"
    assert data["gpu"]["random_uncertainty_joules"] == 10
    assert data["gpu"]["sensor_high_joules"] == pytest.approx(6_000 / 0.94 - 6_000)
    assert data["gpu"]["sampling_uncertainty_joules"] is None


def test_beside_a_ledger_nothing_of_the_scrapes_enters_the_budget(tmp_path):
    """A counter bridges what scrapes have missed."""
    times = [t for t in np.arange(1_788_999_940.0, 1_789_000_060.0) if not 1_789_000_005 < t < 1_789_000_012]

    (device,) = report_of(tmp_path, Run(), times=times).devices

    assert device.budget.gaps_j is None
    assert device.budget.sampling_j is None
