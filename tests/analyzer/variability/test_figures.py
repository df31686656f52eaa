"""Variability of GPUs, on recordings of 392 V100s and on generated values."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wattline_analyzer.core.statistics import gpu_outliers
from wattline_analyzer.variability import figures as variability
from wattline_analyzer.variability.figures import GpuRun, gpu_variability

SGEMM = Path(__file__).parents[3] / "shared" / "data" / "variability" / "sgemm-longhorn-agg.csv"


def runs_of(gpus, values):
    return [GpuRun(gpu, value) for gpu, value in zip(gpus, values, strict=True)]


@pytest.mark.skipif(
    not SGEMM.is_file(), reason=f"{SGEMM} is missing; its recordings may not be redistributed"
)
def test_variability_of_sgemm_on_longhorn_matches_publication():
    table = pd.read_csv(SGEMM)
    columns = table["uuid"], table["perf"], 1e6 * table["freq"]
    runs = [
        GpuRun(gpu, time, covariates={"sm_clock_hertz": clock})
        for gpu, time, clock in zip(*columns, strict=True)
    ]

    result = gpu_variability(runs)

    assert (result.runs, len(result.gpus)) == (11_087, 392)
    assert 100 * result.whisker_runs.value == pytest.approx(8.74, abs=0.005)
    assert 100 * result.whisker_gpus.value == pytest.approx(8.89, abs=0.005)
    assert 100 * result.within.value == pytest.approx(0.12, abs=0.005)
    assert result.correlations["sm_clock_hertz"].value == pytest.approx(-0.94, abs=0.005)
    for estimate in (result.between, result.within, *result.correlations.values()):
        assert estimate.low < estimate.value < estimate.high
    assert (result.whisker_runs.low, result.whisker_gpus.low) == (None, None)
    assert result.within.high < result.between.low  # GPUs differ, repeats do not
    assert max(gpu.deviation for gpu in result.gpus if gpu.outlier) == pytest.approx(0.20, abs=0.01)


def test_whiskers_end_within_one_and_a_half_quartile_ranges():
    # quartiles 3 and 7, so whiskers reach from -3 to 13: 9 is the last, 100 is apart; the median is
    # 5
    assert variability.whiskers([1, 2, 3, 4, 5, 6, 7, 9, 100]) == (1, 9)
    assert variability.whisker_range_ratio([1, 2, 3, 4, 5, 6, 7, 9, 100]) == 8 / 5


def test_gini_of_equal_and_of_single_owner_values():
    assert variability.gini([3, 3, 3]) == pytest.approx(0)
    assert variability.gini([0, 0, 0, 8]) == pytest.approx(3 / 4)


@given(st.lists(st.floats(1, 1e3), min_size=3, max_size=30), st.floats(1e-3, 1e3))
@example([819.5414075878869] * 4, 1.0)
def test_relative_spreads_are_independent_of_unit(values, factor):
    scaled = [factor * value for value in values]

    assert variability.coefficient_of_variation(scaled) == pytest.approx(
        variability.coefficient_of_variation(values), abs=1e-9
    )
    assert variability.gini(scaled) == pytest.approx(variability.gini(values), abs=1e-9)
    assert 0 <= variability.gini(values) < 1


def test_variability_few_gpus_have_no_outlier_and_no_interval():
    result = gpu_variability(runs_of("aabb", [1.0, 1.02, 2.0, 2.02]))

    assert gpu_outliers(np.array([1.0, 1.0, 9.0])) is None
    assert [gpu.outlier for gpu in result.gpus] == [None, None]
    assert result.between.low is None
    assert result.gpus[1].deviation == pytest.approx(2.01 / 1.51 - 1)  # the median of 1.01 and 2.01


def test_variability_one_gpu_has_spread_within_only():
    result = gpu_variability(runs_of("aaa", [1.0, 1.02, 0.98]))

    assert result.within.value == pytest.approx(
        0.02
    )  # a standard deviation of 0.02 over a mean of 1
    assert np.isnan(result.between.value)
    assert np.isnan(result.whisker_gpus.value)


FLEETS = 800
DISTRIBUTIONS = {
    "normal": lambda random, count: 1 + 0.03 * random.standard_normal(count),
    "even": lambda random, count: 1 + 0.05 * random.uniform(-1, 1, count),
}
TRUE_DEVIATION = {"normal": 0.03, "even": 0.05 / np.sqrt(3)}


def coverage(estimates, true_value):
    return np.mean([estimate.low <= true_value <= estimate.high for estimate in estimates])


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("gpus", [5, 8, 16, 64])
def test_variation_estimate_covers_generated_fleets(kind, gpus):
    """GPUs with a known relative standard deviation around a mean of 1."""
    random = np.random.default_rng(gpus)
    result = [
        variability.variation_estimate(DISTRIBUTIONS[kind](random, gpus)) for _ in range(FLEETS)
    ]

    known = [estimate for estimate in result if estimate.low is not None]
    assert len(known) >= 0.97 * FLEETS
    assert coverage(known, TRUE_DEVIATION[kind]) >= 0.93


def test_variability_with_outlier_has_interval_of_the_others_only():
    """One GPU that is far slower: how many such GPUs the fleet has is not known from eight."""
    times = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 2.2]
    result = gpu_variability(runs_of("abcdefgh", times))

    assert result.between.low is None
    assert result.between.value == pytest.approx(
        0.368, abs=0.001
    )  # standard deviation 0.4238 over the mean 1.1513
    assert result.inner.value == pytest.approx(
        0.01343, abs=1e-5
    )  # 0.013452 over 1.001429, of seven
    assert result.inner.low < result.inner.value < result.inner.high < 0.05
    assert result.outliers.value == 1 / 8
    assert result.outliers.high == pytest.approx(
        0.471, abs=0.001
    )  # at most one of eight in 5 % of the cases


@pytest.mark.parametrize("gpus", [6, 7, 8, 16, 64])
def test_placement_effect_covers_generated_fleets(gpus):
    """Each GPU is 5 % slower with a neighbour, with a skewed scatter of 2 %."""
    random = np.random.default_rng(gpus)
    effects = 0.05 + 0.02 * (random.exponential(1.0, (FLEETS, gpus)) - np.log(2))

    assert coverage([variability.median_estimate(effect) for effect in effects], 0.05) >= 0.93


@pytest.mark.parametrize("gpus", [5, 8, 32])
def test_correlation_estimate_covers_clustered_repeats(gpus):
    """A GPU's time correlates with its clock by -0.8; three repeats of a GPU are not
    independent.
    """
    random = np.random.default_rng(gpus)
    result = []
    for _ in range(FLEETS):
        clock = np.repeat(random.standard_normal(gpus), 3)
        time = -0.8 * clock + 0.6 * np.repeat(random.standard_normal(gpus), 3)
        result.append(variability.correlation_estimate(time, clock, gpus))

    assert coverage(result, -0.8) >= 0.93


def test_variation_within_a_gpu_covers_generated_fleets():
    """Median of the relative scatter of three repeats: by the chi distribution 1 % times the square
    root of ln 2.
    """
    random = np.random.default_rng(7)
    result = []
    for _ in range(FLEETS):
        repeats = 1 + 0.01 * random.standard_normal((9, 3))
        result.append(
            variability.median_estimate(
                np.array(
                    [variability.coefficient_of_variation(gpu_values) for gpu_values in repeats]
                )
            )
        )

    assert coverage(result, 0.01 * np.sqrt(np.log(2))) >= 0.93


def test_placement_effect_compares_each_gpu_with_itself():
    values = {"a": 1.0, "b": 2.0, "c": 3.0}
    runs = [GpuRun(gpu, value, "alone") for gpu, value in values.items()]
    runs += [
        GpuRun(gpu, 1.05 * value, "hot neighbour") for gpu, value in values.items() if gpu != "a"
    ]

    result = gpu_variability(runs)

    assert result.reference == "alone"
    assert result.placements[0].effect.value == pytest.approx(0.05)
    assert result.placements[0].gpus == 2
    with pytest.raises(ValueError, match="unknown placement 'x'; known are alone, hot neighbour"):
        gpu_variability(runs, reference="x")
