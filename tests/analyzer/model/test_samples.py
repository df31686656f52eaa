"""Gaps in samples, and their order."""

import numpy as np

from analyzer.model.samples import Gap, clean, gaps


def test_gaps_are_2_5_times_median_interval_and_clipped_to_window():
    series = clean(np.array([0, 1, 2, 3, 6, 7, 8, 9.0]), np.zeros(8))

    assert gaps(series, 0, 9) == [Gap(3, 6)]
    assert gaps(series, 4, 9) == [Gap(4, 6)]
    assert gaps(series, 0, 20) == [Gap(3, 6), Gap(9, 20)]


def test_clean_sorts_and_keeps_first_of_equal_timestamps():
    series = clean(np.array([2.0, 1, 2, np.nan, 3]), np.array([20.0, 10, 21, 5, np.inf]))

    assert series.t.tolist() == [1, 2]
    assert series.value.tolist() == [10, 20]
