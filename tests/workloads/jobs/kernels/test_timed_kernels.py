"""Start, wait and timing of kernels on fake devices."""

import math
import time
from types import SimpleNamespace

import pytest

import wattline
from wattline_workloads.jobs.kernels import timed_kernels
from wattline_workloads.jobs.kernels import timed_kernels as kernels
from wattline_workloads.jobs.kernels.timed_kernels import KernelTimes


def kernel():
    return kernels.TimedKernel("sgemm", "kernel", "flop", 16)


def test_measure_kernels_starts_next_batch_before_wait(closed_address):
    """Use a device whose kernels take 0.1 s and that records its calls."""
    calls = []

    def launch(groups, count):
        calls.append(("start", groups * count))

        def wait():
            calls.append(("wait", groups * count))
            return KernelTimes([0.1 * count] * groups, time.time())

        return wait

    options = SimpleNamespace(repetitions=4, duration=math.inf, warmup=1)
    with wattline.ActiveRun("sgemm", {}, None, closed_address) as run:
        results = kernels.measure_kernels(run, kernel(), [launch], options).results()

    assert calls[2:] == [
        *[("start", 1), ("start", 1), ("wait", 1)],
        *[("start", 1), ("wait", 1), ("start", 1), ("wait", 1), ("wait", 1)],
    ]
    assert results["kernel_count"] == 4
    assert results["kernel_seconds_sum"] == pytest.approx(0.4)


def test_measure_kernels_failing_device_stops_others(closed_address):
    def failing(groups, count):
        if warm:
            raise RuntimeError("CUDA error: out of memory")
        warm.append(True)
        return lambda: KernelTimes([0.001], time.time())

    warm: list[bool] = []
    options = SimpleNamespace(repetitions=None, duration=3600, warmup=1)
    endless = timed_kernels.cpu_launcher(lambda: time.sleep(0.001))
    with (
        pytest.raises(RuntimeError, match="out of memory"),
        wattline.ActiveRun("sgemm", {}, None, closed_address) as run,
    ):
        kernels.measure_kernels(run, kernel(), [endless, failing], options)


def test_measure_kernels_tiny_duration_runs_one_kernel(closed_address):
    options = SimpleNamespace(repetitions=None, duration=1e-9, warmup=1)
    launch = timed_kernels.cpu_launcher(lambda: time.sleep(0.002))
    with wattline.ActiveRun("sgemm", {}, None, closed_address) as run:
        results = kernels.measure_kernels(run, kernel(), [launch], options).results()

    assert results["kernel_count"] == 1
    assert results["kernel_seconds_mean"] >= 0.002


def test_cpu_launcher_times_each_group():
    done = []
    times = timed_kernels.cpu_launcher(lambda: done.append(None))(3, 5)()

    assert len(done) == 15
    assert len(times.seconds) == 3


def test_cuda_event_times_are_differences_in_seconds():
    class Event:
        def __init__(self, at_ms):
            self.at_ms = at_ms
            self.waited = False

        def synchronize(self):
            self.waited = True

        def elapsed_time(self, end):
            return end.at_ms - self.at_ms

    marks = [Event(100), Event(102), Event(105)]
    times = timed_kernels._between(marks)

    assert times.seconds == [0.002, 0.003]
    assert [mark.waited for mark in marks] == [False, False, True]
