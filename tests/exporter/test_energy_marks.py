"""The energy at an instant, and its interval."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.energy.marks import energy_between
from exporter.energy.meter import KEPT_S, DeviceMeter
from exporter.model import Poll
from tests.exporter.polls import GPU, counted, line_of, poll


@given(st.lists(st.floats(0.0, 100.0), min_size=3, max_size=6))
def test_energies_between_marks_add_up(instants):
    line = line_of(counted(250.0, [t * 0.5 for t in range(201)]), period_s=0.5)
    marks = [line.mark(t) for t in sorted(instants)]
    parts = math.fsum(b.joules - a.joules for a, b in pairwise(marks))

    assert parts == pytest.approx(marks[-1].joules - marks[0].joules, abs=1e-9)


def test_a_mark_lies_on_the_true_line():
    line = line_of(counted(250.0, [t * 0.047 for t in range(200)]), period_s=0.047, update_s=0.001)

    assert line.mark(5.0).joules == pytest.approx(1_250.0, abs=1.0)
    assert line.mark(5.0).covered_s == pytest.approx(5.0, abs=0.05)


def test_fast_polls_are_kept_for_as_long_as_a_mark_may_be_asked_for():
    line = line_of(counted(250.0, [t * 0.013 for t in range(2_000)]), period_s=0.013, update_s=0.001)
    latest_s = 1_999 * 0.013

    assert not line.has_discarded(latest_s - KEPT_S)
    assert line.has_discarded(latest_s - KEPT_S - 1)
    assert line.mark(latest_s - 9.0).joules == pytest.approx(250 * (latest_s - 9.0), abs=2.0)


def test_a_silent_sensor_is_not_carried_on_but_its_interval_is():
    line = line_of(counted(300.0, [0.0, 1.0, 2.0, 3.0]))
    mark = line.mark(10.0)

    assert mark.joules <= 300.0 * 3.3 + 1e-6
    assert mark.joules + mark.half_width_j >= 3_000.0


def test_a_fresh_line_has_a_mark_too():
    assert DeviceMeter().mark(5.0).joules == 0.0


def test_pauses_that_no_poll_sees_widen_the_interval_each_to_the_same_side():
    # 400 W for a minute; after each second a pause of 0.3 s in which the card draws nothing, or all the time 400 W
    line, t = DeviceMeter(period_s=0.047), 0.0
    while t < 60.0:
        for _ in range(21):
            t += 0.047
            line.push(poll(t, None, 400.0, average_w=400.0))
        t += 0.3
    begin, end = line.mark(55.0), line.mark(t - 0.35)
    energy = energy_between(begin, end)

    assert abs(energy.joules - 400.0 * (t - 0.35 - 55.0)) <= energy.half_width_j


def test_a_run_that_ends_while_its_counter_stands_still_has_an_interval_that_holds():
    # 200 W; the counter stands still from 10 s on, power goes on to be seen
    times = [i * 0.047 for i in range(round(30 / 0.047))]
    line = line_of([poll(t, 200.0 * min(t, 10.0), 200.0, average_w=200.0) for t in times], period_s=0.047)
    energy = energy_between(line.mark(5.0), line.mark(29.0)) if not line.has_discarded(5.0) else None
    late = energy_between(line.mark(20.0), line.mark(29.0))

    assert energy is None or abs(energy.joules - 4_800.0) <= energy.half_width_j
    assert abs(late.joules - 1_800.0) <= late.half_width_j


@pytest.mark.parametrize("held_up_s", [0.06, 0.12, 0.3])
def test_a_call_that_was_held_up_after_it_had_read_the_counter_leaves_an_interval_that_holds(held_up_s):
    # 350 W; the counter moves each 0.1 s. The last poll reads it at 10 s, and comes back so much later
    def counter_j(t):
        return 350.0 * math.floor(t / 0.1 + 1e-9) * 0.1

    line = DeviceMeter(period_s=0.047)
    for n in range(213):
        t = n * 0.047
        line.push(Poll(GPU, t, t + 1e-4, counter_j(t), 350.0, 350.0))
    for t in (10.03, 10.03 + held_up_s + 0.047):
        line.push(Poll(GPU, t, t + held_up_s, counter_j(t), 350.0, 350.0))
    end = line.mark(10.03 + held_up_s)

    energy = energy_between(line.mark(5.0), end)
    assert abs(energy.joules - 350.0 * (5.03 + held_up_s)) <= energy.half_width_j
