"""Processes on simulated GPUs, through SimulatedNvml and through pynvml on the test library."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from wattline_exporter.sensors.nvml.gpu import mean_shares

GIB = 1 << 30


def test_processes_have_memory_and_utilization(make_node, read):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, memory_bytes=3 * GIB, at=4_900.0)
    node.simulation.drive(0, 0.0, pid=42, memory_bytes=GIB, at=4_900.0)
    reader = read(node)
    reader.processes(0)
    node.later(5)

    # the newest sample is up to 0.1 s old, and the process ran at 50 % up to there
    assert reader.processes(0) == [[41, 3 * GIB, pytest.approx(0.5), ""], [42, GIB, 0.0, ""]]
    assert reader.pids(0) == [41, 42]


def test_processes_demanding_more_than_the_gpu_share_it(make_node, read):
    node = make_node("H200")
    for pid in (41, 42):
        node.simulation.drive(0, 1.0, pid=pid, at=4_900.0)
    reader = read(node)
    reader.processes(0)
    node.later(5)

    assert [share for _, _, share, _ in reader.processes(0)] == [
        pytest.approx(0.5),
        pytest.approx(0.5),
    ]


def test_processes_unsupported_utilization_is_none(make_node):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, memory_bytes=GIB, at=4_900.0)
    reader = node.reader(
        errors={"nvmlDeviceGetProcessUtilization": pynvml.NVML_ERROR_NOT_SUPPORTED}
    )

    assert reader.processes(0) == [[41, GIB, None, ""]]


def _with_graphics_processes(processes):
    return [
        *processes,
        SimpleNamespace(pid=41, usedGpuMemory=2 * GIB),
        SimpleNamespace(pid=43, usedGpuMemory=None),
    ]


def test_processes_in_two_lists_are_one_with_its_memory(make_node):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, memory_bytes=3 * GIB, at=4_900.0)
    reader = node.reader(
        replacements={"nvmlDeviceGetGraphicsRunningProcesses": _with_graphics_processes}
    )

    assert [process[:2] for process in reader.processes(0)] == [[41, 3 * GIB], [43, None]]


def _sample(pid, at_us, percent):
    return SimpleNamespace(pid=pid, timeStamp=at_us, smUtil=percent)


def test_mean_shares_each_sample_covers_the_time_before_it():
    samples = [
        _sample(41, 3_000, 100),
        _sample(41, 1_000, 40),
        _sample(42, 4_000, 25),
        _sample(43, 1_000, 80),
    ]

    shares = mean_shares(samples, since_us=0, until_us=4_000)

    # 41: 1 ms at 40 %, 2 ms at 100 %, none after; 42: all of the time at 25 %; 43: a quarter of it
    # at 80 %
    assert shares == {41: pytest.approx(2.4 / 4), 42: pytest.approx(0.25), 43: pytest.approx(0.2)}


def test_processes_driver_clock_set_back_is_tolerated(make_node):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, at=4_900.0)
    reader = node.reader()
    reader.processes(0)
    node.simulation.set_clock(4_950.0)
    reader.processes(0)
    node.later(5)

    assert reader.processes(0)[0][2] == pytest.approx(0.5)
