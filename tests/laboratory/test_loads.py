"""Drawn loads: their powers, their periods relative to the sensor, and their lengths."""

import random

import numpy as np
import pytest

from tests.laboratory.loads import (
    CLASSES,
    HIGH_W,
    JOB_PERIODS_S,
    LOW_W,
    job_load,
    log_uniform,
    steps,
    wave_or_telegraph,
)
from wattline_exporter.simulation import Constant, Square

UPDATE_S = 0.1
SECONDS = 10.0


def draws(name, count=200):
    rng = random.Random(name)
    return [CLASSES[name](rng, UPDATE_S, SECONDS) for _ in range(count)]


def periods(name):
    return [load.period_s / UPDATE_S for load in draws(name)]


@pytest.mark.parametrize("name", CLASSES)
def test_load_class_has_powers_from_low_to_high(name):
    powers = [load.demand_w(t) for load in draws(name, 20) for t in np.linspace(0, SECONDS, 101)]

    assert min(powers) >= LOW_W
    assert max(powers) <= HIGH_W


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("wave of 0.1 to 0.9 updates", 0.1, 0.9),
        ("wave of 1.1 to 6 updates", 1.1, 6.0),
        ("wave of 6 to 200 updates", 6.0, 200.0),
    ],
)
def test_wave_periods_fill_their_range(name, low, high):
    found = periods(name)

    assert low <= min(found) <= 1.1 * low
    assert high / 1.1 <= max(found) <= high


def test_locked_wave_has_whole_parts_or_multiples_of_the_update():
    assert {round(period, 9) for period in periods("wave locked to the updates")} == {
        round(1 / 3, 9),
        0.5,
        1.0,
        2.0,
    }


def test_beating_wave_drifts_by_up_to_a_tenth():
    drifts = [
        min(abs(period * part - 1.0) for part in (1, 2, 3))
        for period in periods("wave that beats with the updates")
    ]

    assert 0.001 <= min(drifts) < 0.002
    assert 0.05 < max(drifts) <= 0.1 + 1e-9


def test_steps_outlast_the_run_and_have_their_mean_distance():
    load = steps(random.Random(1), 100.0, 200.0, 0.5, 1_000.0)
    times_s = load.recording.times_s

    assert times_s[-1] >= 1_010.0
    assert np.diff(times_s).mean() == pytest.approx(0.5, rel=0.1)  # of 2,000 steps


def test_job_loads_are_constant_or_bursts_of_a_job():
    rng = random.Random(1)
    found = [job_load(rng) for _ in range(200)]

    assert {type(load) for load in found} == {Constant, Square}
    assert {load.period_s for load in found if isinstance(load, Square)} == set(JOB_PERIODS_S)


@pytest.mark.parametrize("rng", [random.Random(2), np.random.default_rng(2)], ids=["std", "numpy"])
def test_log_uniform_has_half_of_its_numbers_below_the_geometric_mean(rng):
    found = [log_uniform(rng, 1.0, 10_000.0) for _ in range(1_000)]

    assert sum(number < 100.0 for number in found) == pytest.approx(500, abs=60)
    assert min(found) >= 1.0
    assert max(found) <= 10_000.0


def test_array_loads_have_the_energy_of_their_two_levels():
    rng = np.random.default_rng(3)
    means = [wave_or_telegraph(rng, (100.0, 300.0), 60.0, 0.05).mean_w(60.0) for _ in range(50)]

    assert min(means) >= 100.0
    assert max(means) <= 300.0
