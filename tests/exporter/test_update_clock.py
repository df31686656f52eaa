import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.energy.sensor_clock import SensorClock, fit_sensor_clock


def changes_seen(period_s, phase_s, polls):
    """Between which polls a sensor changed that updates at phase + k · period."""
    number = [int((t - phase_s) // period_s) for t in polls]
    return [(a, b) for (a, b), (i, j) in zip(pairwise(polls), pairwise(number), strict=True) if i != j]


def polled(every_s, seconds, rng, jitter_s=0.001):
    times = [1_000.0]
    while times[-1] < 1_000.0 + seconds:
        times.append(times[-1] + every_s + rng.uniform(0, jitter_s))
    return times


def distance(clock, period_s, phase_s, t):
    """From the clock's update nearest to `t` to the true one."""
    near = clock.nearest(t)
    return abs(near - (phase_s + round((near - phase_s) / period_s) * period_s))


@pytest.mark.parametrize("seed", range(20))
def test_polls_of_47_ms_tell_a_sensor_of_100_ms_to_a_millisecond(seed):
    rng = random.Random(seed)
    phase_s = rng.uniform(0, 0.1)
    clock = fit_sensor_clock(changes_seen(0.1, phase_s, polled(0.047, 12.0, rng)))

    assert clock is not None
    assert clock.period_s == pytest.approx(0.1, abs=1e-4)
    assert distance(clock, 0.1, phase_s, 1_006.0) <= 0.001
    assert distance(clock, 0.1, phase_s, 1_000.5) <= 0.002  # where the period's error adds up
    assert distance(clock, 0.1, phase_s, 1_011.5) <= 0.002


@settings(derandomize=True)  # where two polls are nearly a period, one in thousands cannot be told
@given(st.floats(0.08, 0.2), st.floats(0, 1), st.integers(0, 10_000))
def test_other_periods_are_found_as_well_and_the_slack_is_honest(period_s, share, seed):
    rng = random.Random(seed)
    phase_s = share * period_s
    clock = fit_sensor_clock(changes_seen(period_s, phase_s, polled(0.047, 12.0, rng, jitter_s=0.004)))

    if clock:
        assert distance(clock, period_s, phase_s, 1_006.0) <= 2 * clock.slack_s + 1e-3


@pytest.mark.parametrize("seed", range(24, 200, 8))
def test_the_beat_of_the_polls_is_not_taken_for_the_sensor(seed):
    # polls of 49 ms on average: two of them are nearly a period of the sensor
    rng = random.Random(seed)
    phase_s = rng.uniform(0, 0.1)
    clock = fit_sensor_clock(changes_seen(0.1, phase_s, polled(0.047, 12.0, rng, jitter_s=0.004)))

    assert clock is not None
    assert clock.period_s == pytest.approx(0.1, abs=2e-4)
    assert distance(clock, 0.1, phase_s, 1_006.0) <= 0.003


def test_changes_at_random_instants_carry_no_clock():
    rng = random.Random(3)
    polls = polled(0.047, 12.0, rng)

    assert fit_sensor_clock([pair for pair in pairwise(polls) if rng.random() < 0.4]) is None


def test_a_counter_that_changes_at_every_poll_carries_no_clock():
    assert fit_sensor_clock(list(pairwise(polled(0.047, 12.0, random.Random(4))))) is None


def test_seven_changes_are_too_few():
    changes = changes_seen(0.1, 0.03, polled(0.047, 12.0, random.Random(5)))

    assert fit_sensor_clock(changes[:7]) is None
    assert fit_sensor_clock([]) is None
    assert fit_sensor_clock(changes[:40]) is not None


def test_missed_updates_do_not_mislead():
    rng = random.Random(6)
    changes = changes_seen(0.1, 0.03, polled(0.047, 12.0, rng))
    clock = fit_sensor_clock([change for change in changes if rng.random() < 0.7])

    assert clock is not None
    assert distance(clock, 0.1, 0.03, 1_006.0) <= 0.002


def test_before_and_nearest():
    clock = SensorClock(phase_s=0.03, period_s=0.1, slack_s=0.001)

    assert clock.before(1.12) == pytest.approx(1.03)
    assert clock.before(1.131) == pytest.approx(1.13)
    assert clock.nearest(1.09) == pytest.approx(1.13)
