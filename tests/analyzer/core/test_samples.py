"""Gaps in samples, and their order."""

import numpy as np

from wattline_analyzer.core.samples import (
    Gap,
    clean,
    distinct,
    gaps,
    sample_median,
    sample_quantiles,
)


def test_gaps_are_2_5_times_median_interval_and_clipped_to_window():
    series = clean(np.array([0, 1, 2, 3, 6, 7, 8, 9.0]), np.zeros(8))

    assert gaps(series, 0, 9) == [Gap(3, 6)]
    assert gaps(series, 4, 9) == [Gap(4, 6)]
    assert gaps(series, 0, 20) == [Gap(3, 6), Gap(9, 20)]


def test_clean_sorts_and_keeps_first_of_equal_timestamps():
    series = clean(np.array([2.0, 1, 2, np.nan, 3]), np.array([20.0, 10, 21, 5, np.inf]))

    assert series.t.tolist() == [1, 2]
    assert series.value.tolist() == [10, 20]


def test_median_and_quantiles_are_interpolated_between_values():
    values = np.array([4.0, 1.0, 3.0, 2.0])

    assert sample_median(values) == 2.5
    assert sample_median(values[:3]) == 3.0
    assert sample_quantiles(values, (0.0, 0.25, 0.5, 1.0)) == [1.0, 1.75, 2.5, 4.0]
    assert sample_quantiles(np.array([7.0]), (0.02, 0.98)) == [7.0, 7.0]


def test_distinct_values_rise():
    assert distinct(np.array([3.0, 1.0, 3.0, 2.0, 1.0])).tolist() == [1.0, 2.0, 3.0]
    assert distinct(np.array([])).tolist() == []
