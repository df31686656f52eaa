"""Downsampling of series that change together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wattline_analyzer.core.fetch import StateGroup

START_S = 1_789_000_000.0
SEEDS = st.integers(0, 2**32 - 1)


def series_of(name, t, value):
    return {"__name__": name}, np.array(t, dtype=float), np.array(value, dtype=float)


@given(SEEDS)
def test_state_group_keeps_all_values_around_each_change(seed):
    random = np.random.default_rng(seed)
    t = START_S + np.arange(600.0)
    values = {name: np.repeat(random.integers(0, 3, 12), 50).astype(float) for name in ("a", "b")}
    is_present = {name: np.repeat(random.integers(0, 2, 12), 50) > 0 for name in values}
    group = StateGroup([], lambda _: False, whole=20)
    for part in np.array_split(np.arange(600), 5):
        group.add(
            [
                series_of(
                    name,
                    t[part][is_present[name][part]],
                    values[name][part][is_present[name][part]],
                )
                for name in values
            ]
        )

    result = {
        labels["__name__"]: dict(zip(times, samples, strict=True))
        for labels, times, samples in group.result()
    }

    scrapes = t[is_present["a"] | is_present["b"]]
    states = [
        tuple(
            values[n][int(s - START_S)] if is_present[n][int(s - START_S)] else None for n in values
        )
        for s in scrapes
    ]
    edges = {place for place in range(len(scrapes)) if place in (0, len(scrapes) - 1)}
    for place in range(1, len(scrapes)):
        if states[place] != states[place - 1]:
            edges |= {place - 1, place}
    expected = {float(scrapes[place]): states[place] for place in edges}
    samples = {time for series in result.values() for time in series}
    assert {
        time: tuple(result.get(name, {}).get(time) for name in values) for time in samples
    } == expected


def test_state_group_two_scrape_jobs_make_one_state():
    group = StateGroup([], lambda _: False, whole=10)
    t = START_S + np.arange(100.0)
    group.add(
        [
            ({"__name__": "a", "job": "one"}, t, t * 0),
            ({"__name__": "a", "job": "two"}, t + 0.5, t * 0),
        ]
    )

    ((_, times, _),) = group.result()

    assert times.tolist() == [START_S, START_S + 99.5]
