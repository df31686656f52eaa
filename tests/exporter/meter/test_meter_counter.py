"""Energy from counters that wrap, restart, fail or disappear."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exporter.meter.polls import PACKAGE, counter_polls, meter_of, poll
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.totals import MeterTotals
from wattline_exporter.meter.uncertainty import energy_between


@pytest.mark.parametrize("garbled_j", [0.0, 900_000.0, 5e15])
def test_meter_one_garbled_counter_value_adds_nothing(garbled_j):
    meter = meter_of(
        [
            poll(0.0, 1_000_000.0),
            poll(1.0, 1_000_300.0),
            poll(2.0, garbled_j),
            poll(3.0, 1_000_900.0),
        ]
    )

    assert meter.totals.energy_j == 900.0
    assert meter.totals.resets == 0


def test_meter_young_counter_with_one_zero_is_not_counted_twice():
    meter = meter_of([poll(0.0, 100.0), poll(1.0, 400.0), poll(2.0, 0.0), poll(3.0, 1_000.0)])

    assert meter.totals.energy_j == 900.0


def test_meter_implausible_jump_is_replaced_by_integrated_power():
    # 300 W throughout; between 2 s and 3 s the counter jumps by 1 MJ. The energy is 300 W × 5 s
    polls = [
        poll(t, 300.0 * t + (1e6 if t > 2 else 0.0), 300.0) for t in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    ]
    meter = meter_of(polls)

    assert meter.totals.energy_j == pytest.approx(1_500.0)
    assert meter.implausible_s == 4.0


def test_meter_power_above_1_5_times_the_limit_is_implausible():
    # a limit of 400 W: 600 W × (1 s + 1 s of delay) = 1,200 J
    meter = DeviceMeter()
    meter.max_w = 600.0
    for t, counter_j in ((0.0, 0.0), (1.0, 1_200.0), (2.0, 2_401.0), (3.0, 3_300.0)):
        meter.push(poll(t, counter_j, 200.0))

    assert (
        meter.totals.energy_j == 1_200.0 + 400.0
    )  # the integral of 200 W for the last two seconds


@given(st.lists(st.floats(0, 500), min_size=1, max_size=50), st.floats(1_000, 300_000))
def test_meter_wrapping_counter_adds_up_to_the_true_energy(steps_j, range_j):
    raw_j, polls = range_j / 2, [poll(0.0, range_j / 2, range_j=range_j, device=PACKAGE)]
    for second, step_j in enumerate(steps_j, 1):
        raw_j = (raw_j + step_j) % range_j
        polls.append(poll(float(second), raw_j, range_j=range_j, device=PACKAGE))

    assert meter_of(polls).totals.energy_j == pytest.approx(math.fsum(steps_j), abs=1e-6)


@given(
    st.lists(
        st.tuples(
            st.floats(0.001, 100), st.floats(0, 1e7) | st.none(), st.floats(0, 2_000) | st.none()
        )
    )
)
def test_meter_energy_never_falls_with_any_values(values):
    meter, t, before_j = DeviceMeter(), 0.0, 0.0
    for elapsed_s, counter_j, power_w in values:
        t += elapsed_s
        assert meter.push(poll(t, counter_j, power_w)) >= 0
        assert meter.totals.energy_j >= before_j
        before_j = meter.totals.energy_j


def test_meter_counter_that_disappears_and_returns_counts_once():
    # 100 W; without a counter from 3 s to 6 s, where the integral replaces it
    values = [(t, None if 3 <= t <= 6 else 100.0 * t) for t in range(11)]
    meter = meter_of([poll(float(t), counter_j, instant_w=100.0) for t, counter_j in values])

    assert meter.totals.energy_j == pytest.approx(1_000.0)


def test_meter_driver_reload_continues_and_counts_a_reset():
    # 100 W; the driver is unloaded at 5 s and loaded at 8 s with its counter at 0
    polls = [poll(float(t), 1_000.0 + 100.0 * t, 100.0) for t in range(6)]
    meter = meter_of([*polls, poll(9.0, 100.0, 100.0), poll(10.0, 200.0, 100.0)])
    energy = energy_between(meter.mark(0.0), meter.mark(10.0))

    assert meter.totals.energy_j == pytest.approx(700.0)
    assert meter.totals.resets == 1
    assert abs(energy.joules - 1_000.0) <= energy.half_width_j


def test_meter_restarted_counter_above_its_old_value_counts_from_zero():
    # at 500 W the counter is read at 1,000 J, then the driver is unloaded for 3 s,
    # and counts 1,100 J after its return
    meter = meter_of([poll(0.0, 500.0, 500.0), poll(1.0, 1_000.0, 500.0)])
    meter.counter_restarts = True
    meter.push(poll(6.2, 1_100.0, 500.0))

    assert meter.totals.energy_j == pytest.approx(1_600.0)
    assert meter.totals.resets == 1
    meter.push(poll(7.2, 1_600.0, 500.0))
    assert meter.totals.energy_j == pytest.approx(2_100.0)


def test_meter_expected_restart_that_did_not_happen_counts_once():
    meter = meter_of([poll(0.0, 1_000_000.0, 500.0), poll(1.0, 1_000_500.0, 500.0)])
    meter.counter_restarts = True
    meter.push(poll(3.0, 1_001_500.0, 500.0))

    assert meter.totals.energy_j == pytest.approx(1_500.0)
    assert meter.totals.resets == 0


def test_meter_totals_of_a_previous_exporter_continue():
    first = meter_of(counter_polls(100.0, [0.0, 1.0, 2.0]))
    second = DeviceMeter(first.totals, last=poll(2.0, counter_j=200.0))
    for one in counter_polls(100.0, [30.0, 31.0]):
        second.push(one)

    assert second.totals.energy_j == pytest.approx(3_100.0)
    assert second.totals.covered_s == pytest.approx(3.0)
    assert second.mark(16.0).joules == pytest.approx(
        1_600.0, abs=50.0
    )  # values may be half a second old


def test_meter_after_a_reboot_the_first_raw_value_is_a_baseline():
    meter = meter_of(
        [poll(5.0, counter_j=1_000.0), poll(6.0, counter_j=1_100.0)],
        totals=MeterTotals(energy_j=500.0),
    )

    assert meter.totals.energy_j == pytest.approx(600.0)
