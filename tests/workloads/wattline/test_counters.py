"""Increase of one counter between two values or two samples."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.counters import (
    CounterLimits,
    CounterTotal,
    SampleStep,
    counter_step,
    further_wraps,
)

XEON_J = 262_143.0
"""Range of a RAPL counter of a Xeon."""
LATE = SampleStep("late", 0.0)


def test_counter_step_rise_is_difference():
    assert counter_step(1_000.0, 1_300.0) == 300.0
    assert counter_step(1_000.0, 1_000.0) == 0.0


def test_counter_step_rapl_wrap_is_unwrapped():
    # 10 J up to the range, then 25 J
    assert counter_step(262_133.0, 25.0, XEON_J, 8_000.0) == 35.0


def test_counter_step_restarted_counter_counts_from_zero():
    assert counter_step(1_000_000.0, 250.0, None, 44_000.0) == 250.0


@pytest.mark.parametrize(
    ("before", "now"),
    [(1_000_000.0, 900_000.0), (0.0, 1_000_000.0), (1_000.0, 2.0**63 / 1_000)],
)
def test_counter_step_implausible_step_is_none(before, now):
    assert counter_step(before, now, None, 8_000.0) is None


def test_counter_step_increase_of_most_is_the_largest_plausible():
    assert counter_step(100.0, 600.0, None, 500.0) == 500.0
    assert counter_step(100.0, 600.5, None, 500.0) is None


def test_counter_step_fall_by_more_than_range_is_none():
    # a counter of 1,000 J cannot fall by 1,000.5 J
    assert counter_step(1_100.5, 100.0, 1_000.0, 8_000.0) is None
    assert counter_step(1_100.0, 100.0, 1_000.0, 8_000.0) == 0.0


@pytest.mark.parametrize("now", [-0.5, math.nan])
def test_counter_step_negative_or_nan_value_is_none(now):
    assert counter_step(5.0, now) is None
    assert counter_step(5.0, now, 1_000.0) is None


@given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 1e6))
def test_counter_step_within_a_range_is_the_amount_counted(before_ratio, ratio, range_):
    before = before_ratio * range_
    amount = ratio * range_ * 0.999

    assert counter_step(before, (before + amount) % range_, range_) == pytest.approx(
        amount, abs=1e-9 * range_
    )


def test_further_wraps_none_fit_below_the_range():
    assert further_wraps(XEON_J, 200_000.0, 150_000.0) == 0.0
    assert further_wraps(XEON_J, XEON_J, 150_000.0) == 0.0


def test_further_wraps_up_to_the_possible_amount():
    # 1,000 W for an hour are 3,600,000 J, of which 100,000 J were added
    assert further_wraps(XEON_J, 3_600_000.0, 100_000.0) == 3_500_000.0


@pytest.mark.parametrize("added_j", [1_500.0, 1_600.0])
def test_further_wraps_none_fit_beside_all_of_the_possible_amount(added_j):
    assert further_wraps(1_000.0, 1_500.0, added_j) == 0.0


def test_counter_total_adds_values_after_restarts():
    # 5 until 15, then 3 since the restart, then 1
    total = CounterTotal(0.0, 10.0)
    totals = []
    for raw in (15.0, 3.0, 4.0):
        total = total.after(raw)
        totals.append(total)

    assert totals == [(5.0, 15.0), (8.0, 3.0), (9.0, 4.0)]


@pytest.mark.parametrize("raw", [-1.0, math.nan])
def test_counter_total_ignores_values_that_no_counter_has(raw):
    assert CounterTotal(7.0, 10.0).after(raw) == (7.0, 10.0)
    assert CounterTotal(7.0, 10.0).after(raw).after(12.0) == (9.0, 12.0)


@given(st.lists(st.floats(0, 1e9) | st.just(math.nan)))
def test_counter_total_never_falls(raws):
    total = CounterTotal(0.0, 0.0)
    for raw in raws:
        before = total
        total = before.after(raw)
        assert total.total >= before.total


def test_limits_rise_counts_also_above_the_highest_rate():
    # 100 W × (10 s + 1 s) = 1,100 J, but only falls are judged
    limits = CounterLimits(most_rate=100.0, age_s=1.0)

    assert limits.step(1_000.0, 9_000.0, 10.0) == ("rise", 8_000.0)
    assert limits.step(1_000.0, 1_000.0, 10.0) == ("rise", 0.0)


def test_limits_fall_is_a_wrap_where_the_rate_permits_it():
    # 60,000 to 500 of 65,536 J is 6,036 J in 60 s; 100.6 W permit 6,036 J
    assert CounterLimits(65_536.0, 100.6).step(60_000.0, 500.0, 60.0) == ("wrap", 6_036.0)


def test_limits_fall_that_is_no_wrap_is_a_restart():
    # 64,036 J in 60 s are 1,067 W, more than 100.5 W; 500 J since 0 are 8.3 W
    limits = CounterLimits(65_536.0, 100.5)

    assert limits.step(2_000.0, 500.0, 60.0) == ("restart", 500.0)


def test_limits_value_reachable_from_zero_is_a_restart():
    # 440 W × (1 s + 1.5 s) = 1,100 J since the age of the value before
    limits = CounterLimits(most_rate=440.0, age_s=1.5)

    assert limits.step(50_000.0, 1_100.0, 1.0) == ("restart", 1_100.0)
    assert limits.step(50_000.0, 1_101.0, 1.0) == LATE


def test_limits_values_have_no_age_by_default():
    # 440 W × 1 s = 440 J
    limits = CounterLimits(most_rate=440.0)

    assert limits.step(50_000.0, 440.0, 1.0) == ("restart", 440.0)
    assert limits.step(50_000.0, 441.0, 1.0) == LATE


def test_limits_fall_to_7_8_is_no_restart():
    limits = CounterLimits()

    assert limits.step(800.0, 700.0, 15.0) == LATE
    assert limits.step(800.0, 699.0, 15.0) == ("restart", 699.0)


def test_limits_fall_to_7_8_can_be_a_wrap():
    # 1,000 J to 900 J with a range of 2,000 J is 1,900 J
    assert CounterLimits(2_000.0).step(1_000.0, 900.0, 15.0) == ("wrap", 1_900.0)


def test_limits_negative_value_is_late():
    assert CounterLimits().step(5.0, -1.0, 1.0) == LATE
