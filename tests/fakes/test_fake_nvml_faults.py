"""The real pynvml on a fake library whose GPUs, or driver, are not well."""

from __future__ import annotations

import pynvml
import pytest

from exporter.simulation import Constant, Fault
from exporter.sources.simulated import SimulatedNvml
from tests.fakes.ask_nvml import ask
from tests.fakes.conftest import NOW
from tests.fakes.nvml_process import Process

FIELDS = [83, 185, 186]


def test_init_that_hangs_hangs_for_all_until_it_is_over(simulation, simulated, start):
    late = start(init=False)
    simulation.set_fault(3, Fault.INIT_HANG, on=True)
    late.say("nvmlInitWithFlags", None, pynvml.NVML_INIT_FLAG_NO_ATTACH)

    assert late.is_silent()
    assert ask(simulated, "nvmlDeviceGetCount") == 8  # it had been initialized before
    simulation.set_fault(3, Fault.INIT_HANG, on=False)
    assert late.hear() is None


def test_an_unbound_gpu_is_lost_to_who_had_it_and_is_not_there_for_who_comes(simulation, simulated, start):
    process = start()
    uuids = [gpu.uuid for gpu in simulation.gpus]
    simulation.set_fault(2, Fault.UNBOUND, on=True)
    for answer in (process.ask, lambda *question: ask(simulated, *question)):
        assert answer("nvmlDeviceGetUUID", 2) == {"error": pynvml.NVML_ERROR_GPU_IS_LOST}
        assert answer("nvmlDeviceGetCount") == 8
        assert answer("nvmlInitWithFlags", None, pynvml.NVML_INIT_FLAG_NO_ATTACH) is None
        assert answer("nvmlDeviceGetCount") == 7
        assert answer("nvmlDeviceGetUUID", 2) == uuids[3]
        assert answer("nvmlDeviceGetUUID", 7) == {"error": pynvml.NVML_ERROR_INVALID_ARGUMENT}
    assert process.ask("nvmlDeviceGetIndex", 2) == 2


def test_a_hanging_gpu_blocks_its_caller_and_no_one_else(simulation, start):
    caller, neighbour = start(), start()
    simulation.set_fault(0, Fault.HANG, on=True)
    caller.say("nvmlDeviceGetPowerUsage", 0)

    assert neighbour.ask("nvmlDeviceGetCount") == 8
    assert neighbour.ask("nvmlDeviceGetName", 1) == "SIMULATED NVIDIA H200"
    assert caller.is_silent()
    simulation.set_fault(0, Fault.HANG, on=False)
    assert caller.hear() == neighbour.ask("nvmlDeviceGetPowerUsage", 0)


def test_init_hangs_on_a_sick_gpu_unless_it_does_not_attach(simulation, start):
    simulation.set_fault(0, Fault.HANG, on=True)
    attaching, careful = start(init=False), start()
    attaching.say("nvmlInit")

    assert careful.ask("nvmlDeviceGetCount") == 8
    assert attaching.is_silent()
    simulation.set_fault(0, Fault.HANG, on=False)
    assert attaching.hear() is None


def test_a_lost_gpu_says_so_and_its_neighbour_answers(simulation, start):
    process = start()
    simulation.set_fault(0, Fault.LOST, on=True)

    assert process.ask("nvmlDeviceGetPowerUsage", 0) == {"error": pynvml.NVML_ERROR_GPU_IS_LOST}
    assert process.ask("nvmlDeviceGetPowerManagementLimit", 1) == 333_000


@pytest.mark.parametrize(
    ("fault", "lacking"), [(Fault.NO_COUNTER, {83}), (Fault.NO_AVERAGE, {185}), (Fault.NO_FIELDS, {83, 185, 186})]
)
def test_a_field_that_is_missing_says_so_beside_the_others(simulation, start, fault, lacking):
    simulation.set_fault(0, fault, on=True)
    fields = start().ask("nvmlDeviceGetFieldValues", 0, FIELDS)

    assert {field["field"] for field in fields if field.get("error") == pynvml.NVML_ERROR_NOT_SUPPORTED} == lacking


def test_without_fields_the_older_calls_still_work(simulation, start):
    simulation.set_fault(0, Fault.NO_FIELDS, on=True)
    process = start()

    assert process.ask("nvmlDeviceGetPowerUsage", 0) == round(simulation.average_w(0, NOW) * 1e3)
    assert process.ask("nvmlDeviceGetTotalEnergyConsumption", 0) == round(simulation.counter_j(0, NOW) * 1e3)


def test_without_a_counter_the_older_call_lacks_it_too(simulation, start):
    simulation.set_fault(0, Fault.NO_COUNTER, on=True)

    error = start().ask("nvmlDeviceGetTotalEnergyConsumption", 0)
    assert error == {"error": pynvml.NVML_ERROR_NOT_SUPPORTED}


def test_a_driver_that_went_must_be_initialized_again_and_counts_from_zero(simulation, simulated, start):
    process, late = start(), start(init=False)
    both = (process.ask, lambda *question: ask(simulated, *question))
    simulation.unload_driver()
    assert late.ask("nvmlInit") == {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    for answer in both:
        assert answer("nvmlDeviceGetCount") == {"error": pynvml.NVML_ERROR_UNINITIALIZED}
        assert answer("nvmlInit") == {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}

    simulation.load_driver(at=5_001.0)
    simulation.set_clock(5_011.0)
    for answer in both:
        assert answer("nvmlDeviceGetCount") == {"error": pynvml.NVML_ERROR_UNINITIALIZED}
        assert answer("nvmlShutdown") is None
        assert answer("nvmlInit") is None
        counted_mj = answer("nvmlDeviceGetTotalEnergyConsumption", 0)
        assert 3_000_000 - 0.1 * 300_000 <= counted_mj <= 3_000_000


def test_a_stuck_sensor_repeats_itself(simulation, start):
    process = start()
    said = process.ask("nvmlDeviceGetFieldValues", 0, FIELDS)
    simulation.freeze(0)
    simulation.set_load(0, Constant(600.0), at=5_001.0)
    simulation.set_clock(5_020.0)

    assert process.ask("nvmlDeviceGetFieldValues", 0, FIELDS) == said


def test_calls_before_init_and_after_shutdown_are_refused(simulation, start):
    process, fresh = start(), SimulatedNvml(simulation.path)
    assert process.ask("nvmlShutdown") is None

    for answer in (process.ask("nvmlDeviceGetCount"), ask(fresh, "nvmlDeviceGetCount"), ask(fresh, "nvmlShutdown")):
        assert answer == {"error": pynvml.NVML_ERROR_UNINITIALIZED}
    fresh.simulation.close()


def test_slow_calls_give_the_same_answers(simulation, simulated, start):
    simulation.set_call_latency(0.0005)
    process = start()

    assert process.ask("nvmlDeviceGetPowerUsage", 0) == ask(simulated, "nvmlDeviceGetPowerUsage", 0)


def test_a_gpu_that_is_not_there_is_an_invalid_argument(simulated, start):
    question = ["nvmlDeviceGetName", 8]

    assert start().ask(*question) == ask(simulated, *question) == {"error": pynvml.NVML_ERROR_INVALID_ARGUMENT}


def test_a_process_without_a_state_file_finds_no_driver(tmp_path):
    process = Process(tmp_path / "missing.state")

    assert process.ask("nvmlInit") == {"error": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    process.end()
