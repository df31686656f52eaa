"""Each contribution to the half-width of an energy, worked out by hand."""

import pytest

from wattline_exporter.meter.uncertainty import (
    DoubtfulWindow,
    EnergyMark,
    averaging_j,
    bridge_tolerance_j,
    counter_delay_j,
    doubt_at_j,
    edges_j,
    end_until_j,
    energy_between,
    expired_lease_j,
    fast_load_j,
    late_doubt_j,
    long_interval_j,
    random_j,
    silence_j,
    since_report_j,
    step_variance_j2,
    stuck_power_j,
    unknown_power_j,
    unmeasured_share_j,
    unseen_j,
    with_doubt,
    with_uncertain_end,
)


def mark(joules=0.0, half_width_j=0.0, **values):
    fields = {"variance_j2": 0.0, "integrated_j": 0.0, "covered_s": 0.0, "resets": 0} | values
    return EnergyMark(joules, half_width_j, **fields)


def test_edges_half_widths_of_both_marks_add_up():
    assert edges_j(mark(half_width_j=3.0), mark(half_width_j=4.0)) == 7.0


def test_random_half_width_is_1_96_standard_deviations_of_the_difference():
    # the variance grows from 44 to 144 J²: a standard deviation of 10 J
    assert random_j(mark(variance_j2=44.0), mark(variance_j2=144.0)) == pytest.approx(19.6)


def test_unmeasured_share_energy_above_half_the_limit_may_be_absent():
    # a sensor measures a quarter of 100 s: 500 W in it. The rest had 0 to 700 W, or 500 W less:
    # 3/4 of 50,000 J
    begin = mark(unseen_ratio=0.75, most_w=700.0)
    end = mark(50_000.0, covered_s=100.0, unseen_ratio=0.75, most_w=700.0)

    assert unmeasured_share_j(begin, end) == 37_500.0


def test_unmeasured_share_energy_below_half_the_limit_may_be_at_the_limit():
    # 100 W in a quarter of 100 s. The rest may have had 600 W more: 3/4 of 60,000 J. The run began
    # with a counter and a limit of 600 W
    begin = mark(unseen_ratio=0.0, most_w=600.0)
    end = mark(10_000.0, covered_s=100.0, unseen_ratio=0.75, most_w=700.0)

    assert unmeasured_share_j(begin, end) == 45_000.0


def test_unseen_energy_since_the_first_mark_counts_in_full():
    assert unseen_j(mark(unseen_j=200.0), mark(unseen_j=275.0)) == 75.0
    assert unseen_j(mark(unseen_j=200.0), mark(unseen_j=190.0)) == 0.0


def test_energy_between_half_width_is_the_sum_of_four_contributions():
    # 3 + 4 J of the edges, 19.6 J of a variance of 100 J², 10 % of 1,000 J, and 75 J unseen
    begin = mark(0.0, 3.0)
    end = mark(
        1_000.0,
        4.0,
        variance_j2=100.0,
        covered_s=2.0,
        unseen_ratio=0.1,
        most_w=700.0,
        unseen_j=75.0,
    )

    assert energy_between(begin, end).joules == 1_000.0
    assert energy_between(begin, end).half_width_j == pytest.approx(7.0 + 19.6 + 100.0 + 75.0)


def test_step_variance_is_that_of_a_uniform_error():
    # 568 W more at a time known to ± 0.05 s: an error of up to ± 28.4 J, whose variance is
    # 28.4² / 3 J²
    assert step_variance_j2(568.0, 0.05) == pytest.approx(806.56 / 3)


def test_unknown_power_is_between_zero_and_the_limit():
    # 10 s at up to 700 W: 5,000 J may be 0 J; 1,000 J may be 7,000 J
    assert unknown_power_j(5_000.0, 700.0, 10.0) == 5_000.0
    assert unknown_power_j(1_000.0, 700.0, 10.0) == 6_000.0


def test_bridge_tolerance_is_5_percent_of_its_energy():
    assert bridge_tolerance_j(2_000.0) == pytest.approx(100.0)


def test_long_interval_error_is_half_the_range_of_powers():
    # 3 s between 100 and 500 W: 200 W to either side of the mean of 300 W
    assert long_interval_j(400.0, 3.0) == 600.0


def test_counter_delay_is_two_updates_at_the_limit():
    # two values of a counter, each up to 0.1 s old, at 700 W
    assert counter_delay_j(0.1, 700.0) == pytest.approx(140.0)


def test_stuck_power_is_between_zero_and_the_limit():
    # 8 s at a reported power of 300 or 500 W, of at most 700 W
    assert stuck_power_j(300.0, 700.0, 8.0) == 3_200.0
    assert stuck_power_j(500.0, 700.0, 8.0) == 4_000.0


@pytest.mark.parametrize(("uses_instant_power", "half_width_j"), [(False, 2.0), (True, 8.0)])
def test_fast_load_error_is_a_quarter_of_the_window(uses_instant_power, half_width_j):
    # a mean of 320 W in a quarter of 25 ms, or of the sensor's period of 100 ms
    found_j = fast_load_j((240.0, 400.0), uses_instant_power=uses_instant_power)

    assert found_j == pytest.approx(half_width_j)


def test_averaging_error_is_an_eighth_of_a_second_of_the_largest_step():
    assert averaging_j((100.0, 300.0, 500.0)) == 50.0


def test_silence_is_the_limit_since_the_last_update_that_a_poll_may_show():
    # 700 W for 10 s, and for the 0.1 s by which the last values may be old
    assert silence_j(700.0, 10.0) == pytest.approx(7_070.0)


def test_end_until_is_the_energy_to_the_latest_end_and_its_error():
    # 1,000 J at the assumed end, 1,600 ± 20 J at the latest one
    assert end_until_j(mark(1_000.0, 5.0), mark(1_600.0, 20.0)) == 620.0


def test_since_report_is_the_energy_since_the_report_and_its_error():
    # 700 ± 20 J at the report, 1,000 J at the end of the lease
    assert since_report_j(mark(700.0, 20.0), mark(1_000.0, 5.0)) == 320.0


@pytest.mark.parametrize(
    ("most_w", "half_width_j"),
    [(10.0, 600.0), (700.0, 9_000.0), (0.0, 9_000.0)],
    ids=["limit", "energy of the run", "no limit known"],
)
def test_expired_lease_is_at_most_the_limit_for_its_length(most_w, half_width_j):
    # 9,000 J since the start of the run, and a lease of 60 s
    assert expired_lease_j(mark(1_000.0), mark(10_000.0), 60.0, most_w) == half_width_j


def test_late_doubt_is_the_sum_of_windows_that_began_before_the_end():
    windows = [
        DoubtfulWindow(90.0, 95.0, 40.0, 101.0),
        DoubtfulWindow(99.0, 104.0, 60.0, 104.0),
        DoubtfulWindow(100.0, 105.0, 500.0, 105.0),
    ]

    assert late_doubt_j(windows, end_s=100.0) == 100.0


def test_uncertain_end_largest_error_replaces_the_half_width():
    assert with_uncertain_end(mark(9.0, 5.0), [620.0, 320.0]) == mark(9.0, 620.0)
    assert with_uncertain_end(mark(9.0, 5.0), [2.0, -3.0]) == mark(9.0, 5.0)
    assert with_uncertain_end(mark(9.0, 5.0), []) == mark(9.0, 5.0)


def test_doubt_adds_to_the_half_width():
    assert with_doubt(mark(9.0, 5.0), 40.0) == mark(9.0, 45.0)


def test_doubtful_window_half_lies_on_either_side_of_an_instant():
    # 100 J were found by 6 s, 40 more by 8 s: at 7 s the totals have 100 J of doubt. A mark has
    # 70 J as half-width and 70 J of unseen energy, 30 J less than the totals
    window = DoubtfulWindow(5.0, 10.0, 140.0, 6.0, steps=((6.0, 100.0), (8.0, 40.0)))

    assert window.doubt_j(7.0) == (70.0, -30.0)
    assert window.doubt_j(6.0) == (70.0, -30.0)  # the totals at 6 s have the first 100 J
    assert window.doubt_j(5.9) == (70.0, 70.0)


def test_doubtful_window_of_a_stopped_counter_counts_in_full():
    assert DoubtfulWindow(5.0, 10.0, 140.0, 6.0).doubt_j(7.0) == (140.0, 0.0)


def test_doubts_of_windows_around_an_instant_add_up():
    stopped = DoubtfulWindow(5.0, 10.0, 140.0, 6.0)
    leapt = DoubtfulWindow(6.0, 9.0, 60.0, 6.5, steps=((6.5, 60.0),))
    earlier = DoubtfulWindow(1.0, 5.0, 500.0, 2.0)

    # 140 J, and half of 60 J, of which the totals have 60 J already
    assert doubt_at_j([stopped, leapt, earlier], 7.0) == (170.0, -30.0)
    assert doubt_at_j([], 7.0) == (0.0, 0.0)
