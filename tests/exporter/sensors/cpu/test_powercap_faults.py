"""RAPL counters through faults: reported energy against the known energy."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import powercap
from tests.unprivileged import unprivileged
from wattline.contract.metrics import CPU_ENERGY, CPU_POWER
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.cpu.powercap import RaplSource
from wattline_exporter.sensors.readings import Batch, Device, SourceError
from wattline_exporter.web.series import NodeSnapshot, node_readings

PACKAGE = Device("package", "0")
INTEL_J, AMD_J = powercap.RANGE_UJ / 1e6, 65_532.610987


def node_snapshot(live: LiveState) -> NodeSnapshot:
    return NodeSnapshot("test", live.snapshot(), (), (), ())


class Machine:
    """Clock, suspended time and energy meters of a source."""

    def __init__(self, root: Path) -> None:
        self.now_s, self.slept_s = 1_000.0, 0.0
        self.source = RaplSource(root, self.clock, lambda: self.slept_s)
        self.lines: dict[Device, DeviceMeter] = {}

    def clock(self) -> float:
        self.now_s += 1e-6  # a clock never returns the same value twice
        return self.now_s

    def read(self) -> Batch:
        batch = self.source.read()
        for poll in batch.polls:
            self.lines.setdefault(poll.device, DeviceMeter(update_s=0.001)).push(poll)
        return batch

    def joules(self, device: Device = PACKAGE) -> float:
        return self.lines[device].totals.energy_j


def one_package(root: Path, joules: float, range_j: float = INTEL_J) -> powercap.Powercap:
    tree = powercap.Powercap(root)
    tree.zone("intel-rapl:0", "package-0", joules, range_uj=round(range_j * 1e6))
    return tree


# -- wraps


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([AMD_J, INTEL_J]),
    st.floats(0, 1),
    st.lists(st.tuples(st.floats(0.01, 60), st.floats(0, 900)), min_size=1, max_size=20),
)
def test_powercap_wrapping_counter_adds_up(range_j, filled, steps):
    with tempfile.TemporaryDirectory() as folder:
        tree = one_package(Path(folder), filled * (range_j - 1), range_j)
        machine = Machine(Path(folder))
        machine.read()
        for elapsed_s, watts in steps:
            machine.now_s += elapsed_s
            tree.tick(elapsed_s * watts)
            machine.read()

        truth_j = math.fsum(elapsed_s * watts for elapsed_s, watts in steps)
        assert machine.joules() == pytest.approx(truth_j, abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.floats(0, 0.999), st.floats(50, 990), st.floats(0, 1))
def test_powercap_unseen_wraps_are_within_the_uncertainty(wraps, more, watts, filled):
    """The count lacks an unknown number of ranges: the uncertainty assumes up to 1 kW."""
    with tempfile.TemporaryDirectory() as folder:
        tree = one_package(Path(folder), filled * (AMD_J - 1), AMD_J)
        machine = Machine(Path(folder))
        machine.read()
        machine.now_s += 1.0
        machine.read()
        line = machine.lines[PACKAGE]
        begin = line.mark(machine.now_s)
        silence_s = (wraps + more) * AMD_J / watts
        machine.now_s += silence_s
        tree.tick((wraps + more) * AMD_J)
        machine.read()
        energy = energy_between(begin, line.mark(machine.now_s))

        assert abs(energy.joules - (wraps + more) * AMD_J) <= energy.half_width_j + 1.0
        assert energy.joules == pytest.approx(more * AMD_J, abs=1.0)
        assert energy.covered_s < 0.01 * silence_s


def test_powercap_range_below_the_counter_is_ignored(tmp_path):
    one_package(tmp_path, 5_000, range_j=1_000)
    (poll,) = Machine(tmp_path).read().polls
    assert (poll.counter_j, poll.counter_range_j) == (5_000, None)


# -- a zone that loses permission


def test_powercap_temporarily_unreadable_zone_is_bridged(open_folder):
    tree = powercap.intel_two_packages(open_folder)
    machine = Machine(open_folder)
    all_problems = set()
    with unprivileged():
        machine.read()
    tree.forbid("intel-rapl:1")
    for _ in range(10):  # 100 W in each zone for 10 s
        machine.now_s += 1
        tree.tick(100)
        with unprivileged():
            batch = machine.read()
        all_problems |= set(batch.problems)
        assert len(batch.polls) == 6
    assert machine.joules() == pytest.approx(1_000)
    assert machine.joules(Device("package", "1")) == 0
    (problem,) = all_problems  # the same line each time, so that it is logged once
    assert problem.startswith("cannot read energy_uj of 1 of 7 RAPL zones (permission denied")

    tree.permit("intel-rapl:1")
    machine.now_s += 1
    tree.tick(100)
    with unprivileged():
        batch = machine.read()
    assert batch.problems == ()
    assert machine.joules(Device("package", "1")) == pytest.approx(1_100)


def test_powercap_mmio_does_not_replace_a_forbidden_zone(open_folder):
    tree = powercap.intel_two_packages(open_folder)
    machine = Machine(open_folder)
    machine.read()
    tree.forbid("intel-rapl:0")
    machine.now_s += 61  # after the next search for zones
    tree.tick(100)
    with unprivileged():
        assert PACKAGE not in {poll.device for poll in machine.read().polls}


# -- a package that goes offline


def offline(tree: powercap.Powercap, machine: Machine, seconds: float) -> None:
    tree.remove("intel-rapl:0")
    machine.now_s += 1
    with pytest.raises(SourceError, match="no RAPL"):
        machine.read()
    machine.now_s += seconds


def readings(tree: powercap.Powercap, machine: Machine, seconds: int, watts: float) -> None:
    for _ in range(seconds):
        machine.read()
        machine.now_s += 1
        tree.tick(watts)
    machine.read()


def test_powercap_package_back_at_zero_adds_no_energy(tmp_path):
    tree, machine = one_package(tmp_path, 100_000), Machine(tmp_path)
    readings(tree, machine, 3, 100)
    offline(tree, machine, 120)
    tree.zone("intel-rapl:0", "package-0", 50)
    readings(tree, machine, 20, 100)

    # 300 J before, at least 50 J and 2,000 J after; a wrap would add 161,893 J more
    assert 2_300 <= machine.joules() <= 2_350


def test_powercap_package_back_with_its_counter_loses_no_energy(tmp_path):
    tree, machine = one_package(tmp_path, 100_000), Machine(tmp_path)
    readings(tree, machine, 3, 100)
    offline(tree, machine, 120)
    tree.zone("intel-rapl:0", "package-0", 100_300 + 700)
    readings(tree, machine, 20, 100)

    assert machine.joules() == pytest.approx(300 + 700 + 2_000)


def test_powercap_returned_counter_wraps_again(tmp_path):
    tree, machine = one_package(tmp_path, 1_000), Machine(tmp_path)
    readings(tree, machine, 1, 100)
    offline(tree, machine, 30)
    tree.zone("intel-rapl:0", "package-0", INTEL_J - 1_550)
    readings(tree, machine, 20, 100)  # the counter wraps 15.5 s after its return

    # its first reading is no more than 262,143 J - 1,550 J ahead, more than a package uses in 31 s:
    # not counted
    assert machine.joules() == pytest.approx(100 + 2_000, abs=101)


def test_powercap_offline_package_does_not_affect_the_other(tmp_path):
    tree, machine = powercap.intel_two_packages(tmp_path), Machine(tmp_path)
    machine.read()
    for entry in ("intel-rapl:1:0", "intel-rapl:1:1", "intel-rapl:1", "intel-rapl-mmio:1"):
        tree.remove(entry)
        tree.range_uj.pop(entry)
    for _ in range(70):
        machine.now_s += 1
        tree.tick(100)
        (problem,) = machine.read().problems
    assert problem.startswith(
        "RAPL zones missing: core 1, dram 1, package 1; check for offline CPUs"
    )
    assert machine.joules() == pytest.approx(7_000)


def test_powercap_offline_package_is_absent_without_stale_power(tmp_path):
    tree, machine, store = (
        powercap.intel_two_packages(tmp_path),
        Machine(tmp_path),
        LiveState(),
    )

    def exported_packages() -> set[str]:
        for _ in range(3):
            machine.now_s += 1
            tree.tick(100)
            store.take_batch("rapl", machine.read(), 0.001, 1.0)
        return {
            reading.labels[0]
            for reading in node_readings(node_snapshot(store))
            if reading.metric in (CPU_ENERGY, CPU_POWER)
        }

    assert exported_packages() == {"0", "1"}
    for entry in ("intel-rapl:1:0", "intel-rapl:1:1", "intel-rapl:1", "intel-rapl-mmio:1"):
        tree.remove(entry)
        tree.range_uj.pop(entry)
    assert exported_packages() == {"0"}


def test_powercap_register_reset_in_suspend_is_not_a_wrap(tmp_path):
    tree, machine = one_package(tmp_path, 100_000), Machine(tmp_path)
    readings(tree, machine, 3, 100)
    machine.now_s += 600
    machine.slept_s += 600
    tree.set("intel-rapl:0", 20)
    readings(tree, machine, 20, 100)

    assert 2_300 <= machine.joules() <= 2_320
