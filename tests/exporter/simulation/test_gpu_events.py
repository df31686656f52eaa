"""Capped time, counter jumps, MIG instances and XIDs of simulated GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Ramp,
    Recording,
    Simulation,
    Square,
    Trace,
    capped_ns,
    create,
    make_gpus,
)
from wattline_exporter.simulation.gpu import cumulative_capped_s

STEPS = Recording((0.0, 1.0, 3.0), (100.0, 400.0, 250.0))


@pytest.fixture
def simulation(tmp_path):
    gpus = make_gpus(1, replace(PRODUCTS["H200"], noise_w=0.0))
    create(tmp_path / FILE_NAME, gpus, now=1_000.0, recording=STEPS)
    with Simulation.open(tmp_path / FILE_NAME) as opened:
        yield opened


@pytest.mark.parametrize(
    ("load", "capped_s"),
    [
        (Constant(400), 12),
        (Constant(300), 0),
        (Square(low_w=100, high_w=500, period_s=2, duty=0.25), 3),  # a quarter of six periods
        (Square(low_w=400, high_w=500, period_s=2), 12),
        (
            Square(low_w=100, high_w=500, period_s=5, duty=0.4, phase_s=1),
            5,
        ),  # [0, 1), [4, 6), [9, 11)
        (Ramp(100, 500, duration_s=10), 7),  # from half of the ramp on, and after it
        (Ramp(500, 100, duration_s=10), 5),
        (Ramp(300, 300, duration_s=10), 0),
        (Trace(STEPS), 2),  # 400 W from 1 s to 3 s
        (Trace(STEPS, start_s=2.5), 0.5),
    ],
)
def test_capped_time_each_load_above_the_limit_counts(simulation, load, capped_s):
    simulation.set_limit(0, 300, at=1_000.5)
    load = Trace(simulation.recording, load.start_s) if isinstance(load, Trace) else load
    simulation.set_load(0, load, at=1_001.0)

    gpu = simulation.gpus[0]
    assert cumulative_capped_s(gpu, 1_013.0) - cumulative_capped_s(gpu, 1_001.0) == pytest.approx(
        capped_s
    )


def test_capped_time_adds_up_and_restarts_with_the_driver(simulation):
    simulation.set_limit(0, 300, at=1_001.0)
    simulation.set_load(0, Constant(700), at=1_002.0)
    simulation.set_limit(0, 700, at=1_005.0)
    simulation.set_limit(0, 200, at=1_010.0)

    # [1002, 1005) under 300 W, from 1010 on under 200 W; its counter updates every 0.1 s
    assert capped_ns(simulation.gpus[0], 1_014.0) == pytest.approx(7e9, abs=0.1e9)
    simulation.load_driver(at=1_014.0)
    assert capped_ns(simulation.gpus[0], 1_014.0) == 0
    assert capped_ns(simulation.gpus[0], 1_016.0) == pytest.approx(2e9, abs=0.1e9)


def test_counter_jump_does_not_change_the_true_energy(simulation):
    before_j = simulation.counter_j(0, 1_010.0)
    simulation.jump_counter(0, 50_000.0)

    assert simulation.counter_j(0, 1_010.0) - before_j == pytest.approx(50_000)
    assert simulation.energy_j(0, 1_000.0, 1_010.0) == pytest.approx(780)


def test_mig_instances_follow_their_profile_with_stable_uuids(simulation):
    simulation.set_mig(0, ["3g.71gb", "1g.18gb"])
    first = simulation.gpus[0].instances
    simulation.set_mig(0, None)
    assert simulation.gpus[0].instances is None
    simulation.set_mig(0, ["3g.71gb", "1g.18gb"])

    assert simulation.gpus[0].instances == first
    assert [(one.number, one.slices, one.memory_bytes) for one in first] == [
        (1, 3, 71 << 30),
        (2, 1, 18 << 30),
    ]
    assert all(one.uuid.startswith("MIG-") for one in first)
    simulation.set_mig(0, [])
    assert simulation.gpus[0].instances == ()


@pytest.mark.parametrize(
    ("profiles", "problem"),
    [
        (["3g"], "invalid MIG profile '3g'; use one like 3g.71gb"),
        (["4g.71gb", "4g.71gb"], "more than 7 slices"),
    ],
)
def test_mig_invalid_or_too_large_profiles_are_refused(simulation, profiles, problem):
    with pytest.raises(ValueError, match=problem):
        simulation.set_mig(0, profiles)


def test_xids_last_16_are_kept_and_all_are_counted(simulation):
    for xid in range(1, 21):
        simulation.raise_xid(0, xid)

    assert simulation.gpus[0].xids == tuple(range(5, 21))
    assert simulation.gpus[0].xid_count == 20
