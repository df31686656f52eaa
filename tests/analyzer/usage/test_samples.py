"""Edges of a counter in a window, from parts in the order of time."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.contract import metrics as m
from wattline_analyzer.usage.samples import RawReadings

START_S = 1_000.0
GPU = {"__name__": m.GPU_ENERGY.name, "instance": "a:1", "gpu": "0", "uuid": "GPU-a"}
OWNER = {"__name__": m.OWNER_ENERGY.name, "instance": "a:1", "kind": "slurm", "owner": "ada"}


def readings_of(*parts, others=()):
    """Return the readings of parts of a GPU, each a list of pairs of seconds after the start and a
    value; `others` are labels and pairs of further series.
    """
    readings = RawReadings("file", START_S, START_S + 600)
    for part in parts:
        t_s, value = np.array(part, dtype=np.float64).T
        readings.add([(GPU, START_S + t_s, value)])
    for labels, pairs in others:
        t_s, value = np.array(pairs, dtype=np.float64).T
        readings.add([(labels, START_S + t_s, value)])
    return readings.result()


def edges_of(*parts):
    (edges,) = readings_of(*parts).edges.values()
    return edges


def test_edges_count_from_the_last_value_before_the_window():
    assert edges_of([(-10, 100.0), (5, 130.0), (20, 150.0)]).increase == 50.0


def test_edges_of_a_node_without_an_earlier_sample_count_from_its_first():
    readings = readings_of([(5, 130.0), (20, 150.0)])

    (edges,) = readings.edges.values()
    assert (edges.before, edges.increase) == (130.0, 20.0)
    assert readings.first_s == {"a:1": START_S + 5}


def test_edges_of_an_owner_that_appears_later_count_from_zero():
    readings = readings_of([(5, 130.0), (20, 150.0)], others=[(OWNER, [(20, 7.0), (35, 9.0)])])

    (owner,) = (edges for key, edges in readings.edges.items() if key.name == OWNER["__name__"])
    assert (owner.before, owner.increase) == (None, 9.0)


def test_edges_of_an_owner_at_zero_have_its_first_value():
    """The owner shows 0 for 65 s; 40 J of it may be older than the first sample of the node."""
    pairs = [(5, 0.0), (65, 0.0), (80, 40.0), (100, 60.0)]
    readings = readings_of([(5, 130.0), (100, 150.0)], others=[(OWNER, pairs)])

    (owner,) = (edges for key, edges in readings.edges.items() if key.name == OWNER["__name__"])
    assert (owner.is_hidden, owner.soon, owner.increase) == (True, 40.0, 60.0)


def test_edges_restart_between_parts_adds_the_new_value():
    edges = edges_of([(5, 1_000.0), (20, 1_100.0)], [(35, 40.0), (50, 90.0)])

    assert edges.increase == 100.0 + 90.0
    assert edges.fell


def test_edges_rollback_counts_no_amount_twice():
    # a power cut: 1,100 again from 1,050 on; 1,300 in the end
    parts = [(5, 1_000.0), (20, 1_100.0)], [(140, 1_050.0)], [(155, 1_080.0), (170, 1_300.0)]

    assert edges_of(*parts).increase == 300.0


def test_edges_with_late_samples_only_rise_nothing():
    edges = edges_of([(-10, 1_000.0), (5, 990.0)], [(20, 995.0)], [(35, 1_030.0)])

    assert edges.increase == 30.0
    assert edges.last == 1_030.0


def test_readings_name_addresses_without_samples_at_the_end():
    """The window ends at 600 s; 150 s without a sample are reported."""
    late = readings_of([(-10, 1.0), (449, 2.0)])
    whole = readings_of([(-10, 1.0), (451, 2.0)])

    assert late.last_s == {"a:1": START_S + 449}
    assert whole.last_s == {}


@given(
    st.lists(st.floats(0, 1e6), min_size=2, max_size=40),
    st.lists(st.integers(1, 39), max_size=5),
)
def test_edges_increase_is_independent_of_the_parts(values, borders):
    pairs = [(15.0 * at - 10.0, value) for at, value in enumerate(values)]
    edges = sorted({0, len(pairs), *(border for border in borders if border < len(pairs))})
    parts = [pairs[begin:end] for begin, end in itertools.pairwise(edges)]

    whole = edges_of(pairs).increase
    assert edges_of(*parts).increase == pytest.approx(whole, rel=1e-12, abs=1e-9)
