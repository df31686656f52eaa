"""What is computed from a thinned series is what is computed from all of its samples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.energy import checks as quality
from analyzer.energy import integrate as energy
from analyzer.energy.phases import stretches
from analyzer.model.samples import Samples, clean, gaps
from analyzer.sources.downsample import MAX_UNCHANGED, DownsampledSeries, DownsamplePlan, RandomSample, plan_buckets
from analyzer.sources.downsample_states import StateGroup

START_S = 1_789_000_000.0
SEEDS = st.integers(0, 2**32 - 1)
POWER = energy.PowerRange(0.0, 770.0)


def scrapes(random, seconds):
    """At about 1 s, some late, some missing, with a few long gaps; in milliseconds, as servers keep them."""
    t = np.arange(seconds) + random.integers(-20, 20, seconds) / 1_000
    kept = random.random(seconds) > 0.02
    for begin in random.integers(0, seconds, 3):
        kept[begin : begin + random.integers(4, 300)] = False
    kept[:3] = True
    return START_S + np.round(t[kept], 3)


def power_of(random, t):
    """Steps between loads with noise, and stretches in which the sensor repeats itself."""
    steps = np.repeat(random.uniform(60, 690, len(t) // 50 + 1), 50)[: len(t)]
    value = np.round(steps + random.normal(0, 3, len(t)), 3)
    for begin in random.integers(0, len(t), 3):
        value[begin : begin + random.integers(20, 400)] = value[begin]
    return value


def counter_of(random, t, power_w):
    """The integral of the power, which begins again at 0 now and then."""
    value = np.concatenate([[0.0], np.cumsum(np.diff(t) * (power_w[1:] + power_w[:-1]) / 2)]) + 5e6
    for at in random.integers(1, len(t), 2):
        value[at:] -= value[at]
    return np.round(np.abs(value), 3)


def in_parts(random, t, value, thinned):
    borders = np.sort(random.integers(0, len(t), 6))
    for times, values in zip(np.split(t, borders), np.split(value, borders), strict=True):
        thinned.add(times, values)
    return thinned.result()


def short(planned):
    return replace(planned, whole=50)


def run_of(random, t):
    """A run that begins and ends anywhere, between scrapes as well."""
    start_s, end_s = np.sort(random.uniform(t[0] - 30, t[-1] + 30, 2))
    return float(start_s), float(end_s + 1)


@given(SEEDS)
def test_power_keeps_its_integral_gaps_and_stuck_stretches_to_the_last_digit(seed):
    random = np.random.default_rng(seed)
    t = scrapes(random, 9_000)
    value = power_of(random, t)
    run = run_of(random, t)
    whole = clean(t, value)

    times, values, exact = in_parts(
        random, t, value, DownsampledSeries("gauge", short(plan_buckets(t[0], t[-1], run)), run)
    )
    thin = Samples(times, values, exact)

    assert np.isin(times, t).all()
    found, expected = energy.trapezoid(thin, *run), energy.trapezoid(whole, *run)
    assert found.energy_j == pytest.approx(expected.energy_j, rel=1e-9)
    assert found.covered_s == pytest.approx(expected.covered_s, abs=1e-5)
    assert [(gap.start_s, gap.end_s) for gap in gaps(thin, *run)] == [
        (gap.start_s, gap.end_s) for gap in gaps(whole, *run)
    ]
    assert quality.stuck_spans(thin.between(*run)) == quality.stuck_spans(whole.between(*run))
    assert thin.value.max() == value.max()
    inside = whole.between(*run)
    if len(inside):
        assert thin.between(*run).value.max() == inside.value.max()


@given(SEEDS)
def test_a_counter_keeps_its_energy_its_bound_and_its_falls(seed):
    random = np.random.default_rng(seed)
    t = scrapes(random, 9_000)
    value = counter_of(random, t, power_of(random, t))
    run = run_of(random, t)
    marks_s = np.sort(random.uniform(t[0], t[-1], 5))

    times, values, exact = in_parts(
        random, t, value, DownsampledSeries("counter", short(plan_buckets(t[0], t[-1], run, marks_s.tolist())), None)
    )
    thin, whole = Samples(times, values), clean(t, value)

    assert exact is None
    found, expected = (energy.counter_energy(one, *run, POWER) for one in (thin, whole))
    assert [found.value, found.low, found.high] == pytest.approx([expected.value, expected.low, expected.high])
    assert energy.is_one_line(thin, POWER) == energy.is_one_line(whole, POWER)
    falls = [one.t[1:][np.diff(one.value) < 0].tolist() for one in (thin, whole)]
    assert falls[0] == falls[1]
    lines = [energy.unwrap(one, POWER) for one in (thin, whole)]
    at_marks = [np.interp(marks_s, line.t, line.energy_j) for line in lines]
    assert at_marks[0] == pytest.approx(at_marks[1])


@given(SEEDS)
def test_the_seconds_of_a_phase_keep_when_it_was_on(seed):
    random = np.random.default_rng(seed)
    t = START_S + np.arange(3_000.0)
    on = np.repeat(random.integers(0, 2, 100), 30)
    value = np.concatenate([[0.0], np.cumsum(on[1:])])

    times, values, _ = in_parts(random, t, value, DownsampledSeries("age", short(plan_buckets(t[0], t[-1], ())), None))

    assert len(times) < len(t) / 2
    assert stretches(Samples(times, values)) == stretches(Samples(t, value))


def test_a_long_series_becomes_short_and_a_short_one_stays_as_it_is():
    for count in (MAX_UNCHANGED, 50 * MAX_UNCHANGED):
        t = START_S + np.arange(count)
        thinned = DownsampledSeries("gauge", plan_buckets(t[0], t[-1], ()), (t[0], t[-1]))
        for part in np.array_split(t, 10):
            thinned.add(part, np.sin(part))
        times, _, exact = thinned.result()
        if count == MAX_UNCHANGED:
            assert np.array_equal(times, t)
            assert exact is None
        else:
            assert len(times) < MAX_UNCHANGED


def test_everything_near_the_edges_of_the_run_stays():
    t = START_S + np.arange(100_000)
    edges = (START_S + 40_000.5, START_S + 60_000.5)

    thinned = DownsampledSeries("counter", plan_buckets(t[0], t[-1], edges), None)
    thinned.add(t, 300 * (t - START_S))
    times, _, _ = thinned.result()

    for edge_s in edges:
        assert np.isin(t[np.abs(t - edge_s) <= 600], times).all()


def test_a_spacing_of_15_s_that_becomes_1_s_leaves_the_gaps_that_all_samples_have():
    """The median over all is 1 s, so that each of the first intervals is a gap."""
    t = START_S + np.concatenate([np.arange(0, 300, 15.0), 300 + np.arange(3_000.0)])
    run = (START_S, t[-1])

    thinned = DownsampledSeries("gauge", short(plan_buckets(*run, run)), run)
    thinned.add(t, np.sin(t))
    _, _, exact = thinned.result()

    assert len(exact.gaps) == 20
    assert exact.covered_s == pytest.approx(2_999)


def series_of(name, t, value):
    return {"__name__": name}, np.array(t, dtype=float), np.array(value, dtype=float)


@given(SEEDS)
def test_states_keep_what_was_shown_together_around_each_change(seed):
    random = np.random.default_rng(seed)
    t = START_S + np.arange(600.0)
    values = {name: np.repeat(random.integers(0, 3, 12), 50).astype(float) for name in ("a", "b")}
    shown = {name: np.repeat(random.integers(0, 2, 12), 50) > 0 for name in values}
    group = StateGroup([], lambda _: False, whole=20)
    for part in np.array_split(np.arange(600), 5):
        group.add(
            [series_of(name, t[part][shown[name][part]], values[name][part][shown[name][part]]) for name in values]
        )

    found = {labels["__name__"]: dict(zip(times, kept, strict=True)) for labels, times, kept in group.result()}

    scraped = t[shown["a"] | shown["b"]]
    states = [
        tuple(values[n][int(s - START_S)] if shown[n][int(s - START_S)] else None for n in values) for s in scraped
    ]
    edges = {place for place in range(len(scraped)) if place in (0, len(scraped) - 1)}
    for place in range(1, len(scraped)):
        if states[place] != states[place - 1]:
            edges |= {place - 1, place}
    expected = {float(scraped[place]): states[place] for place in edges}
    kept = {time for series in found.values() for time in series}
    assert {time: tuple(found.get(name, {}).get(time) for name in values) for time in kept} == expected


def test_two_jobs_that_scrape_one_exporter_make_one_state():
    group = StateGroup([], lambda _: False, whole=10)
    t = START_S + np.arange(100.0)
    group.add([({"__name__": "a", "job": "one"}, t, t * 0), ({"__name__": "a", "job": "two"}, t + 0.5, t * 0)])

    ((_, times, _),) = group.result()

    assert times.tolist() == [START_S, START_S + 99.5]


def test_the_grid_of_a_plan_is_bounded_however_long_the_run():
    for days in (1, 7, 60, 2_000):
        planned = plan_buckets(START_S, START_S + days * 86_400, ())
        assert isinstance(planned, DownsamplePlan)
        assert len(planned.cuts) <= 2_600


def test_samples_that_are_drawn_have_the_percentiles_and_the_mean_of_all_of_them():
    """A load that repeats every four samples, which every fourth sample would take for steady."""
    t = np.arange(1_000_000.0)
    value = np.where(t % 4 == 0, 100.0, 300.0)
    few = RandomSample(most=40_000)
    for at in range(0, len(t), 50_000):
        few.add(t[at : at + 50_000], value[at : at + 50_000])
    times, values = few.result()

    assert 10_000 < len(values) <= 40_000
    assert (np.diff(times) > 0).all()
    assert values.mean() == pytest.approx(250, abs=3)
    assert abs(times.mean() / t.mean() - 1) < 0.01
