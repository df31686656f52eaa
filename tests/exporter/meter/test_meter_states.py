"""States of a meter, and the transitions between them."""

import math

import pytest

from tests.exporter.meter.polls import PACKAGE, meter_of, poll
from tests.exporter.meter.random_series import RandomSeries, SeriesMeter
from wattline_exporter.meter.counter_track import LOST_S, CounterTracker
from wattline_exporter.meter.meter import (
    LIMIT_MARGIN,
    Blind,
    Bridging,
    Counting,
    DeviceMeter,
    Integrating,
)

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


def test_integrating_step_has_the_variance_of_an_unknown_time_of_change():
    # 100 W, then 300 W: the power rose by 200 W at 0.5 ± 0.5 s: (100 J)² / 3
    meter = meter_of([poll(0.0, None, 100.0), poll(1.0, None, 300.0)])

    assert meter.totals.variance_j2 == pytest.approx(10_000.0 / 3)
    assert meter.totals.unseen_j == 0.0


def test_integrating_gap_is_unseen_up_to_the_limit():
    # no poll for 11 s, in which up to 700 W may have flowed
    meter = DeviceMeter()
    meter.max_w = LIMIT_MARGIN * 700.0
    for t in (0.0, 1.0, 12.0):
        meter.push(poll(t, None, 300.0))

    assert meter.totals.unseen_j == pytest.approx(7_700.0)
    assert meter.totals.covered_s == 1.0


def test_bridging_error_is_the_delay_of_the_counter_and_5_percent():
    # 300 W for a second: 15 J, and 300 J since the counter may update once a second
    state = state_after(poll(0.0, 0.0, 300.0), poll(1.0, None, 300.0))

    assert isinstance(state, Bridging)
    assert state.pending_j == pytest.approx(315.0)


def test_lost_bridge_error_becomes_unseen():
    # 300 J of the counter's delay, and 5 % of 300 W for the 61 s of the bridge; then power only
    polls = [poll(0.0, 100.0, 300.0), *seconds_of(1, 62, instant_w=300.0)]

    assert meter_of(polls).totals.unseen_j == pytest.approx(300.0 + 0.05 * 300.0 * 61.0)


def test_lost_bridge_keeps_each_step_of_a_rising_power():
    # 300 W until 60 s, then 400, 600 and 900 W a second later each; the counter is lost at 62 s.
    # Trapezoids of 350, 500 and 750 J follow the 18,000 J
    meter = meter_of([poll(0.0, 100.0, 300.0), *seconds_of(1, 60, instant_w=300.0)])
    assert meter.totals.energy_j == pytest.approx(18_000.0)

    steps_j = []
    states = []
    for t, watts in ((61.0, 400.0), (62.0, 600.0), (63.0, 900.0)):
        steps_j.append(meter.push(poll(t, None, watts)))
        states.append(type(meter.state))

    assert states == [Bridging, Integrating, Integrating]
    assert steps_j == pytest.approx([350.0, 500.0, 750.0])
    assert meter.totals.energy_j == pytest.approx(19_600.0)
    assert meter.totals.integrated_j == pytest.approx(19_600.0)
    assert meter.totals.covered_s == pytest.approx(63.0)


def test_lost_bridge_error_is_added_once():
    # 300 J of the counter's delay and 915 J of the bridge at 62 s; the power adds none after that
    polls = [poll(0.0, 100.0, 300.0), *seconds_of(1, 64, instant_w=300.0)]
    meter = meter_of(polls)

    assert meter.totals.unseen_j == pytest.approx(300.0 + 915.0)
    assert meter.state.pending_j == 0.0


def test_lost_bridge_after_a_late_counter_has_caught_up():
    # the counter shows nothing of 300 W for 2 s, then it is missing: the bridge makes up for the
    # 600 J before the counter is lost
    polls = [poll(float(t), 100.0, 300.0) for t in range(3)]
    meter = meter_of([*polls, *seconds_of(3, 66, instant_w=300.0)])

    assert isinstance(meter.state, Integrating)
    assert meter.totals.energy_j == pytest.approx(300.0 * 66.0)


@pytest.mark.parametrize(
    ("back_s", "joules"),
    [(61, 310.0 * 61.0), (62, 300.0 * 62.0)],
    ids=["the counter corrects the bridge", "the counter is a new one"],
)
def test_lost_bridge_begins_after_60_s(back_s, joules):
    # the counter measures 310 W, the power 300 W. The counter is back after a bridge of 60 or 61 s,
    # and counts from there
    bridge = seconds_of(1, back_s - 1, instant_w=300.0)
    meter = meter_of([poll(0.0, 100.0, 300.0), *bridge])

    meter.push(poll(float(back_s), 100.0 + 310.0 * back_s, 300.0))
    assert isinstance(meter.state, Counting)
    assert meter.totals.energy_j == pytest.approx(joules)

    meter.push(poll(back_s + 1.0, 100.0 + 310.0 * (back_s + 1), 300.0))
    assert meter.totals.energy_j == pytest.approx(joules + 310.0)


def test_restarted_counter_error_is_two_updates_at_the_limit():
    # 5 % of the 500 J of the power, and two updates of up to a second at 700 W
    meter = DeviceMeter()
    meter.max_w = LIMIT_MARGIN * 700.0
    meter.push(poll(0.0, 1_000.0, 500.0))
    meter.counter_restarts = True
    meter.push(poll(1.0, 400.0, 500.0))

    assert meter.totals.energy_j == pytest.approx(500.0)
    assert meter.totals.unseen_j == pytest.approx(25.0 + 1_400.0)


def test_counter_far_behind_the_bridge_error_is_its_lead_and_delay():
    # the bridge gives 6,000 J in 10 s, the counter 3,000 J: more than 600 J of its delay, 300 J of
    # 5 %, and 1,400 J of two updates at 700 W. The counter continues from 6,000 J
    meter = DeviceMeter()
    meter.max_w = LIMIT_MARGIN * 700.0
    for t in range(11):
        meter.push(poll(float(t), 0.0 if t == 0 else None, 600.0))
    meter.push(poll(10.5, 3_000.0, 600.0))

    assert meter.totals.energy_j == pytest.approx(6_000.0)
    assert meter.totals.unseen_j == pytest.approx(3_000.0 + 1_400.0)
    assert meter.implausible_s == 10.5


def test_package_gap_error_is_the_wraps_that_may_have_happened():
    # 20 s at up to 1,000 W: 20,000 J, of which the counter with its range of 5,000 J shows 100 J
    meter = meter_of(
        [
            poll(0.0, 4_950.0, range_j=5_000.0, device=PACKAGE),
            poll(20.0, 50.0, range_j=5_000.0, device=PACKAGE),
        ],
        update_s=0.001,
    )

    assert meter.totals.energy_j == pytest.approx(100.0)
    assert meter.totals.unseen_j == pytest.approx(19_900.0)


def test_counter_that_fell_for_a_short_time_error_is_the_fall_and_the_rise_before():
    # from 1,000 J the counter falls to 900 J within 1 s, and is back above 1,000 J 0.2 s later: it
    # may have risen by 4,000 W for the 2 s before, since its value may be a second old
    meter = meter_of([poll(0.0, 1_000.0), poll(1.0, 900.0), poll(1.2, 1_010.0)])

    assert meter.totals.energy_j == pytest.approx(10.0)
    assert meter.totals.unseen_j == pytest.approx(100.0 + 8_000.0)


def test_saved_counter_value_ahead_of_a_wrapping_counter_is_within_its_range():
    tracker = CounterTracker(0.001, poll(0.0, 4_900.0, range_j=5_000.0), 1_000.0, 0.0)

    assert tracker.raw_at(1_250.0, 5_000.0) == pytest.approx(150.0)


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
