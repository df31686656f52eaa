"""Rules for the half-width of a run on several GPUs."""

import random

import pytest

from tests.calibration.devices import DeviceDraw, linear, measure_node, mix, results, squares

DEVICE = DeviceDraw(truth_j=100.0, error_j=6.0, edges_j=3.0, random_j=4.0, unseen_j=1.0)


def test_rules_join_terms_of_two_devices():
    """Half-widths of 8 J: 16 J, or √128 J; or limits of 8 J and √32 J."""
    assert DEVICE.half_width_j == 8.0
    assert linear([DEVICE, DEVICE]) == 16.0
    assert squares([DEVICE, DEVICE]) == pytest.approx(11.3137085)
    assert mix([DEVICE, DEVICE]) == pytest.approx(13.6568542)


def test_results_count_errors_within_each_rule():
    """Errors of 12 J in 200 J are within 16 and 13.7 J, but not within 11.3 J; 0 J always are."""
    nodes = [[DEVICE, DEVICE], [DEVICE._replace(error_j=0.0)] * 2]
    found = {one.rule: one for one in results(nodes, 2)}

    assert found["linear"].coverage == 1.0
    assert found["squares"].coverage == 0.5
    assert found["mix"].coverage == 1.0
    assert found["linear"].width == pytest.approx(0.08)
    assert found["squares"].width == pytest.approx(0.0565685)


@pytest.mark.parametrize("load", ["independent", "job", "job in phase"])
def test_half_widths_joined_by_squares_contain_most_errors(load):
    rng = random.Random(5)
    nodes = [measure_node(rng, "counter", load, count=2) for _ in range(10)]
    found = {one.rule: one for one in results(nodes, 2)}

    assert found["squares"].coverage >= 0.8
    assert found["linear"].coverage >= found["squares"].coverage
    assert found["squares"].width < found["linear"].width
