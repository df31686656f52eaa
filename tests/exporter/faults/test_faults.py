"""One fault in the middle of a run on one GPU, with a healthy GPU next to it; the true energy is
known.
"""

import random

import pytest

from tests.exporter.faults.faulty_gpu import START_S, FaultyGpu
from tests.exporter.faults.virtual_node import LEAD_S, LOADS, make_gpu, measure
from tests.laboratory.faults import (
    VIRTUAL_FAULTS,
    VIRTUAL_POWER_FAULTS,
    counter_slope,
    no_counter,
)


def outcomes(name, fault, *, has_counter, seed):
    """Return the outcomes of the failing and of the healthy GPU."""
    rng = random.Random(f"{name} {seed}")
    begin_s = START_S + LEAD_S + rng.uniform(0, 1)
    load = LOADS[(len(name) + seed) % len(LOADS)]
    failing = FaultyGpu(
        make_gpu(rng, load), random.Random(rng.random()), fault, has_counter=has_counter
    )
    failing.fault_s = begin_s + rng.uniform(1.0, 2.5)
    healthy = FaultyGpu(make_gpu(rng, load, 1), random.Random(rng.random()))
    return measure([failing, healthy][: 2 - seed], rng.uniform(7, 9), begin_s)


def check(name, fault, *, has_counter):
    for seed in range(2):
        failing, *healthy = outcomes(name, fault, has_counter=has_counter, seed=seed)
        assert failing.is_inside, failing
        for one in healthy:
            assert one.is_inside
            assert not one.declared
            assert one.half_width < 0.02


@pytest.mark.parametrize("name", VIRTUAL_FAULTS)
def test_fault_with_counter_true_energy_is_inside_the_interval(name):
    check(name, VIRTUAL_FAULTS[name], has_counter=True)


@pytest.mark.parametrize("name", VIRTUAL_POWER_FAULTS)
def test_fault_without_counter_true_energy_is_inside_the_interval(name):
    check(name, VIRTUAL_POWER_FAULTS[name], has_counter=False)


@pytest.mark.parametrize(
    "code", ["IN_USE", "INVALID_ARGUMENT", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "UNKNOWN"]
)
def test_fault_error_for_100_ms_costs_less_than_one_percent(code):
    name = f"{code} for 0.1 s"
    failing, _ = outcomes(name, VIRTUAL_FAULTS[name], has_counter=True, seed=0)

    assert abs(failing.error) < 0.01
    assert failing.half_width < 0.02


@pytest.mark.parametrize("joules", ["+200 J", "+900 J", "+1500 J", "+1e6 J"])
def test_fault_counter_jump_is_declared(joules):
    name = f"counter jumps {joules}"
    failing, _ = outcomes(name, VIRTUAL_FAULTS[name], has_counter=True, seed=0)

    assert failing.declared
    assert abs(failing.error) < 0.1


@pytest.mark.parametrize(
    "name", ["counter 30 % slow", "counter 30 % fast", "counter halves once", "counter / 1000"]
)
def test_fault_counter_of_another_scale_is_declared(name):
    failing, _ = outcomes(name, VIRTUAL_FAULTS[name], has_counter=True, seed=0)

    assert failing.declared


@pytest.mark.parametrize("ratio", [0.5, 0.7, 1.3, 2.0])
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_fault_counter_slope_at_the_end_of_a_run_is_declared_after_it(ratio, seconds):
    """The averaged power is too slow to contradict the counter before the run has ended."""
    rng = random.Random(f"{ratio} {seconds}")
    begin_s = START_S + LEAD_S
    gpu = FaultyGpu(make_gpu(rng, LOADS[1]), rng, counter_slope(ratio))
    gpu.fault_s = begin_s + 3.0 - seconds

    (outcome,) = measure([gpu], 3.0, begin_s)

    assert outcome.declared
    assert outcome.is_inside


@pytest.mark.parametrize("ratio", [0.7, 1.3])
@pytest.mark.parametrize("seed", range(3))
def test_fault_counter_slope_amid_bursts_is_declared_at_the_end(ratio, seed):
    """3.2 s of bursts are enough to see it: the answer to the end of the run includes it."""
    rng = random.Random(f"{ratio} {seed}")
    begin_s = START_S + LEAD_S
    gpu = FaultyGpu(make_gpu(rng, LOADS[1]), rng, counter_slope(ratio))
    gpu.fault_s = begin_s + 8.0 - rng.uniform(3.2, 4.8)
    gpu.watched_s = 0.4

    (outcome,) = measure([gpu], 8.0, begin_s)

    assert outcome.declared
    assert outcome.is_inside
    assert outcome.half_width < 0.5


@pytest.mark.parametrize("seconds", [0.5, 2.0, 2.6])
def test_fault_counter_frozen_at_the_end_of_a_run_is_declared(seconds):
    rng = random.Random(f"frozen {seconds}")
    begin_s = START_S + LEAD_S
    gpu = FaultyGpu(make_gpu(rng, LOADS[1]), rng, counter_slope(0.0))
    gpu.fault_s = begin_s + 3.0 - seconds

    (outcome,) = measure([gpu], 3.0, begin_s)

    assert outcome.declared
    assert outcome.is_inside


def test_fault_counter_frozen_for_last_two_seconds_is_replaced_by_power():
    rng = random.Random(3)
    begin_s = START_S + LEAD_S
    gpu = FaultyGpu(make_gpu(rng, LOADS[1]), rng, counter_slope(0.0))
    gpu.fault_s = begin_s + 2.6

    (outcome,) = measure([gpu], 5.0, begin_s)

    assert abs(outcome.error) < 0.12
    assert outcome.declared
    assert outcome.is_inside


def test_fault_counter_missing_at_the_start_of_a_run_start_is_the_counters():
    """The counter dates the start, although power replaces it while the marks of the start
    settle.
    """
    rng = random.Random(2)
    begin_s = START_S + LEAD_S
    gpu = FaultyGpu(make_gpu(rng, LOADS[0]), rng, no_counter(6.0))
    gpu.fault_s = begin_s + 0.5

    (outcome,) = measure([gpu], 10.0, begin_s)

    assert outcome.is_inside
    assert outcome.half_width < 0.015
