"""What the NVML source makes of answers: asked again, lacking for good, wrong, or of another driver."""

from __future__ import annotations

from collections import Counter

import pynvml
import pytest

from exporter.simulation import Fault
from exporter.sources.nvml.card import clock_event_fields

GIB = 1 << 30
MEMORY_BYTES = {"H200": 143_771 << 20, "A100": 81_920 << 20, "RTX4090": 24_564 << 20}
SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def test_a_jump_of_the_counter_shows_in_the_poll(make_node, read):
    node = make_node("H200")
    reader = read(node)
    before_j = reader.counter_j(0)
    node.simulation.jump_counter(0, 1e6)

    assert reader.counter_j(0) - before_j == pytest.approx(1e6)


def test_what_never_changes_is_asked_once_a_minute_and_told_every_time(make_node):
    node = make_node("H200")
    reader = node.reader()
    first = reader.readings(0)
    for _ in range(59):
        node.later(1)
        assert reader.readings(0).keys() == first.keys()
    asked = Counter(reader.nvml.api.calls)
    assert asked["nvmlDeviceGetMaxClockInfo"] == 4  # domains
    assert asked["nvmlDeviceGetPowerManagementDefaultLimit"] == 1
    assert asked["nvmlDeviceGetPowerManagementLimit"] == asked["nvmlDeviceGetNumFans"] == 6
    assert asked["nvmlDeviceGetEnforcedPowerLimit"] == 60

    node.later(1)
    reader.readings(0)

    assert Counter(reader.nvml.api.calls)["nvmlDeviceGetMaxClockInfo"] == 8


def test_one_call_gives_all_the_fields_of_a_second_and_those_that_the_card_lacks_are_not_asked_again(make_node):
    node = make_node("RTX4090")
    reader = node.reader()
    asked = []
    fields = reader.nvml.api.nvmlDeviceGetFieldValues
    reader.nvml.api.nvmlDeviceGetFieldValues = lambda handle, wanted: asked.append(wanted) or fields(handle, wanted)
    reader.readings(0)
    node.later(1)
    reader.readings(0)

    events = [74, 76, 269, 270, 271]
    assert asked == [[82, *events], [197, 198, 5, 3, 6, 4], events]


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NO_DATA, pynvml.NVML_ERROR_UNKNOWN]
)
def test_what_the_card_cannot_tell_just_now_is_asked_again_after_ten_seconds(make_node, code):
    node = make_node("H200")
    refusals = {"nvmlDeviceGetTemperature": code}
    reader = node.reader(refusals=refusals)
    assert "temperature_celsius gpu" not in reader.readings(0)
    refusals.clear()
    node.later(9)
    assert "temperature_celsius gpu" not in reader.readings(0)
    node.later(1)

    assert reader.readings(0)["temperature_celsius gpu"] == 35


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND],
)
def test_what_the_card_says_it_lacks_is_never_asked_again(make_node, code):
    node = make_node("H200")
    reader = node.reader(refusals={"nvmlDeviceGetTemperature": code})
    for _ in range(5):
        reader.readings(0)
        node.later(600)

    assert Counter(reader.nvml.api.calls)["nvmlDeviceGetTemperature"] == 1


def test_a_counter_that_gave_no_data_once_feeds_the_energy_again(make_node):
    node = make_node("H200")
    refusals = {
        "nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_NO_DATA,
        "nvmlDeviceGetTotalEnergyConsumption": pynvml.NVML_ERROR_NO_DATA,
    }
    reader = node.reader(refusals=refusals)
    assert reader.counter_j(0) is None
    refusals.clear()
    node.later(10)

    assert reader.counter_j(0) == pytest.approx(1_010 * 78, abs=8)


def test_an_unknown_error_of_the_energy_is_not_passed_over(make_node):
    reader = make_node("H200").reader(refusals={"nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_UNKNOWN})

    with pytest.raises(pynvml.NVMLError):
        reader.counter_j(0)


def test_a_lost_card_raises_and_gives_no_readings(make_node):
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


def test_pcie_counters_of_32_bits_which_wrap_within_a_second_are_left_out(make_node):
    reader = make_node("H200").reader(changes={"nvmlDeviceGetFieldValues": _as_32_bits})

    rows = reader.readings(0)

    assert not [key for key in rows if key.startswith("pcie")]
    assert "ecc_errors_total corrected" in rows


def test_a_performance_state_that_the_driver_does_not_know_is_left_out(make_node):
    reader = make_node("H200").reader(changes={"nvmlDeviceGetPerformanceState": lambda _: pynvml.NVML_PSTATE_UNKNOWN})

    assert "performance_state" not in reader.readings(0)


def test_the_reasons_that_a_driver_does_not_support_are_left_out(make_node):
    reader = make_node("H200").reader(changes={"nvmlDeviceGetSupportedClocksEventReasons": lambda _: 0x1})

    rows = reader.readings(0)

    assert "clock_event_seconds_total gpu_idle" in rows
    assert "clock_event_seconds_total hw_slowdown" not in rows


@pytest.mark.parametrize(
    ("driver", "first"),
    [("570.86.10", 251), ("580.65.06", 251), ("580.82.07", 269), ("595.58.03", 269), ("SIMULATED 580.95.05", 269)],
)
def test_the_slowdowns_are_asked_for_by_the_numbers_that_the_driver_gives_them(driver, first):
    fields = clock_event_fields(driver)

    assert [fields[reason] for reason in ("sw_power_cap", "sync_boost", *SLOWDOWNS)] == [
        *(74, 76, first, first + 1, first + 2)
    ]


@pytest.mark.parametrize("driver", ["550.54.15", "", "unknown"])
def test_an_older_driver_is_not_asked_for_counters_of_the_slowdowns(driver):
    assert clock_event_fields(driver) == {"sw_power_cap": 74, "sync_boost": 76}
