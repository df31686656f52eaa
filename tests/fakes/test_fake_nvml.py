"""pynvml on the test library in separate processes, compared with SimulatedNvml."""

from __future__ import annotations

import pynvml
import pytest

from tests.fakes.conftest import GIB, NOW
from tests.fakes.nvml_calls import call
from tests.fakes.nvml_process import NvmlProcess
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Fault,
    Simulation,
    create,
    make_gpus,
)
from wattline_exporter.simulation.nvml import SimulatedNvml

FIELDS = [83, 185, 186]


def calls(count):
    yield ["nvmlSystemGetDriverVersion"]
    yield ["nvmlDeviceGetCount"]
    for gpu in range(count):
        for function in (
            *(
                "UUID",
                "Name",
                "Architecture",
                "PciInfo",
                "TotalEnergyConsumption",
                "PowerUsage",
                "EnforcedPowerLimit",
            ),
            *(
                "PowerManagementLimit",
                "PowerManagementDefaultLimit",
                "PowerManagementLimitConstraints",
            ),
            *("UtilizationRates", "MemoryInfo", "CurrentClocksEventReasons", "PerformanceState"),
            "ComputeRunningProcesses",
        ):
            yield [f"nvmlDeviceGet{function}", gpu]
        yield ["nvmlDeviceGetFieldValues", gpu, FIELDS]
        yield ["nvmlDeviceGetFieldValues", gpu, [[186, 0], [186, 1], 82]]
        yield [
            "nvmlDeviceGetFieldValues",
            gpu,
            [3, 4, 5, 6, 74, 75, 76, 197, 198, 251, 269, 270, 271],
        ]
        for function in (
            *(
                "EncoderUtilization",
                "DecoderUtilization",
                "MarginTemperature",
                "SupportedClocksEventReasons",
            ),
            *(
                "NumFans",
                "FanSpeed",
                "MigMode",
                "MaxMigDeviceCount",
                "SupportedEventTypes",
                "CudaComputeCapability",
            ),
            *(
                "GraphicsRunningProcesses",
                "MPSComputeRunningProcesses",
                "GpuInstanceId",
                "ComputeInstanceId",
            ),
        ):
            yield [f"nvmlDeviceGet{function}", gpu]
        yield ["nvmlGpmQueryDeviceSupport", gpu]
        for since_us in (0, 5_000_000_000_000):
            yield ["nvmlDeviceGetProcessUtilization", gpu, since_us]
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


def instance_calls():
    for gpu in ([6, 0], [6, 1], [6, 2], [0, 0], [6, 7]):
        for function in (
            *(
                "UUID",
                "Name",
                "GpuInstanceId",
                "ComputeInstanceId",
                "MemoryInfo",
                "ComputeRunningProcesses",
            ),
            *("PowerUsage", "UtilizationRates", "TotalEnergyConsumption"),
        ):
            yield [f"nvmlDeviceGet{function}", gpu]


NON_BLOCKING_FAULTS = [
    fault for fault in Fault if fault not in {Fault.HANG, Fault.INIT_HANG, Fault.UNBOUND}
]


@pytest.mark.parametrize("fault", [Fault.NONE, *NON_BLOCKING_FAULTS])
def test_library_python_and_c_return_the_same_with_each_fault(simulation, simulated, start, fault):
    simulation.add_ecc(3, corrected=7, uncorrected=2)
    simulation.set_mig(6, ["3g.71gb", "1g.18gb"])
    simulation.drive_instance(6, 2, 0.1, pid=4713, memory_bytes=5 * GIB)
    for i in range(8):
        simulation.set_fault(i, fault, on=True)
    process = start()
    for now in (NOW, NOW + 0.0123, NOW + 0.0777, NOW + 33.3):
        simulation.set_clock(now)
        for arguments in [*calls(8), *instance_calls()]:
            assert process.call(*arguments) == call(simulated, *arguments), arguments


@pytest.mark.parametrize("model", ["A100", "RTX4090"])
def test_library_python_and_c_agree_for_other_models(tmp_path, model):
    create(tmp_path / FILE_NAME, make_gpus(2, PRODUCTS[model]), now=4_000.0)
    process = NvmlProcess(tmp_path / FILE_NAME)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.drive(0, 0.6, pid=4711, memory_bytes=GIB, at=4_500.0)
        simulation.set_limit(0, 200, at=4_600.0)
        simulation.set_clock(NOW)
        simulated = SimulatedNvml(simulation.path)
        simulated.nvmlInit()
        process.call("nvmlInit")
        for arguments in calls(2):
            assert process.call(*arguments) == call(simulated, *arguments), arguments
        simulated.simulation.close()
    process.end()


@pytest.mark.parametrize("gpu", range(8))
def test_library_fields_equal_the_model_in_milli_units(simulation, start, gpu):
    process = start()
    for now in (NOW, NOW + 0.06, NOW + 12.345):
        simulation.set_clock(now)
        expected = [
            simulation.counter_j(gpu, now),
            simulation.average_w(gpu, now),
            simulation.instant_w(gpu, now),
        ]
        read = process.call("nvmlDeviceGetFieldValues", gpu, FIELDS)
        assert [field["value"] for field in read] == [round(value * 1e3) for value in expected]
        assert [field["type"] for field in read] == [
            pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
            pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
            pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
        ]


def test_library_300_w_for_10_s_count_as_3000_j(simulation, start):
    process = start()
    simulation.set_clock(4_100.0)
    before_mj = process.call("nvmlDeviceGetTotalEnergyConsumption", 0)
    simulation.set_clock(4_110.0)

    assert process.call("nvmlDeviceGetTotalEnergyConsumption", 0) - before_mj == pytest.approx(
        3_000_000, abs=1
    )


def test_library_running_clock_value_is_of_the_time_of_the_call(simulation, start):
    process = start()
    simulation.set_clock(None)

    before = simulation.now()
    read_mj = process.call("nvmlDeviceGetTotalEnergyConsumption", 1)
    after = simulation.now()

    assert (
        simulation.counter_j(1, before) * 1e3 - 1
        <= read_mj
        <= simulation.counter_j(1, after) * 1e3 + 1
    )


def test_library_processes_share_gpus_and_limits(simulation, start):
    first, second = start(), start()
    assert first.call("nvmlDeviceSetPowerManagementLimit", 6, 250_000) is None

    assert second.call("nvmlDeviceGetEnforcedPowerLimit", 6) == 250_000
    assert simulation.gpus[6].limit_w == 250
    assert (
        first.call("nvmlDeviceGetUUID", 6)
        == second.call("nvmlDeviceGetUUID", 6)
        == simulation.gpus[6].uuid
    )


def test_library_new_limit_applies_at_once(simulation, start):
    simulation.set_clock(5_010.0)
    start().call("nvmlDeviceSetPowerManagementLimit", 0, 200_000)

    assert simulation.energy_j(0, 5_000.0, 5_010.0) == pytest.approx(3_000)
    assert simulation.energy_j(0, 5_010.0, 5_020.0) == pytest.approx(2_000)


def test_library_locked_clock_applies_at_once(simulation, simulated, start):
    process = start()
    simulation.set_limit(4, 700.0, at=4_999.0)
    assert process.call("nvmlDeviceSetGpuLockedClocks", 4, 990, 990) is None

    assert simulation.gpus[4].locked_clock_mhz == 990
    assert simulation.power_w(4, NOW + 1) == 155.75  # 78 + (700 - 78) / 8
    simulation.set_clock(NOW + 2)
    for arguments in calls(5):
        assert process.call(*arguments) == call(simulated, *arguments), arguments
    assert process.call("nvmlDeviceResetGpuLockedClocks", 4) is None
    assert simulation.power_w(4, NOW + 3) == 700


def test_library_clock_lock_must_be_supported(simulation, start):
    process = start()
    listed = process.call("nvmlDeviceGetSupportedGraphicsClocks", 0, 3_201)

    assert (listed[0], listed[-1], len(listed)) == (1_980, 345, 110)
    assert process.call("nvmlDeviceSetGpuLockedClocks", 0, 2_000, 2_000) == {
        "error": pynvml.NVML_ERROR_INVALID_ARGUMENT
    }


@pytest.mark.parametrize(
    "arguments", [["PowerManagementLimit", 0, 300_000], ["GpuLockedClocks", 0, 990, 990]]
)
def test_library_forbidden_setting_fails_and_unmoved_has_no_effect(simulation, start, arguments):
    process = start()
    simulation.set_fault(0, Fault.FORBIDDEN, on=True)
    assert process.call(f"nvmlDeviceSet{arguments[0]}", *arguments[1:]) == {
        "error": pynvml.NVML_ERROR_NO_PERMISSION
    }
    simulation.set_fault(0, Fault.FORBIDDEN, on=False)
    simulation.set_fault(0, Fault.UNMOVED, on=True)

    assert process.call(f"nvmlDeviceSet{arguments[0]}", *arguments[1:]) is None
    assert (simulation.gpus[0].limit_w, simulation.gpus[0].locked_clock_mhz) == (700, 0)


@pytest.mark.parametrize("milliwatts", [199_999, 700_001])
def test_library_limit_out_of_range_is_an_invalid_argument(simulated, start, milliwatts):
    arguments = ["nvmlDeviceSetPowerManagementLimit", 0, milliwatts]

    assert (
        call(simulated, *arguments)
        == start().call(*arguments)
        == {"error": pynvml.NVML_ERROR_INVALID_ARGUMENT}
    )


def test_simulated_nvml_sets_the_limit(simulation, simulated):
    simulated.nvmlDeviceSetPowerManagementLimit(simulated.nvmlDeviceGetHandleByIndex(0), 250_000)

    assert simulation.gpus[0].limit_w == 250


def test_library_capped_gpu_reports_reason_and_lower_clock(simulation, start):
    process = start()

    assert (
        process.call("nvmlDeviceGetCurrentClocksEventReasons", 4)
        == pynvml.nvmlClocksEventReasonSwPowerCap
    )
    # two processes demand 0.7 + 0.4, so 700 W; 450 W leave (450 - 78) / 622 of its dynamic part
    assert process.call("nvmlDeviceGetClockInfo", 4, 1) == round(1_980 * (372 / 622) ** (1 / 3))
    assert process.call("nvmlDeviceGetUtilizationRates", 4)["gpu"] == 100
    assert (
        process.call("nvmlDeviceGetCurrentClocksEventReasons", 7)
        == pynvml.nvmlClocksEventReasonGpuIdle
    )


def test_library_processes_are_listed_with_memory(start):
    process = start()
    listed = process.call("nvmlDeviceGetComputeRunningProcesses", 4)

    assert [(entry["pid"], entry["usedGpuMemory"]) for entry in listed] == [
        (4711, 3 * GIB),
        (4712, GIB),
    ]
    assert process.call("nvmlDeviceGetMemoryInfo", 4)["used"] == 4 * GIB
    assert process.call("nvmlDeviceGetGraphicsRunningProcesses", 4) == []


def test_library_ga100_reports_instantaneous_power(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(1, PRODUCTS["A100"]), now=4_000.0)
    process = NvmlProcess(tmp_path / FILE_NAME)
    with Simulation.open(tmp_path / FILE_NAME) as simulation:
        simulation.set_load(0, Constant(350.0), at=4_999.7)
        simulation.set_clock(NOW)
        process.call("nvmlInit")

        assert process.call("nvmlDeviceGetPowerUsage", 0) == round(
            simulation.instant_w(0, NOW) * 1e3
        )
        assert (
            process.call("nvmlDeviceGetFieldValues", 0, [185])[0]["error"]
            == pynvml.NVML_ERROR_NOT_SUPPORTED
        )
    process.end()


@pytest.mark.parametrize(
    ("arguments", "expected"),
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
def test_library_calls_of_other_tools_are_supported(start, arguments, expected):
    assert start().call(*arguments) == expected


def test_simulated_nvml_other_functions_are_not_found(simulated):
    assert call(simulated, "nvmlDeviceGetSerial", 0) == {
        "error": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    }
    assert simulated.NVML_SUCCESS == 0
    assert simulated.NVMLError is pynvml.NVMLError
