"""Energies of requests with unusual times and tokens: at least 0, and with the rest the energy of
the meter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wattline_exporter.requests.division.division import Division, divide_all
from wattline_exporter.requests.division.pace import union
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans, with_first_tokens
from wattline_exporter.requests.watermark import Watermark

WIDTH_S, IDLE_W, UNTIL_S = 0.25, 60.0, 120.0


def requests(generated, first_ratio, seed=1):
    """Return 120 requests within 100 s, and slots of 60 W and 40 W for each request in progress."""
    rng = np.random.default_rng(seed)
    arrived_s = np.sort(rng.uniform(2.0, 95.0, 120))
    ended_s = arrived_s + rng.uniform(0.5, 6.0, 120)
    first_s = arrived_s + first_ratio * (ended_s - arrived_s)
    spans = RequestSpans(
        arrived_s,
        first_s,
        ended_s,
        rng.integers(100, 3_000, 120) * 1.0,
        np.zeros(120),
        np.full(120, float(generated)),
    )
    edges_s = WIDTH_S * np.arange(1 + int(UNTIL_S / WIDTH_S))
    begun, ended = (np.searchsorted(np.sort(each), edges_s) for each in (arrived_s, ended_s))
    in_flight = begun[1:] - ended[:-1]
    return spans, EnergySlots(
        edges_s, (IDLE_W + 40.0 * in_flight) * WIDTH_S, IDLE_W, np.ones(len(edges_s))
    )


def with_late_first_tokens(spans, generated, decode_s):
    """Return the requests with decodes of 40 tokens per second, but each tenth one in
    `decode_s`.
    """
    odd = np.arange(len(spans)) % 10 == 0
    first_s = np.where(odd, spans.ended_s - decode_s, spans.arrived_s + 0.05)
    tokens = np.where(odd, generated, np.round(40 * (spans.ended_s - first_s)))
    return replace(spans, first_token_s=first_s, generated_tokens=tokens)


def energy_j(spans, slots):
    """Return the energy of all requests: that above idle, and the idle power while there is one in
    progress.
    """
    dynamic_j = float((slots.joules - IDLE_W * WIDTH_S).sum())
    begin_s, end_s = union(spans.arrived_s, spans.ended_s)
    return dynamic_j + IDLE_W * float((end_s - begin_s).sum())


def stream(spans, slots, idle_w=IDLE_W):
    """Report each request at the second of its end; return the division, and energies in the order
    of the ends.
    """
    division, parts = Division(), []
    watermark = Watermark(60.0)
    total_j = np.append(0.0, np.cumsum(slots.joules))
    half_j = np.zeros(len(total_j)) if slots.edge_half_j is None else slots.edge_half_j
    division.extend(slots.edges_s[:1], total_j[:1], half_j[:1])
    for now_s in np.arange(1.0, UNTIL_S + 1.0):
        added = np.flatnonzero((spans.ended_s > now_s - 1) & (spans.ended_s <= now_s))
        division.add(spans.take(added), added)
        if len(added):
            watermark.report(spans.arrived_s[added], spans.ended_s[added], now_s)
        new = (slots.edges_s > now_s - 1) & (slots.edges_s <= now_s)
        division.extend(slots.edges_s[new], total_j[new], half_j[new])
        parts.append(division.divide(watermark.closed_s(now_s), idle_w))
    parts.append(division.divide(UNTIL_S, idle_w))
    return division, parts


def assert_sums_hold(division, parts, measured_j):
    total_j = np.concatenate([each.total_j for each in parts])
    assert (
        min(
            each.min(initial=0.0)
            for part in parts
            for each in (part.total_j, part.half_j, part.idle_j)
        )
        >= 0.0
    )
    assert division.measured_j == pytest.approx(measured_j, rel=1e-9)
    assert total_j.sum() + division.rest_j + division.open_j == pytest.approx(measured_j, rel=1e-9)


@pytest.mark.parametrize(
    ("generated", "decode_s"), [(2, 0.0), (1_000, 0.0), (100_000, 0.0), (50, 2e-5), (1_000, 0.01)]
)
def test_decode_of_no_time_leaves_sums_equal_to_the_meter(generated, decode_s):
    spans, slots = requests(50, 0.1)
    spans = with_late_first_tokens(spans, generated, decode_s)

    found = divide_all(spans, slots)
    division, parts = stream(spans, slots)

    assert found.total_j.sum() == pytest.approx(energy_j(spans, slots), rel=1e-9)
    assert found.total_j.min() >= 0.0
    assert found.half_j.min() >= 0.0
    assert_sums_hold(division, parts, slots.joules.sum())


def test_first_token_just_before_the_end_is_not_known():
    """100 tokens in 1 ms are no decode, but they are one in 20 ms; a second token needs 0.1 ms,
    too.
    """
    columns = [0.0] * 3, [1.999, 1.98, 2.0], [2.0] * 3, [100.0] * 3, [0.0] * 3, [100.0, 100.0, 2.0]

    spans, is_guess = with_first_tokens(RequestSpans(*map(np.array, columns)))

    assert is_guess.tolist() == [True, False, True]
    assert spans.first_token_s[1] == 1.98
    assert (spans.first_token_s[[0, 2]] <= 1.0).all()


@pytest.mark.parametrize(("generated", "first_ratio"), [(0, 1.0), (1, 1.0), (1, 0.3)])
@pytest.mark.parametrize("seed", range(4))
def test_requests_without_decode_lose_no_energy(generated, first_ratio, seed):
    """Embeddings, classifications, and answers of one token, whose model has prefilled tokens
    only.
    """
    spans, slots = requests(generated, first_ratio, seed)

    division, parts = stream(spans, slots)

    assert_sums_hold(division, parts, slots.joules.sum())
    assert divide_all(spans, slots).total_j.sum() == pytest.approx(energy_j(spans, slots), rel=1e-9)


@pytest.mark.parametrize("idle_w", [0.0, 30.0])
def test_slot_below_zero_takes_energy_from_the_slot_before(idle_w):
    """At 200 W and 0 W in turns, a late value of the meter puts 40 J of a slot into the one
    before.
    """
    spans, slots = requests(50, 0.1)
    joules = np.where(np.arange(len(slots.joules)) // 8 % 2 == 0, 200.0 * WIDTH_S, 0.0)
    joules[7::16] += 40.0
    joules[8::16] -= 40.0
    slots = EnergySlots(slots.edges_s, joules, idle_w, np.full(len(slots.edges_s), 40.0))

    found = divide_all(spans, slots)
    division, parts = stream(spans, slots, idle_w)

    assert found.total_j.min() >= 0.0
    assert found.total_j.sum() + found.unassigned_j == pytest.approx(joules.sum(), rel=1e-9)
    assert_sums_hold(division, parts, joules.sum())


@pytest.mark.parametrize("seed", range(8))
def test_half_width_is_at_most_the_energy_of_the_slots(seed):
    """A GPU at 700 W with any load, as the model expects from none; half-widths were up to a
    million joules.
    """
    spans, slots = requests(50, 0.02 + 0.9 * np.random.default_rng(seed).random(120), seed)
    spans = replace(spans, generated_tokens=np.random.default_rng(seed).integers(1, 300, 120) * 1.0)
    slots = EnergySlots(
        slots.edges_s,
        np.full(len(slots.joules), 700.0 * WIDTH_S),
        78.0,
        np.ones(len(slots.edges_s)),
    )

    found = divide_all(spans, slots)
    _, parts = stream(spans, slots, 78.0)

    begin_s, end_s = np.floor(spans.arrived_s / WIDTH_S), np.ceil(spans.ended_s / WIDTH_S)
    most_j = 700.0 * WIDTH_S * (end_s - begin_s) + 1e-6
    assert (found.half_j <= most_j).all()
    assert all((part.half_j <= most_j[part.keys]).all() for part in parts)
