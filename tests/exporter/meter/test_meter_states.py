"""States of a meter, and the transitions between them."""

import math

import pytest

from tests.exporter.meter.polls import PACKAGE, meter_of, poll
from tests.exporter.meter.random_series import RandomSeries, SeriesMeter
from wattline_exporter.meter.counter_track import LOST_S, CounterTracker
from wattline_exporter.meter.meter import Blind, Bridging, Counting, DeviceMeter, Integrating

TRANSITIONS = {
    (Counting, Counting),
    (Counting, Bridging),
    (Counting, Blind),
    (Bridging, Counting),
    (Bridging, Bridging),
    (Bridging, Integrating),
    (Bridging, Blind),
    (Integrating, Counting),
    (Integrating, Integrating),
    (Integrating, Blind),
    (Blind, Counting),
    (Blind, Bridging),
    (Blind, Integrating),
    (Blind, Blind),
}
"""Transitions in the table of the meter's module."""


def test_states_random_series_have_the_drawn_transitions_only():
    seen = set()
    for seed in range(100):
        series = RandomSeries(seed)
        fed = SeriesMeter(series, series.new_meter)
        for action in series.actions(8):
            before = type(fed.meter.state)
            fed.take(action)
            if action.poll is not None:
                seen.add((before, type(fed.meter.state)))

    assert seen == TRANSITIONS


def test_states_random_series_totals_are_the_sum_of_increases():
    for seed in range(30):
        series = RandomSeries(seed)
        fed = SeriesMeter(series, series.new_meter)
        added_j = []
        for action in series.actions(6):
            before = fed.meter.totals
            added_j.append(fed.take(action))
            after = fed.meter.totals
            assert added_j[-1] >= 0.0
            assert after.energy_j >= before.energy_j
            assert after.unseen_j >= before.unseen_j
            assert after.variance_j2 >= before.variance_j2
            assert after.covered_s >= before.covered_s
            assert after.resets >= before.resets

        assert math.fsum(added_j) == pytest.approx(fed.meter.totals.energy_j, rel=1e-9)


def state_after(*polls, **options):
    return meter_of(polls, **options).state


def seconds_of(first, last, **values):
    return [poll(float(t), **values) for t in range(first, last + 1)]


def test_states_total_ahead_by_a_rounding_error_does_not_fall():
    # the counter jumps by 1 MJ: it continues from 0.1 J + 1 MJ - 1 MJ, which rounds to less
    assert 0.1 + 1e6 - 1e6 < 0.1
    jumped = [poll(2.0 + 0.2 * n, 1e6) for n in range(10)]
    meter = DeviceMeter()
    increases_j = [meter.push(one) for one in (poll(0.0, 0.0), poll(1.0, 0.1), *jumped)]

    assert meter.totals.energy_j == 0.1
    assert min(increases_j) >= 0.0


def test_state_counter_value_counts():
    assert isinstance(state_after(poll(0.0, 100.0, 300.0)), Counting)


def test_state_missing_counter_bridges_until_it_is_lost():
    polls = [poll(0.0, 100.0, 300.0), *seconds_of(1, 61, instant_w=300.0)]

    assert isinstance(state_after(*polls), Bridging)
    assert state_after(*polls).bridged_s == LOST_S + 1.0
    assert isinstance(state_after(*polls, poll(62.0, None, 300.0)), Integrating)


def test_state_counter_returns_after_the_bridge_counts():
    polls = [poll(0.0, 100.0, 300.0), poll(1.0, None, 300.0), poll(2.0, 700.0, 300.0)]
    meter = meter_of(polls)

    assert isinstance(meter.state, Counting)
    assert meter.state.pending_j == 0.0
    assert meter.totals.energy_j == 600.0


def test_state_counter_behind_the_bridge_is_awaited():
    # 300 W bridge 1 s with 300 J; the counter then shows 250 J since the start, 50 J less
    meter = meter_of([poll(0.0, 0.0, 300.0), poll(1.0, None, 300.0), poll(1.0001, 250.0, 300.0)])

    assert meter.totals.energy_j == pytest.approx(300.0)
    assert isinstance(meter.state, Counting)
    assert meter.state.pending_j == pytest.approx(50.0)


def test_state_power_only_integrates_and_a_first_value_counts():
    polls = seconds_of(0, 3, instant_w=300.0)

    assert isinstance(state_after(*polls), Integrating)
    assert isinstance(state_after(*polls, poll(4.0, 5_000.0, 300.0)), Counting)


def test_state_device_without_sensors_is_blind():
    meter = meter_of(seconds_of(0, 3))

    assert isinstance(meter.state, Blind)
    assert meter.state.reason == "reports neither energy nor power"
    assert meter.totals.energy_j == 0.0
    assert meter.latest is None


def test_state_meter_without_polls_is_blind():
    state = DeviceMeter().state

    assert isinstance(state, Blind)
    assert state.reason == "not polled yet"


def test_state_doubtful_counter_without_power_is_blind():
    # the value falls by 100 J: with a range of 1 MJ, 999,900 J would have flowed in a second
    state = state_after(
        poll(0.0, 1_000.0, range_j=1e6, device=PACKAGE),
        poll(1.0, 900.0, range_j=1e6, device=PACKAGE),
        update_s=0.001,
    )

    assert isinstance(state, Blind)
    assert state.reason == "reports a doubtful energy counter and no power"
    assert isinstance(state.before, Bridging)


def test_state_after_a_blind_time_the_counter_contains_its_energy():
    meter = meter_of([poll(0.0, 0.0, 300.0), poll(1.0), poll(2.0), poll(3.0, 900.0, 300.0)])

    assert meter.totals.energy_j == 900.0
    assert isinstance(meter.state, Counting)


def test_tracker_follow_takes_regular_values_as_take_does():
    for seed in range(30):
        series = RandomSeries(seed)
        fast = CounterTracker(0.1, None, 0.0, 0.0)
        slow = CounterTracker(0.1, None, 0.0, 0.0)
        followed = 0
        for action in series.actions(6):
            one = action.poll
            if one is None or one.counter_j is None or one.after_s <= slow.read_s:
                continue
            step = slow.take(one, slow.energy_j, max_w=1_050.0, restarts=False)
            if fast.follow(one, 0.0, 1_050.0):
                followed += 1
                assert step == ("counted", fast.energy_j, 0.0)
            else:
                assert fast.take(one, fast.energy_j, max_w=1_050.0, restarts=False) == step
            assert vars(fast).keys() == vars(slow).keys()
            assert (fast.raw_j, fast.energy_j) == (slow.raw_j, slow.energy_j)
            assert (fast.read_s, fast.changed_s) == (slow.read_s, slow.changed_s)
            assert fast.update.s == slow.update.s
