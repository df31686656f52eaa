"""Loads and energies by running integrals, against the division of whole blocks of slots."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.exporter.requests.division.server import serve
from wattline_exporter.requests.division.fit import SEPARATE_TOKENS, SHARED_STEP
from wattline_exporter.requests.division.load import load_blocks, slot_variance_j2
from wattline_exporter.requests.division.model import fit_model
from wattline_exporter.requests.division.pace import DecodeClock, Pace, RequestPhases, SlotEdges
from wattline_exporter.requests.division.slot_table import (
    COUNT,
    FLIGHT_S,
    RunningIntegrals,
    covered_s,
    joules_per_load,
    load_terms,
    slot_loads,
)

WIDTH_S, PACE = 0.25, Pace(4_000.0, 0.4, 100.0)


def held_since(spans, cut_s, clock):
    """Return the columns of requests that count from `cut_s` on."""
    started_s = spans.prefill_starts_s(PACE.prefill_speed)
    cuts_s = np.full(len(spans), cut_s)
    times_s = np.maximum(spans.first_token_s, started_s), spans.ended_s, cuts_s
    columns = [getattr(spans, each.name) for each in fields(spans)]
    return np.array([*columns, started_s, cuts_s, *map(clock.paced_s, times_s)])


def clock_and_edges(spans, begin_s, slots):
    clock = DecodeClock()
    clock.extend(spans, PACE, 0.0, 1_000.0)
    real_s = WIDTH_S * np.arange(slots + 1)
    paced_s = clock.paced_s(begin_s + real_s)
    return clock, SlotEdges(real_s, paced_s - paced_s[0], PACE)


@pytest.mark.parametrize(("traffic", "load"), [("chat", 0.6), ("conversation", 0.05)])
def test_energies_equal_those_of_blocks_of_slots(traffic, load):
    rng = np.random.default_rng(3)
    served = serve(rng, traffic, load, 100.0)
    spans, slots = served.spans, served.slots(WIDTH_S, rng)
    slots = replace(slots, edge_half_j=rng.uniform(1.0, 5.0, len(slots.edges_s)))
    (block,) = load_blocks(spans, slots, PACE)
    dynamic_j = (slots.joules - slots.idle_j)[block.busy]
    model = fit_model(block.terms[block.busy], dynamic_j, WIDTH_S, SHARED_STEP, SEPARATE_TOKENS)
    expected = [block.divide(slots, each) for each in model.fits]

    clock, edges = clock_and_edges(spans, 0.0, len(slots.joules))
    phases = RequestPhases.of(
        held_since(spans, 0.0, clock), 0.0, float(clock.paced_s(np.zeros(1))[0])
    ).until(edges)
    loads = slot_loads(phases, edges)
    terms = load_terms(loads, edges)
    rates = joules_per_load(
        loads, edges, slots, covered_s(loads, (phases.arrived_s, phases.ended_s), edges), model
    )
    found = RunningIntegrals(rates, edges).energy(phases, expected[0].idle_j)

    assert terms == pytest.approx(block.terms, rel=1e-9, abs=1e-6)
    assert ((loads[COUNT] > 0) == block.busy).all()
    assert loads[FLIGHT_S].sum() == pytest.approx(block.flight_s, rel=1e-12)
    best, total_j = expected[0], float(slots.joules.sum())
    tolerance_j = 1e-9 * total_j
    for name in ("prefill_j", "decode_j"):
        assert getattr(found.best, name) == pytest.approx(
            getattr(best, name)[: len(spans)], abs=tolerance_j
        )
    others = [
        each.dynamic_j if step is None else (each.dynamic_j - best.dynamic_j) / step
        for each, step in zip(expected[1:], [None, *model.steps], strict=True)
    ]
    for row, other in zip(found.variants_j, others, strict=True):
        assert row == pytest.approx(other, rel=1e-6, abs=1e-6 * np.abs(other).max())
    assert found.scatter_j2 == pytest.approx(
        block.scatter_j2(slots, model.joules_of), rel=1e-6, abs=1e-6
    )
    whole = spans.ended_s <= slots.edges_s[-1]
    assert found.meter_j2[whole] == pytest.approx(
        block.meter_j2(slots, best)[whole], rel=1e-6, abs=1e-6
    )


def test_load_before_the_cut_does_not_count():
    spans = serve(np.random.default_rng(3), "chat", 0.6, 40.0).spans
    loads = {}
    for begin_s, slots in ((0.0, 400), (10.0, 360)):
        clock, edges = clock_and_edges(spans, begin_s, slots)
        paced_s = float(clock.paced_s(np.array([begin_s]))[0])
        loads[begin_s] = slot_loads(
            RequestPhases.of(held_since(spans, begin_s, clock), begin_s, paced_s), edges
        )

    assert loads[10.0] == pytest.approx(loads[0.0][:, 40:], rel=1e-6, abs=1e-6)


def test_slot_variance_counts_requests_that_begin_or_end_in_slot():
    """Four requests use 100 J as the model says. If all begin or end in the slot, that of one is 25
    ± 0.32 · 25 J.
    """
    energy, count = np.full(3, 100.0), np.full(3, 4)

    variance_j2 = slot_variance_j2(energy, energy, count, np.array([0, 2, 4]))

    assert variance_j2 == pytest.approx([8.0**2 * 0.75, 8.0**2 * 0.75 / 2, 0.0])
