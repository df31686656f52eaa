"""Each contribution to the half-width of an energy, worked out by hand."""

import pytest

from wattline_exporter.meter.totals import LastPoll, MeterTotals
from wattline_exporter.meter.uncertainty import (
    ComparedEnergy,
    DoubtfulWindow,
    EnergyMark,
    MeasuredEnergy,
    allowed_difference_j,
    averaged_slack_j,
    averaging_j,
    between_updates_j,
    bridge_tolerance_j,
    bridged_instant_j,
    compared_slack_j,
    counter_delay_j,
    difference_j,
    disagreement_j,
    doubt_at_j,
    edges_j,
    end_until_j,
    energy_between,
    energy_so_far,
    expired_lease_j,
    extrapolation_j,
    fast_load_j,
    hidden_shape_j,
    holds_levels,
    is_other_power,
    late_doubt_j,
    levels_in_update_w,
    located_step_j,
    long_interval_j,
    outside_range_j,
    peak_w,
    power_shift_j,
    raised_j,
    random_j,
    replaced_counter_j,
    scaled_step_j,
    sensor_delays_j,
    shape_bounds,
    silence_j,
    since_report_j,
    step_variance_j2,
    stuck_power_j,
    unaveraged_j,
    unexplained_step_j,
    unknown_power_j,
    unmeasured_share_j,
    unplaced_j,
    unread_j,
    unsampled_j,
    unseen_j,
    update_time_j,
    with_doubt,
    with_uncertain_end,
)


def mark(joules=0.0, half_width_j=0.0, **values):
    fields = {"variance_j2": 0.0, "integrated_j": 0.0, "covered_s": 0.0, "resets": 0} | values
    return EnergyMark(joules, half_width_j, **fields)


def test_energy_so_far_has_the_half_width_of_the_start():
    begin = mark(1_000.0, 3.0, integrated_j=990.0, covered_s=40.0)
    totals = MeterTotals(energy_j=1_250.0, integrated_j=1_230.0, covered_s=50.0)

    # 1,250 - 1,000 J in 10 s, of which 240 J by power
    assert energy_so_far(begin, totals, 1_700.0) == MeasuredEnergy(250.0, 3.0, 240.0, 10.0, 0)
    # a device of 20 W: at most 1,200 J
    assert energy_so_far(begin, totals, 1_200.0) == MeasuredEnergy(200.0, 3.0, 240.0, 10.0, 0)
    # a counter that was read before the start
    earlier = MeterTotals(energy_j=900.0, integrated_j=990.0, covered_s=40.0)
    assert energy_so_far(begin, earlier, 1_700.0) == MeasuredEnergy(0.0, 3.0, 0.0, 0.0, 0)


def test_edges_half_widths_of_both_marks_add_up():
    assert edges_j(mark(half_width_j=3.0), mark(half_width_j=4.0)) == 7.0


def test_random_half_width_is_1_96_standard_deviations_of_the_difference():
    # the variance grows from 44 to 144 J²: a standard deviation of 10 J
    assert random_j(mark(variance_j2=44.0), mark(variance_j2=144.0)) == pytest.approx(19.6)
    assert random_j(mark(variance_j2=44.0), mark(variance_j2=43.5)) == 0.0


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


def test_unmeasured_share_of_an_energy_that_falls_is_zero():
    begin = mark(500.0, unseen_ratio=0.75, most_w=700.0)

    assert unmeasured_share_j(begin, mark(499.5)) == 0.0


def test_unseen_energy_since_the_first_mark_counts_in_full():
    assert unseen_j(mark(unseen_j=200.0), mark(unseen_j=275.0)) == 75.0
    assert unseen_j(mark(unseen_j=200.0), mark(unseen_j=190.0)) == 0.0


def test_energy_between_half_width_is_the_sum_of_four_contributions():
    # 3 + 4 J of the edges, 19.6 J of a variance of 100 J², 10 % of 1,000 J, and 75 J unseen
    begin = mark(500.0, 3.0, integrated_j=300.0, covered_s=8.0, resets=1)
    end = mark(
        1_500.0,
        4.0,
        variance_j2=100.0,
        integrated_j=900.0,
        covered_s=10.0,
        resets=3,
        unseen_ratio=0.1,
        most_w=700.0,
        unseen_j=75.0,
    )

    found = energy_between(begin, end)

    assert found.half_width_j == pytest.approx(7.0 + 19.6 + 100.0 + 75.0)
    assert (found.joules, found.integrated_j) == (1_000.0, 600.0)
    assert (found.covered_s, found.resets) == (2.0, 2)


def test_energy_between_marks_that_fall_is_zero():
    found = energy_between(mark(500.0, integrated_j=300.0), mark(499.5, integrated_j=299.5))

    assert (found.joules, found.integrated_j) == (0.0, 0.0)


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


def test_raised_energy_error_is_its_distance_to_the_exported_total():
    assert raised_j(990.0, 1_000.0) == 10.0
    assert raised_j(1_000.0, 990.0) == 0.0


def test_bridged_instant_errors_of_bridge_and_instant_add_up():
    assert bridged_instant_j(315.0, 40.0) == 355.0


def test_unplaced_energy_is_the_unseen_energy_between_two_polls():
    assert unplaced_j(MeterTotals(unseen_j=200.0), MeterTotals(unseen_j=275.0)) == 75.0


def test_unread_time_may_be_at_the_limit():
    assert unread_j(2.0, 700.0) == 1_400.0


@pytest.mark.parametrize(
    ("slack_s", "half_width_j"),
    [(0.05, 15.0), (0.1, 30.0), (0.125, 87.5)],
    ids=["mean power", "longest slack of the mean", "limit"],
)
def test_update_time_error_has_the_mean_power_or_the_limit(slack_s, half_width_j):
    # a mean of 300 W, at most 700 W
    assert update_time_j(slack_s, 300.0, 700.0) == half_width_j


@pytest.mark.parametrize(
    ("least_j", "most_j", "half_width_j"),
    [(100.0, 180.0, 50.0), (140.0, 190.0, 40.0), (151.0, 149.0, 0.0)],
)
def test_between_updates_error_reaches_the_farther_bound(least_j, most_j, half_width_j):
    assert between_updates_j(150.0, least_j, most_j) == half_width_j


def test_extrapolation_error_is_the_range_then_the_highest_power():
    # 0.25 s between 100 and 500 W: 100 J. 2 s, and 0.5 s of the update's time, at 500 W: 1,250 J
    assert extrapolation_j(0.25, 2.0, 0.5, 100.0, 500.0) == 1_350.0


@pytest.mark.parametrize(
    ("powers_w", "bounds"),
    [
        ([92.0, 308.0], (92.0, 308.0, True)),  # beyond both steps by more than 1 W and 2 %
        ([107.0, 293.0], (100.0, 300.0, True)),  # both within 1 W and 2 % of 300 W
        ([94.0, 306.0], (94.0, 306.0, True)),
        ([92.0, 306.0], (50.0, 306.0, False)),  # beyond one step only: part of an unknown power
        ([94.0, 400.0], (94.0, 700.0, False)),
        ([], (50.0, 700.0, False)),  # no reading shows a part of an update
        ([200.0], (50.0, 700.0, False)),  # no reading reaches a step
        ([107.5, 292.5], (50.0, 700.0, False)),
        ([107.0, 200.0], (100.0, 700.0, False)),  # the lowest reading is the lowest step
        ([200.0, 293.0], (50.0, 300.0, False)),
        ([60.0, 200.0], (50.0, 700.0, False)),  # below the lowest step, but not its lowest part
        ([91.0, 400.0], (91.0, 700.0, False)),  # below by just 1 W and 2 % of 400 W: the lowest
    ],
)
def test_shape_bounds_are_the_readings_that_reach_the_steps(powers_w, bounds):
    # steps of 100 to 300 W, of a device between 50 and 700 W
    assert shape_bounds([100.0, 200.0, 300.0], powers_w, 50.0, 700.0) == bounds


def test_shape_bounds_reading_above_by_just_the_noise_is_the_highest_step():
    # above by 1 W and 2 % of 500 W, and below by 20 W: the lowest power is unknown
    assert shape_bounds([100.0, 489.0], [80.0, 500.0], 50.0, 700.0) == (50.0, 500.0, False)


@pytest.mark.parametrize("powers_w", [[], [150.0]])
def test_shape_bounds_contain_steps_beyond_the_limits(powers_w):
    # steps of 40 to 710 W, of a device between 50 and 700 W
    assert shape_bounds([40.0, 710.0], powers_w, 50.0, 700.0) == (40.0, 710.0, False)


@pytest.mark.parametrize(
    ("mean_w", "deviation_j"),
    [
        (400.0, 15.0),  # 300 W above 100 W and 300 W below 700 W: 300 · 300 / 600 · 0.1 s
        (250.0, 11.25),  # 150 · 450 / 600 · 0.1 s
        (100.0, 0.0),  # always at the lowest power
        (700.0, 0.0),
        (90.0, 0.0),
        (710.0, 0.0),
    ],
)
def test_hidden_shape_deviates_by_the_distances_from_both_limits(mean_w, deviation_j):
    assert hidden_shape_j(mean_w, 100.0, 700.0, 0.1) == pytest.approx(deviation_j)


@pytest.mark.parametrize(
    ("steps_w", "is_held"),
    [
        ([100.0, 100.0, 300.0, 500.0, 500.0], True),  # 300 W: the load changes once
        ([100.0, 100.0, 500.0, 500.0, 200.0, 100.0], True),
        ([100.0, 300.0, 500.0, 500.0], False),  # one update at the lowest power
        ([100.0, 100.0, 300.0, 500.0], False),  # one at the highest
        ([100.0, 300.0, 500.0, 500.0, 100.0, 100.0], True),
        ([100.0, 100.0, 400.0, 300.0, 500.0, 500.0], False),  # two updates between the levels
        ([100.0, 111.0, 489.0, 500.0], True),  # noise of 11 W: just the lowest and the highest
        ([100.0, 100.0, 111.0, 300.0, 489.0, 500.0], True),
        ([300.0, 200.0, 100.0, 100.0, 500.0, 500.0], False),  # also before them
        ([100.0, 100.0, 500.0, 500.0, 400.0, 300.0], False),  # and after them
        ([300.0, 300.0, 500.0, 500.0], False),  # less than twice as high: a faster load can do so
        ([100.0, 100.0, 210.0, 210.0], False),  # noise of 5.2 W: the lower level may be 105.2 W
        ([239.0, 239.0, 500.0, 500.0], False),  # noise of 11 W: just twice as high as 250 W
        ([300.0] * 6, False),
        ([100.0, 500.0], False),
    ],
)
def test_levels_are_held_by_two_updates_at_each_end(steps_w, is_held):
    assert holds_levels(steps_w) is is_held


@pytest.mark.parametrize(
    ("powers_w", "is_held"),
    [
        ([89.0, 511.0], True),  # 1 W and 2 % of 500 W
        ([111.0, 489.0], True),
        ([88.0, 500.0], False),  # beyond
        ([100.0, 512.0], False),
        ([112.0, 500.0], False),  # not reached
        ([100.0, 488.0], False),
    ],
)
def test_levels_are_held_where_readings_reach_from_one_to_the_other(powers_w, is_held):
    assert holds_levels([100.0, 100.0, 500.0, 500.0], powers_w) is is_held


@pytest.mark.parametrize(
    ("mean_w", "levels_w"),
    [
        (100.0, [100.0]),
        (111.0, [100.0]),  # within 1 W and 2 % of 500 W
        (112.0, [100.0, 500.0]),  # the load changes
        (488.0, [100.0, 500.0]),
        (489.0, [500.0]),
        (500.0, [500.0]),
    ],
)
def test_levels_in_an_update_are_those_within_the_noise_of_its_mean(mean_w, levels_w):
    assert levels_in_update_w(mean_w, 100.0, 500.0) == levels_w


@pytest.mark.parametrize(
    ("before_w", "after_w", "half_width_j"),
    [
        (100.0, 500.0, 1.1),  # 1 W + 2 % of 500 W = 11 W, for 0.1 s
        (500.0, 100.0, 1.1),
        (111.0, 489.0, 1.1),  # both within 11 W
        (100.0, 488.0, None),  # below the highest power
        (112.0, 500.0, None),  # above the lowest power
        (500.0, 500.0, None),
    ],
)
def test_located_step_error_is_the_noise_of_an_update(before_w, after_w, half_width_j):
    assert located_step_j(before_w, after_w, 100.0, 500.0, 0.1) == pytest.approx(half_width_j)


@pytest.mark.parametrize(
    ("power_w", "is_other"), [(300.0, False), (293.0, False), (292.9, True), (307.2, True)]
)
def test_other_power_differs_by_more_than_noise(power_w, is_other):
    # 1 W and 2 % of the higher power: 7 W of 300 W, 7.144 W of 307.2 W
    assert is_other_power(300.0, power_w) is is_other


def test_peak_power_is_four_times_the_mean():
    assert peak_w(300.0) == 1_200.0


@pytest.mark.parametrize(("spacing_s", "half_width_j"), [(0.25, 100.0), (1.0, 200.0)])
def test_power_shift_is_the_slack_or_half_the_spacing(spacing_s, half_width_j):
    # 400 W higher, at a time known to ± 0.25 s, or between two readings
    assert power_shift_j(400.0, 0.25, spacing_s) == half_width_j


def test_unexplained_step_is_what_the_accuracy_of_both_does_not_explain():
    # 0.1 s at 700 W and 5 % of 700 J explain 105 J
    assert unexplained_step_j(1_000.0, 700.0, 0.1, 700.0) == 300.0
    assert unexplained_step_j(400.0, 700.0, 0.1, 700.0) == 300.0
    assert unexplained_step_j(805.0, 700.0, 0.1, 700.0) == 0.0
    assert unexplained_step_j(806.0, 700.0, 0.1, 700.0) == 106.0


def test_scaled_step_error_grows_from_the_nearer_end():
    # 10 J of shifted power, and 25 % of the 40 J to the nearer end
    assert scaled_step_j(10.0, 1.25, 100.0, 40.0, 200.0) == 20.0
    assert scaled_step_j(10.0, 0.75, 40.0, 100.0, 200.0) == 20.0


def test_scaled_step_error_is_at_most_the_farther_end():
    assert scaled_step_j(10.0, 1.25, 100.0, 40.0, 15.0) == 15.0


def compared(t_s, counted_j, integrated_j, **values):
    fields = {
        "sampling_j": 0.0,
        "variance_j2": 0.0,
        "slack_j": 0.0,
        "power_w": 300.0,
        "lag_s": 1.0,
        "age_s": 1.0,
    }
    return ComparedEnergy(t_s, counted_j, integrated_j, **(fields | values))


def test_difference_is_that_of_both_increases():
    then = compared(0.0, 5_000.0, 4_000.0)

    assert difference_j(then, compared(10.0, 6_000.0, 4_900.0)) == 100.0
    assert difference_j(then, compared(10.0, 5_900.0, 5_000.0)) == 100.0


def test_allowed_difference_is_the_sum_of_all_contributions():
    # 5 % of 1,000 J, slacks of 10 and 15 J, 200 W more for a delay of 1 s, 5 standard deviations of
    # 2 J, and 30 J that were not sampled
    then = compared(0.0, 0.0, 0.0, slack_j=10.0, power_w=100.0, lag_s=0.5, sampling_j=20.0)
    now = compared(10.0, 1_000.0, 900.0, slack_j=15.0, variance_j2=4.0, sampling_j=50.0)

    assert allowed_difference_j(then, now) == pytest.approx(50 + 10 + 15 + 200 + 10 + 30)
    lower = now._replace(counted_j=900.0, integrated_j=1_000.0)
    assert allowed_difference_j(then, lower) == allowed_difference_j(then, now)


@pytest.mark.parametrize(
    ("base_s", "last", "grown_j"),
    [
        (0.0, (8.0, 400.0, 360.0), 60.0),  # 60 J more in the last 2 s: 30 W for 2 s
        (0.0, (8.0, 900.0, 800.0), 20.0),  # no more since: 100 J in 10 s, 10 W for 2 s
        (0.0, (10.0, 1_000.0, 900.0), 20.0),  # the first comparison since the base
        (9.5, (9.5, 950.0, 850.0), 100.0),  # 100 J in 0.5 s count as 100 J in 2 s
    ],
)
def test_disagreement_grows_until_the_next_comparison(base_s, last, grown_j):
    # 100 J between both, which may grow for an age of 1 s and 1 s more, and 5 % of 1,000 J
    base = compared(base_s, 0.0, 0.0)
    now = compared(10.0, 1_000.0, 900.0)

    doubt_j = disagreement_j(base, compared(*last), now, 1.0)

    assert doubt_j == pytest.approx(100.0 + grown_j + 50.0)


def test_sensor_delays_are_half_the_window_the_updates_and_the_spacing():
    # 400 W for 0.5 s of a window of 1 s, updates of 0.125 and 0.25 s, and 0.0625 s between polls
    assert sensor_delays_j(400.0, 1.0, 0.125, 0.25, 0.0625) == 375.0


def test_replaced_counter_error_has_its_latest_update_at_the_highest_power():
    # 375 J of delays, and 700 W for an update of 0.25 s
    assert replaced_counter_j(375.0, 700.0, 0.25) == 550.0


def test_compared_slack_has_half_an_update_of_the_counter():
    # 375 J of delays, 700 W for half of 0.25 s, and 20 J outside of the range of powers
    assert compared_slack_j(375.0, 700.0, 0.25, 20.0) == 482.5


def test_averaged_slack_is_the_share_of_the_delays_in_the_mean():
    # 400 W · 0.25 s² / 2 = 50 J·s, 800 W · 0.25² s² / 4 = 12.5 J·s and 30 J · 0.5 s = 15 J·s in 2 s
    slack_j = averaged_slack_j(400.0, 800.0, lag_s=0.5, update_s=0.25, outside_j=30.0, mean_s=2.0)

    assert slack_j == 38.75


@pytest.mark.parametrize(("counted_j", "outside_j"), [(150.0, 25.0), (20.0, 5.0), (60.0, 0.0)])
def test_outside_range_is_the_energy_beyond_the_powers(counted_j, outside_j):
    # 0.25 s between 100 and 500 W: 25 to 125 J
    assert outside_range_j(counted_j, 100.0, 500.0, 0.25) == outside_j


def test_unsampled_energy_is_above_an_update_and_outside_of_the_window():
    # 0.3 s: 0.2 s above an update of 0.1 s, and 3/4 of 0.3 s, at 700 W
    assert unsampled_j(700.0, 0.3, 0.25) == pytest.approx(140.0 + 157.5)
    assert unsampled_j(700.0, 0.05, 1.0) == 0.0


def test_unaveraged_energy_is_above_the_window():
    # 3 s: 2 s above a window of 1 s, at 700 W
    assert unaveraged_j(700.0, 3.0) == 1_400.0
    assert unaveraged_j(700.0, 0.5) == 0.0


def test_silence_is_the_limit_since_the_time_that_the_last_poll_shows():
    # polled at 100 s, values of 99.9 s, 3 J pending: 700 W x 10.1 s + 3 J at 110 s
    last = LastPoll(100.0, 700.0, 99.9, 3.0)

    assert silence_j(last, 700.0, 110.0) == pytest.approx(7_073.0)
    # at 98 s the values may have all the energy of the 2 s until the poll
    assert silence_j(last, 700.0, 98.0) == pytest.approx(1_403.0)


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
