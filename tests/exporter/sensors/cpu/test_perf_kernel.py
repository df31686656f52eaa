"""perf_event_open on the running kernel, and parsing of CPU lists."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from wattline_exporter.sensors.cpu.perf import PerfSource, open_event, parse_cpu_list
from wattline_exporter.sensors.readings import Device, SourceError

PMU = Path("/sys/bus/event_source/devices/power")


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [
        ("0\n", [0]),
        ("0,28", [0, 28]),
        ("0-2,8", [0, 1, 2, 8]),
        ("", []),
        ("0-", []),
        ("3-1", []),
        ("0-99999999", []),
        ("0-999999", []),
        ("a", []),
    ],
)
def test_cpu_list_is_parsed_and_invalid_text_is_empty(mask, cpus):
    assert parse_cpu_list(mask) == cpus


def test_perf_event_open_call_is_accepted_by_the_kernel():
    """Open PERF_COUNT_SW_CPU_CLOCK for all processes of CPU 0, which needs no power PMU."""
    try:
        descriptor = open_event(1, 0, 0)
    except PermissionError as error:
        pytest.skip(f"perf_event_open for a whole CPU: {error}")
    try:
        first, second = os.read(descriptor, 8), os.read(descriptor, 8)
    finally:
        os.close(descriptor)
    assert len(first) == 8
    assert int.from_bytes(second, "little") > int.from_bytes(
        first, "little"
    )  # the count is in nanoseconds


def test_perf_event_open_unknown_type_is_an_os_error():
    with pytest.raises(OSError, match=r".") as caught:
        open_event(4_000_000, 2, 0)
    assert caught.value.errno in {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ENODEV,
        errno.EOPNOTSUPP,
    }


def test_perf_real_power_pmu_only_increases():
    if not PMU.exists():
        pytest.skip(f"no power PMU in this kernel: {PMU} does not exist")
    source = PerfSource()
    try:
        first, second = (
            {poll.device: poll.counter_j or 0.0 for poll in source.read().polls} for _ in range(2)
        )
    except SourceError as error:
        pytest.skip(f"the power PMU may not be read: {error}")
    finally:
        source.close()
    assert first  # a virtual machine may have energy-psys only
    assert Device("package", "0") in first or not (PMU / "events" / "energy-pkg").exists()
    assert first.keys() == second.keys()
    assert all(second[device] >= first[device] for device in first)
