"""Uncertainty of the waste of idle GPUs, and the deep-idle power."""

import math

import numpy as np
import pytest

from tests.analyzer.waste.nodes import DEEP_IDLE_W, Node, Run, State, deep_idle, found_waste
from wattline_analyzer.waste.idle_power import deep_idle_power, latest_on_lowest_level, waste_half_j

# 1.96 x 1.1 s x 70 W x sqrt(1 / 6)
EDGES_J = 61.61


def test_deep_idle_power_of_long_time_is_its_mean_with_error_of_edges():
    power = deep_idle_power(600.0, 42_000.0, 1, reported_w=69.0)

    assert (power.value, power.half_width) == pytest.approx((70.0, EDGES_J / 600), rel=1e-3)


@pytest.mark.parametrize(("seconds", "reported_w"), [(59.0, 70.0), (600.0, 50.0)])
def test_deep_idle_power_of_exporter_has_error_of_one_window(seconds, reported_w):
    power = deep_idle_power(seconds, 70.0 * seconds, 1, reported_w)

    assert (power.value, power.half_width) == pytest.approx((reported_w, 0.02 * reported_w))


def test_deep_idle_power_without_time_and_report_is_unknown():
    assert deep_idle_power(59.0, 4_130.0, 1, None) is None


def test_latest_idle_power_is_of_the_lowest_level():
    """The GPU had an open context at first; the first means of 70 W are of few windows."""
    assert latest_on_lowest_level([90.0, 68.9, 70.8, 70.1]) == 70.1
    assert latest_on_lowest_level([69.0, 70.1, 90.0]) == 70.1


def test_waste_half_width_has_errors_of_state_and_of_deep_idle():
    idle = deep_idle_power(600.0, 42_000.0, 1, None)

    assert waste_half_j(42_000.0, 600.0, 1, idle) == pytest.approx(EDGES_J * math.sqrt(2), rel=1e-3)


def test_waste_of_held_gpu_at_deep_idle_is_zero_within_its_interval():
    """The counter's values are up to 1.1 s old; the same GPU at other scrape times."""
    states, late = [deep_idle(1_200.0)], Run("late", 600.0)
    offsets = np.random.default_rng(3).uniform(0, 15, 40)
    nodes = [Node([states], [late], offset_s=one, noise=0.01, step_s=1.1) for one in offsets]

    found = [found_waste(node, min_s=300.0).findings[0] for node in nodes]

    assert all(one.kind == "held_idle" for one in found)
    assert all(one.half_j == pytest.approx(EDGES_J * math.sqrt(2), rel=0.1) for one in found)
    assert sum(one.waste_j <= one.half_j for one in found) >= 38
    assert all(one.limits_j[0] == 0 for one in found if one.waste_j <= one.half_j)


def test_waste_of_held_gpu_above_deep_idle_is_in_its_interval():
    """50 W above deep idle for 600 s are 30,000 J."""
    states = [deep_idle(600.0), State(600.0, DEEP_IDLE_W + 50, memory_gib=60.0, clock=1.0)]
    node = Node(
        [states], [Run("late", 600.0)], offset_s=0.3, noise=0.01, step_s=1.1, interval_s=10.0
    )

    (found,) = found_waste(node, min_s=300.0).findings

    low_j, high_j = found.limits_j
    assert low_j < 50 * found.seconds < high_j
    assert high_j - low_j == pytest.approx(2 * found.half_j)
    assert found.half_j < 0.01 * found.waste_j


def test_stuck_clocks_with_waste_below_its_error_are_no_finding():
    """0.1 W above deep idle for 600 s are 60 J, less than the error of 87 J."""
    states = [deep_idle(600.0), State(615.0, DEEP_IDLE_W + 0.1, clock=0.9)]

    assert not found_waste(Node([states]), min_s=300.0).findings
