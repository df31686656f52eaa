"""perf_event counters, with sysfs trees and pipes in place of kernel descriptors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import power_pmu
from tests.fakes.power_pmu import FakeKernel
from wattline.contract.metrics import CPU_ENERGY_METHOD
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.sensors.cpu.perf import ORIGIN_J, PerfSource
from wattline_exporter.sensors.readings import Batch, Device, Reading, SourceError


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s


@pytest.fixture
def kernel() -> Iterator[FakeKernel]:
    started = FakeKernel()
    yield started
    started.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(tmp_path, kernel, clock) -> Iterator[PerfSource]:
    started = PerfSource(tmp_path, tmp_path, clock, kernel.open_event)
    yield started
    started.close()


def joules(batch: Batch) -> dict[tuple[str, str], float]:
    assert all(poll.counter_range_j is None for poll in batch.polls)
    counts = {(poll.device.kind, poll.device.id): poll.counter_j for poll in batch.polls}
    return {
        device: counter_j - ORIGIN_J
        for device, counter_j in counts.items()
        if counter_j is not None
    }


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_perf_events_of_two_packages_are_separate_devices(tmp_path, source, kernel):
    power_pmu.intel_two_packages(tmp_path)
    source.read()
    pkg, cores, ram = 2, 1, 3
    kernel.draw(
        {
            (21, pkg, 0): 150,
            (21, pkg, 28): 90,
            (21, cores, 0): 100,
            (21, cores, 28): 40,
            (21, ram, 0): 20,
        }
    )
    batch = source.read()

    assert joules(batch) == {
        ("package", "0"): 150,
        ("package", "1"): 90,
        ("core", "0"): 100,
        ("core", "1"): 40,
        ("dram", "0"): 20,
        ("dram", "1"): 0,
    }
    assert batch.readings == (
        Reading(CPU_ENERGY_METHOD, ("0", "perf"), 1),
        Reading(CPU_ENERGY_METHOD, ("1", "perf"), 1),
    )
    assert batch.problems == ()


def test_perf_devices_equal_those_of_powercap(tmp_path, source):
    power_pmu.intel_two_packages(tmp_path)
    assert {poll.device for poll in source.read().polls} >= {
        Device("package", "0"),
        Device("dram", "1"),
    }


def test_perf_uncore_and_psys_are_mapped(tmp_path, source):
    power_pmu.pmu(tmp_path, "power", 21, "0", ["energy-pkg", "energy-gpu", "energy-psys"])
    power_pmu.cpu(tmp_path, 0, 0)
    assert set(joules(source.read())) == {("package", "0"), ("uncore", "0"), ("psys", "0")}


def test_perf_amd_cores_are_summed(tmp_path, source, kernel):
    power_pmu.amd(tmp_path, cores=4)
    source.read()
    kernel.draw({(9, 2, 0): 60, (10, 1, 0): 5, (10, 1, 1): 6, (10, 1, 2): 7, (10, 1, 3): 8})
    assert joules(source.read()) == {("package", "0"): 60, ("core", "0"): 26}


def test_perf_count_is_2_to_the_minus_32_joules(tmp_path, source, kernel):
    power_pmu.amd(tmp_path, cores=1)
    source.read()
    kernel.draw({(9, 2, 0): 4_000_000.25})  # more than 32 bits of the register's unit can represent
    assert joules(source.read())["package", "0"] == 4_000_000.25


def test_perf_package_shown_per_die_is_counted_once(tmp_path, source, kernel):
    power_pmu.pmu(tmp_path, "power", 9, "0,8,16", ["energy-pkg"])
    for die, number in enumerate((0, 8, 16)):
        power_pmu.cpu(tmp_path, number, 0, die)
    source.read()
    for _ in range(3):
        kernel.draw({(9, 2, number): 100 for number in (0, 8, 16)})
        batch = source.read()
    assert joules(batch) == {("package", "0"): 300}


def test_perf_dies_with_distinct_counters_are_separate(tmp_path, source, kernel):
    power_pmu.pmu(tmp_path, "power", 9, "0,24", ["energy-pkg"])
    power_pmu.cpu(tmp_path, 0, 0, die=0)
    power_pmu.cpu(tmp_path, 24, 0, die=1)
    source.read()
    kernel.draw({(9, 2, 0): 100, (9, 2, 24): 130})
    assert joules(source.read()) == {("package", "0"): 100, ("package", "0-die-1"): 130}


def test_perf_counters_are_opened_once(tmp_path, source, kernel):
    power_pmu.amd(tmp_path, cores=2)
    for _ in range(5):
        source.read()
        kernel.draw({(9, 2, 0): 10})
    assert kernel.opened == [(9, 2, 0), (10, 1, 0), (10, 1, 1)]


# -- permissions


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EPERM])
def test_perf_without_permission_names_the_capability(tmp_path, source, kernel, refusal):
    power_pmu.intel_two_packages(tmp_path)
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/perf_event_paranoid").write_text("2\n")
    kernel.refuse = refusal
    with pytest.raises(SourceError) as caught:
        source.read()
    assert str(caught.value) == (
        "perf_event_open: not permitted, kernel.perf_event_paranoid is 2; give the exporter "
        "CAP_PERFMON (systemd: "
        "AmbientCapabilities=CAP_PERFMON), or run: sudo sysctl kernel.perf_event_paranoid=0"
    )
    kernel.refuse = 0
    assert ("package", "0") in joules(source.read())  # permitted now


def test_perf_without_pmu_names_the_module(source):
    with pytest.raises(
        SourceError, match="no PMU `power` with CPU energy; run: sudo modprobe rapl"
    ):
        source.read()


def test_perf_failing_event_does_not_hide_others(tmp_path, clock, kernel):
    power_pmu.intel_two_packages(tmp_path)

    def all_but_dram(pmu_type: int, config: int, cpu: int) -> int:
        if config == 3:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return kernel.open_event(pmu_type, config, cpu)

    source = PerfSource(tmp_path, tmp_path, clock, all_but_dram)
    batch = source.read()
    source.close()
    assert {kind for kind, _ in joules(batch)} == {"package", "core"}
    (problem,) = batch.problems
    assert problem.startswith("cannot read dram 0, dram 1 by perf_event (Invalid argument): see: ")


def test_perf_failing_core_removes_the_sum_and_closes_files(tmp_path, clock, kernel):
    power_pmu.amd(tmp_path, cores=3)

    def all_but_core_two(pmu_type: int, config: int, cpu: int) -> int:
        if (pmu_type, cpu) == (10, 2):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return kernel.open_event(pmu_type, config, cpu)

    source = PerfSource(tmp_path, tmp_path, clock, all_but_core_two)
    before = open_files()
    assert set(joules(source.read())) == {("package", "0")}
    assert open_files() == before + 4  # both ends of one pipe, and the write ends of the two closed
    source.close()


# -- faults


def test_perf_stopped_counter_is_reopened_without_energy(tmp_path, source, kernel, clock):
    power_pmu.pmu(tmp_path, "power", 9, "0", ["energy-pkg"])
    power_pmu.cpu(tmp_path, 0, 0)
    line, package = DeviceMeter(update_s=0.001), (9, 2, 0)

    def second(watts: float) -> tuple[str, ...]:
        clock.now_s += 1
        kernel.draw({package: watts})
        try:
            batch = source.read()
        except SourceError as error:
            return (error.cause,)
        for poll in batch.polls:
            line.push(poll)
        return batch.problems

    source.read()
    for _ in range(5):
        assert second(100) == ()
    kernel.give_up(package)
    assert second(100) == ("perf_event_open: no value",)
    for _ in range(10):
        assert second(100) == ()

    assert 1_200 <= line.totals.energy_j <= 1_500  # 16 s at 100 W, without those around the fault


def test_perf_offline_package_does_not_affect_the_other(tmp_path, source, kernel):
    power_pmu.intel_two_packages(tmp_path)
    cpumask = tmp_path / "bus/event_source/devices/power/cpumask"
    source.read()
    kernel.draw({(21, 2, 0): 100, (21, 2, 28): 5_000})
    cpumask.write_text("0\n")
    batch = source.read()
    assert {device for _, device in joules(batch)} == {"0"}
    kernel.draw({(21, 2, 0): 100})
    cpumask.write_text("0,28\n")
    batch = source.read()
    assert joules(batch)["package", "0"] == 200
    assert joules(batch)["package", "1"] == 0  # a new counter, from 0
    assert kernel.opened.count((21, 2, 0)) == 1


def test_perf_offline_cpu_keeps_its_moved_counter(tmp_path, source, kernel):
    power_pmu.intel_two_packages(tmp_path)
    power_pmu.cpu(tmp_path, 1, 0)
    source.read()
    kernel.draw({(21, 2, 0): 100})
    (tmp_path / "bus/event_source/devices/power/cpumask").write_text("1,28\n")
    assert joules(source.read())["package", "0"] == 100
    assert (21, 2, 1) not in kernel.opened


def test_perf_long_reading_opens_no_more_files(tmp_path, source, kernel, clock):
    power_pmu.intel_two_packages(tmp_path)
    source.read()
    before = open_files()
    for _ in range(200):
        clock.now_s += 61
        kernel.draw({})
        source.read()
    assert open_files() == before
