"""Choice of the method for CPU energy; changes are logged and add no energy."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import hwmon, power_pmu, powercap
from tests.fakes.power_pmu import FakeKernel
from wattline.contract.metrics import CPU_ENERGY_METHOD
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.totals import MeterTotals
from wattline_exporter.sensors.board import GraceSocketSource
from wattline_exporter.sensors.cpu.estimate import CpuModelSource, PowerModel
from wattline_exporter.sensors.cpu.methods import CpuSource
from wattline_exporter.sensors.cpu.perf import PerfSource
from wattline_exporter.sensors.cpu.powercap import RaplSource
from wattline_exporter.sensors.readings import Batch, Device, Poll, SourceError

PACKAGE = Device("package", "0")


class Node:
    """A host with one package, and the energy meter of its CPU source."""

    def __init__(self, root: Path) -> None:
        self.now_s = 1_000.0
        self.kernel = FakeKernel()
        self.perf = PerfSource(root, root, self.clock, self.kernel.open_event)
        ways = [
            RaplSource(root, self.clock, lambda: 0.0),
            self.perf,
            GraceSocketSource(root, self.clock),
            CpuModelSource(
                PowerModel(40.0, 200.0), lambda: (self.now_s / 2, self.now_s), self.clock
            ),
        ]
        self.measured = CpuSource(ways[:3], self.clock)
        self.estimated = CpuSource(ways, self.clock)
        self.line = DeviceMeter(update_s=0.001)

    def clock(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def second(self, source: CpuSource, joules: float = 0.0) -> Batch:
        self.now_s += 1.0
        self.kernel.draw({(9, 2, 0): joules})
        batch = source.read()
        for poll in batch.polls:
            if poll.device == PACKAGE:
                self.line.push(poll)
        return batch


@pytest.fixture
def node(tmp_path) -> Iterator[Node]:
    fake_node = Node(tmp_path)
    yield fake_node
    fake_node.perf.close()
    fake_node.kernel.close()


def one_package(root: Path, joules: float) -> powercap.Powercap:
    tree = powercap.Powercap(root)
    tree.zone("intel-rapl:0", "package-0", joules)
    return tree


def pmu(root: Path) -> None:
    power_pmu.pmu(root, "power", 9, "0", ["energy-pkg"])
    power_pmu.cpu(root, 0, 0)


def methods(batch: Batch) -> set[str]:
    return {reading.labels[1] for reading in batch.readings if reading.metric == CPU_ENERGY_METHOD}


def test_cpu_source_prefers_powercap(tmp_path, node):
    one_package(tmp_path, 100)
    pmu(tmp_path)
    hwmon.grace_hopper(tmp_path)
    batch = node.estimated.read()
    assert methods(batch) == {"rapl"}
    assert node.estimated.refused == {}
    assert node.kernel.opened == []


def test_cpu_source_unreadable_powercap_falls_back_to_perf(tmp_path, node, caplog):
    tree = one_package(tmp_path, 100)
    tree.break_zone("intel-rapl:0")
    pmu(tmp_path)
    with caplog.at_level(logging.INFO):
        batch = node.estimated.read()
    assert methods(batch) == {"perf"}
    assert list(node.estimated.refused) == ["powercap"]
    assert "cannot read energy_uj of 1 of 1 RAPL zones" in str(node.estimated.refused["powercap"])
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "source=rapl uses perf (powercap unavailable: cannot read energy_uj"
    )


def test_cpu_source_on_grace_uses_the_socket_sensor(tmp_path, node):
    hwmon.grace_hopper(tmp_path)
    batch = node.estimated.read()
    assert methods(batch) == {"hwmon"}
    assert [(poll.device, poll.instant_w) for poll in batch.polls] == [(PACKAGE, 150.0)]


def test_cpu_source_uses_the_model_only_as_last_resort(node):
    with pytest.raises(SourceError) as caught:
        node.measured.read()
    assert caught.value.cause == (
        "no RAPL on this host (a VM, or the module intel_rapl_msr is not loaded); perf: the kernel "
        "has no "
        "PMU `power` with CPU energy; hwmon: the board has no power sensor of a CPU socket"
    )
    assert caught.value.remedy == "sudo modprobe intel_rapl_msr"
    node.second(node.estimated)
    assert methods(node.second(node.estimated)) == {"model"}


def test_cpu_source_remedy_prefers_missing_permission(tmp_path, node):
    pmu(tmp_path)
    node.kernel.refuse = errno.EACCES
    with pytest.raises(SourceError) as caught:
        node.measured.read()
    assert caught.value.remedy.startswith("give the exporter CAP_PERFMON")


def test_cpu_source_model_is_replaced_by_readable_rapl(tmp_path, node):
    for _ in range(5):
        node.second(node.estimated)
    modelled_j = node.line.totals.energy_j
    assert modelled_j == pytest.approx(
        3 * 120.0, rel=0.01
    )  # half of 40 to 200 W; the first poll has no predecessor
    tree = one_package(tmp_path, 5_000)
    assert methods(node.second(node.estimated)) == {"rapl"}
    assert (
        node.line.totals.energy_j == modelled_j
    )  # 5,000 J are the register's start value, not energy
    for _ in range(5):
        tree.tick(70)
        node.second(node.estimated)
    assert node.line.totals.energy_j == pytest.approx(modelled_j + 350)


def test_cpu_source_working_counter_is_kept(tmp_path, node):
    pmu(tmp_path)
    node.second(node.measured)
    one_package(tmp_path, 5_000)
    assert methods(node.second(node.measured, 100)) == {"perf"}


def test_cpu_source_change_of_counter_adds_no_energy(tmp_path, node):
    tree = one_package(tmp_path, 5_000)
    pmu(tmp_path)

    def seconds(count: int) -> Batch:
        for _ in range(count):
            tree.tick(100) if tree.energy_file("intel-rapl:0").is_file() else None
            batch = node.second(node.measured, 100)
        return batch

    assert methods(seconds(11)) == {"rapl"}
    assert node.line.totals.energy_j == pytest.approx(1_000)
    tree.break_zone("intel-rapl:0")
    assert methods(seconds(11)) == {"perf"}
    assert node.line.totals.energy_j == pytest.approx(2_000)
    tree.mend_zone("intel-rapl:0", 9_000)
    node.kernel.give_up((9, 2, 0))
    assert methods(seconds(11)) == {"rapl"}
    assert node.line.totals.energy_j == pytest.approx(3_000)


def test_cpu_source_change_of_method_is_logged(tmp_path, node, caplog):
    tree = one_package(tmp_path, 5_000)
    pmu(tmp_path)
    node.second(node.measured)
    tree.break_zone("intel-rapl:0")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            node.second(node.measured)
    (record,) = caplog.records
    assert (
        "uses perf; the energy of the last 1.0 s is not counted (powercap unavailable: "
        in record.getMessage()
    )


@pytest.mark.parametrize("shown_j", [5_050, 9_000, 250_000])
def test_cpu_source_restart_with_other_method_adds_no_energy(tmp_path, node, shown_j):
    """Perf has counted 5,000 J when the exporter stops; 5 s later powercap is readable, with
    another start value.
    """
    pmu(tmp_path)
    node.second(node.measured)
    for _ in range(50):
        node.second(node.measured, 100)
    left = node.line.totals
    assert left.energy_j == pytest.approx(5_000)

    node.now_s += 4
    tree = one_package(tmp_path, shown_j)
    node.line = DeviceMeter(
        left, update_s=0.001, last=Poll(PACKAGE, node.now_s - 4, node.now_s - 4, left.raw_j)
    )
    successor = CpuSource([RaplSource(tmp_path, node.clock, lambda: 0.0), node.perf], node.clock)
    for _ in range(20):
        node.second(successor)
        tree.tick(100)
    assert node.line.totals.energy_j == pytest.approx(
        7_000, abs=350
    )  # 19 s at 100 W, without the first two polls


@pytest.mark.parametrize("left_j", [0.5, 50, 5_000, 250_000])
def test_cpu_source_restart_from_powercap_to_perf_adds_no_energy(tmp_path, node, left_j):
    pmu(tmp_path)
    node.line = DeviceMeter(
        MeterTotals(1_000.0, raw_j=left_j), update_s=0.001, last=Poll(PACKAGE, 995.0, 995.0, left_j)
    )
    for _ in range(20):
        node.second(node.measured, 100)
    assert node.line.totals.energy_j == pytest.approx(2_900, abs=250)


def test_cpu_source_outage_is_bridged_by_the_counter(tmp_path, node):
    tree = one_package(tmp_path, 5_000)
    node.second(node.measured)
    tree.break_zone("intel-rapl:0")
    with pytest.raises(SourceError):
        node.second(node.measured)
    tree.mend_zone("intel-rapl:0", 5_300)
    node.second(node.measured)
    assert node.line.totals.energy_j == pytest.approx(300)
