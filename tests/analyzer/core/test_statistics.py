import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattline_analyzer.core import statistics as stats
from wattline_analyzer.core.statistics import gpu_outliers
from wattline_analyzer.recommend.advice import monotone_fit, pareto_front
from wattline_analyzer.recommend.plot import pchip_curve

NUMBERS = st.lists(st.floats(0.1, 1e3), min_size=2, max_size=12)


def noisy(levels, repeats, noise, seed, drift=0.0):
    rng = np.random.default_rng(seed)
    drifts = rng.normal(0, drift, repeats) if drift else np.zeros(repeats)
    cells = [(number, repeat) for number in range(len(levels)) for repeat in range(repeats)]
    values = [levels[n] * math.exp(rng.normal(0, noise) + drifts[r]) for n, r in cells]
    return values, [n for n, _ in cells], [r for _, r in cells]


def test_holm_multiplies_sorted_p_by_remaining_comparisons():
    assert stats.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_order_and_never_lowers_p(p):
    adjusted = stats.holm(p)

    assert all(0 <= raw <= fixed <= 1 for raw, fixed in zip(p, adjusted, strict=True))
    assert all(
        adjusted[a] <= adjusted[b] for a in range(len(p)) for b in range(len(p)) if p[a] < p[b]
    )


def test_compare_settings_finds_ten_percent_at_two_percent_noise():
    result = stats.compare_settings(*noisy([100.0, 110.0, 110.0], 5, 0.02, seed=3), seed=1)

    every = [0, 1, 2]
    assert (result.p_against(0, every)[1:] < 0.05).all()
    assert result.p_against(1, every)[2] >= 0.05
    assert abs(result.difference[1, 0] - math.log(1.1)) <= result.difference_half[1, 0]


def test_compare_settings_paired_repeats_cancel_drift():
    values, settings, repeats = noisy([100.0, 103.0], 5, 0.002, seed=5, drift=0.1)

    paired = stats.compare_settings(values, settings, repeats)
    apart = stats.compare_settings(values, settings, range(len(values)))

    assert (paired.paired, apart.paired) == (True, False)
    assert paired.p_against(0, [0, 1])[1] < 0.05
    assert apart.p_against(0, [0, 1])[1] >= 0.05
    assert paired.difference_half[0, 1] < 0.1 * apart.difference_half[0, 1]


def test_compare_settings_interval_has_nominal_coverage():
    covered = 0
    for seed in range(100):
        result = stats.compare_settings(*noisy([100.0, 104.0], 5, 0.02, seed), seed=seed)
        covered += abs(result.difference[1, 0] - math.log(1.04)) <= result.difference_half[1, 0]

    assert covered >= 88  # 95 are expected; fewer than 88 has a chance of 1 in 500


def test_compare_settings_equal_settings_rarely_differ():
    results = [
        stats.compare_settings(*noisy([50.0] * 9, 5, 0.015, seed), seed=seed) for seed in range(40)
    ]

    wrong = sum((result.p_against(0, range(9)) < 0.05).any() for result in results)
    assert wrong <= 7  # 2 are expected; more than 7 has a chance of 1 in 1,000


def test_compare_settings_p_against_corrects_for_compared_settings_only():
    """Holm's correction multiplies the smaller of two p-values by two, not by the three pairs."""
    result = stats.compare_settings(*noisy([50.0, 50.4, 50.6], 5, 0.005, 3), seed=1)

    least, other = sorted(result.p[1:, 0])
    corrected = sorted(result.p_against(0, [0, 1, 2])[1:])
    assert corrected == pytest.approx([min(2 * least, 1.0), min(max(2 * least, other), 1.0)])
    assert result.p_against(0, [0, 1])[1] == pytest.approx(result.p[1, 0])


def test_compare_settings_same_seed_gives_same_intervals():
    rows = noisy([1.0, 1.1], 4, 0.02, seed=2)

    assert np.array_equal(
        stats.compare_settings(*rows, seed=7).p, stats.compare_settings(*rows, seed=7).p
    )


def test_compare_settings_without_repeats_is_refused():
    with pytest.raises(ValueError, match="no setting has two runs"):
        stats.compare_settings([1.0, 2.0], [0, 1], ["a", "b"])


def test_compare_settings_without_scatter_is_certain():
    result = stats.compare_settings([1.0, 1.0, 2.0, 2.0, 1.0, 1.0], [0, 0, 1, 1, 2, 2], range(6))

    assert result.p_against(1, [0, 1, 2])[0] == 0
    assert result.p_against(0, [0, 1, 2])[2] == 1


def test_pooled_outliers_both_sides_and_none_below_five():
    steady = [100.0, 101.0, 99.0, 100.5, 99.5]

    high, low, few = stats.pooled_outliers(
        [[*steady, 150.0], [60.0, *steady], [1.0, 100.0, 100.0, 100.0]]
    )

    assert high == [False] * 5 + [True]
    assert low == [True] + [False] * 5
    assert few is None


def test_pooled_outliers_group_of_larger_scatter_has_none():
    steady, wide = [100.0, 100.2, 99.8, 100.1, 99.9], [100.0, 103.0, 97.0, 105.0, 95.5]

    assert stats.pooled_outliers([steady, steady, steady, wide]) == [[False] * 5] * 4


@settings(deadline=None)  # the first call imports scipy
@given(NUMBERS)
def test_monotone_fit_never_falls_and_keeps_the_mean(values):
    fitted = monotone_fit(values)

    assert (np.diff(fitted) >= -1e-9).all()
    assert fitted.mean() == pytest.approx(np.mean(values))


@settings(deadline=None)  # the first call imports scipy
@given(NUMBERS)
def test_pchip_curve_stays_between_neighbouring_points(values):
    x = np.arange(len(values), dtype=float)
    at, y = pchip_curve(x, values, points=10 * (len(values) - 1) + 1)

    assert (at[0], at[-1]) == (x[0], x[-1])
    assert y[::10] == pytest.approx(values)
    for position, value in zip(at, y, strict=True):
        ends = values[math.floor(position)], values[math.ceil(position)]
        assert min(ends) - 1e-6 <= value <= max(ends) + 1e-6


def test_pareto_front_leaves_out_dominated_points():
    assert pareto_front([(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (2.5, 2.5), (2.0, 4.0)]) == [1, 2, 0]


def test_compare_settings_exact_repeats_have_zero_half_width():
    drift = [1.0, 1.001, 1.002]
    values = [level / shade for shade in drift for level in (50.0, 60.0)]
    result = stats.compare_settings(values, [0, 1] * 3, ["a", "a", "b", "b", "c", "c"])

    assert result.paired
    assert result.difference[1, 0] == pytest.approx(math.log(1.2))
    assert result.difference_half[1, 0] == 0
    assert result.p_against(0, [0, 1])[1] < 0.05
    assert np.isfinite(result.half).all()


@pytest.mark.parametrize(
    ("found", "n", "expected"),
    [
        (0, 10, 1 - 0.05**0.1),  # (1 − p)¹⁰ = 0.05
        (9, 10, 0.95**0.1),  # p¹⁰ = 0.95
        (1, 8, 0.470_68),  # tables of Clopper and Pearson, Biometrika 26, 1934
        (3, 3, 1.0),
    ],
)
def test_highest_share_has_the_probability_of_at_most_so_many(found, n, expected):
    assert stats.highest_share(found, n, 0.05) == pytest.approx(expected, abs=5e-6)


def test_gpu_outlier_among_equal_values_is_found():
    """Rounded values are often equal, so that their MAD is 0. The mean deviation is 30, and that of
    the second 0.44.
    """
    assert gpu_outliers(np.array([100.0] * 9 + [400.0])) == [False] * 9 + [True]
    assert gpu_outliers(np.array([100.0] * 5 + [101.0] * 4)) == [False] * 9
    assert gpu_outliers(np.array([100.0] * 5)) == [False] * 5


def test_gpu_outliers_are_found_on_both_sides():
    assert (
        gpu_outliers(np.array([10.0, 10.1, 9.9, 10.2, 9.8, 12.0, 8.0])) == [False] * 5 + [True] * 2
    )
