"""Steps of a counter, and counters that come, go and begin anew."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.energy.counters import counter_step
from exporter.energy.marks import MeterTotals, energy_between
from exporter.energy.meter import DeviceMeter
from tests.exporter.polls import PACKAGE, counted, line_of, poll


def test_a_rapl_counter_goes_on_over_its_range():
    # 262,143 J is the range of a Xeon: 10 J before it, then 25 J past it
    assert counter_step(262_133.0, 25.0, 262_143.0, 1.0) == pytest.approx(35.0)


def test_a_counter_that_fell_counts_what_it_shows_since_its_driver_was_loaded():
    assert counter_step(1_000_000.0, 250.0, None, 10.0) == 250.0


@pytest.mark.parametrize(
    ("before_j", "now_j"), [(1_000_000.0, 900_000.0), (0.0, 1_000_000.0), (1_000.0, 2.0**63 / 1_000)]
)
def test_a_step_that_no_card_could_make_is_none(before_j, now_j):
    assert counter_step(before_j, now_j, None, 1.0) is None


@pytest.mark.parametrize("garbled_j", [0.0, 900_000.0, 5e15])
def test_a_register_that_reads_wrongly_once_changes_nothing(garbled_j):
    line = line_of([poll(0.0, 1_000_000.0), poll(1.0, 1_000_300.0), poll(2.0, garbled_j), poll(3.0, 1_000_900.0)])

    assert line.totals.energy_j == 900.0
    assert line.totals.resets == 0


def test_a_young_counter_that_reads_zero_once_does_not_count_its_whole_value_again():
    line = line_of([poll(0.0, 100.0), poll(1.0, 400.0), poll(2.0, 0.0), poll(3.0, 1_000.0)])

    assert line.totals.energy_j == 900.0


def test_a_counter_that_jumps_by_what_no_card_can_draw_goes_on_from_there_and_power_fills_the_gap():
    # 300 W throughout; between 2 s and 3 s the counter jumps by 1 MJ. Of 300 W × 5 s nothing is lost
    polls = [poll(t, 300.0 * t + (1e6 if t > 2 else 0.0), 300.0) for t in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)]
    line = line_of(polls)

    assert line.totals.energy_j == pytest.approx(1_500.0)
    assert line.implausible_s == 4.0


def test_half_as_much_again_as_the_limit_is_what_a_card_can_draw():
    # a limit of 400 W: 600 W × (1 s + 1 s of a counter that is behind) = 1,200 J
    line = DeviceMeter()
    line.most_w = 600.0
    for t, counter_j in ((0.0, 0.0), (1.0, 1_200.0), (2.0, 2_401.0), (3.0, 3_300.0)):
        line.push(poll(t, counter_j, 200.0))

    assert line.totals.energy_j == 1_200.0 + 400.0  # of the last two seconds the integral, 200 W


@given(st.lists(st.floats(0, 500), min_size=1, max_size=50), st.floats(1_000, 300_000))
def test_a_wrapping_counter_adds_up_to_what_was_drawn(steps_j, range_j):
    raw_j, polls = range_j / 2, [poll(0.0, range_j / 2, range_j=range_j, device=PACKAGE)]
    for second, step_j in enumerate(steps_j, 1):
        raw_j = (raw_j + step_j) % range_j
        polls.append(poll(float(second), raw_j, range_j=range_j, device=PACKAGE))

    assert line_of(polls).totals.energy_j == pytest.approx(math.fsum(steps_j), abs=1e-6)


@given(st.lists(st.tuples(st.floats(0.001, 100), st.floats(0, 1e7) | st.none(), st.floats(0, 2_000) | st.none())))
def test_energy_never_falls_whatever_the_driver_says(said):
    line, t, before_j = DeviceMeter(), 0.0, 0.0
    for elapsed_s, counter_j, power_w in said:
        t += elapsed_s
        assert line.push(poll(t, counter_j, power_w)) >= 0
        assert line.totals.energy_j >= before_j
        before_j = line.totals.energy_j


def test_a_counter_that_goes_and_comes_back_counts_no_joule_twice():
    # 100 W all the while; the counter is away from 3 s to 6 s, where the integral stands in
    seen = [(t, None if 3 <= t <= 6 else 100.0 * t) for t in range(11)]
    line = line_of([poll(float(t), counter_j, power_w=100.0) for t, counter_j in seen])

    assert line.totals.energy_j == pytest.approx(1_000.0)


def test_a_reload_of_the_driver_goes_on_from_where_it_was_and_says_so():
    # 100 W; at 5 s the driver goes, at 8 s it is back with its counter at 0
    polls = [poll(float(t), 1_000.0 + 100.0 * t, 100.0) for t in range(6)]
    line = line_of([*polls, poll(9.0, 100.0, 100.0), poll(10.0, 200.0, 100.0)])
    energy = energy_between(line.mark(0.0), line.mark(10.0))

    assert line.totals.energy_j == pytest.approx(700.0)
    assert line.totals.resets == 1
    assert abs(energy.joules - 1_000.0) <= energy.half_width_j


def test_a_counter_that_began_anew_may_have_passed_its_old_value_meanwhile():
    # 500 W; read at 1,000 J, then the driver was gone for 3 s and has counted 1,100 J since it is back
    line = line_of([poll(0.0, 500.0, 500.0), poll(1.0, 1_000.0, 500.0)])
    line.counter_restarts = True
    line.push(poll(6.2, 1_100.0, 500.0))

    assert line.totals.energy_j == pytest.approx(1_600.0)
    assert line.totals.resets == 1
    line.push(poll(7.2, 1_600.0, 500.0))
    assert line.totals.energy_j == pytest.approx(2_100.0)


def test_a_driver_that_was_only_said_to_be_gone_counts_nothing_twice():
    line = line_of([poll(0.0, 1_000_000.0, 500.0), poll(1.0, 1_000_500.0, 500.0)])
    line.counter_restarts = True
    line.push(poll(3.0, 1_001_500.0, 500.0))

    assert line.totals.energy_j == pytest.approx(1_500.0)
    assert line.totals.resets == 0


def test_totals_of_a_former_exporter_go_on_without_a_joule_twice():
    first = line_of(counted(100.0, [0.0, 1.0, 2.0]))
    second = DeviceMeter(first.totals, last=poll(2.0, counter_j=200.0))
    for one in counted(100.0, [30.0, 31.0]):
        second.push(one)

    assert second.totals.energy_j == pytest.approx(3_100.0)
    assert second.totals.covered_s == pytest.approx(3.0)
    assert second.mark(16.0).joules == pytest.approx(1_600.0, rel=0.01)


def test_after_a_boot_the_raw_values_are_new_and_nothing_is_added():
    line = line_of([poll(5.0, counter_j=1_000.0), poll(6.0, counter_j=1_100.0)], totals=MeterTotals(energy_j=500.0))

    assert line.totals.energy_j == pytest.approx(600.0)
