"""Statistics of few repeats: differences, outliers and limits, worked out by hand or over generated
values.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattline.figures import Figure
from wattline_analyzer.core import statistics as stats
from wattline_analyzer.core.statistics import (
    RunValue,
    geometric_means,
    gpu_outliers,
    log_difference,
    outliers,
    ratios_to_first,
)
from wattline_analyzer.recommend.advice import monotone_fit, pareto_front
from wattline_analyzer.recommend.plot import pchip_curve

NUMBERS = st.lists(st.floats(0.1, 1e3), min_size=2, max_size=12)


def run_values(values, half=None, *, paired=True):
    """Return runs with these values; groups are paired by position."""
    return [
        RunValue(Figure(value, half), at if paired else object()) for at, value in enumerate(values)
    ]


def noisy(levels, repeats, noise, seed, drift=0.0, *, paired=True):
    """Return a group for each level, with a scatter and a drift of each repeat."""
    rng = np.random.default_rng(seed)
    drifts = rng.normal(0, drift, repeats) if drift else np.zeros(repeats)
    return [
        run_values(level * np.exp(rng.normal(0, noise, repeats) + drifts), paired=paired)
        for level in levels
    ]


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
    result = stats.compare_settings(noisy([100.0, 110.0, 110.0], 5, 0.02, seed=3))

    every = [0, 1, 2]
    assert (result.p_against(0, every)[1:] < 0.05).all()
    assert result.p_against(1, every)[2] >= 0.05
    assert abs(result.difference[1, 0] - math.log(1.1)) <= result.difference_half[1, 0]


def test_compare_settings_paired_repeats_cancel_drift():
    paired, apart = (
        stats.compare_settings(noisy([100.0, 103.0], 5, 0.002, seed=5, drift=0.1, paired=paired))
        for paired in (True, False)
    )

    assert (paired.paired, apart.paired) == (True, False)
    assert paired.p_against(0, [0, 1])[1] < 0.05
    assert apart.p_against(0, [0, 1])[1] >= 0.05
    assert paired.difference_half[0, 1] < 0.1 * apart.difference_half[0, 1]


def test_compare_settings_of_pairs_have_the_t_interval():
    """Logarithms 0 ± 0.01 and 0.03 ± 0.01 in three opposite repeats: differences 0.01, 0.03, 0.05.

    Their standard error is 0.02 / √3 with two degrees of freedom, whose 97.5 % quantile is 4.3027.
    """
    groups = [
        run_values(np.exp([0.01, 0.0, -0.01])),
        run_values(np.exp([0.02, 0.03, 0.04])),
    ]

    result = stats.compare_settings(groups)

    assert result.difference[1, 0] == pytest.approx(0.03)
    assert result.difference_half[1, 0] == pytest.approx(4.3027 * 0.02 / math.sqrt(3), rel=1e-4)


def test_compare_settings_moderate_the_variance_of_each_by_that_of_all():
    """Standard deviations 0.01 and 0.03 of three runs each: variances 1e-4 and 9e-4, mean 5e-4.

    With two degrees of freedom of the mean, they are 3e-4 and 7e-4 with four degrees of freedom.
    The error of the first mean is √(3e-4 / 3), and the quantile of four degrees 2.7764.
    """
    groups = [
        run_values(np.exp([-0.01, 0.0, 0.01]), paired=False),
        run_values(np.exp([-0.03, 0.0, 0.03]), paired=False),
    ]

    result = stats.compare_settings(groups)

    assert result.half == pytest.approx([2.7764 * 0.01, 2.7764 * math.sqrt(7e-4 / 3)], rel=1e-4)
    # Satterthwaite's 10² / (3² / 4 + 7² / 4) = 6.9 degrees are more than the four of all values
    half = 2.7764 * math.sqrt(3e-4 / 3 + 7e-4 / 3)
    assert result.difference_half[0, 1] == pytest.approx(half, rel=1e-4)


def test_compare_settings_half_widths_of_runs_do_not_enter():
    """The scatter of the repeats has the errors of the runs in it."""
    plain, wide = (
        stats.compare_settings([run_values([100.0, 101.0, 102.0], half) for _ in range(2)])
        for half in (None, 50.0)
    )

    assert np.array_equal(plain.difference_half, wide.difference_half)
    assert np.array_equal(plain.half, wide.half)


def test_compare_settings_interval_has_nominal_coverage():
    covered = 0
    for seed in range(400):
        result = stats.compare_settings(noisy([100.0, 104.0], 5, 0.02, seed))
        covered += abs(result.difference[1, 0] - math.log(1.04)) <= result.difference_half[1, 0]

    assert 364 <= covered <= 394  # 380 are expected, with a standard deviation of 4.4


def test_compare_settings_equal_settings_rarely_differ():
    results = [stats.compare_settings(noisy([50.0] * 9, 5, 0.015, seed)) for seed in range(40)]

    wrong = sum((result.p_against(0, range(9)) < 0.05).any() for result in results)
    assert wrong <= 7  # 2 are expected; more than 7 has a chance of 1 in 1,000


def test_compare_settings_p_against_corrects_for_compared_settings_only():
    """Holm's correction multiplies the smaller of two p-values by two, not by the three pairs."""
    result = stats.compare_settings(noisy([50.0, 50.4, 50.6], 5, 0.005, 3))

    least, other = sorted(result.p[1:, 0])
    corrected = sorted(result.p_against(0, [0, 1, 2])[1:])
    assert corrected == pytest.approx([min(2 * least, 1.0), min(max(2 * least, other), 1.0)])
    assert result.p_against(0, [0, 1])[1] == pytest.approx(result.p[1, 0])


def test_compare_settings_without_repeats_is_refused():
    with pytest.raises(ValueError, match="no setting has two runs"):
        stats.compare_settings([run_values([1.0]), run_values([2.0])])


def test_compare_settings_without_scatter_is_certain():
    groups = [run_values([value] * 2, paired=False) for value in (1.0, 2.0, 1.0)]
    result = stats.compare_settings(groups)

    assert result.p_against(1, [0, 1, 2])[0] == 0
    assert result.p_against(0, [0, 1, 2])[2] == 1


def test_compare_settings_exact_repeats_have_no_half_width():
    drift = np.array([1.0, 1.001, 1.002])
    result = stats.compare_settings([run_values(level / drift) for level in (50.0, 60.0)])

    assert result.paired
    assert result.difference[1, 0] == pytest.approx(math.log(1.2))
    assert result.difference_half[1, 0] == pytest.approx(0, abs=1e-12)
    assert result.p_against(0, [0, 1])[1] < 0.05
    assert np.isfinite(result.half).all()


def test_compare_settings_small_difference_of_few_repeats_is_not_clear():
    """Four repeats may be in two clock states by chance, which five are not, or 6 % show."""
    few, more, large = (
        stats.compare_settings(noisy([100.0, level], repeats, 1e-4, seed=1))
        for level, repeats in ((103.0, 4), (103.0, 5), (106.0, 4))
    )

    assert few.p_against(0, [0, 1])[1] < stats.FALSE_CLEAR
    assert [one.is_clear(1, 0, [0, 1]) for one in (few, more, large)] == [False, True, True]


def test_log_difference_of_groups_is_welchs():
    """Standard deviations 0.01 of three and 0.03 of two runs: the error is √(1e-4 / 3 + 9e-4 / 2)."""
    first = run_values(np.exp([-0.01, 0.0, 0.01]), paired=False)
    second = run_values(np.exp([0.1, 0.1 + 0.03 * math.sqrt(2)]), paired=False)

    found = log_difference(first, second)

    parts = (1e-4 / 3, 9e-4 / 2)
    assert found.log == pytest.approx(0.1 + 0.015 * math.sqrt(2))
    assert found.error == pytest.approx(math.sqrt(sum(parts)))
    assert found.freedom == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2))
    assert found.repeats == 2


def test_ratios_several_groups_have_holms_p():
    """The smaller of two p-values counts twice."""
    groups = [
        run_values(np.exp(np.array([-0.01, 0.0, 0.01]) + level), paired=False)
        for level in (0.0, 0.03, 0.01)
    ]

    both = ratios_to_first(groups)
    alone = [ratios_to_first([groups[0], group])[0] for group in groups[1:]]

    assert both[0].p == pytest.approx(2 * alone[0].p)
    assert both[1].p == pytest.approx(alone[1].p)
    assert (both[0].low, both[0].high) == (alone[0].low, alone[0].high)


def test_ratios_small_difference_of_few_repeats_is_not_clear():
    few, more, large = (
        ratios_to_first(noisy([100.0, level], repeats, 1e-5, seed=2))[0].clear
        for level, repeats in ((103.0, 4), (103.0, 5), (106.0, 4))
    )

    assert (few, more, large) == (False, True, True)


def clear_share(pairs, count=400):
    """Return the share of comparisons that call a difference clear; `pairs` gives both groups'
    values and blocks.
    """
    random = np.random.default_rng(1)
    clear = 0
    for _ in range(count):
        (result,) = ratios_to_first(
            [[RunValue(Figure(v), block) for v, block in values] for values in pairs(random)]
        )
        clear += result.clear
    return clear / count


def test_ratios_unequal_scatter_keeps_the_false_alarm_rate():
    """Ten runs that scatter by 0.2 % and five by 2 %, with the same mean."""

    def pairs(random):
        yield [(math.exp(0.002 * z), f"a{i}") for i, z in enumerate(random.standard_normal(10))]
        yield [(math.exp(0.02 * z), f"b{i}") for i, z in enumerate(random.standard_normal(5))]

    assert (
        clear_share(pairs) <= 0.02
    )  # 0.5 % are expected; more than 2 % has a chance of 1 in 1,000


def test_ratios_paired_repeats_find_a_difference_below_the_drift():
    """Five repeats that drift by 3 % together, a true difference of 3 %, and noise of 0.2 %."""

    def pairs(random):
        drift = 0.03 * random.standard_normal(5)
        for level in (0.0, 0.03):
            noise = 0.002 * random.standard_normal(5)
            yield [(math.exp(level + drift[i] + noise[i]), i) for i in range(5)]

    assert clear_share(pairs) >= 0.95


def test_ratios_single_run_scatters_like_the_other_group():
    """Standard deviation of the logarithms 0.01, three degrees of freedom: 3.182 × 0.01 × √(1 +
    1/4).
    """
    values = [math.exp(0.01 * z) for z in (-1.0, -1.0, 1.0, 1.0)]
    spread = 0.01 * math.sqrt(4 / 3)

    (result,) = ratios_to_first([run_values(values), [RunValue(Figure(1.1), "b")]])

    assert math.log(result.high / result.ratio) == pytest.approx(
        3.182 * spread * math.sqrt(1.25), rel=1e-3
    )


@pytest.mark.parametrize(
    ("halves", "known"), [((0.5, 0.5, 0.5), 3), ((0.5, None, 0.5), 2), ((None, None, None), 0)]
)
def test_ratios_of_repeats_have_the_larger_of_scatter_and_known_half_widths(halves, known):
    """Three equal runs have no scatter. Each that is known to ± 50 % adds (0.5 / 3)² to the square
    of the half-width, on both sides.
    """
    groups = [[RunValue(Figure(1.0, half), i) for i, half in enumerate(halves)] for _ in range(2)]
    (result,) = ratios_to_first(groups)

    assert math.log(result.high) == pytest.approx(0.5 / 3 * math.sqrt(2 * known))


def test_ratios_scatter_wider_than_half_widths_leaves_them_out():
    """Pairs that differ by 0.01, 0.03 and 0.05, and runs of ± 0.1 %: the interval is Student's."""
    first = np.exp([0.01, 0.0, -0.01])
    second = np.exp([0.02, 0.03, 0.04])
    (result,) = ratios_to_first([run_values(first, 1e-3), run_values(second, 1e-3)])

    half = 4.3027 * 0.02 / math.sqrt(3)
    assert math.log(result.high / result.ratio) == pytest.approx(half, rel=1e-4)


def test_ratios_limits_of_common_errors_are_added():
    """Two repeats of 2 within 1.8 and 2.4, and of 1 within 0.95 and 1.1, without scatter."""
    first = [RunValue(Figure(1.0, skewed=(0.95, 1.1)), at) for at in "ab"]
    second = [RunValue(Figure(2.0, skewed=(1.8, 2.4)), at) for at in "cd"]

    (result,) = ratios_to_first([first, second])

    assert (result.low, result.high) == pytest.approx((1.8 / 1.1, 2.4 / 0.95))
    assert result.clear


def test_ratios_within_common_errors_are_not_clear():
    first = [RunValue(Figure(1.0, skewed=(0.95, 1.1)), at) for at in "ab"]
    second = [RunValue(Figure(1.1, skewed=(1.0, 1.2)), at) for at in "cd"]

    (result,) = ratios_to_first([first, second])

    assert result.low == pytest.approx(1.0 / 1.1)
    assert not result.clear


def test_geometric_mean_of_repeats_has_students_interval_and_common_limits():
    """Logarithms 0.01 apart: their error is 0.005, with a quantile of 12.706; the limits add 10 %."""
    plain, common = (
        geometric_means(
            [
                [
                    RunValue(Figure(v, skewed=ends and (0.9 * v, 1.1 * v)), v)
                    for v in np.exp([0, 0.01])
                ]
            ]
        )[0]
        for ends in (None, True)
    )

    assert plain.value == pytest.approx(math.exp(0.005))
    assert math.log(plain.high / plain.value) == pytest.approx(12.706 * 0.005, rel=1e-4)
    assert common.high / plain.high == pytest.approx(1.1)
    assert common.low / plain.low == pytest.approx(0.9)


def test_geometric_mean_of_one_run_has_its_half_width():
    (mean,) = geometric_means([[RunValue(Figure(10.0, 1.0), 0)]])

    assert (mean.low, mean.high) == pytest.approx((10 * math.exp(-0.1), 10 * math.exp(0.1)))


def test_limits_apart_by_more_than_ten_times_are_words():
    """A half-width of 120 % gives exp(2.4) = 11 times, one of 110 % nine times."""
    (wide,) = geometric_means([[RunValue(Figure(1.0, 1.2), 0)]])
    (narrow,) = geometric_means([[RunValue(Figure(1.0, 1.1), 0)]])
    (difference,) = ratios_to_first(
        [[RunValue(Figure(1.0, 1.2), 0)], [RunValue(Figure(5.0, 0.0), 1)]]
    )

    assert (wide.low, wide.high, wide.reason) == (None, None, stats.SHORT_RUNS)
    assert narrow.high == pytest.approx(math.exp(1.1))
    assert (difference.low, difference.clear, difference.too_short) == (
        None,
        False,
        stats.SHORT_RUNS,
    )


def test_limits_of_two_repeats_that_scatter_widely_are_words():
    (difference,) = ratios_to_first([run_values([1.0, 2.0]), run_values([3.0, 1.0])])

    assert (difference.low, difference.too_short) == (None, stats.FEW_REPEATS)


@given(st.lists(st.floats(1, 1.1), min_size=4, max_size=6), st.floats(0.01, 100))
def test_ratio_is_independent_of_unit_and_in_its_interval(values, factor):
    (first,), (second,) = (
        ratios_to_first([run_values(scale * v for v in values) for scale in scales])
        for scales in ((1, 2), (factor, 2 * factor))
    )
    assert first.ratio == pytest.approx(2)
    assert second.ratio == pytest.approx(first.ratio)
    assert first.low <= first.ratio * (1 + 1e-12)
    assert first.high >= first.ratio * (1 - 1e-12)


def test_outliers_are_on_both_sides_and_none_below_five():
    steady = [100.0, 101.0, 99.0, 100.5, 99.5]
    groups = ([*steady, 150.0], [60.0, *steady], [1.0, 100.0, 100.0, 100.0])

    high, low, few = outliers([run_values(group, paired=False) for group in groups])

    assert high == [False] * 5 + [True]
    assert low == [True] + [False] * 5
    assert few == [False] * 4


def test_outlier_limit_of_few_values_is_wider():
    """The deviations have a median of 0.01, so a scale of 0.014826. Of five values the limit is
    3.5 × (1 + 2 / 5) of it, 0.0726, and of ten 3.5 × (1 + 2 / 10), 0.0623.
    """
    five = [-0.01, -0.01, 0.0, 0.01]
    ten = [*[-0.01] * 4, 0.0, 0.0, *[0.01] * 3]

    def flags(logs, last):
        return outliers([run_values(np.exp([*logs, last]), paired=False)])[0][-1]

    assert [flags(five, last) for last in (0.0720, 0.0733)] == [False, True]
    assert [flags(ten, last) for last in (0.0617, 0.0629)] == [False, True]


def test_outlier_differs_by_more_than_clock_states():
    steady = [100.0, 100.01, 99.99, 100.02, 99.98]

    assert outliers([run_values([*steady, 104.9])]) == [[False] * 6]
    assert outliers([run_values([*steady, 105.1])]) == [[False] * 5 + [True]]


def test_outliers_of_two_kinds_of_runs_are_none():
    """Two of six runs are outliers, five of twelve are another kind."""
    steady = [100.0, 100.1, 100.05, 99.95, 100.02, 99.98, 100.01]
    odd = [130.0, 130.1, 129.9, 130.05, 129.95]

    assert outliers([run_values([*steady[:4], *odd[:2]])]) == [[False] * 4 + [True] * 2]
    assert outliers([run_values([*steady, *odd])]) == [[False] * 12]


def test_outliers_group_of_larger_scatter_has_none():
    steady = [100.0, 100.2, 99.8, 100.1, 99.9]
    wide = [100.0, 108.0, 92.0, 115.0, 87.5]
    groups = [run_values(group, paired=False) for group in (steady, steady, steady, wide)]

    assert outliers(groups) == [[False] * 5] * 4


def test_outliers_of_pairs_are_those_without_the_drift():
    """The repeats drift by 20 %; the second pair differs by 20 % more than the others."""
    drift = np.array([1.0, 1.05, 1.1, 1.15, 1.2])
    first = 100 * drift * np.array([1.0, 1.2, 1.001, 0.999, 1.002])

    found = outliers([run_values(first), run_values(100 * drift)])

    assert found == [[False, True, False, False, False]] * 2


def test_outlier_of_several_settings_in_repeats_is_one_run():
    drift = np.array([1.0, 1.05, 1.1, 1.15, 1.2])
    noise = np.array([1.0, 1.001, 0.999, 1.002, 0.998])
    odd = noise * np.array([1.3, 1.0, 1.0, 1.0, 1.0])
    groups = [run_values(100 * drift * one) for one in (odd, noise[::-1], noise)]

    assert outliers(groups) == [[True] + [False] * 4, [False] * 5, [False] * 5]


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
    """Rounded values are often equal, so that their MAD is 0, and the mean deviation replaces it."""
    # 300 of nine deviations are 33.3 on the mean, 41.8 scaled, with a limit of 175; four of eight
    # deviations of 1 have a MAD of 0.5
    assert gpu_outliers(np.array([100.0] * 9 + [400.0])) == [False] * 9 + [True]
    assert gpu_outliers(np.array([100.0] * 5 + [101.0] * 4)) == [False] * 9
    assert gpu_outliers(np.array([100.0] * 5)) == [False] * 5


def test_gpu_outliers_are_found_on_both_sides():
    assert (
        gpu_outliers(np.array([10.0, 10.1, 9.9, 10.2, 9.8, 12.0, 8.0])) == [False] * 5 + [True] * 2
    )


def test_bootstrap_error_of_a_mean_is_its_standard_error():
    """The deviation of the values -1 and 1 is 1, and that of their mean 1 / √100."""
    values = np.array([-1.0, 1.0] * 50)

    error = stats.bootstrap_error(values, lambda rows, inner: (rows * inner).mean(axis=1))

    assert error == pytest.approx(0.1, rel=0.1)  # 400 resamples: 3.5 %


def test_bootstrap_error_is_independent_of_order_and_skips_unusable_resamples():
    values = np.arange(20.0)

    def finite(rows, inner):
        return np.where(rows[:, 0] < 10, rows.mean(axis=1), np.nan)

    assert stats.bootstrap_error(values, finite) == stats.bootstrap_error(values[::-1], finite)
    assert stats.bootstrap_error(values, lambda rows, inner: np.full(len(rows), np.nan)) == 0.0


def test_median_limits_are_those_of_the_sign_test():
    """All of six values are on one side of the median with 2 / 64, all or all but one of nine with
    2 × 10 / 512 = 3.9 %.
    """
    assert stats.median_limits(np.arange(5.0)) is None
    assert stats.median_limits(np.arange(6.0)) == (0, 5)
    assert stats.median_limits(np.arange(9.0)) == (1, 7)


def test_correlation_limits_are_fishers():
    """atanh(0.5) = 0.5493, ± 1.95996 / √(19 − 3) = 0.48999."""
    low, high = stats.correlation_limits(0.5, 19)

    assert (low, high) == pytest.approx((math.tanh(0.05931), math.tanh(1.03929)), abs=1e-5)
    assert stats.correlation_limits(1.0, 19) == (1.0, 1.0)
