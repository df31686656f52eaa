from __future__ import annotations

import numpy as np
import pytest

from tests.exporter.requests.division.disaggregated import serve_disaggregated
from wattline_exporter.requests.division.roles import decode_begins_s, divide_role, divide_roles
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans


def test_decode_begins_after_the_transfer_of_the_cache():
    """A transfer of 20 ms, and 8 ms for each token after the first one."""
    tokens = np.array([2.0, 5.0, 11.0, 101.0])
    first_s = np.arange(4) * 10.0
    spans = RequestSpans(
        first_s - 1, first_s, first_s + 0.02 + 0.008 * (tokens - 1), tokens, 0 * tokens, tokens
    )

    assert decode_begins_s(spans) == pytest.approx(first_s + 0.02)


@pytest.mark.parametrize(("traffic", "rate"), [("conversation", 6.0), ("code", 12.0)])
def test_energies_of_both_roles_agree_with_shapley_values(traffic, rate):
    rng = np.random.default_rng(2)
    served = serve_disaggregated(rng, traffic, rate, 400)
    slots = {"prefill": served.prefill.slots(0.1, rng), "decode": served.decode.slots(0.1, rng)}

    found = divide_roles(served.spans, slots)

    measured_j = sum(one.joules.sum() for one in slots.values())
    assert found.total_j.sum() + found.unassigned_j == pytest.approx(measured_j, rel=1e-9)
    for part, joules, pool in (
        (found.prefill, found.divided.prefill_j, served.prefill),
        (found.decode, found.divided.decode_j, served.decode),
    ):
        true_j = pool.shapley_j
        assert np.abs(joules - true_j).mean() < 0.1 * true_j.mean()
        assert part.joules == pytest.approx(true_j.sum(), rel=0.01)
    true_j = served.prefill.shapley_j + served.decode.shapley_j
    assert np.mean(np.abs(found.dynamic_j - true_j) <= found.half_j) >= 0.95


def test_energy_of_slots_without_work_of_the_role_is_unassigned():
    rng = np.random.default_rng(3)
    served = serve_disaggregated(rng, "conversation", 2.0, 60)
    slots = {
        "prefill": served.prefill.slots(0.1, rng, 0.0),
        "decode": served.decode.slots(0.1, rng, 0.0),
    }

    found = divide_roles(served.spans, slots)

    true_j = served.prefill.steps[:, 2].sum() + served.decode.steps[:, 2].sum()
    assert found.dynamic_j.sum() == pytest.approx(true_j, rel=0.01)
    assert found.divided.idle_j.sum() < found.idle_j


def test_total_of_a_role_has_the_error_of_the_idle_power():
    """A minute of decodes at 300 W; the idle power is 100 W, or 5 % higher."""
    begun_s, tokens = np.arange(60.0), np.full(60, 40.0)
    spans = RequestSpans(begun_s, begun_s, begun_s + 1.0, np.full(60, 500.0), np.zeros(60), tokens)
    edges_s = np.arange(0.0, 60.5, 0.5)
    found = [
        divide_role(spans, EnergySlots(edges_s, np.full(120, 150.0), idle_w), "decode")
        for idle_w in (100, 105)
    ]

    parts = [(each.decode.joules, each.decode.half_j) for each in found]
    assert parts == [pytest.approx((12_000.0, 300.0)), pytest.approx((11_700.0, 315.0))]
