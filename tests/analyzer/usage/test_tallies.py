"""Increase of a counter in a window, from parts in the order of time."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_analyzer.usage.tallies import Tally

START_S = 1_000.0


def tally_of(*parts):
    """Return the tally of parts, each a list of pairs of seconds after the start and a value."""
    tally = Tally({}, START_S)
    for part in parts:
        t_s, value = np.array(part, dtype=np.float64).T
        tally.add(START_S + t_s, value)
    return tally


def test_tally_counts_from_the_last_value_before_the_window():
    assert tally_of([(-10, 100.0), (5, 130.0), (20, 150.0)]).rise == 50.0


def test_tally_counts_from_the_first_value_without_one_before():
    assert tally_of([(5, 130.0), (20, 150.0)]).rise == 20.0


def test_tally_value_an_hour_before_the_window_is_too_old():
    assert tally_of([(-3_601, 100.0), (5, 130.0), (20, 150.0)]).rise == 20.0


def test_tally_restart_between_parts_adds_the_new_value():
    assert tally_of([(5, 1_000.0), (20, 1_100.0)], [(35, 40.0), (50, 90.0)]).rise == 100.0 + 90.0


def test_tally_rollback_counts_no_amount_twice():
    # a power cut: 1,100 again from 1,050 on; 1,300 in the end
    parts = [(5, 1_000.0), (20, 1_100.0)], [(140, 1_050.0)], [(155, 1_080.0), (170, 1_300.0)]

    assert tally_of(*parts).rise == 300.0


def test_tally_of_late_samples_only_counts_nothing():
    tally = tally_of([(-10, 1_000.0), (5, 990.0)], [(20, 995.0)], [(35, 1_030.0)])

    assert tally.rise == 30.0
    assert tally.last == 1_030.0


def test_tally_gauge_has_no_rise():
    tally = Tally({}, START_S, is_counter=False)
    tally.add(START_S + np.array([5.0, 20.0]), np.array([3.0, 8.0]))

    assert (tally.rise, tally.highest) == (0.0, 8.0)


@given(
    st.lists(st.floats(0, 1e6), min_size=2, max_size=40),
    st.lists(st.integers(1, 39), max_size=5),
)
def test_tally_rise_is_independent_of_the_parts(values, borders):
    pairs = [(15.0 * at - 20.0, value) for at, value in enumerate(values)]
    edges = sorted({0, len(pairs), *(border for border in borders if border < len(pairs))})
    parts = [pairs[begin:end] for begin, end in itertools.pairwise(edges)]

    assert tally_of(*parts).rise == pytest.approx(tally_of(pairs).rise, rel=1e-12, abs=1e-9)
