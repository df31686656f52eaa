"""Update times of a sensor, estimated from polls."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattline_exporter.meter.sensor_clock import (
    COMPLETE_SLACK_S,
    CounterClockTracker,
    SensorClock,
    fit_sensor_clock,
)
from wattline_exporter.sensors.readings import Device, Poll


def observed_changes(period_s, phase_s, polls):
    """Return the pairs of polls between which a sensor with this period and phase updated."""
    number = [int((t - phase_s) // period_s) for t in polls]
    return [
        (a, b) for (a, b), (i, j) in zip(pairwise(polls), pairwise(number), strict=True) if i != j
    ]


def poll_times(every_s, seconds, rng, jitter_s=0.001):
    times = [1_000.0]
    while times[-1] < 1_000.0 + seconds:
        times.append(times[-1] + every_s + rng.uniform(0, jitter_s))
    return times


def distance(clock, period_s, phase_s, t):
    """Return the error of the clock's update nearest to `t`."""
    near = clock.nearest(t)
    return abs(near - (phase_s + round((near - phase_s) / period_s) * period_s))


@pytest.mark.parametrize("seed", range(20))
def test_clock_47_ms_polls_locate_100_ms_updates_to_1_ms(seed):
    rng = random.Random(seed)
    phase_s = rng.uniform(0, 0.1)
    clock = fit_sensor_clock(observed_changes(0.1, phase_s, poll_times(0.047, 12.0, rng)))

    assert clock is not None
    assert clock.period_s == pytest.approx(0.1, abs=1e-4)
    assert distance(clock, 0.1, phase_s, 1_006.0) <= 0.001
    assert distance(clock, 0.1, phase_s, 1_000.5) <= 0.002  # where the period's error adds up
    assert distance(clock, 0.1, phase_s, 1_011.5) <= 0.002


@pytest.mark.parametrize("seed", range(20))
def test_clock_known_from_earlier_changes_is_followed(seed):
    rng = random.Random(seed)
    changes = observed_changes(0.1, rng.uniform(0, 0.1), poll_times(0.047, 32.0, rng))
    known = fit_sensor_clock([each for each in changes if each[0] < 1_012.0])
    later = [each for each in changes if each[0] > 1_020.0]
    clock, searched = fit_sensor_clock(later, known), fit_sensor_clock(later)

    assert clock is not None
    assert searched is not None
    assert clock.period_s == pytest.approx(searched.period_s, abs=1e-7)
    assert clock.nearest(1_026.0) == pytest.approx(searched.nearest(1_026.0), abs=1e-5)
    assert clock.slack_s == pytest.approx(searched.slack_s, rel=0.01)


def test_clock_known_one_with_another_period_is_not_followed():
    rng = random.Random(5)
    known = fit_sensor_clock(observed_changes(0.1, 0.03, poll_times(0.047, 12.0, rng)))
    changes = observed_changes(0.12, 0.05, poll_times(0.047, 12.0, rng))

    assert known is not None
    assert fit_sensor_clock(changes, known) == fit_sensor_clock(changes)


@settings(
    derandomize=True
)  # where two polls are nearly a period, one fit in thousands is ambiguous
@given(st.floats(0.08, 0.2), st.floats(0, 1), st.integers(0, 10_000))
def test_clock_other_periods_error_is_within_the_slack(period_s, share, seed):
    rng = random.Random(seed)
    phase_s = share * period_s
    clock = fit_sensor_clock(
        observed_changes(period_s, phase_s, poll_times(0.047, 12.0, rng, jitter_s=0.004))
    )

    if clock:
        assert distance(clock, period_s, phase_s, 1_006.0) <= 2 * clock.slack_s + 1e-3


@pytest.mark.parametrize("seed", range(24, 200, 8))
def test_clock_beat_with_the_polls_is_not_taken_for_the_period(seed):
    # polls of 49 ms on average: two of them are nearly a period of the sensor
    rng = random.Random(seed)
    phase_s = rng.uniform(0, 0.1)
    clock = fit_sensor_clock(
        observed_changes(0.1, phase_s, poll_times(0.047, 12.0, rng, jitter_s=0.004))
    )

    assert clock is not None
    assert clock.period_s == pytest.approx(0.1, abs=2e-4)
    assert distance(clock, 0.1, phase_s, 1_006.0) <= 0.003


def test_clock_random_changes_have_no_clock():
    rng = random.Random(3)
    polls = poll_times(0.047, 12.0, rng)

    assert fit_sensor_clock([pair for pair in pairwise(polls) if rng.random() < 0.4]) is None


def test_clock_changes_at_every_poll_have_no_clock():
    assert fit_sensor_clock(list(pairwise(poll_times(0.047, 12.0, random.Random(4))))) is None


def test_clock_seven_changes_are_too_few():
    changes = observed_changes(0.1, 0.03, poll_times(0.047, 12.0, random.Random(5)))

    assert fit_sensor_clock(changes[:7]) is None
    assert fit_sensor_clock([]) is None
    assert fit_sensor_clock(changes[:40]) is not None


def test_clock_missed_updates_are_tolerated():
    rng = random.Random(6)
    changes = observed_changes(0.1, 0.03, poll_times(0.047, 12.0, rng))
    clock = fit_sensor_clock([change for change in changes if rng.random() < 0.7])

    assert clock is not None
    assert distance(clock, 0.1, 0.03, 1_006.0) <= 0.002


def test_clock_before_and_nearest_update():
    clock = SensorClock(phase_s=0.03, period_s=0.1, slack_s=0.001)

    assert clock.before(1.12) == pytest.approx(1.03)
    assert clock.before(1.131) == pytest.approx(1.13)
    assert clock.nearest(1.09) == pytest.approx(1.13)


def tracker_of(polls, period_s=0.1):
    """Return a tracker that was told the changes of a counter, and the time of the last poll."""
    tracker = CounterClockTracker()
    device = Device("gpu", "GPU-0")
    for a, b in observed_changes(period_s, 0.0, polls):
        tracker.note_change(Poll(device, a, a), Poll(device, b, b))
    return tracker, polls[-1]


def steady_polls(seconds):
    return poll_times(0.047, seconds, random.Random(7))


def test_counter_clock_is_complete_after_30_s_of_steady_polls():
    tracker, now_s = tracker_of(steady_polls(31.0))
    assert tracker.at(now_s) is not None
    assert tracker.is_complete(0.047, now_s)

    tracker, now_s = tracker_of(steady_polls(22.0))  # 22 of 30 s, less than 0.8
    assert tracker.at(now_s) is not None
    assert not tracker.is_complete(0.047, now_s)


def test_counter_clock_changes_of_long_ago_do_not_make_it_complete():
    tracker, now_s = tracker_of(steady_polls(31.0))
    assert not tracker.is_complete(0.047, now_s + 8.0)  # 22 of 30 s, also without another fit
    assert tracker.at(now_s + 8.0) is not None
    assert not tracker.is_complete(0.047, now_s + 8.0)
    assert tracker.at(now_s + 40.0) is None


def test_counter_clock_that_beats_slowly_with_the_polls_is_not_complete():
    """Updates each 2.5 polls at multiples of 47 ms: two phases of the updates are seen only."""
    rng = random.Random(7)
    polls = [1_000.0 + 0.047 * number + rng.uniform(0.0, 0.0005) for number in range(850)]
    tracker, now_s = tracker_of(polls, period_s=0.1175)
    clock = tracker.at(now_s)

    assert clock is not None
    assert clock.slack_s > COMPLETE_SLACK_S
    assert not tracker.is_complete(0.047, now_s)


def test_counter_clock_slack_does_not_fall_with_uptime():
    """The numbers of updates count from the changes that are kept, not from the first fit."""
    tracker, polls_end_s = tracker_of(steady_polls(40.0))
    first = tracker.at(polls_end_s)
    changes = list(tracker._changes)
    far = SensorClock(
        first.phase_s - 100_000 * first.period_s, first.period_s, first.slack_s
    )  # the same clock, with an origin three hours before

    assert fit_sensor_clock(changes, far).slack_s == pytest.approx(
        fit_sensor_clock(changes, first).slack_s, rel=0.05
    )


def test_counter_clock_of_updates_faster_than_two_polls_is_never_complete():
    rng = random.Random(3)
    polls = poll_times(0.013, 40.0, rng)
    tracker, now_s = tracker_of(polls, period_s=0.06)

    assert tracker.at(now_s).period_s == pytest.approx(0.06, abs=1e-4)
    assert tracker.is_complete(0.013, now_s)
    assert not tracker.is_complete(0.047, now_s)


def bursty_polls(seconds, rng):
    """Return polls each 47 ms, and each 13 ms for 0.6 s of every 2 s."""
    times = [1_000.0]
    while times[-1] < 1_000.0 + seconds:
        every_s = 0.013 if times[-1] % 2.0 < 0.6 else 0.047
        times.append(times[-1] + every_s + rng.uniform(0, 0.001))
    return times


def test_counter_clock_of_30_s_is_as_exact_as_that_of_12_s_with_bursts():
    """The slack is that of the mean over 20 series of polls."""
    steady_s = bursty_s = 0.0
    for seed in range(20):
        rng = random.Random(seed)
        phase_s = rng.uniform(0, 0.1)
        polls = poll_times(0.047, 30.0, rng)
        steady_s += fit_sensor_clock(observed_changes(0.1, phase_s, polls)).slack_s / 20
        polls = bursty_polls(12.0, rng)
        bursty_s += fit_sensor_clock(observed_changes(0.1, phase_s, polls)).slack_s / 20

    assert steady_s < bursty_s
    assert steady_s == pytest.approx(0.0006, abs=0.0001)
