"""Scheduled faults of the test library."""

import pynvml
import pytest

from tests.fakes.nvml_faults import ALL_GPUS, ENVIRONMENT, FaultKind, Quantity, ScheduledFaults


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


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ((FaultKind.COUNTER_STEP, 900.0, 0.0), lambda true_mj, _: true_mj + 900_000),
        (
            (FaultKind.COUNTER_STEP, -5.0, 4.0),
            lambda true_mj, _: true_mj - 15_000,
        ),  # at 0, 4 and 8 s
        (
            (FaultKind.COUNTER_RESTART, 3_000.0, 0.0),
            lambda true_mj, before_mj: true_mj - before_mj + 3_000_000,
        ),
        ((FaultKind.COUNTER_SCALE, 0.5, 0.0), lambda true_mj, _: true_mj // 2),
        ((FaultKind.COUNTER_READS, -1.0, 0.0), lambda *_: 2**64 - 1),
        ((FaultKind.COUNTER_LATE, 10.0, 0.0), lambda _, before_mj: before_mj),
    ],
)
def test_scheduled_counter_fault_changes_the_counter(simulation, scheduled, start, fault, expected):
    process, (kind, *values) = start(), fault
    now_s = simulation.now()
    before_mj = process.call("nvmlDeviceGetTotalEnergyConsumption", 0)
    simulation.set_clock(now_s + 10)
    true_mj = process.call("nvmlDeviceGetTotalEnergyConsumption", 0)
    scheduled.add(0, kind, now_s, now_s + 1e6, *values)

    assert process.call("nvmlDeviceGetTotalEnergyConsumption", 0) == pytest.approx(
        expected(true_mj, before_mj), abs=1
    )


def test_scheduled_error_of_the_driver_fails_calls_of_all_gpus(simulation, scheduled, start):
    process = start()
    now_s = simulation.now()
    scheduled.add(ALL_GPUS, FaultKind.ERROR, now_s - 1, now_s + 1, pynvml.NVML_ERROR_UNKNOWN)

    assert [process.call("nvmlDeviceGetPowerUsage", gpu) for gpu in (0, 1)] == [
        {"error": pynvml.NVML_ERROR_UNKNOWN}
    ] * 2


def test_scheduled_field_error_fails_one_quantity(simulation, scheduled, start):
    process = start()
    now_s = simulation.now()
    scheduled.add(
        0, FaultKind.FIELD_ERROR, now_s - 1, now_s + 1, pynvml.NVML_ERROR_NO_DATA, Quantity.COUNTER
    )

    energy, power = process.call("nvmlDeviceGetFieldValues", 0, [83, 186])
    assert energy == {"field": 83, "error": pynvml.NVML_ERROR_NO_DATA}
    assert power["value"] > 0
