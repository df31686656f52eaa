"""Parts of the error budget."""

import numpy as np
import pytest

from tests.analyzer.node import NodeRun
from tests.analyzer.run_reports import run_report
from tests.laboratory import loads, sensor_logs
from wattline.figures import Figure
from wattline_analyzer.core.devices import ReportDevice, UncertaintyBudget
from wattline_analyzer.core.samples import Gap, Samples, clean
from wattline_analyzer.core.timeline import Window
from wattline_analyzer.report.document import report_document
from wattline_analyzer.report.error_budget import (
    gap_limits_j,
    gpu_budget,
    integral_half_j,
    sampling_half_j,
    total_budget,
)
from wattline_analyzer.report.sections.report import report_tables


def test_sampling_uncertainty_follows_jumps_between_samples():
    """Two jumps of 240 W at 1 s: sd = 1 s x sqrt(2 x 240² / 12) = 97.98 J, and 1.96 of it."""
    power = clean(np.arange(6.0), np.array([60, 60, 300, 300, 60, 60.0]))

    assert sampling_half_j(power) == pytest.approx(192.04, abs=0.01)


def test_sampling_faster_than_sensor_has_uncertainty_of_its_updates():
    """Jumps of 200 W once a second for 10 s, each at an unknown time within 0.1003 s.

    The window of 25 ms splits some of them into two smaller jumps.
    """
    load = loads.square_wave(2.0, 0.5, (100, 300), 10, 0.2)
    power = sensor_logs.sensor_log(load, 10, np.random.default_rng(3)).between(0, 10)
    by_hand_j = 1.96 * sensor_logs.UPDATE_S * np.sqrt(10 * 200**2 / 12)

    assert 0.6 * by_hand_j < sampling_half_j(power) < 1.1 * by_hand_j


def test_sampling_interval_covers_9_of_10_integrals():
    rng, inside = np.random.default_rng(4), []
    for _ in range(200):
        load = loads.telegraph(rng, 5.0, 100, 300, 120)
        times = np.arange(rng.random() - 1, 121)
        watts = (load.energy_j(times + 1e-6) - load.energy_j(times)) / 1e-6
        power = clean(times, watts).between(0, 120)
        off_j = np.trapezoid(power.value, power.t) - (
            load.energy_j(power.t[-1]) - load.energy_j(power.t[0])
        )
        inside.append(abs(off_j) <= sampling_half_j(power))

    assert np.mean(inside) >= 0.9


@pytest.mark.parametrize("mean_s", [0.2, 0.5, 1.0, 3.0])
def test_sampling_interval_covers_loads_faster_than_the_samples(mean_s):
    """A load that jumps several times between two samples, as the power of an LLM server scraped
    each second.
    """
    rng, inside = np.random.default_rng(7), []
    for _ in range(150):
        load = loads.telegraph(rng, mean_s, 100, 300, 120)
        times = np.arange(rng.random() - 1, 121)
        watts = (load.energy_j(times + 1e-6) - load.energy_j(times)) / 1e-6
        power = clean(times, watts).between(0, 120)
        off_j = np.trapezoid(power.value, power.t) - (
            load.energy_j(power.t[-1]) - load.energy_j(power.t[0])
        )
        inside.append(abs(off_j) <= sampling_half_j(power))

    assert np.mean(inside) >= 0.9


def test_sampling_uncertainty_independent_samples_is_root_six_wider():
    """Alternating samples keep nothing from one to the next: 1.96 × 1 s × √(6 × 5 × 240² / 12)."""
    power = clean(np.arange(6.0), np.array([60, 300, 60, 300, 60, 300.0]))

    assert sampling_half_j(power) == pytest.approx(1.96 * np.sqrt(6 * 5 * 240**2 / 12))


def test_gap_limits_are_minimum_and_maximum_power():
    power = clean(np.array([0, 1, 2, 12, 13.0]), np.array([60, 300, 300, 300, 60.0]))

    assert gap_limits_j(power, [Gap(2, 12)]) == (600, 3_000)
    assert gap_limits_j(power, []) is None


def test_budget_random_parts_add_in_quadrature_without_limits():
    budget = UncertaintyBudget(
        1_000, edges_j=3, sampling_j=4, gaps_j=(10, 50), sensor_j=(-30, 60), aliasing_j=20
    )

    assert budget.random_j == 5
    assert budget.largest == "sensor"


def test_budget_calibration_residual_replaces_sensor_band():
    budget = UncertaintyBudget(1_000, edges_j=3, gaps_j=(10, 50), sensor_j=(-30, 60), residual_j=5)

    assert budget.largest == "gaps"


def test_total_budget_sums_contributions_of_the_devices_that_have_them():
    """A counter and an integral: 3 J of its edges, 4 J of its sampling; √(3² + 4²) = 5 J."""
    both = total_budget([UncertaintyBudget(1_000, edges_j=3), UncertaintyBudget(500, sampling_j=4)])

    assert (both.edges_j, both.sampling_j, both.random_j) == (3, 4, 5)


def test_total_budget_with_device_of_unknown_interval_has_none():
    both = total_budget([UncertaintyBudget(1_000, sampling_j=4), UncertaintyBudget(500)])

    assert (both.edges_j, both.sampling_j, both.random_j) == (None, None, None)


def test_gpu_budget_of_integral_with_unknown_interval_has_no_random_part():
    """The mean over 1 s has 1 s / 2 x 240 W of error at the edges, but the rest is unknown."""
    power = clean(np.arange(6.0), np.array([60, 60, 300, 300, 300, 300.0]))
    window = Window(0.0, 5.0, ended=True, duration_s=5.0)

    def budget(energy):
        device = ReportDevice("n", "gpu", "GPU-0", "GPU 0", "", energy, 5.0)
        return gpu_budget(device, power, window, None, 1.0)

    known = budget(Figure(1_000.0, 200.0))
    unknown = budget(Figure(1_000.0))

    assert known.edges_j is not None
    assert (unknown.edges_j, unknown.sampling_j, unknown.random_j) == (None, None, None)


def test_gpu_budget_of_integral_with_unknown_sampling_has_the_whole_interval():
    """One sample has no spacing: the 7 J cannot be separated into edges and sampling."""
    power = clean(np.array([2.0]), np.array([300.0]))
    window = Window(0.0, 5.0, ended=True, duration_s=5.0)
    device = ReportDevice("n", "gpu", "GPU-0", "GPU 0", "", Figure(1_500.0, 7.0), 5.0)

    budget = gpu_budget(device, power, window, None, 1.0)

    assert (budget.edges_j, budget.sampling_j, budget.random_j) == (7.0, None, 7.0)


def test_total_budget_parts_add_and_unknown_part_stays_unknown():
    both = total_budget(
        [
            UncertaintyBudget(1_000, edges_j=3, gaps_j=(1, 2)),
            UncertaintyBudget(500, sensor_j=(-5, 6)),
        ]
    )

    assert both == UncertaintyBudget(1_500, gaps_j=(1, 2), sensor_j=(-5, 6))


def test_total_budget_adds_the_random_errors_of_devices():
    """One job loads both GPUs alike: 3 + 4 = 7 J, and 5 + 12 = 17 J."""
    both = total_budget(
        [
            UncertaintyBudget(1, edges_j=3, sampling_j=5, aliasing_j=1),
            UncertaintyBudget(1, edges_j=4, sampling_j=12, aliasing_j=2),
        ]
    )

    assert (both.edges_j, both.sampling_j, both.aliasing_j) == (7, 17, 3)


def test_budget_table_has_parts_and_names_the_largest(tmp_path):
    """6,000 ± 10 J on an A100, whose reading is off by -6 to +3 %."""
    report = run_report(tmp_path, NodeRun())

    table = next(
        section for section in report_tables(report) if section.title == "Uncertainty budget"
    )
    data = report_document(report)["error_budget"]

    assert [column.title for column in table.columns] == ["Device", "Start/end, 95 % CI", "Sensor"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["GPU 0", "± 10 J (0.17 %)", "-170 to +380 J (6.4 %)"]
    ]
    assert "can be corrected (--calibration)" in " ".join(table.notes)
    assert data["largest_part"] == "sensor"
    assert data["gpu"]["random_uncertainty_joules"] == 10
    assert data["gpu"]["sensor_high_joules"] == pytest.approx(6_000 / 0.94 - 6_000)
    assert data["gpu"]["sampling_uncertainty_joules"] is None


def test_budget_ledger_energy_excludes_scrape_gaps_and_sampling(tmp_path):
    """The counter covers the missed scrapes."""
    times = [
        t
        for t in np.arange(1_788_999_940.0, 1_789_000_060.0)
        if not 1_789_000_005 < t < 1_789_000_012
    ]

    (budget,) = run_report(tmp_path, NodeRun(), times=times).budgets.values()

    assert budget.gaps_j is None
    assert budget.sampling_j is None


def test_integral_interval_includes_jump_next_to_window():
    """A jump of 200 W from 10 to 11 s, half of it in a window from 10.5 s: 200 J / √12 or more."""
    power = Samples(np.arange(21.0), np.where(np.arange(21) <= 10, 100.0, 300.0))
    one_jump_j = 1.96 * 200 / 12**0.5

    half_j = integral_half_j(power, Window(10.5, 20.0, ended=True, duration_s=9.5))

    assert one_jump_j * (1 - 1e-9) <= half_j <= 6**0.5 * one_jump_j
    assert integral_half_j(power, Window(11.0, 20.0, ended=True, duration_s=9.0)) == 0
