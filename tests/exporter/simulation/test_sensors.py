"""Sensor values of a simulated GPU, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.exporter.simulation.conftest import H200
from wattline_exporter.simulation import (
    FILE_NAME,
    Constant,
    Simulation,
    create,
    make_gpus,
)


def test_sensor_instant_power_covers_25_of_100_ms(tmp_path):
    gpu = replace(make_gpus(1, H200)[0], sensor_phase_s=0.0)
    create(tmp_path / FILE_NAME, [gpu], now=1_000.0)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.set_load(0, Constant(600), at=1_001.09)

        # at 1001.1 the window is [1001.075, 1001.1]: 15 ms idle at 78 W, 10 ms at 600 W
        assert simulation.instant_w(0, 1_001.15) == pytest.approx(78 * 0.6 + 600 * 0.4, abs=0.001)
        assert simulation.average_w(0, 1_001.15) == pytest.approx(78 * 0.99 + 600 * 0.01, abs=0.001)
        assert simulation.instant_w(0, 1_001.25) == 600


def test_counter_is_constant_between_updates(tmp_path):
    gpu = replace(make_gpus(1, H200)[0], counter_phase_s=0.05)
    create(tmp_path / FILE_NAME, [gpu], now=1_000.0)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.set_load(0, Constant(300), at=1_000.0)

        assert [simulation.counter_j(0, t) for t in (1_001.06, 1_001.14, 1_001.16)] == [
            315,
            315,
            345,
        ]


def test_sensor_noise_is_reproducible_with_zero_mean(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(1, replace(H200, noise_w=0.2)), now=1_000.0)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        watts = [simulation.instant_w(0, 1_010 + i / 10) for i in range(2_000)]

        assert watts == [simulation.instant_w(0, 1_010 + i / 10) for i in range(2_000)]
    assert 77.8 <= min(watts) < 77.81
    assert 78.19 < max(watts) <= 78.2
    assert math.fsum(watts) / 2_000 == pytest.approx(78, abs=0.01)


def test_sensor_frozen_gpu_repeats_values_and_draws_energy(simulation):
    simulation.set_load(0, Constant(300), at=1_001.0)
    simulation.freeze(0, at=1_010.0)
    values = (
        simulation.instant_w(0, 1_010.0),
        simulation.average_w(0, 1_010.0),
        simulation.counter_j(0, 1_010.0),
    )
    simulation.set_load(0, Constant(500), at=1_011.0)

    assert (
        simulation.instant_w(0, 1_020),
        simulation.average_w(0, 1_020),
        simulation.counter_j(0, 1_020),
    ) == values
    assert simulation.energy_j(0, 1_011.0, 1_012.0) == pytest.approx(500)
    simulation.thaw(0)
    assert simulation.instant_w(0, 1_020.0) == 500


def test_counter_after_driver_reload_starts_at_zero(simulation):
    simulation.set_load(0, Constant(300), at=1_001.0)
    simulation.unload_driver()
    simulation.load_driver(at=1_050.0)

    assert simulation.counter_j(0, 1_050.0) == 0
    assert simulation.counter_j(0, 1_060.1) == pytest.approx(3_000, abs=0.1 * 300)
    assert simulation.state.driver_loaded
