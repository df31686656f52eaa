"""Healthy sensors with other update periods, and loads with fast steps: no doubt is declared."""

import random

import pytest

from tests.exporter.faults.faulty_gpu import START_S, FaultyGpu
from tests.exporter.faults.virtual_node import LEAD_S, make_gpu, measure
from wattline_exporter.simulation import Constant, Square

SENSORS = {
    "100 ms": {},
    "20 ms": {"counter_period_s": 0.02, "sensor_period_s": 0.02, "instant_window_s": 0.01},
    "power every second": {
        "counter_period_s": 0.5,
        "sensor_period_s": 1.0,
        "instant_window_s": 1.0,
    },
    "counter every second": {"counter_period_s": 1.0},
    "whole window": {"instant_window_s": 0.1},
}
LOADS = [
    Constant(78.0),
    Constant(690.0),
    *(
        Square(72.0, 640.0, period_s, duty)
        for period_s in (0.024, 0.31, 1.0, 1.73, 7.0)
        for duty in (0.2, 0.6)
    ),
]


def outcome(rng, load, seconds, *, has_average=True, has_counter=True, **sensor):
    gpu = FaultyGpu(
        make_gpu(rng, load, **sensor), rng, has_average=has_average, has_counter=has_counter
    )
    (result,) = measure([gpu], seconds, START_S + LEAD_S + rng.uniform(0, 1))
    return result


@pytest.mark.parametrize("sensor", SENSORS)
def test_healthy_sensor_any_load_is_inside_and_not_declared(sensor):
    results = []
    for load in LOADS:
        rng = random.Random(f"{sensor} {load}")
        results.append(outcome(rng, load, rng.uniform(2, 15), **SENSORS[sensor]))

    assert not any(result.declared for result in results)
    assert sum(not result.is_inside for result in results) <= 1


@pytest.mark.parametrize("share", [0.25, 1.0], ids=["25 % window", "whole window"])
def test_healthy_counter_with_instant_power_only_is_not_declared(share):
    rng = random.Random(share)
    sensor = {
        "instant_window_s": 0.1 * share,
        "name": "SIMULATED NVIDIA A100" if share < 1 else "SIMULATED TURING",
    }
    results = [
        outcome(rng, load, rng.uniform(2, 12), has_average=False, **sensor) for load in LOADS
    ]

    assert not any(result.declared for result in results)
    assert sum(not result.is_inside for result in results) <= 1


@pytest.mark.parametrize("period_s", [0.01, 0.05, 0.11, 0.2])
def test_healthy_sensor_load_near_the_update_period_is_covered(period_s):
    rng = random.Random(period_s)
    duties = [0.2, 0.5] * 10
    results = [
        outcome(rng, Square(72.0, 640.0, period_s, duty), rng.uniform(1, 4)) for duty in duties
    ]

    assert sum(not result.is_inside for result in results) <= 1  # 95 % of 20


@pytest.mark.parametrize(("seconds", "bias"), [(1.0, 0.03), (3.0, 0.01), (10.0, 0.003)])
def test_healthy_counter_that_moves_once_a_second_has_no_bias(seconds, bias):
    rng = random.Random(seconds)
    results = [outcome(rng, Constant(500.0), seconds, counter_period_s=1.0) for _ in range(10)]

    assert abs(sum(result.error for result in results) / len(results)) <= bias
    assert sum(not result.is_inside for result in results) <= 1


def test_healthy_counter_that_moves_once_a_second_covers_bursts():
    rng = random.Random(2)
    results = [
        outcome(rng, Square(72.0, 640.0, 1.73, 0.5), rng.uniform(1, 8), counter_period_s=1.0)
        for _ in range(20)
    ]

    assert sum(not result.is_inside for result in results) <= 1


def test_healthy_gpu_without_a_counter_is_not_declared():
    results = [
        outcome(random.Random(f"none {load}"), load, 8.0, has_counter=False) for load in LOADS
    ]

    assert not any(result.declared for result in results)
    assert sum(not result.is_inside for result in results) <= 1
