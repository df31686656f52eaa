"""Energies of GPUs by the loads of the same time."""

import pytest

from wattline.contract import metrics as m
from wattline_exporter.attribution.device_loads import GpuLoadPeriod
from wattline_exporter.attribution.load_energy import KEPT_S, LoadEnergies
from wattline_exporter.sensors.readings import Device

GPU = Device("gpu", "GPU-1")
IDLE_W = 100.0


def energy_at(t_s):
    """Return the energy of a GPU with 200 W, and 500 W from 2.5 s on."""
    return 200.0 * min(t_s, 2.5) + 500.0 * max(t_s - 2.5, 0.0)


def values(energies, offset_s=0.0):
    return {(each.metric, each.labels[0]): each.value for each in energies.readings(offset_s)}


def test_load_energies_have_the_loads_of_the_same_time():
    """Run b begins at 2.5 s: idle power is shared equally, 400 W above it are divided 3 : 1."""
    energies = LoadEnergies()
    periods = [GpuLoadPeriod(1.0, 2.0, {"a": 0.6}), GpuLoadPeriod(2.0, 2.5, {"a": 0.6, "b": 0.0})]

    energies.add(GPU, periods, energy_at, IDLE_W)
    energies.add(GPU, [GpuLoadPeriod(2.5, 4.0, {"a": 0.6, "b": 0.2})], energy_at, IDLE_W)

    found = values(energies, 1_000.0)
    assert found[m.RUN_LOAD_ENERGY, "a"] == pytest.approx(200 + 0.5 * 150 + 1.5 * 350)
    assert found[m.RUN_LOAD_ENERGY, "b"] == pytest.approx(0.5 * 50 + 1.5 * 150)
    assert found[m.RUN_LOAD_TIMESTAMP, "gpu"] == 1_004.0


def test_load_energies_of_runs_and_of_no_run_add_up_to_the_gpu():
    """A late poll corrects the energy up to 2 s from 200 to 400 J."""
    energies, read = LoadEnergies(), {0.0: 0.0, 1.0: 123.4567891, 2.0: 200.0}
    loads = {"a": 0.3, "": 0.1, "b": 0.7}

    energies.add(
        GPU, [GpuLoadPeriod(0.0, 1.0, loads), GpuLoadPeriod(1.0, 2.0, loads)], read.get, IDLE_W
    )
    energies.add(GPU, [GpuLoadPeriod(2.0, 3.0, loads)], {2.0: 400.0, 3.0: 700.0}.get, IDLE_W)

    found = [each.value for each in energies.readings(0.0) if each.metric is m.RUN_LOAD_ENERGY]
    assert sum(found) == pytest.approx(700.0, abs=1e-5)


def test_load_energies_of_a_gpu_with_one_run_are_not_reported():
    energies = LoadEnergies()

    energies.add(GPU, [GpuLoadPeriod(0.0, 1.0, {"a": 0.6, "": 0.1})], energy_at, IDLE_W)

    assert not values(energies)


def test_load_energy_of_an_ended_run_is_reported_for_a_minute():
    energies = LoadEnergies()
    energies.add(GPU, [GpuLoadPeriod(0.0, 1.0, {"a": 0.5, "b": 0.5})], energy_at, IDLE_W)

    energies.add(GPU, [GpuLoadPeriod(1.0, 1.0 + KEPT_S, {"a": 0.5})], energy_at, IDLE_W)
    before = values(energies)
    energies.add(GPU, [GpuLoadPeriod(1.0 + KEPT_S, 2.0 + KEPT_S, {"a": 0.5})], energy_at, IDLE_W)

    assert before[m.RUN_LOAD_ENERGY, "b"] == pytest.approx(100.0)
    assert (m.RUN_LOAD_ENERGY, "b") not in values(energies)
    energies.keep([])
    assert not values(energies)
