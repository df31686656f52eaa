"""Counters of servers over a range: how far they rose, and the percentiles of their histograms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.energy.counters import by_limit, increase, percentile
from analyzer.model.samples import Samples


def samples(*pairs):
    return Samples(*np.array(pairs, dtype=np.float64).T)


def test_between_scrapes_a_counter_is_linear_and_limited_by_them():
    """10 tokens a second; from 5 s to 25 s that is 200, and the scrapes allow 100 to 300."""
    found = increase(samples((0, 0), (10, 100), (20, 200), (30, 300)), 5, 25)

    assert (found.bound.value, found.bound.low, found.bound.high) == (200, 100, 300)
    assert (found.restarts, found.partial) == (0, False)


def test_at_a_scrape_itself_nothing_is_left_open():
    found = increase(samples((0, 0), (10, 100), (20, 200)), 0, 20)

    assert (found.bound.low, found.bound.value, found.bound.high) == (200, 200, 200)


def test_after_a_restart_the_new_value_is_added_and_what_was_not_seen_is_in_the_upper_limit():
    """100 until 10 s, then a new process that had counted 30 at 20 s: 100 + 30 + 20 in all."""
    found = increase(samples((0, 0), (10, 100), (20, 30), (30, 50)), 0, 30)

    assert found.bound.value == 150
    assert found.bound.high == 150 + 10 * 10
    assert found.restarts == 1


def test_what_a_server_had_counted_before_it_was_first_scraped_may_be_of_the_range():
    found = increase(samples((100, 40), (110, 50), (120, 60)), 0, 120)

    assert (found.bound.value, found.bound.low, found.bound.high) == (20, 20, 60)
    assert found.partial


def test_a_server_that_went_away_may_have_counted_until_the_next_scrape():
    found = increase(samples((0, 0), (10, 100), (20, 200)), 0, 120)

    assert found.bound.value == 200
    assert found.bound.high == 200 + 10 * 25
    assert found.partial


def test_a_counter_of_another_time_says_nothing():
    assert increase(samples((0, 0), (10, 100)), 20, 30) is None
    assert increase(samples((25, 0)), 20, 30) is None


@given(st.lists(st.floats(0, 50), min_size=40, max_size=40), st.floats(15, 100), st.floats(0.5, 90), st.integers(2, 12))
def test_the_bound_holds_the_truth_whenever_the_tokens_came(rates, start_s, duration_s, interval_s):
    """Scrapes every few seconds of a counter whose rate changes each 10 s."""
    line = np.concatenate([[0.0], np.cumsum(rates) * 10])

    def counted(t_s):
        return float(np.interp(t_s, np.arange(len(line)) * 10, line))

    times = np.arange(0, 400, interval_s)
    found = increase(Samples(times, np.array([counted(t) for t in times])), start_s, start_s + duration_s)
    truth = counted(start_s + duration_s) - counted(start_s)

    assert found.bound.low - 1e-6 <= truth <= found.bound.high + 1e-6


def test_buckets_of_replicas_add_up_however_their_limits_are_written():
    assert by_limit([("0.1", 3), ("1.0", 5), ("+Inf", 6), ("0.1", 1), ("1", 2), ("+Inf", 2)]) == {
        0.1: 4,
        1.0: 7,
        math.inf: 8,
    }


def test_of_replicas_with_different_limits_those_that_all_have_add_up():
    """80 of 100 up to 0.5 s, and 50 of 100 up to 0.2 s and 60 up to 0.5 s: of all 200 are 140 up to 0.5 s, and nobody
    knows how many up to 0.2 s; the median is the 100th of these 140.
    """
    one = [("0.5", 80.0), ("5", 100.0), ("+Inf", 100.0)]
    other = [("0.2", 50.0), ("0.5", 60.0), ("2", 100.0), ("+Inf", 100.0)]

    buckets = by_limit([*one, *other])

    assert buckets == {0.5: 140, math.inf: 200}
    assert percentile(buckets, 50) == pytest.approx(0.5 * 100 / 140)
    assert percentile(buckets, 90) is None


@pytest.mark.parametrize(("percent", "expected"), [(50, 0.1), (80, 0.4), (90, 0.7), (25, 0.05)])
def test_a_percentile_is_linear_in_its_bucket(percent, expected):
    """10 up to 0.1 s, 6 more up to 0.4 s, 4 more up to 1 s: the 18th of 20 lies half way from 0.4 to 1."""
    buckets = {0.1: 10, 0.4: 16, 1.0: 20, math.inf: 20}

    assert percentile(buckets, percent) == pytest.approx(expected)


def test_above_the_last_limit_nobody_knows_and_without_requests_neither():
    assert percentile({0.1: 10, math.inf: 20}, 99) is None
    assert percentile({0.1: 10, math.inf: 20}, 50) == pytest.approx(0.1)
    assert percentile({0.1: 0, math.inf: 0}, 50) is None
    assert percentile({}, 50) is None
