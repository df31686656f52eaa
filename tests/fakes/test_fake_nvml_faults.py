"""pynvml on the test library with faults of GPUs and driver."""

from __future__ import annotations

import pynvml
import pytest

from tests.fakes.conftest import NOW
from tests.fakes.nvml_calls import call
from tests.fakes.nvml_process import NvmlProcess
from wattline_exporter.simulation import Constant, Fault
from wattline_exporter.simulation.nvml import SimulatedNvml

FIELDS = [83, 185, 186]


def test_library_hanging_init_blocks_until_cleared(simulation, simulated, start):
    late = start(init=False)
    simulation.set_fault(3, Fault.INIT_HANG, on=True)
    late.send("nvmlInitWithFlags", None, pynvml.NVML_INIT_FLAG_NO_ATTACH)

    assert late.is_silent()
    assert call(simulated, "nvmlDeviceGetCount") == 8  # initialized before
    simulation.set_fault(3, Fault.INIT_HANG, on=False)
    assert late.receive() is None


def test_library_unbound_gpu_is_lost_and_missing_after_init(simulation, simulated, start):
    process = start()
    uuids = [gpu.uuid for gpu in simulation.gpus]
    simulation.set_fault(2, Fault.UNBOUND, on=True)
    for call_library in (process.call, lambda *arguments: call(simulated, *arguments)):
        assert call_library("nvmlDeviceGetUUID", 2) == {"error": pynvml.NVML_ERROR_GPU_IS_LOST}
        assert call_library("nvmlDeviceGetCount") == 8
        assert call_library("nvmlInitWithFlags", None, pynvml.NVML_INIT_FLAG_NO_ATTACH) is None
        assert call_library("nvmlDeviceGetCount") == 7
        assert call_library("nvmlDeviceGetUUID", 2) == uuids[3]
        assert call_library("nvmlDeviceGetUUID", 7) == {"error": pynvml.NVML_ERROR_INVALID_ARGUMENT}
    assert process.call("nvmlDeviceGetIndex", 2) == 2


def test_library_hanging_gpu_blocks_only_its_caller(simulation, start):
    caller, neighbour = start(), start()
    simulation.set_fault(0, Fault.HANG, on=True)
    caller.send("nvmlDeviceGetPowerUsage", 0)

    assert neighbour.call("nvmlDeviceGetCount") == 8
    assert neighbour.call("nvmlDeviceGetName", 1) == "SIMULATED NVIDIA H200"
    assert caller.is_silent()
    simulation.set_fault(0, Fault.HANG, on=False)
    assert caller.receive() == neighbour.call("nvmlDeviceGetPowerUsage", 0)


def test_library_init_with_attach_hangs_on_a_hanging_gpu(simulation, start):
    simulation.set_fault(0, Fault.HANG, on=True)
    attaching, careful = start(init=False), start()
    attaching.send("nvmlInit")

    assert careful.call("nvmlDeviceGetCount") == 8
    assert attaching.is_silent()
    simulation.set_fault(0, Fault.HANG, on=False)
    assert attaching.receive() is None


def test_library_lost_gpu_fails_and_its_neighbour_works(simulation, start):
    process = start()
    simulation.set_fault(0, Fault.LOST, on=True)

    assert process.call("nvmlDeviceGetPowerUsage", 0) == {"error": pynvml.NVML_ERROR_GPU_IS_LOST}
    assert process.call("nvmlDeviceGetPowerManagementLimit", 1) == 333_000


@pytest.mark.parametrize(
    ("fault", "unsupported"),
    [(Fault.NO_COUNTER, {83}), (Fault.NO_AVERAGE, {185}), (Fault.NO_FIELDS, {83, 185, 186})],
)
def test_library_missing_field_is_unsupported(simulation, start, fault, unsupported):
    simulation.set_fault(0, fault, on=True)
    fields = start().call("nvmlDeviceGetFieldValues", 0, FIELDS)

    assert {
        field["field"] for field in fields if field.get("error") == pynvml.NVML_ERROR_NOT_SUPPORTED
    } == unsupported


def test_library_without_fields_older_calls_work(simulation, start):
    simulation.set_fault(0, Fault.NO_FIELDS, on=True)
    process = start()

    assert process.call("nvmlDeviceGetPowerUsage", 0) == round(simulation.average_w(0, NOW) * 1e3)
    assert process.call("nvmlDeviceGetTotalEnergyConsumption", 0) == round(
        simulation.counter_j(0, NOW) * 1e3
    )


def test_library_without_counter_older_call_is_unsupported(simulation, start):
    simulation.set_fault(0, Fault.NO_COUNTER, on=True)

    error = start().call("nvmlDeviceGetTotalEnergyConsumption", 0)
    assert error == {"error": pynvml.NVML_ERROR_NOT_SUPPORTED}


def test_library_reloaded_driver_needs_init_and_counts_from_zero(simulation, simulated, start):
    process, late = start(), start(init=False)
    both = (process.call, lambda *arguments: call(simulated, *arguments))
    simulation.unload_driver()
    assert late.call("nvmlInit") == {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    for call_library in both:
        assert call_library("nvmlDeviceGetCount") == {"error": pynvml.NVML_ERROR_UNINITIALIZED}
        assert call_library("nvmlInit") == {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}

    simulation.load_driver(at=5_001.0)
    simulation.set_clock(5_011.0)
    for call_library in both:
        assert call_library("nvmlDeviceGetCount") == {"error": pynvml.NVML_ERROR_UNINITIALIZED}
        assert call_library("nvmlShutdown") is None
        assert call_library("nvmlInit") is None
        counted_mj = call_library("nvmlDeviceGetTotalEnergyConsumption", 0)
        assert 3_000_000 - 0.1 * 300_000 <= counted_mj <= 3_000_000


def test_library_frozen_sensor_repeats_its_values(simulation, start):
    process = start()
    values = process.call("nvmlDeviceGetFieldValues", 0, FIELDS)
    simulation.freeze(0)
    simulation.set_load(0, Constant(600.0), at=5_001.0)
    simulation.set_clock(5_020.0)

    assert process.call("nvmlDeviceGetFieldValues", 0, FIELDS) == values


def test_library_calls_without_init_fail(simulation, start):
    process, fresh = start(), SimulatedNvml(simulation.path)
    assert process.call("nvmlShutdown") is None

    for result in (
        process.call("nvmlDeviceGetCount"),
        call(fresh, "nvmlDeviceGetCount"),
        call(fresh, "nvmlShutdown"),
    ):
        assert result == {"error": pynvml.NVML_ERROR_UNINITIALIZED}
    fresh.simulation.close()


def test_library_slow_calls_return_the_same_values(simulation, simulated, start):
    simulation.set_call_latency(0.0005)
    process = start()

    assert process.call("nvmlDeviceGetPowerUsage", 0) == call(
        simulated, "nvmlDeviceGetPowerUsage", 0
    )


def test_library_unknown_gpu_is_an_invalid_argument(simulated, start):
    function, unknown_gpu = "nvmlDeviceGetName", 8
    result = start().call(function, unknown_gpu)

    assert (
        result
        == call(simulated, function, unknown_gpu)
        == {"error": pynvml.NVML_ERROR_INVALID_ARGUMENT}
    )


def test_library_without_state_file_has_no_driver(tmp_path):
    process = NvmlProcess(tmp_path / "missing.state")

    assert process.call("nvmlInit") == {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    process.end()
