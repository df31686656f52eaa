import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.counter import counter_step
from exporter.energy import KEPT_S, EnergyLine
from exporter.mark import between
from exporter.reading import Device, Poll
from exporter.totals import Totals

GPU = Device("gpu", "GPU-0")
PACKAGE = Device("package", "0")


def poll(t, counter_j=None, power_w=None, *, average_w=None, range_j=None, device=GPU):
    return Poll(device, t, t, counter_j, power_w, average_w, range_j)


def line_of(polls, **options):
    line = EnergyLine(**options)
    for one in polls:
        line.push(one)
    return line


def counted(watts, times):
    """Polls of a counter that moves with the power itself, and of that power."""
    return [poll(t, counter_j=watts * t, power_w=watts) for t in times]


# -- steps of a counter


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
    line = EnergyLine()
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
    line, t, before_j = EnergyLine(), 0.0, 0.0
    for elapsed_s, counter_j, power_w in said:
        t += elapsed_s
        assert line.push(poll(t, counter_j, power_w)) >= 0
        assert line.totals.energy_j >= before_j
        before_j = line.totals.energy_j


# -- the integral


def test_three_hundred_watts_for_ten_seconds_are_three_thousand_joules_however_irregular_the_polls():
    times = [0.0, 0.3, 1.2, 1.21, 2.7, 4.0, 4.9, 6.5, 7.7, 9.1, 10.0]
    line = line_of([poll(t, power_w=300.0) for t in times])

    assert line.totals.energy_j == pytest.approx(3_000.0)
    assert line.totals.covered_s == pytest.approx(10.0)


def test_the_trapezoid_is_taken_over_real_times():
    # 100 W to 300 W in 1 s: 200 J; then 300 W to 0 W in 2 s: 300 J
    line = line_of([poll(0.0, power_w=100.0), poll(1.0, power_w=300.0), poll(3.0, power_w=0.0)])

    assert line.totals.integrated_j == pytest.approx(500.0)


def test_the_integral_takes_the_averaged_power_where_there_is_one():
    line = line_of([poll(t, counter_j=0.0, power_w=900.0, average_w=100.0) for t in (0.0, 1.0, 2.0)])

    assert line.totals.integrated_j == pytest.approx(200.0)


def test_over_a_gap_the_integral_adds_nothing_and_the_counter_bridges_it():
    # polled at 1 s; 3 s of silence are more than 2.5 periods
    line = line_of(counted(300.0, [0.0, 1.0, 2.0, 5.0, 6.0]))

    assert line.totals.energy_j == pytest.approx(1_800.0)
    assert line.totals.integrated_j == pytest.approx(900.0)
    assert line.totals.covered_s == pytest.approx(3.0)


def test_two_and_a_half_periods_are_not_yet_a_gap():
    assert line_of(counted(300.0, [0.0, 1.0, 3.5])).totals.covered_s == pytest.approx(3.5)


def test_without_a_counter_what_a_gap_may_have_hidden_is_in_the_interval():
    times = [0.0, 1.0, 2.0, 12.0, 13.0]
    line = line_of([poll(t, power_w=300.0) for t in times])
    energy = between(line.mark(0.5), line.mark(12.5))

    assert energy.joules == pytest.approx(600.0, abs=40.0)  # 2 s of the 12 s were seen
    assert energy.half_width_j >= 3_000.0


def test_changing_to_fast_polls_is_no_gap():
    line = line_of(counted(300.0, [0.0, 1.0]))
    line.period_s = 0.047
    for one in counted(300.0, [2.0, 2.047, 2.094]):
        line.push(one)

    assert line.totals.covered_s == pytest.approx(2.094)


def test_polls_that_come_late_or_twice_add_nothing():
    line = line_of(counted(300.0, [0.0, 1.0, 1.0, 0.5]))

    assert line.totals.energy_j == pytest.approx(300.0)


# -- where counters come and go


def test_a_counter_that_goes_and_comes_back_counts_no_joule_twice():
    # 100 W all the while; the counter is away from 3 s to 6 s, where the integral stands in
    seen = [(t, None if 3 <= t <= 6 else 100.0 * t) for t in range(11)]
    line = line_of([poll(float(t), counter_j, power_w=100.0) for t, counter_j in seen])

    assert line.totals.energy_j == pytest.approx(1_000.0)


def test_a_reload_of_the_driver_goes_on_from_where_it_was_and_says_so():
    # 100 W; at 5 s the driver goes, at 8 s it is back with its counter at 0
    polls = [poll(float(t), 1_000.0 + 100.0 * t, 100.0) for t in range(6)]
    line = line_of([*polls, poll(9.0, 100.0, 100.0), poll(10.0, 200.0, 100.0)])
    energy = between(line.mark(0.0), line.mark(10.0))

    assert line.totals.energy_j == pytest.approx(700.0)
    assert line.totals.resets == 1
    assert abs(energy.joules - 1_000.0) <= energy.half_width_j


def test_a_counter_that_began_anew_may_have_passed_its_old_value_meanwhile():
    # 500 W; read at 1,000 J, then the driver was gone for 3 s and has counted 1,100 J since it is back
    line = line_of([poll(0.0, 500.0, 500.0), poll(1.0, 1_000.0, 500.0)])
    line.begins_anew = True
    line.push(poll(6.2, 1_100.0, 500.0))

    assert line.totals.energy_j == pytest.approx(1_600.0)
    assert line.totals.resets == 1
    line.push(poll(7.2, 1_600.0, 500.0))
    assert line.totals.energy_j == pytest.approx(2_100.0)


def test_a_driver_that_was_only_said_to_be_gone_counts_nothing_twice():
    line = line_of([poll(0.0, 1_000_000.0, 500.0), poll(1.0, 1_000_500.0, 500.0)])
    line.begins_anew = True
    line.push(poll(3.0, 1_001_500.0, 500.0))

    assert line.totals.energy_j == pytest.approx(1_500.0)
    assert line.totals.resets == 0


def test_totals_of_a_former_exporter_go_on_without_a_joule_twice():
    first = line_of(counted(100.0, [0.0, 1.0, 2.0]))
    second = EnergyLine(first.totals, last=poll(2.0, counter_j=200.0))
    for one in counted(100.0, [30.0, 31.0]):
        second.push(one)

    assert second.totals.energy_j == pytest.approx(3_100.0)
    assert second.totals.covered_s == pytest.approx(3.0)
    assert second.mark(16.0).joules == pytest.approx(1_600.0, rel=0.01)


def test_after_a_boot_the_raw_values_are_new_and_nothing_is_added():
    line = line_of([poll(5.0, counter_j=1_000.0), poll(6.0, counter_j=1_100.0)], totals=Totals(energy_j=500.0))

    assert line.totals.energy_j == pytest.approx(600.0)


# -- marks


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

    assert not line.has_forgotten(latest_s - KEPT_S)
    assert line.has_forgotten(latest_s - KEPT_S - 1)
    assert line.mark(latest_s - 9.0).joules == pytest.approx(250 * (latest_s - 9.0), abs=2.0)


def test_a_silent_sensor_is_not_carried_on_but_its_interval_is():
    line = line_of(counted(300.0, [0.0, 1.0, 2.0, 3.0]))
    mark = line.mark(10.0)

    assert mark.joules <= 300.0 * 3.3 + 1e-6
    assert mark.joules + mark.half_width_j >= 3_000.0


def test_a_fresh_line_has_a_mark_too():
    assert EnergyLine().mark(5.0).joules == 0.0


def test_pauses_that_no_poll_sees_widen_the_interval_each_to_the_same_side():
    # 400 W for a minute; after each second a pause of 0.3 s in which the card draws nothing, or all the time 400 W
    line, t = EnergyLine(period_s=0.047), 0.0
    while t < 60.0:
        for _ in range(21):
            t += 0.047
            line.push(poll(t, None, 400.0, average_w=400.0))
        t += 0.3
    begin, end = line.mark(55.0), line.mark(t - 0.35)
    energy = between(begin, end)

    assert abs(energy.joules - 400.0 * (t - 0.35 - 55.0)) <= energy.half_width_j


def test_a_run_that_ends_while_its_counter_stands_still_has_an_interval_that_holds():
    # 200 W; the counter stands still from 10 s on, power goes on to be seen
    times = [i * 0.047 for i in range(round(30 / 0.047))]
    line = line_of([poll(t, 200.0 * min(t, 10.0), 200.0, average_w=200.0) for t in times], period_s=0.047)
    energy = between(line.mark(5.0), line.mark(29.0)) if not line.has_forgotten(5.0) else None
    late = between(line.mark(20.0), line.mark(29.0))

    assert energy is None or abs(energy.joules - 4_800.0) <= energy.half_width_j
    assert abs(late.joules - 1_800.0) <= late.half_width_j


@pytest.mark.parametrize("held_up_s", [0.06, 0.12, 0.3])
def test_a_call_that_was_held_up_after_it_had_read_the_counter_leaves_an_interval_that_holds(held_up_s):
    # 350 W; the counter moves each 0.1 s. The last poll reads it at 10 s, and comes back so much later
    def counter_j(t):
        return 350.0 * math.floor(t / 0.1 + 1e-9) * 0.1

    line = EnergyLine(period_s=0.047)
    for n in range(213):
        t = n * 0.047
        line.push(Poll(GPU, t, t + 1e-4, counter_j(t), 350.0, 350.0))
    for t in (10.03, 10.03 + held_up_s + 0.047):
        line.push(Poll(GPU, t, t + held_up_s, counter_j(t), 350.0, 350.0))
    end = line.mark(10.03 + held_up_s)

    energy = between(line.mark(5.0), end)
    assert abs(energy.joules - 350.0 * (5.03 + held_up_s)) <= energy.half_width_j
