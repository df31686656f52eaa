"""Speed of a simulated GPU with processes, locked clocks and limits."""

from __future__ import annotations

import pytest

from wattline_exporter.simulation import Constant, sm_clock_mhz, speed, utilization


def test_clock_half_is_half_speed_at_an_eighth_of_dynamic_power(simulation):
    simulation.drive(0, 1.0, pid=4711, at=1_001.0)
    simulation.lock_clock(0, 990, at=1_011.0)

    assert simulation.power_w(0, 1_012.0) == 155.75  # 78 + (700 - 78) / 8
    assert speed(simulation.gpus[0], 1.0) == 0.5
    assert sm_clock_mhz(simulation.gpus[0], 1_012.0) == 990
    assert utilization(simulation.gpus[0], 1_012.0) == 1
    assert simulation.energy_j(0, 1_001.0, 1_021.0) == pytest.approx(10 * 700 + 10 * 155.75)


def test_clock_unlocked_restores_full_power_and_speed(simulation):
    simulation.lock_clock(0, 990, at=1_001.0)
    simulation.drive(0, 1.0, pid=4711, at=1_002.0)
    assert simulation.power_w(0, 1_003.0) == 155.75
    simulation.lock_clock(0, None, at=1_004.0)

    assert simulation.power_w(0, 1_005.0) == 700
    assert speed(simulation.gpus[0], 1.0) == 1


def test_clock_lock_and_limit_the_lower_one_applies(simulation):
    simulation.drive(0, 1.0, pid=4711, at=1_001.0)
    simulation.lock_clock(0, 1_485, at=1_002.0)  # three quarters
    simulation.set_limit(0, 200, at=1_003.0)

    # (200 - 78) / (700 - 78) of the dynamic power leave its cube root of the speed: less than three
    # quarters
    assert speed(simulation.gpus[0], 1.0) == pytest.approx((122 / 622) ** (1 / 3))
    assert simulation.power_w(0, 1_004.0) == 200
    simulation.set_limit(0, 700, at=1_005.0)
    assert speed(simulation.gpus[0], 1.0) == 0.75


def test_clock_unsupported_lock_is_refused(simulation):
    with pytest.raises(ValueError, match="has SM clocks of 345 to 1980 MHz, not 1000 MHz"):
        simulation.lock_clock(0, 1_000)


def test_limit_half_dynamic_power_leaves_cube_root_of_half_speed(simulation):
    simulation.set_limit(0, 78 + 311, at=1_000.5)

    assert speed(simulation.gpus[0], 1.0) == pytest.approx(0.5 ** (1 / 3))
    assert speed(simulation.gpus[0], 0.5) == 1
    simulation.set_load(0, Constant(700), at=1_001.0)
    assert sm_clock_mhz(simulation.gpus[0], 1_002.0) == round(1_980 * 0.5 ** (1 / 3))


def test_processes_add_power_until_released(simulation):
    simulation.drive(0, 0.5, pid=41, memory_bytes=1 << 30, at=1_001.0)
    simulation.drive(0, 0.25, pid=42, at=1_002.0)
    assert simulation.power_w(0, 1_001.5) == 78 + 622 * 0.5
    assert simulation.power_w(0, 1_002.5) == 78 + 622 * 0.75
    assert [process.pid for process in simulation.gpus[0].processes] == [41, 42]

    simulation.release(0, pid=41, at=1_003.0)
    simulation.release(0, pid=42, at=1_004.0)
    assert simulation.power_w(0, 1_003.5) == 78 + 622 * 0.25
    assert simulation.power_w(0, 1_004.5) == 78
    assert not simulation.gpus[0].processes


def test_processes_seventeenth_is_refused(simulation):
    for pid in range(1, 17):
        simulation.drive(0, 0.01, pid=pid, at=1_001.0)

    with pytest.raises(ValueError, match="16 processes"):
        simulation.drive(0, 0.01, pid=17, at=1_001.0)
