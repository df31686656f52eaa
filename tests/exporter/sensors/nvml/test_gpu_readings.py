"""Readings of simulated GPUs, through SimulatedNvml and through pynvml on the test library."""

from __future__ import annotations

import pynvml
import pytest

from wattline_exporter.simulation import Constant, Fault

GIB = 1 << 30
MEMORY_BYTES = {"H200": 143_771 << 20, "A100": 81_920 << 20, "RTX4090": 24_564 << 20}
SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def test_readings_capped_h200_at_full_load_are_complete(make_node, read):
    node = make_node("H200")
    node.simulation.set_limit(0, 300, at=4_001.0)
    node.simulation.drive(0, 1.0, pid=4711, memory_bytes=3 * GIB, at=4_900.0)

    rows = read(node).readings(0)

    clock_hz = round(1_980 * ((300 - 78) / (700 - 78)) ** (1 / 3)) * 1e6
    celsius = 49  # 30 + 45 × 300 / 700 = 49.3
    # 900 s idle, then 100 s at 300 W; the counter's last update is up to 0.1 s ago
    energy_j = 900 * 78 + 100 * 300
    approximate = {
        "pcie_bytes_total tx",
        "pcie_bytes_total rx",
        "clock_event_seconds_total sw_power_cap",
    }
    assert {key: value for key, value in rows.items() if key not in approximate} == {
        "power_limit_watts enforced": 300,
        "power_limit_watts requested": 300,
        "power_limit_watts default": 700,
        "power_limit_watts min": 200,
        "power_limit_watts max": 700,
        "utilization_ratio gpu": 1.0,
        "utilization_ratio memory": 0.5,
        "utilization_ratio encoder": 0.1,
        "utilization_ratio decoder": 0.2,
        "memory_used_bytes": 3 * GIB,
        "memory_total_bytes": MEMORY_BYTES["H200"],
        "temperature_celsius gpu": celsius,
        "temperature_celsius memory": celsius + 8,
        "temperature_limit_celsius gpu margin": 87 - celsius,
        **{f"clock_hertz {domain}": clock_hz for domain in ("sm", "graphics", "video")},
        "clock_hertz memory": 3_201e6,
        **{f"clock_max_hertz {domain}": 1_980e6 for domain in ("sm", "graphics", "video")},
        "clock_max_hertz memory": 3_201e6,
        **{f"clock_event_seconds_total {reason}": 0 for reason in ("sync_boost", *SLOWDOWNS)},
        "clock_event_seconds_total gpu_idle": 0,
        "clock_event_seconds_total applications_clocks_setting": 0,
        "clock_event_seconds_total hw_slowdown": 0,
        "clock_event_seconds_total display_clock_setting": 0,
        "performance_state": 0,
        "ecc_errors_total corrected": 0,
        "ecc_errors_total uncorrected": 0,
    }
    assert rows["pcie_bytes_total rx"] == pytest.approx(energy_j * 1e6, abs=0.1 * 300 * 1e6)
    assert rows["pcie_bytes_total tx"] == pytest.approx(energy_j * 0.25e6, abs=0.1 * 300 * 0.25e6)
    assert rows["clock_event_seconds_total sw_power_cap"] == pytest.approx(100, abs=0.1)


def test_readings_rtx4090_has_fans_and_thresholds_without_ecc(make_node, read):
    node = make_node("RTX4090")
    node.simulation.set_load(0, Constant(450), at=4_900.0)

    rows = read(node).readings(0)

    # 30 + 45 × 450 / 450 = 75 °C, and 75 % on the faster of two fans
    assert rows["fan_ratio"] == 0.75
    assert {key: value for key, value in rows.items() if key.startswith("temperature")} == {
        "temperature_celsius gpu": 75,
        "temperature_limit_celsius gpu slowdown": 89,
        "temperature_limit_celsius gpu shutdown": 92,
        "temperature_limit_celsius gpu max_operating": 85,
    }
    assert not [key for key in rows if key.startswith(("ecc", "pcie"))]


def test_readings_a100_has_memory_threshold_without_margin_and_fan(make_node, read):
    rows = read(make_node("A100")).readings(0)

    assert rows["temperature_limit_celsius memory max_operating"] == 95
    assert (
        not {"temperature_limit_celsius gpu margin", "fan_ratio", "pcie_bytes_total rx"}
        & rows.keys()
    )


def test_readings_ten_capped_seconds_count_as_sw_power_cap(make_node, read):
    node = make_node("H200")
    node.simulation.set_limit(0, 300, at=4_001.0)
    node.simulation.set_load(0, Constant(700), at=4_900.0)
    reader = read(node)
    before = reader.readings(0)
    node.later(10)

    after = reader.readings(0)

    active_s = {key: after[key] - before[key] for key in after if key.startswith("clock_event")}
    assert active_s.pop("clock_event_seconds_total sw_power_cap") == pytest.approx(10, abs=1e-6)
    assert set(active_s.values()) == {0}


def test_readings_without_event_fields_reasons_are_sampled(make_node, read):
    node = make_node("H200")
    node.simulation.set_fault(0, Fault.NO_FIELDS, on=True)
    node.simulation.set_limit(0, 300, at=4_001.0)
    node.simulation.set_load(0, Constant(700), at=4_900.0)
    reader = read(node)
    reader.readings(0)
    for _ in range(10):
        node.later(1)
        rows = reader.readings(0)
    assert rows["clock_event_seconds_total sw_power_cap"] == pytest.approx(10)
    assert rows["clock_event_seconds_total gpu_idle"] == 0

    node.simulation.set_load(0, Constant(78), at=node.simulation.now())
    node.later(60)
    reader.readings(0)
    node.later(2)
    rows = reader.readings(0)

    assert rows["clock_event_seconds_total sw_power_cap"] == pytest.approx(10)
    assert rows["clock_event_seconds_total gpu_idle"] == pytest.approx(2)


def test_readings_ecc_errors_are_counted_by_type(make_node, read):
    node = make_node("H200")
    reader = read(node)
    reader.readings(0)
    node.simulation.add_ecc(0, corrected=3)
    node.simulation.add_ecc(0, corrected=1, uncorrected=2)
    node.later(10)

    rows = reader.readings(0)

    assert (rows["ecc_errors_total corrected"], rows["ecc_errors_total uncorrected"]) == (4, 2)


def test_readings_without_fields_ecc_errors_use_the_older_call(make_node, read):
    node = make_node("H200")
    node.simulation.set_fault(0, Fault.NO_FIELDS, on=True)
    node.simulation.add_ecc(0, corrected=3)

    assert read(node).readings(0)["ecc_errors_total corrected"] == 3


def _without(*ids):
    """Return a replacement that makes these fields temporarily unavailable."""

    def change(fields):
        for field in fields:
            if field.fieldId in ids:
                field.nvmlReturn = pynvml.NVML_ERROR_NO_DATA
        return fields

    return change


def test_readings_missing_aggregate_ecc_is_not_replaced_by_volatile(make_node):
    node = make_node("H200")
    node.simulation.add_ecc(0, corrected=3)
    totals = (pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL, pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL)
    replacements = {"nvmlDeviceGetFieldValues": _without(*totals)}
    reader = node.reader(replacements=replacements)

    assert not [key for key in reader.readings(0) if key.startswith("ecc")]
    replacements.clear()
    node.later(10)
    assert reader.readings(0)["ecc_errors_total corrected"] == 3


def test_readings_unavailable_older_ecc_call_is_left_out(make_node):
    node = make_node("H200")
    node.simulation.set_fault(0, Fault.NO_FIELDS, on=True)
    node.simulation.add_ecc(0, corrected=3)
    reader = node.reader()
    api, counters = reader.nvml.api, []
    read_errors = api.nvmlDeviceGetTotalEccErrors

    def only_volatile(handle, kind, counter):
        counters.append(counter)
        if counter == pynvml.NVML_AGGREGATE_ECC:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_DATA)
        return read_errors(handle, kind, counter)

    api.nvmlDeviceGetTotalEccErrors = only_volatile
    assert not [key for key in reader.readings(0) if key.startswith("ecc")]
    assert counters == [pynvml.NVML_AGGREGATE_ECC] * 2
    api.nvmlDeviceGetTotalEccErrors = read_errors
    node.later(10)

    assert reader.readings(0)["ecc_errors_total corrected"] == 3


def test_readings_lost_neighbour_does_not_affect_a_gpu(make_node, read):
    node = make_node("H200", count=2)
    node.simulation.set_load(1, Constant(700), at=4_900.0)
    reader = read(node)
    node.simulation.set_fault(0, Fault.LOST, on=True)

    assert reader.readings(1)["utilization_ratio gpu"] == 1.0
