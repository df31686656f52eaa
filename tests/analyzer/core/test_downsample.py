"""Results from downsampled series, which equal those from all samples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_analyzer.core import integrate
from wattline_analyzer.core.downsample import (
    MAX_UNCHANGED,
    DownsampledSeries,
    DownsamplePlan,
    RandomSample,
    plan_buckets,
)
from wattline_analyzer.core.phases import active_spans
from wattline_analyzer.core.samples import Samples, clean, gaps
from wattline_analyzer.report import checks
from wattline_analyzer.report.error_budget import sampling_half_j

START_S = 1_789_000_000.0
SEEDS = st.integers(0, 2**32 - 1)
POWER = integrate.PowerRange(0.0, 770.0)


def scrapes(random, seconds):
    """Scrape times about 1 s apart, some late, some missing, with long gaps, rounded to
    milliseconds as servers do.
    """
    t = np.arange(seconds) + random.integers(-20, 20, seconds) / 1_000
    present = random.random(seconds) > 0.02
    for begin in random.integers(0, seconds, 3):
        present[begin : begin + random.integers(4, 300)] = False
    present[:3] = True
    return START_S + np.round(t[present], 3)


def power_of(random, t):
    """Power in steps with noise, and stretches with a repeated value."""
    steps = np.repeat(random.uniform(60, 690, len(t) // 50 + 1), 50)[: len(t)]
    value = np.round(steps + random.normal(0, 3, len(t)), 3)
    for begin in random.integers(0, len(t), 3):
        value[begin : begin + random.integers(20, 400)] = value[begin]
    return value


def counter_of(random, t, power_w):
    """Integral of the power, which restarts at 0 twice."""
    value = np.concatenate([[0.0], np.cumsum(np.diff(t) * (power_w[1:] + power_w[:-1]) / 2)]) + 5e6
    for at in random.integers(1, len(t), 2):
        value[at:] -= value[at]
    return np.round(np.abs(value), 3)


def in_parts(random, t, value, series):
    borders = np.sort(random.integers(0, len(t), 6))
    for times, values in zip(np.split(t, borders), np.split(value, borders), strict=True):
        series.add(times, values)
    return series.result()


def with_small_limit(planned):
    return replace(planned, whole=50)


def run_of(random, t):
    """Start and end of a run, at scrapes or between them."""
    start_s, end_s = np.sort(random.uniform(t[0] - 30, t[-1] + 30, 2))
    return float(start_s), float(end_s + 1)


@given(SEEDS)
def test_downsample_power_keeps_integral_gaps_and_stuck_spans(seed):
    random = np.random.default_rng(seed)
    t = scrapes(random, 9_000)
    value = power_of(random, t)
    run = run_of(random, t)
    whole = clean(t, value)

    times, values, exact = in_parts(
        random,
        t,
        value,
        DownsampledSeries("gauge", with_small_limit(plan_buckets(t[0], t[-1], run)), run),
    )
    reduced = Samples(times, values, exact)

    assert np.isin(times, t).all()
    result, expected = integrate.trapezoid(reduced, *run), integrate.trapezoid(whole, *run)
    assert result.energy_j == pytest.approx(expected.energy_j, rel=1e-9)
    assert result.covered_s == pytest.approx(expected.covered_s, abs=1e-5)
    assert [(gap.start_s, gap.end_s) for gap in gaps(reduced, *run)] == [
        (gap.start_s, gap.end_s) for gap in gaps(whole, *run)
    ]
    assert checks.stuck_spans(reduced.between(*run)) == checks.stuck_spans(whole.between(*run))
    assert reduced.value.max() == value.max()
    inside = whole.between(*run)
    if len(inside):
        assert reduced.between(*run).value.max() == inside.value.max()


@given(SEEDS)
def test_downsample_counter_keeps_energy_bound_and_resets(seed):
    random = np.random.default_rng(seed)
    t = scrapes(random, 9_000)
    value = counter_of(random, t, power_of(random, t))
    run = run_of(random, t)
    marks_s = np.sort(random.uniform(t[0], t[-1], 5))

    times, values, exact = in_parts(
        random,
        t,
        value,
        DownsampledSeries(
            "counter", with_small_limit(plan_buckets(t[0], t[-1], run, marks_s.tolist())), None
        ),
    )
    reduced, whole = Samples(times, values), clean(t, value)

    assert exact is None
    result, expected = (
        integrate.counter_energy(entry, run[0], run[1], POWER) for entry in (reduced, whole)
    )
    assert [result.value, result.low, result.high] == pytest.approx(
        [expected.value, expected.low, expected.high]
    )
    assert integrate.is_plausible_counter(reduced, POWER) == integrate.is_plausible_counter(
        whole, POWER
    )
    falls = [entry.t[1:][np.diff(entry.value) < 0].tolist() for entry in (reduced, whole)]
    assert falls[0] == falls[1]
    lines = [integrate.unwrap(entry, POWER) for entry in (reduced, whole)]
    at_marks = [np.interp(marks_s, line.t, line.energy_j) for line in lines]
    assert at_marks[0] == pytest.approx(at_marks[1])


@given(SEEDS)
def test_downsample_phase_seconds_keep_times_of_phase(seed):
    random = np.random.default_rng(seed)
    t = START_S + np.arange(3_000.0)
    on = np.repeat(random.integers(0, 2, 100), 30)
    value = np.concatenate([[0.0], np.cumsum(on[1:])])

    times, values, _ = in_parts(
        random,
        t,
        value,
        DownsampledSeries("age", with_small_limit(plan_buckets(t[0], t[-1], ())), None),
    )

    assert len(times) < len(t) / 2
    assert active_spans(Samples(times, values)) == active_spans(Samples(t, value))


def test_downsample_shortens_long_series_only():
    for count in (MAX_UNCHANGED, 50 * MAX_UNCHANGED):
        t = START_S + np.arange(count)
        series = DownsampledSeries("gauge", plan_buckets(t[0], t[-1], ()), (t[0], t[-1]))
        for part in np.array_split(t, 10):
            series.add(part, np.sin(part))
        times, _, exact = series.result()
        if count == MAX_UNCHANGED:
            assert np.array_equal(times, t)
            assert exact is None
        else:
            assert len(times) < MAX_UNCHANGED


def test_downsample_keeps_all_samples_near_run_edges():
    t = START_S + np.arange(100_000)
    edges = (START_S + 40_000.5, START_S + 60_000.5)

    series = DownsampledSeries("counter", plan_buckets(t[0], t[-1], edges), None)
    series.add(t, 300 * (t - START_S))
    times, _, _ = series.result()

    for edge_s in edges:
        assert np.isin(t[np.abs(t - edge_s) <= 600], times).all()


def test_downsample_change_of_interval_keeps_gaps_of_all_samples():
    """The overall median is 1 s, so each of the first intervals is a gap."""
    t = START_S + np.concatenate([np.arange(0, 300, 15.0), 300 + np.arange(3_000.0)])
    run = (START_S, t[-1])

    series = DownsampledSeries("gauge", with_small_limit(plan_buckets(*run, run)), run)
    series.add(t, np.sin(t))
    _, _, exact = series.result()

    assert len(exact.gaps) == 20
    assert exact.covered_s == pytest.approx(2_999)


def test_plan_buckets_number_is_bounded_for_any_run_length():
    for days in (1, 7, 60, 2_000):
        planned = plan_buckets(START_S, START_S + days * 86_400, ())
        assert isinstance(planned, DownsamplePlan)
        assert len(planned.cuts) <= 2_600


def test_random_sample_keeps_mean_of_periodic_load():
    """A load that repeats every four samples: every fourth sample would look constant."""
    t = np.arange(1_000_000.0)
    value = np.where(t % 4 == 0, 100.0, 300.0)
    subset = RandomSample(most=40_000)
    for at in range(0, len(t), 50_000):
        subset.add(t[at : at + 50_000], value[at : at + 50_000])
    times, values = subset.result()

    assert 10_000 < len(values) <= 40_000
    assert (np.diff(times) > 0).all()
    assert values.mean() == pytest.approx(250, abs=3)
    assert abs(times.mean() / t.mean() - 1) < 0.01


@pytest.mark.parametrize("update", [1, 9], ids=["slow samples", "samples faster than the sensor"])
def test_downsample_power_keeps_sampling_uncertainty(update):
    """Samples each 1.3 s of a sensor that updates with each sample, or with each ninth."""
    random = np.random.default_rng(update)
    t = START_S + np.round(1.3 * np.arange(9_000), 3)
    value = np.repeat(np.cumsum(random.normal(0, 5, 9_000 // update)) + 400, update)
    run = float(t[0]), float(t[-1])

    series = DownsampledSeries("gauge", with_small_limit(plan_buckets(*run, run)), run)
    reduced = Samples(*in_parts(random, t, value, series))

    assert len(reduced) < len(t)
    assert sampling_half_j(reduced) == pytest.approx(sampling_half_j(clean(t, value)), rel=0.02)
