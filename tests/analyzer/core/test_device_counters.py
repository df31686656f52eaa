"""Increase of counters over a time range, and percentiles of histograms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_analyzer.core.device_counters import by_limit, increase, percentile
from wattline_analyzer.core.samples import Samples


def samples(*pairs):
    return Samples(*np.array(pairs, dtype=np.float64).T)


def test_increase_between_scrapes_is_linear_within_their_limits():
    """10 tokens a second from 5 s to 25 s are 200; the scrapes allow 100 to 300."""
    result = increase(samples((0, 0), (10, 100), (20, 200), (30, 300)), 5, 25)

    assert (result.bound.value, result.bound.low, result.bound.high) == (200, 100, 300)
    assert (result.restarts, result.partial) == (0, False)


def test_increase_at_scrape_times_is_exact():
    result = increase(samples((0, 0), (10, 100), (20, 200)), 0, 20)

    assert (result.bound.low, result.bound.value, result.bound.high) == (200, 200, 200)


def test_increase_restart_adds_new_value_and_widens_upper_limit():
    """100 until 10 s, then a new process with 30 at 20 s: 100 + 30 + 20 = 150."""
    result = increase(samples((0, 0), (10, 100), (20, 30), (30, 50)), 0, 30)

    assert result.bound.value == 150
    assert result.bound.high == 150 + 10 * 10
    assert result.restarts == 1


def test_increase_late_sample_counts_nothing_and_widens_upper_limit():
    """190 at 20 s is older than 200 at 10 s: 100 + 120 = 220 until 30 s.

    If it is a restart, 200 before it are missing, and 10 s at 10 a second.
    """
    result = increase(samples((0, 100), (10, 200), (20, 190), (30, 320)), 0, 30)

    assert (result.bound.value, result.bound.low) == (220, 220)
    assert result.bound.high == 220 + 200 + 10 * 10
    assert (result.restarts, result.partial) == (0, False)


def test_increase_late_sample_outside_range_widens_nothing():
    result = increase(samples((0, 100), (10, 200), (20, 190), (30, 320), (40, 330)), 30, 40)

    assert (result.bound.low, result.bound.value, result.bound.high) == (10, 10, 10)


def test_increase_only_late_samples_after_the_first_is_zero():
    """100 at 0 s, then 90: nothing, or a restart with at most 100 before it."""
    result = increase(samples((0, 100), (10, 90)), 0, 10)

    assert (result.bound.low, result.bound.value, result.bound.high) == (0, 0, 100)


def test_increase_first_scrape_in_range_may_include_earlier_count():
    result = increase(samples((100, 40), (110, 50), (120, 60)), 0, 120)

    assert (result.bound.value, result.bound.low, result.bound.high) == (20, 20, 60)
    assert result.partial


def test_increase_server_lost_in_range_may_count_until_next_scrape():
    result = increase(samples((0, 0), (10, 100), (20, 200)), 0, 120)

    assert result.bound.value == 200
    assert result.bound.high == 200 + 10 * 25
    assert result.partial


def test_increase_without_samples_in_range_is_none():
    assert increase(samples((0, 0), (10, 100)), 20, 30) is None
    assert increase(samples((25, 0)), 20, 30) is None


@given(
    st.lists(st.floats(0, 50), min_size=40, max_size=40),
    st.floats(15, 100),
    st.floats(0.5, 90),
    st.integers(2, 12),
)
def test_increase_bound_covers_true_count_for_any_rate(rates, start_s, duration_s, interval_s):
    """Scrapes at a constant interval of a counter whose rate changes each 10 s."""
    line = np.concatenate([[0.0], np.cumsum(rates) * 10])

    def count_at(t_s):
        return float(np.interp(t_s, np.arange(len(line)) * 10, line))

    times = np.arange(0, 400, interval_s)
    result = increase(
        Samples(times, np.array([count_at(t) for t in times])), start_s, start_s + duration_s
    )
    expected = count_at(start_s + duration_s) - count_at(start_s)

    assert result.bound.low - 1e-6 <= expected <= result.bound.high + 1e-6


def test_by_limit_adds_replicas_with_differently_written_limits():
    assert by_limit([("0.1", 3), ("1.0", 5), ("+Inf", 6), ("0.1", 1), ("1", 2), ("+Inf", 2)]) == {
        0.1: 4,
        1.0: 7,
        math.inf: 8,
    }


def test_by_limit_adds_only_limits_common_to_all_replicas():
    """80 of 100 and 60 of 100 are up to 0.5 s: 140 of 200; only one replica has a bucket for 0.2 s.

    The median is the 100th of these 140.
    """
    first = [("0.5", 80.0), ("5", 100.0), ("+Inf", 100.0)]
    second = [("0.2", 50.0), ("0.5", 60.0), ("2", 100.0), ("+Inf", 100.0)]

    buckets = by_limit([*first, *second])

    assert buckets == {0.5: 140, math.inf: 200}
    assert percentile(buckets, 50) == pytest.approx(0.5 * 100 / 140)
    assert percentile(buckets, 90) is None


@pytest.mark.parametrize(("percent", "expected"), [(50, 0.1), (80, 0.4), (90, 0.7), (25, 0.05)])
def test_percentile_is_linear_within_bucket(percent, expected):
    """10 up to 0.1 s, 6 more up to 0.4 s, 4 more up to 1 s: the 18th of 20 is halfway from 0.4 to
    1.
    """
    buckets = {0.1: 10, 0.4: 16, 1.0: 20, math.inf: 20}

    assert percentile(buckets, percent) == pytest.approx(expected)


def test_percentile_above_last_limit_or_without_requests_is_none():
    assert percentile({0.1: 10, math.inf: 20}, 99) is None
    assert percentile({0.1: 10, math.inf: 20}, 50) == pytest.approx(0.1)
    assert percentile({0.1: 0, math.inf: 0}, 50) is None
    assert percentile({}, 50) is None
