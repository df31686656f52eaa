"""Work that no request reports, by the power of a GPU without requests, in the half-widths of
requests.
"""

from __future__ import annotations

import numpy as np
import pytest

from wattline_exporter.requests.division.division import SLOT_S, Division, divide_all
from wattline_exporter.requests.division.spans import EnergySlots, QuietPower, RequestSpans

IDLE_W, REQUEST_W, OTHER_W = 80.0, 300.0, 100.0
SECONDS = 400


def spans():
    """Return requests of 3 s, one in each ten seconds."""
    begin_s = 10.0 * np.arange(1, SECONDS / 10 - 1) + 2
    count = np.ones(len(begin_s))
    return RequestSpans(begin_s, begin_s + 0.5, begin_s + 3, 500 * count, 0 * count, 60 * count)


def power_w(width_s, other_s):
    """Return the power of each slot; another process works in the first `other_s` of each seven
    seconds.
    """
    t_s = np.arange(0.0, SECONDS, width_s)
    is_request = (t_s >= 10) & (t_s < SECONDS - 10) & (t_s % 10 >= 2) & (t_s % 10 < 5)
    return IDLE_W + REQUEST_W * is_request + OTHER_W * (t_s % 7 < other_s)


def slots(width_s, other_s):
    return EnergySlots(
        np.arange(0.0, SECONDS + width_s, width_s), power_w(width_s, other_s) * width_s, IDLE_W
    )


def quiet(above_w, width_s=1.0):
    """Return slots without requests."""
    one = EnergySlots(width_s * np.arange(len(above_w) + 1.0), width_s * (IDLE_W + above_w), IDLE_W)
    return QuietPower().add(one, np.zeros(len(above_w), dtype=bool))


def test_quiet_power_work_in_a_tenth_of_the_time_is_the_limit():
    found = quiet(np.where(np.arange(200) % 10, 0.0, OTHER_W))

    assert (found.other_w, found.other_limit_w) == (0.0, OTHER_W)


def test_quiet_power_work_in_a_hundredth_of_the_time_is_beyond_95_percent():
    assert quiet(np.where(np.arange(202) % 101, 0.0, OTHER_W)).other_limit_w == 0.0


def test_quiet_power_noise_of_the_meter_is_no_work():
    found = quiet(np.random.default_rng(1).normal(0.0, 10.0, 2_000))

    assert found.other_limit_w == pytest.approx(0.0, abs=1.5)


def test_quiet_power_errors_of_the_edges_are_not_noise():
    """Slots with 2 J more or less than their mean: 1.4826 · 2 J, of which two edges with standard
    errors of 1 J, half-widths of 1.96 J, explain a part.
    """
    joules = np.tile([22.0, 20.0, 18.0], 20)
    edges_s = 0.25 * np.arange(61)
    found = [
        QuietPower().add(EnergySlots(edges_s, joules, 80.0, half_j), np.zeros(60, dtype=bool))
        for half_j in (None, np.full(61, 1.96), np.full(61, 9.0))
    ]

    noise_j2 = (1.4826 * 2.0) ** 2
    expected_j = [np.sqrt(noise_j2), np.sqrt(noise_j2 - 2.0), 0.0]
    assert [each.noise_j for each in found] == pytest.approx(expected_j, rel=1e-4)


def test_quiet_power_noise_needs_eight_slots():
    joules = np.tile([22.0, 20.0, 18.0], 3)
    found = [
        QuietPower().add(
            EnergySlots(0.25 * np.arange(count + 1), joules[:count], 80.0),
            np.zeros(count, dtype=bool),
        )
        for count in (7, 9)
    ]

    assert [each.noise_j for each in found] == pytest.approx([0.0, 1.4826 * 2.0], rel=1e-4)


@pytest.mark.parametrize(
    ("width_s", "slots_of_work", "limit_w"),
    [(1.0, 1, 100.0), (0.25, 3, 100.0), (0.25, 2, 0.0), (0.1, 6, 0.0)],
)
def test_quiet_power_needs_the_same_time_with_all_widths(width_s, slots_of_work, limit_w):
    """Less than 0.7 s without requests show nothing, without the slots at both ends."""
    above_w = OTHER_W * np.ones(slots_of_work + 2)

    assert quiet(above_w, width_s).other_limit_w == pytest.approx(limit_w)


def test_quiet_power_counts_the_time_of_all_calls():
    power, one = (
        QuietPower(),
        EnergySlots(0.25 * np.arange(5.0), np.full(4, 0.25 * (IDLE_W + OTHER_W)), IDLE_W),
    )

    limits_w = [
        power.add(one, np.zeros(4, dtype=bool)).other_limit_w for _ in range(3)
    ]  # of 0.5 s each

    assert limits_w == pytest.approx([0.0, OTHER_W, OTHER_W])


@pytest.mark.parametrize("width_s", [0.25, 1.0])
def test_half_widths_contain_work_of_another_process(width_s):
    """A request has 900 J, and up to 300 J of another process that works in 2 of 7 seconds."""
    alone, found = (divide_all(spans(), slots(width_s, other_s)) for other_s in (0, 2))

    assert alone.dynamic_j == pytest.approx(np.full(len(spans()), 900.0))
    assert np.max(alone.half_j) < 200.0
    assert np.max(found.dynamic_j) > 1_090.0
    assert np.all(np.abs(found.dynamic_j - 900.0) <= found.half_j)
    assert found.other_half_j == pytest.approx(OTHER_W * 3 * len(spans()), rel=1e-6)
    assert found.total_j.sum() + found.unassigned_j == pytest.approx(found.measured_j, rel=1e-12)


def test_half_widths_in_the_exporter_contain_work_of_another_process():
    division, total_j = (
        Division(),
        np.append(0.0, np.cumsum(power_w(SLOT_S, 2) * SLOT_S)),
    )
    division.extend(np.arange(0.0, SECONDS + SLOT_S, SLOT_S), total_j, np.zeros(len(total_j)))
    division.add(spans(), np.arange(len(spans())))

    for until_s in np.arange(10.0, SECONDS + 1, 10.0):
        found = division.divide(until_s, IDLE_W)
        if until_s > SECONDS / 2 and len(found.keys):
            dynamic_j = found.prefill_j + found.decode_j
            assert np.all(np.abs(dynamic_j - 900.0) <= found.half_j)
            assert np.all(found.half_j >= 0.8 * OTHER_W * 3)
