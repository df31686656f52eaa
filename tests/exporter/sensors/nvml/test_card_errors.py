"""Unsupported, unavailable and wrong values, and values of other driver versions."""

from __future__ import annotations

from collections import Counter

import pynvml
import pytest

from wattline_exporter.sensors.nvml.card import (
    GpuHandle,
    clock_event_fields,
    decode_fields,
    field_call,
)
from wattline_exporter.simulation import Fault

GIB = 1 << 30
MEMORY_BYTES = {"H200": 143_771 << 20, "A100": 81_920 << 20, "RTX4090": 24_564 << 20}
SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def test_poll_counter_jump_is_reported(make_node, read):
    node = make_node("H200")
    reader = read(node)
    before_j = reader.counter_j(0)
    node.simulation.jump_counter(0, 1e6)

    assert reader.counter_j(0) - before_j == pytest.approx(1e6)


def test_readings_constants_are_read_once_a_minute(make_node):
    node = make_node("H200")
    reader = node.reader()
    first = reader.readings(0)
    for _ in range(59):
        node.later(1)
        assert reader.readings(0).keys() == first.keys()
    calls = Counter(reader.nvml.api.calls)
    assert calls["nvmlDeviceGetMaxClockInfo"] == 4  # domains
    assert calls["nvmlDeviceGetPowerManagementDefaultLimit"] == 1
    assert calls["nvmlDeviceGetPowerManagementLimit"] == calls["nvmlDeviceGetNumFans"] == 6
    assert calls["nvmlDeviceGetEnforcedPowerLimit"] == 60

    node.later(1)
    reader.readings(0)

    assert Counter(reader.nvml.api.calls)["nvmlDeviceGetMaxClockInfo"] == 8


def test_fields_one_call_reads_all_and_unsupported_are_dropped(make_node):
    node = make_node("RTX4090")
    reader = node.reader()
    requested = []
    fields = reader.nvml.api.nvmlDeviceGetFieldValues
    reader.nvml.api.nvmlDeviceGetFieldValues = lambda handle, ids: (
        requested.append(ids) or fields(handle, ids)
    )
    reader.readings(0)
    node.later(1)
    reader.readings(0)

    events = [74, 76, 269, 270, 271]
    assert requested == [[82, *events], [197, 198, 5, 3, 6, 4], events]


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NO_DATA, pynvml.NVML_ERROR_UNKNOWN]
)
def test_query_unavailable_value_is_read_again_after_10_s(make_node, code):
    node = make_node("H200")
    errors = {"nvmlDeviceGetTemperature": code}
    reader = node.reader(errors=errors)
    assert "temperature_celsius gpu" not in reader.readings(0)
    errors.clear()
    node.later(9)
    assert "temperature_celsius gpu" not in reader.readings(0)
    node.later(1)

    assert reader.readings(0)["temperature_celsius gpu"] == 35


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    ],
)
def test_query_unsupported_value_is_read_again_after_10_minutes(make_node, code):
    node = make_node("H200")
    errors = {"nvmlDeviceGetTemperature": code}
    reader = node.reader(errors=errors)
    for _ in range(6):
        reader.readings(0)
        node.later(99)

    assert Counter(reader.nvml.api.calls)["nvmlDeviceGetTemperature"] == 1
    errors.clear()
    node.later(6)
    assert reader.readings(0)["temperature_celsius gpu"] == 35


def test_poll_counter_without_data_once_is_used_again(make_node):
    node = make_node("H200")
    errors = {
        "nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_NO_DATA,
        "nvmlDeviceGetTotalEnergyConsumption": pynvml.NVML_ERROR_NO_DATA,
    }
    reader = node.reader(errors=errors)
    assert reader.counter_j(0) is None
    errors.clear()

    assert reader.counter_j(0) == pytest.approx(1_000 * 78, abs=8)


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    ],
)
def test_poll_error_of_100_ms_costs_at_most_400_ms_of_the_counter(make_node, code):
    node = make_node("H200")
    calls = ("FieldValues", "TotalEnergyConsumption", "PowerUsage")
    errors = {f"nvmlDeviceGet{call}": code for call in calls}
    reader = node.reader(errors=errors)
    for _ in range(3):
        assert reader.counter_j(0) is None
        node.later(0.05)
    errors.clear()
    values = []
    for _ in range(4):
        node.later(0.1)
        values.append(reader.counter_j(0))

    assert values[-1] is not None


def test_poll_missing_counter_is_probed_at_most_once_a_minute(make_node):
    node = make_node("H200")
    reader = node.reader(
        errors={"nvmlDeviceGetFieldValues": 3, "nvmlDeviceGetTotalEnergyConsumption": 3}
    )
    for _ in range(600):
        reader.counter_j(0)
        node.later(1)

    # at 0, 1, 2, 3, 4, 6, 10, 17, 30, 56 s while the wait doubles from 0.05 s, then once a minute
    assert Counter(reader.nvml.api.calls)["nvmlDeviceGetTotalEnergyConsumption"] <= 22


def test_poll_unknown_error_is_raised(make_node):
    reader = make_node("H200").reader(
        errors={"nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_UNKNOWN}
    )

    with pytest.raises(pynvml.NVMLError):
        reader.counter_j(0)


def test_readings_lost_gpu_raises(make_node):
    node = make_node("H200")
    reader = node.reader()
    reader.readings(0)
    node.simulation.set_fault(0, Fault.LOST, on=True)

    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        reader.readings(0)


def _as_32_bits(fields):
    for field in fields:
        field.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    return fields


def test_readings_32_bit_pcie_counters_are_left_out(make_node):
    reader = make_node("H200").reader(replacements={"nvmlDeviceGetFieldValues": _as_32_bits})

    rows = reader.readings(0)

    assert not [key for key in rows if key.startswith("pcie")]
    assert "ecc_errors_total corrected" in rows


def test_readings_unknown_performance_state_is_left_out(make_node):
    reader = make_node("H200").reader(
        replacements={"nvmlDeviceGetPerformanceState": lambda _: pynvml.NVML_PSTATE_UNKNOWN}
    )

    assert "performance_state" not in reader.readings(0)


def test_readings_unsupported_event_reasons_are_left_out(make_node):
    reader = make_node("H200").reader(
        replacements={"nvmlDeviceGetSupportedClocksEventReasons": lambda _: 0x1}
    )

    rows = reader.readings(0)

    assert "clock_event_seconds_total gpu_idle" in rows
    assert "clock_event_seconds_total hw_slowdown" not in rows


@pytest.mark.parametrize(
    ("driver", "first"),
    [
        ("570.86.10", 251),
        ("580.65.06", 251),
        ("580.82.07", 269),
        ("595.58.03", 269),
        ("SIMULATED 580.95.05", 269),
    ],
)
def test_event_fields_follow_the_driver_version(driver, first):
    fields = clock_event_fields(driver)

    assert [fields[reason] for reason in ("sw_power_cap", "sync_boost", *SLOWDOWNS)] == [
        *(74, 76, first, first + 1, first + 2)
    ]


@pytest.mark.parametrize("driver", ["550.54.15", "", "unknown"])
def test_event_fields_older_driver_has_no_slowdown_counters(driver):
    assert clock_event_fields(driver) == {"sw_power_cap": 74, "sync_boost": 76}


class FieldLibrary:
    """Driver library that answers with the codes in `results`, and fills the first field only in
    its first call.
    """

    def __init__(self, *results):
        self.nvmlLib = self
        self._results = list(results)
        self.calls = 0

    def nvmlDeviceGetFieldValues(self, handle, count, values):  # noqa: N802  # NVML's name
        self.calls += 1
        assert (handle, [values[i].fieldId for i in range(count)]) == ("handle", [83, 186])
        if self.calls == 1:
            values[0].valueType, values[0].value.ullVal = (
                pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
                1_234,
            )
        values[1].nvmlReturn = pynvml.NVML_ERROR_NO_DATA
        return self._results.pop(0)


def test_field_call_keeps_no_value_of_an_earlier_call():
    read = field_call(GpuHandle(FieldLibrary(0, 0), "handle", None), (83, 186))

    assert [value for _, _, value in decode_fields(read())] == [1_234, None]
    assert decode_fields(read())[0] == (pynvml.NVML_VALUE_TYPE_DOUBLE, pynvml.NVML_SUCCESS, 0.0)


def test_field_call_failed_call_raises_its_error():
    read = field_call(
        GpuHandle(FieldLibrary(0, pynvml.NVML_ERROR_GPU_IS_LOST), "handle", None), (83, 186)
    )
    read()

    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        read()
