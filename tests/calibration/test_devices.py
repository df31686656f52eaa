"""Rules for the half-width of a run on several GPUs."""

import random

import pytest
from scipy.special import bdtr

from tests.calibration.devices import (
    RESULTS,
    DeviceDraw,
    WaveNode,
    linear,
    measure_node,
    measure_wave_node,
    results,
    squares,
    wave_nodes,
)
from tests.laboratory.results import stored_rows

DEVICE = DeviceDraw(truth_j=100.0, error_j=6.0, half_width_j=8.0)
NODES = 40


def test_rules_join_half_widths_of_two_devices():
    """Half-widths of 8 J: 16 J, or √128 J."""
    assert linear([DEVICE, DEVICE]) == 16.0
    assert squares([DEVICE, DEVICE]) == pytest.approx(11.3137085)


def test_results_count_errors_within_each_rule():
    """Errors of 12 J in 200 J are within 16 J, but not within 11.3 J; 0 J always are.

    Errors of 0 and 12 J have a 95 % quantile of 11.4 J.
    """
    nodes = [[DEVICE, DEVICE], [DEVICE._replace(error_j=0.0)] * 2]
    found = {one.rule: one for one in results(nodes, 2)}

    assert found["linear"].coverage == 1.0
    assert found["squares"].coverage == 0.5
    assert found["linear"].width == pytest.approx(0.08)
    assert found["squares"].width == pytest.approx(0.0565685)
    assert found["linear"].times_needed == pytest.approx(16 / 11.4)


@pytest.mark.parametrize("load", ["independent", "job", "job in phase"])
def test_half_widths_of_generated_sensors_contain_most_errors(load):
    rng = random.Random(5)
    nodes = [measure_node(rng, "counter", load, count=2) for _ in range(10)]
    found = {one.rule: one for one in results(nodes, 2)}

    assert found["linear"].coverage >= 0.9
    assert found["squares"].width < found["linear"].width


@pytest.mark.parametrize("is_in_phase", [True, False])
def test_half_widths_of_one_hidden_load_on_eight_gpus_add(is_in_phase):
    """A load with a period of 2.1 updates has nearly the same error on each GPU."""
    rng = random.Random(f"devices {is_in_phase} 11")
    node = WaveNode(2.1, is_one_job=True, is_in_phase=is_in_phase)
    found = {
        one.rule: one for one in results([measure_wave_node(rng, node) for _ in range(NODES)], 8)
    }

    assert bdtr(round(found["linear"].coverage * NODES), NODES, 0.95) > 1e-3
    assert found["linear"].times_needed < 2.0
    assert found["squares"].coverage < 0.9


def test_stored_waves_have_each_class():
    assert [
        {key: row[key] for key in node.key}
        for node, row in zip(wave_nodes(), stored_rows(RESULTS), strict=True)
    ] == [node.key for node in wave_nodes()]


def test_stored_waves_added_half_widths_contain_the_truth_in_each_class():
    too_few = [
        row
        for row in stored_rows(RESULTS)
        if min(row[f"linear_{count}"][0] for count in (1, 2, 8)) < 0.95
    ]

    assert too_few == []
