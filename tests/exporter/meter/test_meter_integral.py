"""Energy as the integral of power."""

import pytest

from tests.exporter.meter.polls import counter_polls, meter_of, poll
from wattline_exporter.meter.meter import LIMIT_MARGIN, DeviceMeter
from wattline_exporter.meter.uncertainty import energy_between


def test_integral_300_watts_for_10_seconds_are_3000_joules():
    times = [0.0, 0.3, 1.2, 1.21, 2.7, 4.0, 4.9, 6.5, 7.7, 9.1, 10.0]
    meter = meter_of([poll(t, instant_w=300.0) for t in times])

    assert meter.totals.energy_j == pytest.approx(3_000.0)
    assert meter.totals.covered_s == pytest.approx(10.0)


def test_integral_is_a_trapezoid_over_poll_times():
    # 100 W to 300 W in 1 s: 200 J; then 300 W to 0 W in 2 s: 300 J
    meter = meter_of(
        [poll(0.0, instant_w=100.0), poll(1.0, instant_w=300.0), poll(3.0, instant_w=0.0)]
    )

    assert meter.totals.integrated_j == pytest.approx(500.0)


def test_integral_uses_averaged_power_if_available():
    meter = meter_of(
        [poll(t, counter_j=0.0, instant_w=900.0, average_w=100.0) for t in (0.0, 1.0, 2.0)]
    )

    assert meter.totals.integrated_j == pytest.approx(200.0)


def test_integral_gap_adds_nothing_while_the_counter_bridges_it():
    # polled every second; 3 s without a poll are more than 2.5 periods
    meter = meter_of(counter_polls(300.0, [0.0, 1.0, 2.0, 5.0, 6.0]))

    assert meter.totals.energy_j == pytest.approx(1_800.0)
    assert meter.totals.integrated_j == pytest.approx(900.0)
    assert meter.totals.covered_s == pytest.approx(3.0)


def test_integral_two_and_a_half_periods_are_no_gap():
    assert meter_of(counter_polls(300.0, [0.0, 1.0, 3.5])).totals.covered_s == pytest.approx(3.5)


def test_integral_gap_without_counter_widens_the_interval():
    times = [0.0, 1.0, 2.0, 12.0, 13.0]
    meter = meter_of([poll(t, instant_w=300.0) for t in times])
    energy = energy_between(meter.mark(0.5), meter.mark(12.5))

    assert energy.joules == pytest.approx(600.0, abs=40.0)  # 2 s of the 12 s were measured
    assert energy.half_width_j >= 3_000.0


def test_integral_change_to_fast_polls_has_no_gap():
    meter = meter_of(counter_polls(300.0, [0.0, 1.0]))
    meter.period_s = 0.047
    for one in counter_polls(300.0, [2.0, 2.047, 2.094]):
        meter.push(one)

    assert meter.totals.covered_s == pytest.approx(2.094)


def test_integral_late_or_repeated_polls_add_nothing():
    meter = meter_of(counter_polls(300.0, [0.0, 1.0, 1.0, 0.5]))

    assert meter.totals.energy_j == pytest.approx(300.0)


def test_integral_refused_powers_are_interpolated_with_wide_interval():
    # 500 W for 6 s; the sensor reports 65,535 W from 2.0 to 3.2 s, in which 0 to 700 W may have
    # flowed
    meter = DeviceMeter(period_s=0.047)
    meter.max_w = LIMIT_MARGIN * 700.0
    for i in range(round(6.0 / 0.047)):
        t = i * 0.047
        watts = 65_535.0 if 2.0 <= t < 3.2 else 500.0
        meter.push(poll(t, instant_w=watts, average_w=watts))
    energy = energy_between(meter.mark(1.0), meter.mark(5.0))

    assert energy.joules == pytest.approx(2_000.0, rel=0.01)
    assert energy.half_width_j >= 600.0
