"""perf_event_open on the kernel that runs, and the text of a PMU's list of CPUs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exporter.model import Device, SourceError
from exporter.sources.cpu_energy.perf import PerfSource, open_event
from exporter.sources.cpu_energy.pmu import cpus_of

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
def test_a_list_of_cpus_is_read_and_what_is_none_is_empty(mask, cpus):
    assert cpus_of(mask) == cpus


def test_the_kernel_takes_our_call():
    """PERF_COUNT_SW_CPU_CLOCK for all processes of CPU 0: what the kernel does with it does not hang on a power PMU."""
    try:
        descriptor = open_event(1, 0, 0)
    except PermissionError as error:
        pytest.skip(f"perf_event_open for a whole CPU: {error}")
    try:
        first, second = os.read(descriptor, 8), os.read(descriptor, 8)
    finally:
        os.close(descriptor)
    assert len(first) == 8
    assert int.from_bytes(second, "little") > int.from_bytes(first, "little")  # it counts nanoseconds


def test_a_type_that_the_kernel_does_not_know_is_an_os_error():
    with pytest.raises(OSError, match=r".") as caught:
        open_event(4_000_000, 2, 0)
    assert caught.value.errno in {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENODEV, errno.EOPNOTSUPP}


def test_a_real_power_pmu_counts_joules_that_only_rise():
    if not PMU.exists():
        pytest.skip(f"no power PMU in this kernel: {PMU} does not exist")
    source = PerfSource()
    try:
        first, second = ({poll.device: poll.counter_j or 0.0 for poll in source.read().polls} for _ in range(2))
    except SourceError as error:
        pytest.skip(f"the power PMU may not be read: {error}")
    finally:
        source.close()
    assert Device("package", "0") in first
    assert first.keys() == second.keys()
    assert all(second[device] >= first[device] for device in first)
