from __future__ import annotations

import numpy as np
import pytest

from exporter.request_energy.roles import divide_roles
from tests.exporter.request_energy.disaggregated import serve_disaggregated


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
        assert np.abs(joules - true_j).mean() < 0.2 * true_j.mean()
        assert part.joules == pytest.approx(true_j.sum(), rel=0.01)
    true_j = served.prefill.shapley_j + served.decode.shapley_j
    assert np.mean(np.abs(found.dynamic_j - true_j) <= found.half_j) >= 0.95


def test_energy_of_slots_without_work_of_the_role_is_unassigned():
    rng = np.random.default_rng(3)
    served = serve_disaggregated(rng, "conversation", 2.0, 60)
    slots = {"prefill": served.prefill.slots(0.1, rng, 0.0), "decode": served.decode.slots(0.1, rng, 0.0)}

    found = divide_roles(served.spans, slots)

    true_j = served.prefill.steps[:, 2].sum() + served.decode.steps[:, 2].sum()
    assert found.dynamic_j.sum() == pytest.approx(true_j, rel=0.01)
    assert found.divided.idle_j.sum() < found.idle_j
