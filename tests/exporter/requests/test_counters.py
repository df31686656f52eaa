"""Counters of requests: classic and native buckets of their energies."""

import numpy as np

from wattline.contract import metrics as m
from wattline_exporter.requests.counters import (
    BUCKETS_J,
    NATIVE_SCHEMA,
    NEW_SERIES_S,
    ZERO_J,
    RequestCounters,
)
from wattline_exporter.requests.division.columns import LabelSet

MODEL_A, MODEL_B = (LabelSet({"model": name}, None) for name in "ab")


def counters_of(energies_j, model=MODEL_A, counters=None):
    """Return counters with requests of the given energies, which are published."""
    counters = counters or RequestCounters(())
    number = counters.number(model)
    joules = np.array(energies_j)
    counters.add(np.full(len(joules), number), joules, np.ones(len(joules), dtype=bool))
    counters.publish(counters.take_changes(), 0.0)
    return counters


def native(counters):
    return {each.labels: each for each in counters.native_buckets(NEW_SERIES_S)}


def test_native_bucket_includes_its_upper_bound():
    # 2 ** (24 / 8) = 8 J: the bucket 24 is (7.34, 8], and 1 J is in the bucket 0
    [buckets] = counters_of([8.0, 8.0, 8.01, 7.3, 1.0, 1.05]).native_buckets(NEW_SERIES_S)

    assert buckets.metric is m.REQUEST_ENERGY
    assert (buckets.labels, buckets.extra, buckets.schema) == (("a", ""), (), NATIVE_SCHEMA)
    assert buckets.counts == {24: 2, 25: 1, 23: 1, 0: 1, 1: 1}
    assert buckets.zero_count == 0


def test_native_buckets_small_energy_is_in_the_zero_bucket():
    [buckets] = counters_of([0.0, ZERO_J, 2 * ZERO_J]).native_buckets(NEW_SERIES_S)

    assert buckets.zero_threshold == ZERO_J
    assert buckets.zero_count == 2
    assert buckets.counts == {-72: 1}  # 2 ** -9 = 2 ** (-72 / 8)


def test_native_buckets_of_each_label_set_have_their_own_counts():
    counters = counters_of([4.0], MODEL_A)
    counters_of([4.0, 16.0], MODEL_B, counters)

    found = native(counters)
    assert found["a", ""].counts == {16: 1}
    assert found["b", ""].counts == {16: 1, 32: 1}


def test_native_buckets_are_published_with_the_counters_only():
    counters = counters_of([4.0])
    counters.add(np.array([0]), np.array([4.0]), np.array([True]))

    assert native(counters)["a", ""].counts == {16: 1}


def test_native_buckets_have_as_many_requests_as_the_classic_ones():
    counters = counters_of(np.geomspace(1e-5, 1e5, 1_000))

    [buckets] = counters.native_buckets(NEW_SERIES_S)
    [count] = [
        reading.value
        for reading in counters.readings(NEW_SERIES_S)
        if reading.metric is m.REQUEST_ENERGY_COUNT
    ]
    assert buckets.zero_count + sum(buckets.counts.values()) == count == 1_000


def test_counters_of_an_earlier_version_get_native_buckets():
    labels = ("a", "")
    saved = {
        (m.REQUESTS.name, labels): 5.0,
        (m.REQUEST_ENERGY_BUCKET.name, (*labels, str(BUCKETS_J.index(1.0)))): 3.0,
        (m.REQUEST_ENERGY_BUCKET.name, (*labels, str(len(BUCKETS_J)))): 2.0,  # above 10 kJ
    }
    counters = RequestCounters(())
    counters.restore(saved)

    [buckets] = counters.native_buckets(NEW_SERIES_S)
    assert buckets.counts == {
        0: 3,
        107: 2,
    }  # 2 ** (107 / 8) = 10,624: the bucket that contains 10 kJ
    assert counters.take_changes() == {
        (m.REQUEST_ENERGY.name, (*labels, "0")): 3.0,
        (m.REQUEST_ENERGY.name, (*labels, "107")): 2.0,
    }


def test_new_labels_are_at_zero_for_a_minute_then_at_their_value():
    counters = counters_of([4.0, 16.0])
    counted = {}
    for s in (0.0, NEW_SERIES_S - 1, NEW_SERIES_S):
        found = {reading.metric.name: reading.value for reading in counters.readings(s)}
        counted[s] = (
            found[m.REQUESTS.name],
            found[m.REQUEST_ENERGY_TOTAL.name],
            found[m.REQUEST_ENERGY_COUNT.name],
        )

    assert counted == {0.0: (0, 0, 0), NEW_SERIES_S - 1: (0, 0, 0), NEW_SERIES_S: (2, 20.0, 2)}
    assert [each.counts for each in counters_of([4.0]).native_buckets(0.0)] in ([], [{}])


def test_labels_that_are_known_rise_at_once():
    counters = counters_of([4.0])
    counters.add(np.array([0]), np.array([4.0]), np.array([True]))
    counters.publish(counters.take_changes(), NEW_SERIES_S + 1)

    [requests] = [r.value for r in counters.readings(NEW_SERIES_S + 1) if r.metric is m.REQUESTS]
    assert requests == 2


def test_energy_series_after_requests_without_energy_begin_at_zero():
    counters = RequestCounters(())
    number = counters.number(MODEL_A)
    for now_s, joules in ((0.0, 0.0), (100.0, 50.0)):
        counters.add(np.array([number]), np.array([joules]), np.array([joules > 0.0]))
        counters.publish(counters.take_changes(), now_s)

    def values(now_s):
        found = {reading.metric.name: reading.value for reading in counters.readings(now_s)}
        return (
            found[m.REQUESTS.name],
            found[m.REQUEST_ENERGY_TOTAL.name],
            found[m.REQUEST_ENERGY_COUNT.name],
        )

    assert values(100.0) == (2, 0, 0)
    assert values(100.0 + NEW_SERIES_S) == (2, 50.0, 1)


def test_labels_of_a_previous_exporter_are_at_their_value_at_once():
    counters = RequestCounters(())
    counters.restore({(m.REQUESTS.name, ("a", "")): 5.0})

    assert [reading.value for reading in counters.readings(0.0)] == [5.0]
