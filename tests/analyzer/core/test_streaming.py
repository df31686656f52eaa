"""Exact median of numbers that are read part by part."""

import numpy as np
import pytest

from wattline_analyzer.core.streaming import median


@pytest.mark.parametrize("count", [1, 2, 100_000, 100_001, 150_000])
def test_median_of_many_parts_is_exact(count):
    """Thousandths from 1 to `count` in random order."""
    numbers = np.random.default_rng(5).permutation(np.arange(1.0, count + 1)) * 1e-3
    parts = np.array_split(numbers, max(count // 7_000, 1))

    assert median(lambda: iter(parts)) == pytest.approx((count + 1) / 2 * 1e-3, rel=1e-15)


def test_median_without_numbers_is_none():
    assert median(lambda: iter([np.empty(0)])) is None
