"""Slower decode while other prompts are prefilled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.exporter.requests.division.server import serve
from wattline_exporter.requests.division.division import divide_all
from wattline_exporter.requests.division.pace import PrefillClock, pace_of
from wattline_exporter.requests.division.spans import RequestSpans


def test_pace_finds_the_slowdown_of_decodes_during_prefills():
    """A token takes 10 ms, and 40 ms while another request is prefilled: decode is slower by
    3/4.
    """
    rng = np.random.default_rng(1)
    arrived = np.arange(40) * 5.0
    tokens = rng.integers(50, 300, 40) * 1.0
    prefill_s = 0.4 * (
        np.arange(40) % 2
    )  # of a request without decode, after each second decode has begun
    first, ended = arrived + 0.1, arrived + 0.1 + 0.01 * tokens + 0.75 * prefill_s
    spans = RequestSpans(
        np.concatenate([arrived, arrived[1::2] + 0.2]),
        np.concatenate([first, arrived[1::2] + 0.6]),
        np.concatenate([ended, arrived[1::2] + 0.6]),
        np.concatenate([np.full(40, 1_000.0), np.full(20, 4_000.0)]),
        np.zeros(60),
        np.concatenate([tokens + 1, np.ones(20)]),
    )

    found = pace_of(spans)

    assert found.prefill_speed == pytest.approx(10_000)
    assert found.slowdown == pytest.approx(0.75)
    assert found.steps_per_s == pytest.approx(100)


def test_pace_requests_one_after_the_other_has_no_slowdown():
    arrived = np.arange(10) * 10.0
    spans = RequestSpans(
        arrived, arrived + 1, arrived + 5, np.full(10, 100.0), np.zeros(10), np.full(10, 50.0)
    )

    assert pace_of(spans).slowdown == 0.0


def test_prefill_clock_counts_overlapping_prefills_once():
    clock = PrefillClock(np.array([1.0, 1.5, 8.0]), np.array([2.0, 4.0, 9.0]))

    assert clock.prefills_s(np.array([0.0, 1.5, 4.0, 8.5, 10.0])) == pytest.approx(
        [0, 0.5, 3, 3.5, 4]
    )
    assert clock.paced_s(np.array([10.0]), 0.5) == pytest.approx([8.0])


@pytest.mark.parametrize("traffic", ["conversation", "long"])
def test_energy_of_all_prefills_is_near_the_shapley_value(traffic):
    """It was 17 to 26 % too low with tokens that are generated evenly, and too high without the
    steps of prefills.
    """
    rng = np.random.default_rng(1)
    served = serve(rng, traffic, 0.5, 60.0)

    found = divide_all(served.spans, served.slots(0.25, rng))

    assert found.divided.prefill_j.sum() == pytest.approx(served.prefill_j, rel=0.08)
