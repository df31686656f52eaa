"""Placement of energy within the long step of a counter, after a pause between polls."""

import math

import pytest

from tests.exporter.meter.polls import poll
from wattline_exporter.meter.interpolation import EnergyPoint
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.placement import place_energy, power_curve
from wattline_exporter.meter.totals import MeterTotals

LIMIT_W = 700.0


def curve_of(*readings):
    """Return the curve of powers in watts, each read at a time in seconds."""
    return power_curve([poll(t, None, watts) for t, watts in readings], lag_s=0.0, slack_s=0.1)


def test_mark_between_two_exporters_does_not_jump_to_the_first_poll():
    """A counter shows the energy 0.04 s before each tenth of a second, and no poll the time of its
    first update.
    """

    def counter_j(t_s):
        return 600.0 * (math.floor((t_s + 0.04) / 0.1) * 0.1 - 0.04)

    last = poll(50.0, counter_j(50.0), 600.0, average_w=600.0)
    totals = MeterTotals(energy_j=counter_j(50.0), raw_j=counter_j(50.0), peak_w=600.0)
    meter, t_s = DeviceMeter(totals, last=last, period_s=0.047), 50.85
    meter.max_w = 1.5 * LIMIT_W
    for _ in range(3):
        meter.push(poll(t_s, counter_j(t_s), 600.0, average_w=600.0))
        t_s += 0.047

    mark = meter.mark(50.65)

    # 600 W of at most 700 W may be the mean of a faster load over an update of the power, which
    # takes up to 1 s as far as three polls show; the first poll shows the energy at 50.76 s
    hidden_j = 600.0 * 100.0 / 700.0 * 1.0
    assert abs(mark.joules - 600.0 * 50.65) < mark.half_width_j - hidden_j < 30.0


def test_place_energy_power_changed_in_the_first_step_widens_the_interval():
    # 460 W until 1.34 s, then 190 W, of which the power readings show only both ends
    points = [EnergyPoint(1.0, 0.0, 0.005), EnergyPoint(1.8, 460.0 * 0.34 + 190.0 * 0.46, 0.005)]
    curve = curve_of((1.0, 460.0), (1.8, 190.0), (1.85, 190.0))

    placed = place_energy(points, 1.34, curve, LIMIT_W)
    assert placed is not None
    joules, half_width_j = placed

    assert abs(joules - 460.0 * 0.34) < half_width_j


def test_place_energy_burst_that_no_reading_shows_widens_the_interval():
    # 70 W at both readings, and a burst of 570 W for 0.4 s in between; the first update is known to
    # 0.11 s
    points = [EnergyPoint(1.0, 0.0, 0.11), EnergyPoint(2.0, 70.0 + 500.0 * 0.4, 0.005)]
    curve = curve_of((1.0, 70.0), (2.0, 70.0), (2.05, 70.0))

    placed = place_energy(points, 1.5, curve, LIMIT_W)
    assert placed is not None
    joules, half_width_j = placed

    assert joules == pytest.approx(
        270.0 - 35.0
    )  # the energy at the second update, less 70 W for half a second
    assert half_width_j > 200.0
