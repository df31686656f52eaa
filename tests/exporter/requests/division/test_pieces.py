from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_exporter.requests.division.pieces import Density, Pieces

EDGES = np.array([0.0, 1.0, 1.5, 4.0, 4.25, 7.0])


def numeric(
    span: tuple[float, float], slot: tuple[float, float], rate: float, slope: float
) -> float:
    """Return the integral of rate + slope · (t - begin) over the part of the span in the slot."""
    (begin, end), (low, high) = span, slot
    a, b = max(begin, low), min(end, high)
    return 0.0 if b <= a else (rate + slope * ((a + b) / 2 - begin)) * (b - a)


@given(
    st.lists(
        st.tuples(st.floats(-1, 8), st.floats(0.01, 8), st.floats(0, 5), st.floats(0, 3)),
        min_size=1,
        max_size=6,
    )
)
def test_totals_are_the_integrals_of_all_rates(intervals):
    begin = np.array([one[0] for one in intervals])
    end = begin + np.array([one[1] for one in intervals])
    pieces = Pieces.within(EDGES, begin, end, np.arange(len(intervals)))
    chosen = [intervals[k] for k in pieces.request]
    rate, slope = np.array([one[2] for one in chosen]), np.array([one[3] for one in chosen])

    totals = pieces.totals(EDGES, rate, slope)

    expected = [
        sum(
            numeric((b, e), (low, high), r, s)
            for b, e, r, s in zip(pieces.begin_s, pieces.end_s, rate, slope, strict=True)
        )
        for low, high in itertools.pairwise(EDGES)
    ]
    assert totals == pytest.approx(expected, abs=1e-9)


@given(st.floats(-1, 6.9), st.floats(0.01, 9))
def test_a_density_is_integrated_with_its_moment(begin, length):
    density = np.array([2.0, 0.0, 5.0, 1.0, 3.0])
    pieces = Pieces.within(EDGES, np.array([begin]), np.array([begin + length]), np.array([0]))
    if not len(pieces.request):
        assert begin + length <= EDGES[0]
        return
    a, b = pieces.begin_s[0], pieces.end_s[0]
    slots = list(zip(EDGES[:-1], EDGES[1:], density, strict=True))

    integral, moment = (
        Density(EDGES, density).integral(pieces),
        Density(EDGES, density).moment(pieces),
    )

    assert integral[0] == pytest.approx(
        sum(numeric((a, b), (low, high), d, 0.0) for low, high, d in slots), abs=1e-9
    )
    assert moment[0] == pytest.approx(
        sum(numeric((a, b), (low, high), 0.0, d) for low, high, d in slots), abs=1e-9
    )


def test_totals_of_slots_without_pieces_are_exactly_zero():
    """Rounding errors of a load that is 0 would attract the measured energy of their slots."""
    edges = np.arange(0.0, 1_001.0)
    rng = np.random.default_rng(1)
    begin = np.sort(rng.uniform(0, 800, 200))
    pieces = Pieces.within(edges, begin, begin + rng.uniform(2.5, 9, 200), np.arange(200))
    inside = [(pieces.first <= slot) & (slot <= pieces.final) for slot in range(1_000)]

    totals = pieces.totals(edges, rng.uniform(0, 5, 200), rng.uniform(0, 3, 200))

    assert pieces.counts(1_000).tolist() == [each.sum() for each in inside]
    assert not totals[pieces.counts(1_000) == 0].any()


def test_whole_counts_pieces_that_fill_each_slot():
    edges = np.arange(5.0)
    pieces = Pieces.within(
        edges, np.array([0.0, 0.5, 1.0]), np.array([2.0, 3.0, 1.5]), np.arange(3)
    )

    assert pieces.whole_counts(edges).tolist() == [1, 2, 1, 0]
