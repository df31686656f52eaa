"""Energy between sensor updates."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_exporter.meter.interpolation import (
    EnergyLine,
    EnergyPoint,
    PowerLimits,
    ShownPower,
    counter_points,
)
from wattline_exporter.meter.sensor_clock import SensorClock
from wattline_exporter.meter.totals import MeteredPoll, MeterTotals, RecentPolls
from wattline_exporter.sensors.readings import Device, Poll

POWERS = st.lists(st.tuples(st.floats(0.02, 0.3), st.floats(50.0, 700.0)), min_size=4, max_size=40)


class Steps:
    """Load whose power changes in steps."""

    def __init__(self, steps):
        self.times, self.joules, self.watts = [0.0], [0.0], [watts for _, watts in steps]
        for seconds, watts in steps:
            self.joules.append(self.joules[-1] + seconds * watts)
            self.times.append(self.times[-1] + seconds)

    def energy_j(self, t):
        for (begin, end), joules, watts in zip(
            pairwise(self.times), self.joules, self.watts, strict=False
        ):
            if t <= end:
                return joules + (t - begin) * watts
        return self.joules[-1] + (t - self.times[-1]) * self.watts[-1]


def points_of(energy_j, until_s, every_s=0.1, slack_s=0.0):
    return [
        EnergyPoint(k * every_s, energy_j(k * every_s), slack_s)
        for k in range(int(until_s / every_s) + 1)
    ]


@given(POWERS, st.floats(0.0, 1.0))
def test_interpolation_any_steps_interval_contains_the_true_energy(steps, share):
    load = Steps(steps)
    t = share * load.times[-1] // 0.1 * 0.1 * 0.999
    points = points_of(load.energy_j, load.times[-1] + 0.3)
    joules, half_width_j = EnergyLine(points).at(t, ShownPower(load.watts))

    assert abs(joules - load.energy_j(t)) <= half_width_j + 1e-6


def test_interpolation_constant_power_is_linear():
    points = points_of(lambda t: 300 * t, 2.0)

    assert EnergyLine(points).at(1.234)[0] == pytest.approx(370.2)


def test_interpolation_one_step_between_updates_is_located():
    # 100 W until 1.03 s, then 600 W: at 1.05 s 103 J + 12 J
    load = Steps([(1.03, 100.0), (1.0, 600.0)])

    assert EnergyLine(points_of(load.energy_j, 2.0)).at(1.05)[0] == pytest.approx(115.0)
    assert EnergyLine(points_of(load.energy_j, 2.0)).at(1.02)[0] == pytest.approx(102.0)


def test_interpolation_unknown_power_before_uses_the_largest_step():
    # polled slowly before 1.0 s, so that only the slope after is known; the highest power nearby is
    # 600 W
    load = Steps([(1.06, 600.0), (1.0, 100.0)])
    points = [EnergyPoint(t, load.energy_j(t), 0.0) for t in (0.0, 1.0, 1.1, 1.2, 1.3)]

    assert EnergyLine(points).at(1.05, ShownPower([600.0]))[0] == pytest.approx(630.0)


def test_interpolation_beyond_the_last_update_extrapolates_300_ms():
    points = points_of(lambda t: 300 * t, 2.0)

    assert EnergyLine(points).at(2.2)[0] == pytest.approx(660.0)
    assert EnergyLine(points).at(60.0)[0] == pytest.approx(690.0)
    joules, half_width_j = EnergyLine(points).at(60.0)
    assert joules + half_width_j >= 18_000.0 - 1e-6


def test_interpolation_long_gap_is_bounded_by_nearby_powers():
    # 100 W, no updates from 1 s to 11 s, then 600 W; the step may lie anywhere in the gap
    load = Steps([(3.0, 100.0), (20.0, 600.0)])
    points = [EnergyPoint(t, load.energy_j(t), 0.0) for t in (0.8, 0.9, 1.0, 11.0, 11.1, 11.2)]
    joules, half_width_j = EnergyLine(points).at(6.0)

    assert abs(joules - load.energy_j(6.0)) <= half_width_j
    assert half_width_j > 100


@pytest.mark.parametrize("phase_s", [0.0, 0.01, 0.02, 0.03])
def test_interpolation_without_readings_covers_load_faster_than_polls(phase_s):
    # 390 W for 20 ms of each 50 ms, else 40 W: a mean of 180 W in each second, as a CPU's energy
    # counter shows it
    def energy_j(t):
        rest_s = (t + phase_s) % 0.05
        return (
            9.0 * ((t + phase_s) // 0.05) + 390 * min(rest_s, 0.02) + 40 * max(rest_s - 0.02, 0.0)
        )

    points = [EnergyPoint(t, energy_j(t), 0.0) for t in (0.0, 1.0, 2.0, 2.51, 3.0)]
    joules, half_width_j = EnergyLine(points).at(2.5)

    assert abs(joules - energy_j(2.5)) <= half_width_j
    assert half_width_j < 10


def test_interpolation_no_point_and_one_point_have_a_result():
    assert EnergyLine([]).at(1.0) == (0.0, 0.0)
    assert EnergyLine([EnergyPoint(1.0, 50.0, 0.1)]).at(1.5, ShownPower([200.0])) == (
        50.0,
        pytest.approx(120.0),
    )


@given(POWERS, st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_interpolation_energy_never_falls(steps, shares):
    load = Steps(steps)
    points = points_of(load.energy_j, load.times[-1] + 0.3)
    joules = [
        EnergyLine(points).at(share * load.times[-1], ShownPower(load.watts))[0]
        for share in sorted(shares)
    ]

    assert all(b >= a - 1e-6 for a, b in pairwise(joules))


def metered_polls(*times):
    """Return polls of a counter at 300 W whose updates are at 3 ms, 103 ms, 203 ms and so on."""
    joules = [30.0 * int((t - 0.003) / 0.1) for t in times]
    device = Device("gpu", "GPU-0")
    polls = [
        Poll(device, t, t + 0.0001, counter_j=value) for t, value in zip(times, joules, strict=True)
    ]
    recent = RecentPolls()
    for poll in polls:
        recent.append(MeteredPoll(poll, MeterTotals(poll.counter_j), None, poll.counter_j))
    return recent


EARLY_CLOCK = SensorClock(phase_s=0.0, period_s=0.1, slack_s=0.005)
"""Clock of those updates, early by 3 ms, which is within its slack."""


@pytest.mark.parametrize(
    ("read_s", "later", "update_s"),
    [
        (
            1.001,
            (1.014, 1.027),
            0.9,
        ),  # the next poll has another value, so the update came after the first poll
        (
            1.004,
            (1.017, 1.064),
            1.0,
        ),  # the next polls have the same value, so the update came before the first poll
    ],
)
def test_counter_point_at_an_update_after_a_gap_is_decided_by_later_polls(read_s, later, update_s):
    point = counter_points(metered_polls(0.65, read_s, *later), EARLY_CLOCK, 0.1)[1]

    assert (point.t_s, point.slack_s) == (pytest.approx(update_s), pytest.approx(0.005))


def test_counter_point_at_an_update_without_later_polls_covers_both():
    # joules of the update at 903 ms; without another poll, that at 1,003 ms is possible as well
    first, last = counter_points(metered_polls(0.65, 1.001), EARLY_CLOCK, 0.1)

    assert (first.t_s, first.slack_s) == (pytest.approx(0.6), pytest.approx(0.005))
    assert abs(last.t_s - 0.903) <= last.slack_s <= 0.106


def test_counter_points_first_trusted_value_counts_as_a_change():
    """Power gave 200 J up to the poll at 1 s. The counter's first value is from the one at 1.05 s,
    and the next one from that at 1.15 s. Without a clock, an update lies between two polls.
    """
    recent = RecentPolls()
    for t_s, joules, counted_j in ((1.0, 200.0, None), (1.05, 210.0, 210.0), (1.15, 240.0, 240.0)):
        poll = Poll(Device("gpu", "GPU-0"), t_s, t_s, counter_j=counted_j)
        recent.append(MeteredPoll(poll, MeterTotals(joules), None, counted_j))

    points = counter_points(recent, None, 0.1)
    assert [point.joules for point in points] == [200.0, 210.0, 240.0]
    assert [point.t_s for point in points] == pytest.approx([1.0, 1.025, 1.1])
    assert [point.slack_s for point in points] == pytest.approx([0.1, 0.025, 0.05])


def test_counter_points_of_discarded_polls_are_left_out():
    """The polls of 12 s are kept, with the one before: 12 / 0.11 + 2 = 111. Each has a change."""
    recent = metered_polls(*(0.01 + 0.11 * k for k in range(200)))

    points = counter_points(recent, None, 0.1)
    assert len(recent) == 111
    assert len(points) == 111
    assert points[0].t_s == recent[0].poll.after_s


def test_counter_point_of_first_poll_at_update_is_decided_by_later_polls():
    point = counter_points(metered_polls(1.001, 1.014, 1.027), EARLY_CLOCK, 0.1)[0]

    assert (point.t_s, point.slack_s) == (pytest.approx(0.9), pytest.approx(0.005))


# -- half-widths worked out by hand: 300 J in 1 s, with readings of 200 and 400 W


def line(first_slack_s, last_slack_s):
    return EnergyLine([EnergyPoint(0.0, 0.0, first_slack_s), EnergyPoint(1.0, 300.0, last_slack_s)])


@pytest.mark.parametrize(
    ("t_s", "joules", "half_width_j"),
    [
        (1.2, 360.0, 40.0 + 4.0),  # 200 W more or less for 0.2 s; the last update to ± 0.01 s
        (1.5, 390.0, 60.0 + 84.0),  # 0.3 s are extrapolated; then up to 400 W for 0.2 s
        (-0.2, -60.0, 40.0 + 8.0),  # the first update to ± 0.02 s
    ],
)
def test_line_beyond_the_points_half_width_has_range_slack_and_rest(t_s, joules, half_width_j):
    # and 2 J for a load that is faster than the window of the readings
    shown = ShownPower((200.0, 400.0), window_j=2.0)

    assert line(0.02, 0.01).at(t_s, shown) == pytest.approx((joules, half_width_j + 2.0))


@pytest.mark.parametrize(
    ("slacks_s", "half_width_j"),
    [
        ((0.01, 0.002), 50.0 + 0.011 * 300.0),  # the mean power for the longer slack and 1 ms
        ((0.002, 0.01), 50.0 + 0.011 * 300.0),
        ((0.15, 0.15), 50.0 + 0.151 * 400.0),  # a long slack: the highest power
    ],
)
def test_line_between_points_half_width_has_range_and_slack(slacks_s, half_width_j):
    # 0.5 s at 200 to 400 W on either side of the middle: 100 to 200 J
    found = line(*slacks_s).at(0.5, ShownPower((200.0, 400.0)))

    assert found == pytest.approx((150.0, half_width_j))


# -- the load inside an update, of a device between 0 and 700 W

LIMITS = PowerLimits(0.0, 700.0)


def hidden(*powers_w, limits=LIMITS, is_polled=True):
    """Return readings that are means over whole updates."""
    return ShownPower(powers_w, limits=limits, is_polled=is_polled, shows_shape=False)


def test_interpolation_hidden_shape_covers_all_energy_on_one_side():
    # 35 J in each update of 0.1 s at up to 700 W: at its middle between 0 and 35 J, half of it ±
    # 17.5 J; 1 ms of jitter at 350 W adds 0.35 J
    points = points_of(lambda t: 350.0 * t, 4.0)

    joules, half_width_j = EnergyLine(points).at(2.05, hidden(350.0))

    assert joules == pytest.approx(717.5)
    assert half_width_j == pytest.approx(17.85)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.6])
def test_interpolation_hidden_shape_half_width_by_the_part_of_the_update(share):
    # 220 W between 70 and 700 W: min((700 - 220) f, (220 - 70) (1 - f)) · 0.1 s above, and the
    # same with f and 1 - f exchanged below; the larger one is the half-width, with 0.22 J
    points = points_of(lambda t: 220.0 * t, 4.0)
    above_j = min(48.0 * share, 15.0 * (1 - share))
    below_j = min(48.0 * (1 - share), 15.0 * share)

    shown = hidden(220.0, limits=PowerLimits(70.0, 700.0))
    _, half_width_j = EnergyLine(points).at(2.0 + 0.1 * share, shown)

    assert half_width_j == pytest.approx(max(above_j, below_j) + 0.22)


def test_interpolation_hidden_shape_is_widest_at_the_share_of_the_mean():
    # a quarter of the update, (250 - 100) / (700 - 100), and three quarters: 150 W · 450 W / 600 W
    # · 0.1 s = 11.25 J, and 0.25 J for 1 ms of jitter
    line_of_points = EnergyLine(points_of(lambda t: 250.0 * t, 4.0))
    shown = hidden(250.0, limits=PowerLimits(100.0, 700.0))
    halves_j = [line_of_points.at(2.0 + 0.001 * k, shown)[1] for k in range(1, 100)]

    assert max(halves_j) == pytest.approx(halves_j[25 - 1]) == pytest.approx(11.5)
    assert halves_j[75 - 1] == pytest.approx(11.5)


def test_interpolation_means_hide_bursts_at_a_level_that_the_load_holds():
    # 100 W for 0.5 s, 500 W for 0.5 s. The update from 0.7 to 0.8 s has 50 J at up to 700 W: at its
    # middle 25 J, or 15 to 35 J; after 10 ms 5 J, or 0 to 7 J. 1 ms of jitter at 500 W adds 0.5 J
    load = Steps([(0.5, 100.0), (0.5, 500.0)] * 2)
    line_of_points = EnergyLine(points_of(load.energy_j, 2.0))
    shown = hidden(100.0, 500.0)

    assert line_of_points.at(0.75, shown) == pytest.approx((175.0, 10.5))
    assert line_of_points.at(0.71, shown) == pytest.approx((155.0, 5.5))


def test_interpolation_means_locate_one_change_between_held_levels():
    # 100 W until 0.53 s, then 500 W: 53 J and 10 J at 0.55 s. The noise of the means is 11 W in
    # 0.1 s, 1.1 J, and 1 ms of jitter at the update's mean of 380 W adds 0.38 J. Bursts with a mean
    # of 100 W: 100 · 600 / 700 · 0.1 s = 8.57 J; of 500 W: 500 · 200 / 700 · 0.1 s = 14.29 J
    load = Steps([(0.53, 100.0), (1.5, 500.0)])
    points = points_of(load.energy_j, 2.0)

    joules, half_width_j = EnergyLine(points).at(0.55, hidden(100.0, 500.0))

    assert joules == pytest.approx(63.0)
    assert half_width_j == pytest.approx(1.1 + 0.38 + 100.0 / 7)


def test_interpolation_held_level_of_idle_power_has_no_bursts():
    # the same load of a device that never falls below 100 W, at 0.45 s: 1 ms of jitter at 100 W
    load = Steps([(0.53, 100.0), (1.5, 500.0)])
    points = points_of(load.energy_j, 2.0)

    shown = hidden(100.0, 500.0, limits=PowerLimits(100.0, 700.0))

    assert EnergyLine(points).at(0.45, shown) == pytest.approx((45.0, 0.1))


@pytest.mark.parametrize(
    ("is_instant", "half_width_j"), [(True, 22.0 + 0.38), (False, 1.1 + 0.38 + 100.0 / 7)]
)
def test_interpolation_instant_power_below_a_held_level_hides_the_shape(is_instant, half_width_j):
    # readings of 100 W only, while the means reach 500 W, as of bursts of a load in step with the
    # updates: 13 J of an update of 38 J, of which 3 to 35 J may flow in each half at up to 700 W
    load = Steps([(0.53, 100.0), (1.5, 500.0)])
    points = points_of(load.energy_j, 2.0)

    shown = ShownPower((100.0,), is_instant, LIMITS, shows_shape=False)

    assert EnergyLine(points).at(0.55, shown) == pytest.approx((63.0, half_width_j))


def test_interpolation_held_levels_are_not_sought_in_longer_intervals():
    # the same load after 1 s at a mean of 300 W, which is neither level
    load = Steps([(0.5, 100.0), (0.5, 500.0), (0.03, 100.0), (0.5, 100.0), (1.5, 500.0)])
    points = [point for point in points_of(load.energy_j, 3.0) if not 0.05 < point.t_s < 0.95]

    joules, half_width_j = EnergyLine(points).at(1.55, hidden(100.0, 500.0))

    assert joules == pytest.approx(300.0 + 53.0 + 10.0)
    assert half_width_j == pytest.approx(1.1 + 0.38 + 100.0 / 7)


def test_interpolation_without_polls_keeps_the_unknown_power():
    # the same load, of which no poll shows the instant: 53 to 85 J around 63 J, and 0.38 J
    load = Steps([(0.53, 100.0), (1.5, 500.0)])
    points = points_of(load.energy_j, 2.0)

    joules, half_width_j = EnergyLine(points).at(0.55, hidden(100.0, 500.0, is_polled=False))

    assert joules == pytest.approx(63.0)
    assert half_width_j == pytest.approx(22.38)


def test_interpolation_flat_readings_of_the_shape_leave_their_window():
    # readings and means of 350 W: 1 ms of jitter, 0.35 J, and 2 J for a faster load
    points = points_of(lambda t: 350.0 * t, 4.0)

    shown = ShownPower((350.0,), limits=LIMITS, window_j=2.0)

    assert EnergyLine(points).at(2.05, shown) == pytest.approx((717.5, 2.35))


def test_interpolation_readings_hide_bursts_at_a_held_level():
    # as above at 0.75 s: 500 · 200 / 700 · 25 ms = 3.57 J, and 1 ms of jitter at 500 W
    load = Steps([(0.5, 100.0), (0.5, 500.0)] * 2)
    points = points_of(load.energy_j, 2.0)

    shown = ShownPower((100.0, 500.0), limits=LIMITS, window_j=2.0)

    assert EnergyLine(points).at(0.75, shown) == pytest.approx((175.0, 25.0 / 7 + 0.5))


def test_interpolation_integrated_power_locates_no_change():
    # 100 W until 0.53 s, then 500 W: 88 J less at most 25 J, and 50 J with at most 25 J more, at
    # 0.55 s: 63 to 75 J, with 0.38 J of jitter, and 2 J for a faster load
    load = Steps([(0.53, 100.0), (1.5, 500.0)])
    points = points_of(load.energy_j, 2.0)

    shown = ShownPower((100.0, 500.0), limits=LIMITS, is_counted=False, window_j=2.0)

    assert EnergyLine(points).at(0.55, shown) == pytest.approx((63.0, 12.0 + 0.38 + 2.0))


def test_interpolation_readings_locate_one_change_between_updates():
    # 300 W until 0.53 s, then 500 W, which is less than twice as high: 159 J and 10 J at 0.55 s,
    # with the noise of 11 W in 0.1 s, 1 ms of jitter at 440 W, and 2 J for a faster load
    load = Steps([(0.53, 300.0), (1.5, 500.0)])
    points = points_of(load.energy_j, 2.0)

    shown = ShownPower((300.0, 500.0), limits=LIMITS, window_j=2.0)

    assert EnergyLine(points).at(0.55, shown) == pytest.approx((169.0, 1.1 + 0.44 + 2.0))
