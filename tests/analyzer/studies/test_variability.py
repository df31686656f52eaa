"""Variability of GPUs, on recordings of 392 V100s and on generated values."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analyzer.sources.history import HistorySource
from analyzer.sources.runs.load import Clock, load_run
from analyzer.sources.runs.studies import VariedQuantity, variability_rows
from analyzer.studies import variability
from analyzer.studies.stats import gpu_outliers
from analyzer.studies.variability import GpuRun, gpu_variability
from exporter.contract import metrics as m
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)

SGEMM = Path(__file__).parents[3] / "shared" / "data" / "variability" / "sgemm-longhorn-agg.csv"


def runs_of(gpus, values):
    return [GpuRun(gpu, value) for gpu, value in zip(gpus, values, strict=True)]


@pytest.mark.skipif(not SGEMM.is_file(), reason=f"{SGEMM} is missing; its recordings may not be redistributed")
def test_variability_of_sgemm_on_longhorn_matches_publication():
    table = pd.read_csv(SGEMM)
    columns = table["uuid"], table["perf"], 1e6 * table["freq"]
    runs = [GpuRun(gpu, time, covariates={"sm_clock_hertz": clock}) for gpu, time, clock in zip(*columns, strict=True)]

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
    # quartiles 3 and 7, so whiskers reach from -3 to 13: 9 is the last, 100 is apart; the median is 5
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

    assert result.within.value == pytest.approx(0.02)  # a standard deviation of 0.02 over a mean of 1
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
    result = [variability.variation_estimate(DISTRIBUTIONS[kind](random, gpus)) for _ in range(FLEETS)]

    known = [estimate for estimate in result if estimate.low is not None]
    assert len(known) >= 0.97 * FLEETS
    assert coverage(known, TRUE_DEVIATION[kind]) >= 0.93


def test_variability_with_outlier_has_interval_of_the_others_only():
    """One GPU that is far slower: how many such GPUs the fleet has is not known from eight."""
    times = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 2.2]
    result = gpu_variability(runs_of("abcdefgh", times))

    assert result.between.low is None
    assert result.between.value == pytest.approx(0.368, abs=0.001)  # standard deviation 0.4238 over the mean 1.1513
    assert result.inner.value == pytest.approx(0.01343, abs=1e-5)  # 0.013452 over 1.001429, of seven
    assert result.inner.low < result.inner.value < result.inner.high < 0.05
    assert result.outliers.value == 1 / 8
    assert result.outliers.high == pytest.approx(0.471, abs=0.001)  # at most one of eight in 5 % of the cases


@pytest.mark.parametrize("gpus", [6, 7, 8, 16, 64])
def test_placement_effect_covers_generated_fleets(gpus):
    """Each GPU is 5 % slower with a neighbour, with a skewed scatter of 2 %."""
    random = np.random.default_rng(gpus)
    effects = 0.05 + 0.02 * (random.exponential(1.0, (FLEETS, gpus)) - np.log(2))

    assert coverage([variability.median_estimate(effect) for effect in effects], 0.05) >= 0.93


@pytest.mark.parametrize("gpus", [5, 8, 32])
def test_correlation_estimate_covers_clustered_repeats(gpus):
    """A GPU's time correlates with its clock by -0.8; three repeats of a GPU are not independent."""
    random = np.random.default_rng(gpus)
    result = []
    for _ in range(FLEETS):
        clock = np.repeat(random.standard_normal(gpus), 3)
        time = -0.8 * clock + 0.6 * np.repeat(random.standard_normal(gpus), 3)
        result.append(variability.correlation_estimate(time, clock, gpus))

    assert coverage(result, -0.8) >= 0.93


def test_variation_within_a_gpu_covers_generated_fleets():
    """Median of the relative scatter of three repeats: by the chi distribution 1 % times the square root of ln 2."""
    random = np.random.default_rng(7)
    result = []
    for _ in range(FLEETS):
        repeats = 1 + 0.01 * random.standard_normal((9, 3))
        result.append(
            variability.median_estimate(
                np.array([variability.coefficient_of_variation(gpu_values) for gpu_values in repeats])
            )
        )

    assert coverage(result, 0.01 * np.sqrt(np.log(2))) >= 0.93


def test_gpu_outlier_among_equal_values_is_found():
    """Rounded values are often equal, so that their MAD is 0. The mean deviation is 30, and that of the second 0.44."""
    assert gpu_outliers(np.array([100.0] * 9 + [400.0])) == [False] * 9 + [True]
    assert gpu_outliers(np.array([100.0] * 5 + [101.0] * 4)) == [False] * 9
    assert gpu_outliers(np.array([100.0] * 5)) == [False] * 5


def test_gpu_outliers_are_found_on_both_sides():
    assert gpu_outliers(np.array([10.0, 10.1, 9.9, 10.2, 9.8, 12.0, 8.0])) == [False] * 5 + [True] * 2


def test_placement_effect_compares_each_gpu_with_itself():
    values = {"a": 1.0, "b": 2.0, "c": 3.0}
    runs = [GpuRun(gpu, value, "alone") for gpu, value in values.items()]
    runs += [GpuRun(gpu, 1.05 * value, "hot neighbour") for gpu, value in values.items() if gpu != "a"]

    result = gpu_variability(runs)

    assert result.reference == "alone"
    assert result.placements[0].effect.value == pytest.approx(0.05)
    assert result.placements[0].effect.n == 2
    with pytest.raises(ValueError, match="unknown placement 'x'; known are alone, hot neighbour"):
        gpu_variability(runs, reference="x")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Return a history of two GPUs with two runs each: 20 s at 1.4 GHz on GPU 0, 22 s at 1.2 GHz on GPU 1."""
    duration_s, clock_hz = (20, 22), (1.4e9, 1.2e9)
    gpus = [NodeGpu([(START_S - 500, 60), (START_S, 300)], index=str(index)) for index in range(2)]
    runs = []
    for index in range(2):
        for repeat in range(2):
            start_s = START_S + 100 * repeat + 50 * index
            labels = {"experiment": "lottery", "case": "alone", "repeat": str(repeat)}
            run = NodeRun(
                f"g{index}-{repeat}", start_s, start_s + duration_s[index], "sgemm", labels, work={"kernels": 10.0}
            )
            runs.append((index, run))
    scrapes = []
    for t in scrape_times(1, START_S - 60, START_S + 250):
        values = list(scrape(gpus, NodeRun("other", START_S + 230, START_S + 240), t))
        for index, run in runs:
            values += run_series([gpus[index]], run, t) if run.start_s <= t <= run.end_s + 60 else []
        for gpu, hz in zip(gpus, clock_hz, strict=True):
            values.append((m.GPU_CLOCK, {"gpu": gpu.index, "uuid": gpu.uuid, "domain": "sm"}, hz))
            values.append((m.GPU_TEMPERATURE, {"gpu": gpu.index, "uuid": gpu.uuid, "sensor": "gpu"}, 60.0))
        scrapes.append((t, values))
    return write_history(tmp_path_factory.mktemp("variability"), series_of_scrapes(scrapes))


def test_variability_command_different_caps_are_reported(analyzer, tmp_path):
    gpu = NodeGpu([(START_S - 500, 60), (START_S, 300)])
    labels = [{"experiment": "caps", "power_limit_watts": cap} for cap in ("300", "450")]
    runs = [
        NodeRun(f"at-{at}", START_S + 50 * at, START_S + 50 * at + 20, "sgemm", run_labels, work={"kernels": 10.0})
        for at, run_labels in enumerate(labels)
    ]
    scrapes = []
    for t in scrape_times(1, START_S - 60, START_S + 150):
        values = list(scrape([gpu], runs[0], t))
        values += run_series([gpu], runs[1], t) if runs[1].start_s <= t else []
        scrapes.append((t, values))
    history = write_history(tmp_path, series_of_scrapes(scrapes))

    completed = analyzer("variability", "--experiment", "caps", "--source", history, "--since", "36500d")

    assert completed.returncode == 0, completed.stderr
    assert (
        "analyzer: the runs differ in power_limit_watts (300, 450), which counts as variation here" in completed.stderr
    )
    assert "seconds per kernel: 2 runs on 1 GPU\n" in completed.stdout.replace(" \n", "\n")


def test_variability_command_compares_medians_of_gpus(analyzer, history):
    command = ("variability", "--experiment", "lottery", "--source", history, "--since", "36500d")
    table, completed = analyzer(*command), analyzer(*command, "--format", "json")

    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert document["value"] == "seconds per kernel"
    assert [(gpu["gpu"], gpu["runs"], gpu["median"]) for gpu in document["gpus"]] == [
        ("GPU-00000000", 2, pytest.approx(2.0)),  # 20 s for 10 kernels
        ("GPU-00000001", 2, pytest.approx(2.2)),
    ]
    assert document["whisker_range_of_gpus_ratio"] == pytest.approx(0.2 / 2.1)
    assert document["correlations"]["sm_clock_hertz"]["r"] == pytest.approx(-1)
    assert document["correlations"]["temperature_celsius"]["r"] is None  # it did not change
    assert "correlation with sm_clock_hertz" in table.stdout


def test_variability_of_power_uses_phases_of_the_work(analyzer, tmp_path):
    """Two GPUs train at 600 W and 700 W for 20 s, between a load at 100 W and an evaluation at 60 W of 20 s each."""
    steps = {0: 600, 1: 700}
    gpus = [
        NodeGpu(
            [(START_S - 500, 60), (START_S, 100), (START_S + 20, w), (START_S + 40, 60)], index=str(at), limit_w=700
        )
        for at, w in steps.items()
    ]
    runs = [
        NodeRun(
            f"g{at}",
            START_S,
            START_S + 60,
            labels={"experiment": "watts"},
            work={"steps": 10.0},
            phases={"load": (20.0, 2_000.0), "train": (20.0, 20.0 * watts), "evaluate": (20.0, 1_200.0)},
            phase_work={"train": {"steps": 10.0}},
        )
        for at, watts in steps.items()
    ]
    scrapes = []
    for t in scrape_times(1, START_S - 30.5, START_S + 90):
        values = list(scrape(gpus, NodeRun("other", START_S + 200, START_S + 240), t))
        for gpu, run in zip(gpus, runs, strict=True):
            values += run_series([gpu], run, t) if run.start_s <= t else []
            values += phase_starts(run, t)
            hz = 1.0e9 if START_S + 20 <= t < START_S + 40 else 2.0e8
            labels = {"gpu": gpu.index, "uuid": gpu.uuid, "domain": "sm"}
            values.append((m.GPU_CLOCK, labels, hz * (1 + int(gpu.index) / 10)))
        scrapes.append((t, values))
    history = write_history(tmp_path, series_of_scrapes(scrapes))
    source = HistorySource(history)
    clock = Clock(lambda: START_S + 3_600, lambda _: None)
    found = [load_run(source, run.run_id, 86_400, clock, lambda _: None) for run in runs]

    rows, unit = variability_rows(source, found, VariedQuantity("power"), "case", print)
    source.close()

    assert unit == "watts, mean"
    assert [run.value for run in rows] == pytest.approx([600.0, 700.0])
    assert [run.covariates["power_watts"] for run in rows] == [600.0, 700.0]
    assert [run.covariates["sm_clock_hertz"] for run in rows] == pytest.approx([1.0e9, 1.1e9])


def phase_starts(run, t):
    for at, phase in enumerate(run.phases):
        if t >= run.start_s + 20 * at:
            yield m.RUN_PHASE_START, {"run_id": run.run_id, "phase": phase}, run.start_s + 20.0 * at


def test_variability_command_unknown_experiment_is_one_line(analyzer, history):
    completed = analyzer("variability", "--experiment", "none", "--source", history, "--since", "36500d")

    assert completed.returncode == 1
    assert "no run with experiment=none at" in completed.stderr
