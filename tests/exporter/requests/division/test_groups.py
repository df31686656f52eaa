"""Half-widths of the energies of groups of requests."""

import numpy as np
import pytest

from tests.exporter.requests.division.server import draw_law, serve
from tests.exporter.requests.division.test_divide_all import spans_of
from tests.exporter.requests.division.traffic import TRAFFIC
from wattline_exporter.requests.division.division import divide_all
from wattline_exporter.requests.division.spans import EnergySlots


def test_half_widths_of_groups_contain_the_shapley_values_and_are_no_sums():
    """Five users, whose requests are drawn at random, in each kind of traffic."""
    contained, ratios = [], []
    for seed, traffic in enumerate(2 * list(TRAFFIC)):
        rng = np.random.default_rng(100 + seed)
        served = serve(rng, traffic, rng.uniform(0.15, 1.0), 60.0, draw_law(rng))
        users = rng.integers(0, 5, len(served.spans)).astype(np.int32)

        found = divide_all(
            served.spans, served.slots([0.1, 0.25, 1.0][seed % 3], rng), groups=users
        )

        errors_j = np.bincount(users, found.dynamic_j - served.shapley_j)
        contained.append(np.abs(errors_j) <= found.group_half_j)
        ratios.append(found.group_half_j / np.bincount(users, found.half_j))
    assert np.mean(contained) >= 0.95
    assert np.median(ratios) < 0.6


def test_error_of_the_division_is_not_in_the_energy_of_all_requests():
    """Errors of single requests add up to 0: only the idle power and the meter have errors in the
    sum.
    """
    rng = np.random.default_rng(7)
    served = serve(rng, "chat", 0.6, 60.0)
    slots = served.slots(0.25, rng)

    found = divide_all(served.spans, slots)

    assert found.group_half_j.shape == (1,)
    assert abs(found.dynamic_j.sum() - served.shapley_j.sum()) <= found.group_half_j[0]
    assert found.group_half_j[0] < 0.05 * found.idle_j + 0.01 * found.dynamic_j.sum()
    assert found.group_half_j[0] < found.half_j.sum() / 3


def test_half_width_of_all_requests_does_not_depend_on_the_groups():
    rng = np.random.default_rng(7)
    served = serve(rng, "chat", 0.6, 60.0)
    slots, users = served.slots(0.25, rng), rng.integers(0, 5, len(served.spans)).astype(np.int32)

    whole, grouped = (
        divide_all(served.spans, slots),
        divide_all(served.spans, slots, groups=users),
    )

    assert whole.total_half_j == pytest.approx(whole.group_half_j[0], rel=1e-12)
    assert grouped.total_half_j == pytest.approx(whole.total_half_j, rel=1e-9)
    assert grouped.total_half_j < grouped.group_half_j.sum() / 2


def test_group_of_one_request_has_at_most_the_half_width_of_the_request():
    """20 requests of 100 J in separate slots; each edge of a slot is known to 2 J."""
    spans = spans_of(*[(4.0 * k + 1.0, 4.0 * k + 1.2, 4.0 * k + 2.0, 100, 20) for k in range(20)])
    joules = np.full(81, 50.0)
    joules[1:81:4] += 100.0
    slots = EnergySlots(np.arange(82.0), joules, 50.0, np.full(82, 2.0))

    found = divide_all(spans, slots, groups=np.arange(20, dtype=np.int32))

    assert found.dynamic_j == pytest.approx(np.full(20, 100.0))
    assert (found.group_half_j <= found.half_j + 1e-9).all()
    assert (found.group_half_j >= 0.05 * 50.0).all(), "the error of the idle power"
