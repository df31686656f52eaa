"""Energy at an instant, and its confidence interval."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exporter.meter.polls import GPU, counter_polls, meter_of, poll
from wattline_exporter.meter.meter import LIMIT_MARGIN, DeviceMeter
from wattline_exporter.meter.totals import KEPT_S, LastPoll
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.sensors.readings import Poll


@given(st.lists(st.floats(0.0, 100.0), min_size=3, max_size=6))
def test_mark_energies_between_marks_add_up(instants):
    meter = meter_of(counter_polls(250.0, [t * 0.5 for t in range(201)]), period_s=0.5)
    marks = [meter.mark(t) for t in sorted(instants)]
    parts = math.fsum(b.joules - a.joules for a, b in pairwise(marks))

    assert parts == pytest.approx(marks[-1].joules - marks[0].joules, abs=1e-9)


def test_mark_constant_power_is_exact():
    meter = meter_of(
        counter_polls(250.0, [t * 0.047 for t in range(200)]), period_s=0.047, update_s=0.001
    )

    assert meter.mark(5.0).joules == pytest.approx(1_250.0, abs=1.0)
    assert meter.mark(5.0).covered_s == pytest.approx(5.0, abs=0.05)


def test_mark_fast_polls_are_kept_for_twelve_seconds():
    meter = meter_of(
        counter_polls(250.0, [t * 0.013 for t in range(2_000)]), period_s=0.013, update_s=0.001
    )
    latest_s = 1_999 * 0.013

    assert not meter.polls.has_discarded(latest_s - KEPT_S)
    assert meter.polls.has_discarded(latest_s - KEPT_S - 1)
    assert meter.mark(latest_s - 9.0).joules == pytest.approx(250 * (latest_s - 9.0), abs=2.0)


def test_mark_silent_sensor_extrapolates_only_the_interval():
    meter = meter_of(counter_polls(300.0, [0.0, 1.0, 2.0, 3.0]))
    mark = meter.mark(10.0)

    assert mark.joules <= 300.0 * 3.5 + 1e-6  # the last value may be half a second old
    assert mark.joules + mark.half_width_j >= 3_000.0


def test_mark_without_polls_is_unknown():
    assert DeviceMeter().mark(5.0) is None


def test_mark_unpolled_pauses_widen_the_interval():
    # 400 W for a minute, with a pause of 0.3 s after each second in which the GPU may draw 0 or 400
    # W
    meter, t = DeviceMeter(period_s=0.047), 0.0
    while t < 60.0:
        for _ in range(21):
            t += 0.047
            meter.push(poll(t, None, 400.0, average_w=400.0))
        t += 0.3
    begin, end = meter.mark(55.0), meter.mark(t - 0.35)
    energy = energy_between(begin, end)

    assert abs(energy.joules - 400.0 * (t - 0.35 - 55.0)) <= energy.half_width_j


def test_mark_frozen_counter_interval_contains_the_true_energy():
    # 200 W; the counter is frozen from 10 s on, power is still reported
    times = [i * 0.047 for i in range(round(30 / 0.047))]
    meter = meter_of(
        [poll(t, 200.0 * min(t, 10.0), 200.0, average_w=200.0) for t in times], period_s=0.047
    )
    energy = (
        energy_between(meter.mark(5.0), meter.mark(29.0))
        if not meter.polls.has_discarded(5.0)
        else None
    )
    late = energy_between(meter.mark(20.0), meter.mark(29.0))

    assert energy is None or abs(energy.joules - 4_800.0) <= energy.half_width_j
    assert abs(late.joules - 1_800.0) <= late.half_width_j


def test_mark_before_next_update_covers_step_that_no_sensor_shows_yet():
    # 72 W, from -0.08 s on 640 W; counter and power were updated at -0.1 s, and their next update
    # is at 0 s
    def read(t):
        counter_j = 0.0 if t < -0.1 else 7.2 if t < 0.0 else 7.2 + 0.02 * 72.0 + 0.08 * 640.0
        return poll(t, counter_j, 72.0 if t < 0.0 else 640.0)

    meter = DeviceMeter(period_s=0.047)
    meter.max_w = LIMIT_MARGIN * 700.0
    for t in (-0.16, -0.05, -0.037, -0.024):
        meter.push(read(t))
    early = meter.mark(-0.03)  # as when the exporter is killed just after a run's start
    for i in range(40):
        meter.push(read(0.01 + 0.013 * i))
    true_j = 7.2 + 0.02 * 72.0 + 0.05 * 640.0

    assert abs(early.joules - true_j) <= early.half_width_j
    assert (
        abs(meter.mark(-0.03).joules - true_j)
        <= meter.mark(-0.03).half_width_j
        < early.half_width_j
    )


@pytest.mark.parametrize("delay_s", [0.06, 0.12, 0.3])
def test_mark_delayed_call_interval_contains_the_true_energy(delay_s):
    # 350 W; the counter updates every 0.1 s. The last call reads it at 10 s and returns after the
    # delay
    def counter_j(t):
        return 350.0 * math.floor(t / 0.1 + 1e-9) * 0.1

    meter = DeviceMeter(period_s=0.047)
    for n in range(213):
        t = n * 0.047
        meter.push(Poll(GPU, t, t + 1e-4, counter_j(t), 350.0, 350.0))
    for t in (10.03, 10.03 + delay_s + 0.047):
        meter.push(Poll(GPU, t, t + delay_s, counter_j(t), 350.0, 350.0))
    end = meter.mark(10.03 + delay_s)

    energy = energy_between(meter.mark(5.0), end)
    assert abs(energy.joules - 350.0 * (5.03 + delay_s)) <= energy.half_width_j


@pytest.mark.parametrize(
    ("values", "options", "shown_s"),
    [
        pytest.param({"counter_j": 1_000.0}, {}, 8.8, id="counter: an unknown update, 1 s"),
        pytest.param(
            {"counter_j": 1_000.0}, {"update_s": 0.001}, 9.799, id="RAPL: one update of 1 ms"
        ),
        pytest.param(
            {"average_w": 300.0}, {}, 9.15, id="mean power: (0.1 + 1.0) / 2 s, a reading of 0.1 s"
        ),
        pytest.param(
            {"instant_w": 300.0}, {}, 9.6, id="instant power: (0.1 + 0.1) / 2 s, as old again"
        ),
    ],
)
def test_last_poll_shows_the_energy_up_to_its_call_less_the_delay(values, options, shown_s):
    # a call of the driver that takes from 9.8 s to 10 s
    meter = meter_of([Poll(GPU, 9.8, 10.0, **values)], **options)
    meter.max_w = LIMIT_MARGIN * 700.0

    assert meter.last_poll() == LastPoll(10.0, pytest.approx(700.0), pytest.approx(shown_s), 0.0)


def test_last_poll_of_a_counter_with_a_known_update_is_one_update_old():
    # the counter changes at each poll, every 0.1 s; the last one is at 10 s
    meter = meter_of([poll(k / 10, counter_j=30.0 * k) for k in range(101)], period_s=0.1)

    assert meter.last_poll().shown_s == pytest.approx(9.9)


def test_last_poll_has_the_error_of_power_that_replaces_the_counter():
    counted = [poll(k / 10, counter_j=30.0 * k, instant_w=300.0) for k in range(101)]
    bridged = [poll(10.1, instant_w=300.0), poll(10.2, instant_w=300.0)]
    meter = meter_of([*counted, *bridged], period_s=0.1)

    # one update of 0.1 s at 300 W, and 5 % of 30 J at each of two polls
    assert meter.last_poll().pending_j == pytest.approx(30.0 + 2 * 1.5)


def test_last_poll_without_a_poll_is_none():
    assert DeviceMeter().last_poll() is None
