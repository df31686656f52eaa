"""Edges of runs."""

import random

import pytest

from tests.laboratory.clients import EDGES, draw_edges

UPDATE_S, PHASE_S = 0.1, 0.03


def edges(kind, seconds=2.71):
    rng = random.Random(kind)
    return [draw_edges(rng, kind, seconds, UPDATE_S, PHASE_S) for _ in range(50)]


@pytest.mark.parametrize(
    ("kind", "step_s", "offset_s", "length_s"),
    [
        ("on whole seconds", 1.0, 0.0, 3.0),
        ("with the polls", 0.047, 0.0, 2.726),  # 58 polls
        ("with the updates", 0.1, 0.03, 2.7),
    ],
)
def test_edges_are_whole_steps(kind, step_s, offset_s, length_s):
    for begin_s, seconds in edges(kind):
        steps = (begin_s - offset_s) / step_s
        assert steps == pytest.approx(round(steps), abs=1e-6)
        assert seconds == pytest.approx(length_s)


def test_edges_at_random_keep_their_length_and_never_repeat():
    found = edges("at random")

    assert {seconds for _, seconds in found} == {2.71}
    assert len({begin_s % 0.1 for begin_s, _ in found}) == len(found)


@pytest.mark.parametrize("kind", EDGES)
def test_edges_start_within_ten_seconds(kind):
    assert all(1_000.0 <= begin_s <= 1_010.0 + 0.1 for begin_s, _ in edges(kind))


def test_edges_are_at_least_one_step_apart():
    assert {seconds for _, seconds in edges("on whole seconds", 0.2)} == {1.0}
