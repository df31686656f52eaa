"""The integral of power."""

import pytest

from exporter.energy.marks import energy_between
from tests.exporter.polls import counted, line_of, poll


def test_three_hundred_watts_for_ten_seconds_are_three_thousand_joules_however_irregular_the_polls():
    times = [0.0, 0.3, 1.2, 1.21, 2.7, 4.0, 4.9, 6.5, 7.7, 9.1, 10.0]
    line = line_of([poll(t, power_w=300.0) for t in times])

    assert line.totals.energy_j == pytest.approx(3_000.0)
    assert line.totals.covered_s == pytest.approx(10.0)


def test_the_trapezoid_is_taken_over_real_times():
    # 100 W to 300 W in 1 s: 200 J; then 300 W to 0 W in 2 s: 300 J
    line = line_of([poll(0.0, power_w=100.0), poll(1.0, power_w=300.0), poll(3.0, power_w=0.0)])

    assert line.totals.integrated_j == pytest.approx(500.0)


def test_the_integral_takes_the_averaged_power_where_there_is_one():
    line = line_of([poll(t, counter_j=0.0, power_w=900.0, average_w=100.0) for t in (0.0, 1.0, 2.0)])

    assert line.totals.integrated_j == pytest.approx(200.0)


def test_over_a_gap_the_integral_adds_nothing_and_the_counter_bridges_it():
    # polled at 1 s; 3 s of silence are more than 2.5 periods
    line = line_of(counted(300.0, [0.0, 1.0, 2.0, 5.0, 6.0]))

    assert line.totals.energy_j == pytest.approx(1_800.0)
    assert line.totals.integrated_j == pytest.approx(900.0)
    assert line.totals.covered_s == pytest.approx(3.0)


def test_two_and_a_half_periods_are_not_yet_a_gap():
    assert line_of(counted(300.0, [0.0, 1.0, 3.5])).totals.covered_s == pytest.approx(3.5)


def test_without_a_counter_what_a_gap_may_have_hidden_is_in_the_interval():
    times = [0.0, 1.0, 2.0, 12.0, 13.0]
    line = line_of([poll(t, power_w=300.0) for t in times])
    energy = energy_between(line.mark(0.5), line.mark(12.5))

    assert energy.joules == pytest.approx(600.0, abs=40.0)  # 2 s of the 12 s were seen
    assert energy.half_width_j >= 3_000.0


def test_changing_to_fast_polls_is_no_gap():
    line = line_of(counted(300.0, [0.0, 1.0]))
    line.period_s = 0.047
    for one in counted(300.0, [2.0, 2.047, 2.094]):
        line.push(one)

    assert line.totals.covered_s == pytest.approx(2.094)


def test_polls_that_come_late_or_twice_add_nothing():
    line = line_of(counted(300.0, [0.0, 1.0, 1.0, 0.5]))

    assert line.totals.energy_j == pytest.approx(300.0)
