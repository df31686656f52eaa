"""Loads of slots, and energies of requests as integrals over them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exporter.requests.division.server import serve
from wattline_exporter.requests.division.half_widths import ERRORS
from wattline_exporter.requests.division.loads import (
    CONTEXT,
    COUNT,
    DECODING_S,
    FILLED,
    FLIGHT_S,
    PREFILL,
    PREFILLING_S,
    RATES,
    TOKENS,
    RunningIntegrals,
    phase_joules,
    slot_loads,
    slot_variance_j2,
)
from wattline_exporter.requests.division.pace import (
    DecodeClock,
    Pace,
    RequestPhases,
    SlotEdges,
    union_s,
)
from wattline_exporter.requests.division.spans import RequestSpans

WIDTH_S = 0.25


def phases_and_edges(spans, pace, edges_s, cut_s=0.0, width_s=None):
    """Return the phases of requests that count from `cut_s` on, since the first edge, and the
    edges.
    """
    clock = DecodeClock()
    clock.extend(spans, pace, 0.0, 1_000.0)
    started_s = spans.prefill_starts_s(pace.prefill_speed)
    cuts_s = np.full(len(spans), cut_s)
    times_s = np.maximum(spans.first_token_s, started_s), spans.ended_s, cuts_s
    columns = [getattr(spans, each.name) for each in fields(spans)]
    held = np.array([*columns, started_s, cuts_s, *map(clock.paced_s, times_s)])
    paced_s = clock.paced_s(edges_s)
    phases = RequestPhases.of(held, float(edges_s[0]), float(paced_s[0]))
    return phases, SlotEdges(edges_s - edges_s[0], paced_s - paced_s[0], pace, width_s)


@pytest.mark.parametrize("width_s", [1.0, None])
def test_slot_loads_are_the_integrals_over_each_slot(width_s):
    """100 prefilled tokens a second. One request is prefilled from 1.0 to 1.5 s, and has 2 tokens a
    second up to 3.5 s; the other one is prefilled from 1.8 to 2.0 s, and has one token.
    """
    columns = [0.5, 1.0], [1.5, 2.0], [3.5, 3.0], [50.0, 30.0], [0.0, 10.0], [5.0, 1.0]
    spans = RequestSpans(*map(np.array, columns))
    phases, edges = phases_and_edges(spans, Pace(100.0, 0.0), np.arange(5.0), width_s=width_s)

    loads = slot_loads(phases, edges)

    assert loads[PREFILL] == pytest.approx([0, 50 + 20, 0, 0])
    assert loads[PREFILLING_S] == pytest.approx([0, 0.5 + 0.2, 0, 0])
    assert loads[TOKENS] == pytest.approx([0, 1, 2, 1])
    assert loads[CONTEXT] == pytest.approx([0, 50.5, 104, 53.5])
    assert loads[DECODING_S] == pytest.approx([0, 0.5, 1 + 1, 0.5])
    assert loads[FLIGHT_S] == pytest.approx([0.5, 1 + 1, 1 + 1, 0.5])
    assert loads[COUNT].tolist() == [1, 2, 2, 1]
    assert loads[FILLED].tolist() == [0, 2, 2, 0]


@given(seed=st.integers(0, 2**32 - 1), slowdown=st.sampled_from([0.0, 0.4]))
def test_energy_of_each_request_is_that_of_its_own_load(seed, slowdown):
    """Integrals up to the begins and ends of phases, in slots of any width, against the loads of
    single requests.
    """
    rng = np.random.default_rng(seed)
    arrived_s = np.sort(rng.uniform(0.0, 8.0, 5))
    first_s = arrived_s + rng.uniform(0.0, 1.0, 5)
    tokens = rng.integers(1, 500, (2, 5)) * 1.0
    spans = RequestSpans(
        arrived_s, first_s, first_s + rng.uniform(0.1, 6.0, 5), tokens[0], np.zeros(5), tokens[1]
    )
    edges_s = np.concatenate([[0.0], np.cumsum(rng.uniform(0.1, 1.5, 30))])
    phases, edges = phases_and_edges(spans, Pace(2_000.0, slowdown, 50.0), edges_s)
    phases = phases.until(edges)
    rates = rng.uniform(0.0, 2.0, (RATES, edges.count))

    found = RunningIntegrals(rates, edges).energy(phases, np.zeros(5))

    for k in range(5):
        alone, _ = phases_and_edges(spans, Pace(2_000.0, slowdown, 50.0), edges_s)
        own = {each.name: getattr(alone, each.name)[[k]] for each in fields(alone)}
        prefill_j, decode_j = phase_joules(
            rates, slot_loads(RequestPhases(**own).until(edges), edges)
        ).sum(axis=2)
        assert found.prefill_j[k] == pytest.approx(prefill_j[0], rel=1e-9, abs=1e-6)
        assert found.decode_j[k] == pytest.approx(decode_j[0], rel=1e-9, abs=1e-6)
        expected = (prefill_j + decode_j)[1:]
        assert found.errors_j[:, k] == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert found.errors_j.shape == (ERRORS, 5)


def test_load_before_the_cut_does_not_count():
    spans = serve(np.random.default_rng(3), "chat", 0.6, 40.0).spans
    pace = Pace(4_000.0, 0.4, 100.0)
    whole, cut = (
        slot_loads(*phases_and_edges(spans, pace, WIDTH_S * np.arange(first, 401), cut_s, WIDTH_S))
        for first, cut_s in ((0, 0.0), (40, 10.0))
    )

    assert cut == pytest.approx(whole[:, 40:], rel=1e-6, abs=1e-6)


def test_loads_of_slots_without_requests_are_exactly_zero():
    """Rounding errors of a load that is 0 would attract the measured energy of their slots."""
    rng = np.random.default_rng(1)
    begin_s = np.sort(rng.uniform(0, 800, 200))
    tokens = rng.uniform(1, 900, (2, 200))
    spans = RequestSpans(
        begin_s,
        begin_s + 0.7,
        begin_s + rng.uniform(1.0, 9, 200),
        tokens[0],
        0 * tokens[0],
        tokens[1],
    )
    edges_s = np.arange(0.0, 1_001.0)

    loads = slot_loads(*phases_and_edges(spans, Pace(2_000.0, 0.0), edges_s))

    in_flight = (spans.arrived_s < edges_s[1:, None]) & (spans.ended_s > edges_s[:-1, None])
    assert loads[COUNT].tolist() == in_flight.sum(axis=1).tolist()
    assert not loads[:, loads[COUNT] == 0].any()


def test_union_counts_the_seconds_of_each_slot_once():
    begins_s, ends_s = np.array([0.5, 1.0, 3.2]), np.array([1.5, 2.25, 3.3])

    found = union_s(begins_s, ends_s, np.array([0.0, 1.0, 2.0, 3.0, 5.0, 6.0]))

    assert found == pytest.approx([0.5, 1.0, 0.25, 0.1, 0.0])
    assert found[-1] == 0.0


def test_slot_variance_counts_requests_that_begin_or_end_in_slot():
    """Four requests use 100 J as the model says. If all begin or end in the slot, that of one is 25
    ± 0.32 · 25 J.
    """
    energy, count = np.full(3, 100.0), np.full(3, 4)

    variance_j2 = slot_variance_j2(energy, energy, count, np.array([0, 2, 4]))

    assert variance_j2 == pytest.approx([8.0**2 * 0.75, 8.0**2 * 0.75 / 2, 0.0])


def test_slot_variance_of_two_requests_is_part_of_the_difference_to_the_model():
    """100 J, of which the model explains 80 J: 45 % of 20 J may be of one of the two."""
    variance_j2 = slot_variance_j2(
        np.full(1, 100.0), np.full(1, 80.0), np.full(1, 2), np.full(1, 2)
    )

    assert variance_j2 == pytest.approx([(0.45 * 20.0) ** 2 / 2])
