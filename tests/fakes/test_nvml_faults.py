"""Scheduled faults of the test library."""

import pynvml
import pytest

from tests.fakes.nvml_faults import ENVIRONMENT, FaultKind, ScheduledFaults


@pytest.fixture
def scheduled(tmp_path, monkeypatch):
    with ScheduledFaults(tmp_path / "faults") as faults:
        monkeypatch.setenv(ENVIRONMENT, str(faults.path))
        yield faults


def test_scheduled_error_fails_all_calls_of_one_gpu_until_its_end(simulation, scheduled, start):
    process = start()
    now_s = simulation.now()
    scheduled.add(1, FaultKind.ERROR, now_s - 1, now_s + 1, pynvml.NVML_ERROR_UNKNOWN)

    assert process.call("nvmlDeviceGetPowerUsage", 1) == {"error": pynvml.NVML_ERROR_UNKNOWN}
    assert process.call("nvmlDeviceGetPowerUsage", 0) > 0
    simulation.set_clock(now_s + 1)
    assert process.call("nvmlDeviceGetPowerUsage", 1) > 0


def test_scheduled_power_is_reported_by_all_calls(simulation, scheduled, start):
    process = start()
    now_s = simulation.now()
    scheduled.add(0, FaultKind.POWER, now_s, now_s + 1, 65_535.0)

    assert process.call("nvmlDeviceGetPowerUsage", 0) == 65_535_000
    fields = process.call("nvmlDeviceGetFieldValues", 0, [185, 186])
    assert [field["value"] for field in fields] == [65_535_000, 65_535_000]


def test_scheduled_slope_scales_the_counter_from_its_begin(simulation, scheduled, start):
    process = start()
    now_s = simulation.now()
    before_mj = process.call("nvmlDeviceGetTotalEnergyConsumption", 0)
    scheduled.add(0, FaultKind.COUNTER_SLOPE, now_s, now_s + 1e9, 1.3)
    simulation.set_clock(now_s + 100)
    true_mj = simulation.counter_j(0, now_s + 100) * 1e3

    counted_mj = process.call("nvmlDeviceGetTotalEnergyConsumption", 0)
    assert counted_mj - before_mj == pytest.approx(1.3 * (true_mj - before_mj), abs=1)
