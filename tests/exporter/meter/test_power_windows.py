"""Windows of the powers that a GPU reports, as its polls show them."""

import pytest

from tests.exporter.meter.polls import poll
from wattline_exporter.meter.interpolation import EnergyPoint
from wattline_exporter.meter.power_windows import CountedEnergy, PowerWindows
from wattline_exporter.meter.totals import ZERO_TOTALS, MeteredPoll

UPDATE_S = 0.1
MOST_W = 700.0
LOW_W = 100.0
HIGH_W = 600.0


def counted(*joules, slack_s=0.0):
    """Return the energies of a counter at 0, 0.1, 0.2 s and so on."""
    points = [EnergyPoint(UPDATE_S * k, each_j, slack_s) for k, each_j in enumerate(joules)]
    return CountedEnergy(points, MOST_W)


# -- bounds of the mean power, of a counter with 0, 10 and 60 J


@pytest.mark.parametrize(
    ("begin_s", "end_s", "bounds_w"),
    [
        (0.0, 0.1, (100.0, 100.0)),
        (0.1, 0.2, (500.0, 500.0)),
        (0.05, 0.1, (0.0, 200.0)),  # of 10 J, between 0 and 10 J
        (0.1, 0.15, (300.0, 700.0)),  # of 50 J, at least 15 J, since 35 J fit into the rest
        (0.1, 0.3, (250.0, 600.0)),  # 50 J, and at most 70 J in the 0.1 s after the last point
    ],
)
def test_counted_energy_bounds_of_the_mean_power(begin_s, end_s, bounds_w):
    assert counted(0.0, 10.0, 60.0).bounds_w(begin_s, end_s) == pytest.approx(bounds_w)


def test_counted_energy_slack_of_a_point_widens_the_bounds():
    # each update 10 ms earlier or later: 7 J more or less at both ends
    found_w = counted(0.0, 10.0, 60.0, slack_s=0.01).bounds_w(0.1, 0.2)

    assert found_w == pytest.approx((500.0 - 140.0, 500.0 + 140.0))


def test_counted_energy_before_the_first_point_is_unknown():
    assert counted(0.0, 10.0).bounds_w(-0.05, 0.1) is None


def test_counted_energy_mean_of_an_update_by_its_distance():
    energy = counted(0.0, 10.0, 60.0)

    assert energy.update_w(0.15, 0) == pytest.approx(500.0)
    assert energy.update_w(0.15, -1) == pytest.approx(100.0)
    assert energy.update_w(0.05, 1) == pytest.approx(500.0)
    assert energy.update_w(0.15, 1) is None
    assert energy.update_w(0.05, -1) is None


# -- one reading, after 1.1 s at 100 W and an update at 600 W


@pytest.mark.parametrize(
    ("power_w", "t_s", "is_explained"),
    [
        # 0.047 s into the update, of which 32.9 J may have flowed at 700 W, after 10 J in the
        # update before: at most 429 W over 0.1 s, with 1 W and 5 % of the reading
        (600.0, 1.147, False),
        (453.0, 1.147, False),
        (452.0, 1.147, True),
        # 0.09 s into it, of which 60 J may have flowed: at most 700 W
        (600.0, 1.19, True),
        (100.0, 1.147, True),  # the windows until 1.1 s
    ],
)
def test_reading_is_explained_by_a_mean_that_the_counter_allows(power_w, t_s, is_explained):
    energy = counted(*(10.0 * k for k in range(12)), 170.0)

    assert energy.explains(power_w, t_s, UPDATE_S, UPDATE_S) is is_explained


def test_reading_below_all_means_is_not_explained():
    # 600 W for 1.1 s, then 100 W in an update: 0.047 s into it, at least 60 J less 32.9 J in the
    # 0.1 s before, and 100 W is less than that by more than 1 W and 5 %
    energy = counted(*(60.0 * k for k in range(12)), 670.0)

    assert not energy.explains(100.0, 1.147, UPDATE_S, UPDATE_S)
    assert energy.explains(500.0, 1.147, UPDATE_S, UPDATE_S)


# -- readings of a load that changes between 100 and 600 W every 1.53 s

HALF_S = 1.53


def joules(t_s):
    halves, rest_s = divmod(t_s, HALF_S)
    pairs, is_high = divmod(int(halves), 2)
    return HALF_S * (LOW_W + HIGH_W) * pairs + (
        HALF_S * LOW_W + HIGH_W * rest_s if is_high else LOW_W * rest_s
    )


def mean_w(t_s, window_s):
    """Return the mean over a window that ended at the latest update before `t_s`."""
    if window_s is None:
        return None
    end_s = UPDATE_S * int(t_s / UPDATE_S)
    return (joules(end_s) - joules(end_s - window_s)) / window_s


def polled(*powers_w, first_s=5.0):
    """Return polls each 47 ms of these instantaneous and averaged powers."""
    return [
        MeteredPoll(
            poll(first_s + 0.047 * k, None, instant_w, average_w=average_w), ZERO_TOTALS, None
        )
        for k, (instant_w, average_w) in enumerate(powers_w)
    ]


def examined(polls, energy_j=joules):
    windows = PowerWindows()
    for item in polls:
        windows.take(item.poll)
    points = [EnergyPoint(UPDATE_S * k, energy_j(UPDATE_S * k), 0.0) for k in range(260)]
    windows.examine(polls, points, UPDATE_S, MOST_W)
    return windows


@pytest.mark.parametrize(
    ("instant_s", "average_s", "shows_shape", "averaging_s"),
    [
        (0.025, 1.0, True, 1.0),
        (0.1, 1.0, False, 1.0),
        (0.1, 0.1, False, 0.0),
        (0.025, 0.1, True, 0.0),
        (0.025, None, True, 0.0),
        (0.1, None, False, 0.0),
        (None, 1.0, False, 1.0),
        (None, 0.1, False, 0.0),
    ],
)
def test_windows_are_found_in_changes_of_the_load(instant_s, average_s, shows_shape, averaging_s):
    times_s = [5.0 + 0.047 * k for k in range(400)]
    polls = polled(*((mean_w(t_s, instant_s), mean_w(t_s, average_s)) for t_s in times_s))

    windows = examined(polls)

    assert windows.shows_shape is shows_shape
    assert windows.averaging_s(polls[-1].poll) == averaging_s
    assert windows.averages_long is (instant_s is not None and averaging_s > 0.0)


def shown_at(*changes_s, is_short_by_model=False):
    """Return the windows after polls around these changes of the load, of a power over 25 ms."""
    windows = PowerWindows()
    windows.is_short_by_model = is_short_by_model
    points = [EnergyPoint(UPDATE_S * k, joules(UPDATE_S * k), 0.0) for k in range(800)]
    for change_s in changes_s:
        times_s = [change_s + since_s for since_s in (-0.08, -0.03, 0.06, 0.11, 0.16)]
        polls = [
            MeteredPoll(poll(t_s, None, mean_w(t_s, 0.025)), ZERO_TOTALS, None) for t_s in times_s
        ]
        for _ in range(3):
            windows.examine(polls, points, UPDATE_S, MOST_W)  # each poll counts once
    return windows


@pytest.mark.parametrize(
    ("changes_s", "shows_shape"),
    [
        ([5 * HALF_S], False),  # one reading may be in error
        ([5 * HALF_S, 15 * HALF_S], True),
        ([5 * HALF_S, 35 * HALF_S], True),  # 45.9 s later
        ([5 * HALF_S, 45 * HALF_S], False),  # 61.2 s later
    ],
)
def test_windows_two_readings_in_a_minute_show_the_shape(changes_s, shows_shape):
    # each of these changes is in the middle of an update, and a poll 10 ms after that update
    assert shown_at(*changes_s).shows_shape is shows_shape


def test_windows_one_reading_confirms_the_window_of_the_model():
    assert not shown_at(is_short_by_model=True).shows_shape
    assert shown_at(5 * HALF_S, is_short_by_model=True).shows_shape


STEPS_W = (100.0, 300.0, 500.0, 200.0, 400.0, 600.0, 150.0, 350.0)
"""Mean powers of successive updates, each of which differs from both of its neighbours."""


def seen_before(*powers_w):
    """Return the windows of a GPU whose power had a short window, after readings in the middle of
    the third update and of those after it.
    """
    windows = PowerWindows()
    windows.was_short = True
    points = [EnergyPoint(UPDATE_S * k, UPDATE_S * sum(STEPS_W[:k]), 0.0) for k in range(9)]
    polls = [
        MeteredPoll(poll(0.15 + UPDATE_S * k, None, power_w), ZERO_TOTALS, None)
        for k, power_w in enumerate((0.0, *powers_w))
    ]
    windows.examine(polls, points, UPDATE_S, MOST_W)
    return windows


@pytest.mark.parametrize(
    ("powers_w", "shows_shape"),
    [
        ((300.0, 500.0, 200.0), True),  # the means of three updates, by chance
        ((300.0, 500.0, 200.0, 400.0), False),
        ((300.0, 500.0, 650.0, 400.0), True),  # no mean of an update
    ],
)
def test_windows_means_of_four_updates_exclude_the_window_seen_before(powers_w, shows_shape):
    assert seen_before(*powers_w).shows_shape is shows_shape


def test_windows_glitches_that_the_counter_does_not_confirm_show_nothing():
    powers_w = [(300.0, 300.0)] * 40
    powers_w[10] = powers_w[20] = powers_w[30] = (690.0, 690.0)
    polls = polled(*powers_w)

    windows = examined(polls, lambda t_s: 300.0 * t_s)

    assert not windows.shows_shape
    assert windows.averaging_s(polls[-1].poll) == 0.0  # both powers are the same


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_windows_counter_of_another_scale_shows_nothing(ratio):
    times_s = [5.0 + 0.047 * k for k in range(400)]
    polls = polled(*((mean_w(t_s, 0.1), mean_w(t_s, 1.0)) for t_s in times_s))

    windows = examined(polls, lambda t_s: ratio * joules(t_s))

    assert not windows.shows_shape
    assert windows.averaging_s(polls[-1].poll) == 1.0


def test_windows_flat_load_shows_nothing():
    polls = polled(*[(300.0, 300.0)] * 40)
    windows = examined(polls, lambda t_s: 300.0 * t_s)

    assert not windows.shows_shape
    assert not windows.averages_long
    assert windows.averaging_s(polls[-1].poll) == 0.0
