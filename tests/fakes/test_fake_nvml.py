"""The real pynvml, in processes of its own, on the fake library; and SimulatedNvml beside it."""

from __future__ import annotations

import pynvml
import pytest

from exporter.simulation import FILE_NAME, PRODUCTS, Constant, Fault, Simulation, create, make_gpus
from exporter.sources.simulated import SimulatedNvml
from tests.fakes.ask_nvml import ask
from tests.fakes.conftest import GIB, NOW
from tests.fakes.nvml_process import Process

FIELDS = [83, 185, 186]


def questions(count):
    yield ["nvmlSystemGetDriverVersion"]
    yield ["nvmlDeviceGetCount"]
    for gpu in range(count):
        for function in (
            *("UUID", "Name", "Architecture", "PciInfo", "TotalEnergyConsumption", "PowerUsage", "EnforcedPowerLimit"),
            *("PowerManagementLimit", "PowerManagementDefaultLimit", "PowerManagementLimitConstraints"),
            *("UtilizationRates", "MemoryInfo", "CurrentClocksEventReasons", "PerformanceState"),
            "ComputeRunningProcesses",
        ):
            yield [f"nvmlDeviceGet{function}", gpu]
        yield ["nvmlDeviceGetFieldValues", gpu, FIELDS]
        yield ["nvmlDeviceGetFieldValues", gpu, [[186, 0], [186, 1], 82]]
        yield ["nvmlDeviceGetFieldValues", gpu, [3, 4, 5, 6, 74, 75, 76, 197, 198, 251, 269, 270, 271]]
        for function in (
            *("EncoderUtilization", "DecoderUtilization", "MarginTemperature", "SupportedClocksEventReasons"),
            *("NumFans", "FanSpeed", "MigMode", "MaxMigDeviceCount", "SupportedEventTypes", "CudaComputeCapability"),
            *("GraphicsRunningProcesses", "MPSComputeRunningProcesses", "GpuInstanceId", "ComputeInstanceId"),
        ):
            yield [f"nvmlDeviceGet{function}", gpu]
        yield ["nvmlGpmQueryDeviceSupport", gpu]
        for last_seen_us in (0, 5_000_000_000_000):
            yield ["nvmlDeviceGetProcessUtilization", gpu, last_seen_us]
        for number in (0, 1, 2):
            yield ["nvmlDeviceGetFanSpeed_v2", gpu, number]
            yield ["nvmlDeviceGetTotalEccErrors", gpu, number, 1]
        for threshold in (0, 1, 2, 3, 4, 8):
            yield ["nvmlDeviceGetTemperatureThreshold", gpu, threshold]
        yield ["nvmlDeviceGetMemoryInfo", gpu, pynvml.nvmlMemory_v2]
        for sensor in (0, 1):
            yield ["nvmlDeviceGetTemperature", gpu, sensor]
        for domain in range(5):
            yield ["nvmlDeviceGetClockInfo", gpu, domain]
            yield ["nvmlDeviceGetMaxClockInfo", gpu, domain]


def questions_of_instances():
    for gpu in ([6, 0], [6, 1], [6, 2], [0, 0], [6, 7]):
        for function in (
            *("UUID", "Name", "GpuInstanceId", "ComputeInstanceId", "MemoryInfo", "ComputeRunningProcesses"),
            *("PowerUsage", "UtilizationRates", "TotalEnergyConsumption"),
        ):
            yield [f"nvmlDeviceGet{function}", gpu]


FAULTS_OF_A_MOMENT = [fault for fault in Fault if fault not in {Fault.HANG, Fault.INIT_HANG, Fault.UNBOUND}]


@pytest.mark.parametrize("fault", [Fault.NONE, *FAULTS_OF_A_MOMENT])
def test_python_and_c_answer_every_question_alike(simulation, simulated, start, fault):
    simulation.add_ecc(3, corrected=7, uncorrected=2)
    simulation.set_mig(6, ["3g.71gb", "1g.18gb"])
    simulation.drive_instance(6, 2, 0.1, pid=4713, memory_bytes=5 * GIB)
    for i in range(8):
        simulation.set_fault(i, fault, on=True)
    process = start()
    for now in (NOW, NOW + 0.0123, NOW + 0.0777, NOW + 33.3):
        simulation.set_clock(now)
        for question in [*questions(8), *questions_of_instances()]:
            assert process.ask(*question) == ask(simulated, *question), question


@pytest.mark.parametrize("model", ["A100", "RTX4090"])
def test_python_and_c_answer_alike_for_other_models_too(tmp_path, model):
    create(tmp_path / FILE_NAME, make_gpus(2, PRODUCTS[model]), now=4_000.0)
    process = Process(tmp_path / FILE_NAME)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.drive(0, 0.6, pid=4711, memory_bytes=GIB, at=4_500.0)
        simulation.set_limit(0, 200, at=4_600.0)
        simulation.set_clock(NOW)
        simulated = SimulatedNvml(simulation.path)
        simulated.nvmlInit()
        process.ask("nvmlInit")
        for question in questions(2):
            assert process.ask(*question) == ask(simulated, *question), question
        simulated.simulation.close()
    process.end()


@pytest.mark.parametrize("gpu", range(8))
def test_what_pynvml_reads_is_the_models_to_the_milliwatt_and_millijoule(simulation, start, gpu):
    process = start()
    for now in (NOW, NOW + 0.06, NOW + 12.345):
        simulation.set_clock(now)
        expected = [simulation.counter_j(gpu, now), simulation.average_w(gpu, now), simulation.instant_w(gpu, now)]
        read = process.ask("nvmlDeviceGetFieldValues", gpu, FIELDS)
        assert [field["value"] for field in read] == [round(value * 1e3) for value in expected]
        assert [field["type"] for field in read] == [
            pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
            pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
            pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
        ]


def test_a_load_of_300_w_for_10_s_reads_as_3000_j(simulation, start):
    process = start()
    simulation.set_clock(4_100.0)
    before_mj = process.ask("nvmlDeviceGetTotalEnergyConsumption", 0)
    simulation.set_clock(4_110.0)

    assert process.ask("nvmlDeviceGetTotalEnergyConsumption", 0) - before_mj == pytest.approx(3_000_000, abs=1)


def test_on_a_running_clock_the_reading_is_that_of_an_update_between_the_call_and_its_return(simulation, start):
    process = start()
    simulation.set_clock(None)

    before = simulation.now()
    read_mj = process.ask("nvmlDeviceGetTotalEnergyConsumption", 1)
    after = simulation.now()

    assert simulation.counter_j(1, before) * 1e3 - 1 <= read_mj <= simulation.counter_j(1, after) * 1e3 + 1


def test_several_processes_see_the_same_gpus_and_each_others_limits(simulation, start):
    first, second = start(), start()
    assert first.ask("nvmlDeviceSetPowerManagementLimit", 6, 250_000) is None

    assert second.ask("nvmlDeviceGetEnforcedPowerLimit", 6) == 250_000
    assert simulation.gpus[6].limit_w == 250
    assert first.ask("nvmlDeviceGetUUID", 6) == second.ask("nvmlDeviceGetUUID", 6) == simulation.gpus[6].uuid


def test_a_limit_set_through_the_library_caps_from_that_moment(simulation, start):
    simulation.set_clock(5_010.0)
    start().ask("nvmlDeviceSetPowerManagementLimit", 0, 200_000)

    assert simulation.energy_j(0, 5_000.0, 5_010.0) == pytest.approx(3_000)
    assert simulation.energy_j(0, 5_010.0, 5_020.0) == pytest.approx(2_000)


def test_a_clock_that_is_locked_through_the_library_slows_processes_from_that_moment(simulation, simulated, start):
    process = start()
    simulation.set_limit(4, 700.0, at=4_999.0)
    assert process.ask("nvmlDeviceSetGpuLockedClocks", 4, 990, 990) is None

    assert simulation.gpus[4].locked_clock_mhz == 990
    assert simulation.power_w(4, NOW + 1) == 155.75  # 78 + (700 - 78) / 8
    simulation.set_clock(NOW + 2)
    for question in questions(5):
        assert process.ask(*question) == ask(simulated, *question), question
    assert process.ask("nvmlDeviceResetGpuLockedClocks", 4) is None
    assert simulation.power_w(4, NOW + 3) == 700


def test_a_clock_may_be_locked_to_one_of_those_that_are_listed(simulation, start):
    process = start()
    listed = process.ask("nvmlDeviceGetSupportedGraphicsClocks", 0, 3_201)

    assert (listed[0], listed[-1], len(listed)) == (1_980, 345, 110)
    assert process.ask("nvmlDeviceSetGpuLockedClocks", 0, 2_000, 2_000) == {"error": pynvml.NVML_ERROR_INVALID_ARGUMENT}


@pytest.mark.parametrize("question", [["PowerManagementLimit", 0, 300_000], ["GpuLockedClocks", 0, 990, 990]])
def test_what_may_not_be_set_is_refused_and_what_does_not_move_stays(simulation, start, question):
    process = start()
    simulation.set_fault(0, Fault.FORBIDDEN, on=True)
    assert process.ask(f"nvmlDeviceSet{question[0]}", *question[1:]) == {"error": pynvml.NVML_ERROR_NO_PERMISSION}
    simulation.set_fault(0, Fault.FORBIDDEN, on=False)
    simulation.set_fault(0, Fault.UNMOVED, on=True)

    assert process.ask(f"nvmlDeviceSet{question[0]}", *question[1:]) is None
    assert (simulation.gpus[0].limit_w, simulation.gpus[0].locked_clock_mhz) == (700, 0)


@pytest.mark.parametrize("milliwatts", [199_999, 700_001])
def test_a_limit_outside_of_the_constraints_is_an_invalid_argument(simulated, start, milliwatts):
    question = ["nvmlDeviceSetPowerManagementLimit", 0, milliwatts]

    assert ask(simulated, *question) == start().ask(*question) == {"error": pynvml.NVML_ERROR_INVALID_ARGUMENT}


def test_simulated_nvml_sets_the_limit_too(simulation, simulated):
    simulated.nvmlDeviceSetPowerManagementLimit(simulated.nvmlDeviceGetHandleByIndex(0), 250_000)

    assert simulation.gpus[0].limit_w == 250


def test_a_capped_gpu_says_so_and_slows_down(simulation, start):
    process = start()

    assert process.ask("nvmlDeviceGetCurrentClocksEventReasons", 4) == pynvml.nvmlClocksEventReasonSwPowerCap
    # two processes demand 0.7 + 0.4, which is all of it: 700 W, of whose dynamic part 450 W leave (450 - 78) / 622
    assert process.ask("nvmlDeviceGetClockInfo", 4, 1) == round(1_980 * (372 / 622) ** (1 / 3))
    assert process.ask("nvmlDeviceGetUtilizationRates", 4)["gpu"] == 100
    assert process.ask("nvmlDeviceGetCurrentClocksEventReasons", 7) == pynvml.nvmlClocksEventReasonGpuIdle


def test_processes_on_a_gpu_and_their_memory_are_listed(start):
    process = start()
    listed = process.ask("nvmlDeviceGetComputeRunningProcesses", 4)

    assert [(entry["pid"], entry["usedGpuMemory"]) for entry in listed] == [(4711, 3 * GIB), (4712, GIB)]
    assert process.ask("nvmlDeviceGetMemoryInfo", 4)["used"] == 4 * GIB
    assert process.ask("nvmlDeviceGetGraphicsRunningProcesses", 4) == []


def test_a_ga100_reports_its_instantaneous_power(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(1, PRODUCTS["A100"]), now=4_000.0)
    process = Process(tmp_path / FILE_NAME)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.set_load(0, Constant(350.0), at=4_999.7)
        simulation.set_clock(NOW)
        process.ask("nvmlInit")

        assert process.ask("nvmlDeviceGetPowerUsage", 0) == round(simulation.instant_w(0, NOW) * 1e3)
        assert process.ask("nvmlDeviceGetFieldValues", 0, [185])[0]["error"] == pynvml.NVML_ERROR_NOT_SUPPORTED
    process.end()


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (["nvmlSystemGetNVMLVersion"], "SIMULATED 580.95.05"),
        (["nvmlSystemGetCudaDriverVersion_v2"], 13_000),
        (["nvmlDeviceGetIndex", 3], 3),
        (["nvmlDeviceGetMinorNumber", 3], 3),
        (["nvmlDeviceGetBrand", 3], pynvml.NVML_BRAND_NVIDIA),
        (["nvmlDeviceGetCudaComputeCapability", 3], [9, 0]),
        (["nvmlDeviceGetMigMode", 3], [0, 0]),
        (["nvmlDeviceGetPersistenceMode", 3], 1),
        (["nvmlDeviceSetPersistenceMode", 3, 1], None),
        (["nvmlDeviceGetFanSpeed", 3], {"error": pynvml.NVML_ERROR_NOT_SUPPORTED}),
        (["nvmlDeviceGetSerial", 3], {"error": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}),
    ],
)
def test_what_other_tools_ask_is_answered(start, question, expected):
    assert start().ask(*question) == expected


def test_what_is_not_simulated_is_not_found_rather_than_asked_of_a_real_driver(simulated):
    assert ask(simulated, "nvmlDeviceGetSerial", 0) == {"error": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    assert simulated.NVML_SUCCESS == 0
    assert simulated.NVMLError is pynvml.NVMLError
