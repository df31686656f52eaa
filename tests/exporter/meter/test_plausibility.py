"""Plausibility checks on polls of healthy and faulty counters."""

import random

import pytest

from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.plausibility import EnergyCheck
from wattline_exporter.sensors.readings import Device, Poll
from wattline_exporter.simulation import PRODUCTS, Constant, Simulation, Square, create, make_gpus

GPU = Device("gpu", "GPU-0")


def reasons_over(polls, every_s=1.0):
    """Return all reasons reported during the polls, and those at the end."""
    meter, check = DeviceMeter(), EnergyCheck()
    checked_s, reported = polls[0].after_s, set()
    for poll in polls:
        meter.push(poll)
        if poll.after_s >= checked_s + every_s:
            checked_s = poll.after_s
            check.update(meter, checked_s)
            reported |= check.reasons
    return reported, check.reasons


def poll(t, counter_j, watts, average_w=None):
    return Poll(GPU, t, t, counter_j, watts, average_w)


SHOWS_AVERAGING = poll(0.0, 0.0, 300.0, 200.0)
"""Poll after a rise of the power, which the average follows later: it has a longer window."""


def test_plausibility_frozen_counter_is_flagged_until_it_moves():
    # 200 W; from 20 s to 50 s the counter stays at 4,000 J, then catches up
    polls = [
        poll(float(t), 4_000.0 if 20 <= t < 50 else 200.0 * t, 200.0, 200.0) for t in range(49)
    ]
    assert reasons_over(polls) == ({"disagrees", "frozen"}, {"disagrees", "frozen"})

    polls += [poll(float(t), 200.0 * t, 200.0, 200.0) for t in range(50, 120)]
    assert reasons_over(polls)[1] == set()


def test_plausibility_constant_counter_without_power_is_healthy():
    assert reasons_over([poll(float(t), 4_000.0, 0.0, 0.0) for t in range(100)]) == (set(), set())


def test_plausibility_implausible_jump_is_flagged_for_a_minute():
    polls = [poll(float(t), 200.0 * t + (1e6 if t >= 20 else 0), 200.0, 200.0) for t in range(140)]

    assert "implausible" in reasons_over(polls[:70])[1]
    assert reasons_over(polls)[1] == set()


def without_counter(powers_w, *, is_busy=True):
    """Return a meter and its check after a poll of these powers every 0.1 s."""
    meter, check = DeviceMeter(period_s=0.1), EnergyCheck()
    meter.max_w = 1_050.0  # a limit of 700 W
    meter.note_busy(0.0, is_busy=is_busy)
    for number, watts in enumerate(powers_w):
        meter.push(poll(number / 10, None, watts, watts))
    check.update(meter, len(powers_w) / 10)
    return meter, check.reasons


def test_plausibility_power_that_stays_the_same_for_8_s_is_stuck():
    meter, reasons = without_counter([300.0 + number % 7 for number in range(100)] + [300.0] * 81)

    assert reasons == {"stuck"}
    assert meter.totals.unseen_j == pytest.approx(
        400.0 * 8.0
    )  # up to 700 W for 8 s, or 400 W more than reported


@pytest.mark.parametrize(
    ("powers_w", "is_busy"),
    [
        ([300.0] * 50, True),  # 4.9 s
        ([300.0 + number // 40 for number in range(200)], True),  # a change every 4 s
        ([72.0] * 200, False),
    ],
    ids=["short", "changes", "idle"],
)
def test_plausibility_power_that_may_stay_the_same_is_not_stuck(powers_w, is_busy):
    meter, reasons = without_counter(powers_w, is_busy=is_busy)

    assert reasons == set()
    assert meter.totals.unseen_j == 0.0


@pytest.mark.parametrize("gain", [0.9, 1.1])
def test_plausibility_ten_percent_error_is_flagged_within_a_minute(gain):
    polls = [poll(float(t), gain * 300.0 * t, 300.0, 300.0) for t in range(60)]
    polls[0] = SHOWS_AVERAGING

    # a counter that may be 1 s old is off by 300 J: the 5 % beyond the tolerance, 15 W, exceed that
    # after 20 s
    assert reasons_over(polls)[1] == {"disagrees"}


def test_plausibility_three_percent_error_is_tolerated():
    assert (
        reasons_over([poll(float(t), 1.03 * 300.0 * t, 300.0, 300.0) for t in range(600)])[0]
        == set()
    )


def test_plausibility_disagreement_ends_after_minutes_that_agree():
    polls = [
        poll(float(t), 330.0 * min(t, 180) + 300.0 * max(0, t - 180), 300.0, 300.0)
        for t in range(320)
    ]
    polls[0] = SHOWS_AVERAGING

    assert "disagrees" in reasons_over(polls[:181])[1]
    assert reasons_over(polls)[1] == set()  # 64 s of comparison and 60 s of the report after 180 s


def test_plausibility_powers_a_second_apart_may_miss_the_load():
    # 640 W at each poll, and less between the polls, as of a load with a period of a second; both
    # powers are the same, so that neither may be an average over that second
    polls = [poll(float(t), 356.0 * t, 640.0, 640.0) for t in range(600)]

    assert reasons_over(polls)[0] == set()


def test_plausibility_instant_power_is_not_compared_with_the_counter():
    polls = [poll(float(t), 300.0 * t, 500.0) for t in range(600)]

    assert reasons_over(polls)[0] == set()


@pytest.mark.parametrize("fast", [True, False], ids=["polled fast", "polled at 1 Hz"])
@pytest.mark.parametrize("product", ["H200", "A100"])
@pytest.mark.parametrize("period_s", [0.024, 0.1, 0.33, 1.0, 2.0, 61.0])
def test_plausibility_healthy_gpu_is_never_flagged(tmp_path, period_s, product, fast):
    card = PRODUCTS[product]
    random.seed(round(period_s * 1_000))
    path = tmp_path / "state"
    create(path, make_gpus(1, card), 1_000.0)
    with Simulation.open(path) as simulation:
        simulation.set_load(0, Constant(card.idle_w), at=1_000.5)
        simulation.set_load(
            0, Square(card.idle_w, 0.9 * card.limit_max_w, period_s, 0.31), at=1_010.0
        )
        t, polls, step_s = 1_000.6, [], 0.047 if fast else 1.0
        while t < 1_000 + (400 if fast else 2_000):
            polls.append(
                poll(
                    t,
                    simulation.counter_j(0, t),
                    simulation.instant_w(0, t),
                    simulation.average_w(0, t),
                )
            )
            t += step_s * random.uniform(0.95, 1.2)

    assert reasons_over(polls)[0] == set()


def test_plausibility_low_power_in_a_pause_of_work_is_implausible():
    meter, _ = without_counter([300.0] * 10)  # 700 W / 100 = 7 W
    meter.note_busy(1.0, is_busy=False)

    meter.push(poll(2.0, None, 0.3, 0.3))
    assert meter.implausible_s == 2.0
    meter.push(poll(12.0, None, 3.0, 3.0))
    assert meter.implausible_s == 2.0
