"""Which way to the CPU's energy is taken, and that a change of ways neither invents a joule nor goes unsaid."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.contract.metrics import CPU_ENERGY_METHOD
from exporter.energy.marks import MeterTotals
from exporter.energy.meter import DeviceMeter
from exporter.model import Batch, Device, Poll, SourceError
from exporter.sources.cpu_energy.choose import CpuSource
from exporter.sources.cpu_energy.model import CpuModelSource, PowerModel
from exporter.sources.cpu_energy.perf import PerfSource
from exporter.sources.cpu_energy.powercap_source import RaplSource
from exporter.sources.hwmon import SocketSource
from tests.fakes import hwmon, power_pmu, powercap
from tests.fakes.power_pmu import FakeKernel

PACKAGE = Device("package", "0")


class Node:
    """A machine of one package, and the line of energy that its CPU source feeds."""

    def __init__(self, root: Path) -> None:
        self.now_s = 1_000.0
        self.kernel = FakeKernel()
        self.perf = PerfSource(root, root, self.clock, self.kernel.open_event)
        ways = [
            RaplSource(root, self.clock, lambda: 0.0),
            self.perf,
            SocketSource(root, self.clock),
            CpuModelSource(PowerModel(40.0, 200.0), lambda: (self.now_s / 2, self.now_s), self.clock),
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
    made = Node(tmp_path)
    yield made
    made.perf.close()
    made.kernel.close()


def one_package(root: Path, joules: float) -> powercap.Powercap:
    tree = powercap.Powercap(root)
    tree.zone("intel-rapl:0", "package-0", joules)
    return tree


def pmu(root: Path) -> None:
    power_pmu.pmu(root, "power", 9, "0", ["energy-pkg"])
    power_pmu.cpu(root, 0, 0)


def methods(batch: Batch) -> set[str]:
    return {reading.labels[1] for reading in batch.readings if reading.metric == CPU_ENERGY_METHOD}


def test_powercap_is_taken_before_all_others(tmp_path, node):
    one_package(tmp_path, 100)
    pmu(tmp_path)
    hwmon.grace_hopper(tmp_path)
    batch = node.estimated.read()
    assert methods(batch) == {"rapl"}
    assert node.estimated.refused == {}
    assert node.kernel.opened == []


def test_where_powercap_may_not_be_read_perf_is_and_the_reason_is_kept(tmp_path, node, caplog):
    tree = one_package(tmp_path, 100)
    tree.break_zone("intel-rapl:0")
    pmu(tmp_path)
    with caplog.at_level(logging.INFO):
        batch = node.estimated.read()
    assert methods(batch) == {"perf"}
    assert list(node.estimated.refused) == ["powercap"]
    assert "cannot read energy_uj of 1 of 1 RAPL zones" in str(node.estimated.refused["powercap"])
    (record,) = caplog.records
    assert record.getMessage().startswith("source=rapl is read by perf (not by powercap: cannot read energy_uj")


def test_a_grace_has_its_sockets_sensor_for_a_package(tmp_path, node):
    hwmon.grace_hopper(tmp_path)
    batch = node.estimated.read()
    assert methods(batch) == {"hwmon"}
    assert [(poll.device, poll.instant_w) for poll in batch.polls] == [(PACKAGE, 150.0)]


def test_a_model_is_used_only_where_it_is_asked_for_and_nothing_else_answers(node):
    with pytest.raises(SourceError) as caught:
        node.measured.read()
    assert caught.value.cause == (
        "no RAPL on this machine (a VM, or the intel_rapl_msr module is not loaded); nor by perf: the kernel shows no "
        "PMU `power` with the CPU's energy; nor by hwmon: the board has no power sensor of a CPU socket"
    )
    assert caught.value.remedy == "sudo modprobe intel_rapl_msr"
    node.second(node.estimated)
    assert methods(node.second(node.estimated)) == {"model"}


def test_what_is_there_and_forbidden_is_the_remedy_rather_than_what_is_missing(tmp_path, node):
    pmu(tmp_path)
    node.kernel.refuse = errno.EACCES
    with pytest.raises(SourceError) as caught:
        node.measured.read()
    assert caught.value.remedy.startswith("to count the energy of the whole CPU the exporter needs CAP_PERFMON")


def test_a_model_makes_way_for_rapl_as_soon_as_that_can_be_read(tmp_path, node):
    for _ in range(5):
        node.second(node.estimated)
    modelled_j = node.line.totals.energy_j
    assert modelled_j == pytest.approx(3 * 120.0, rel=0.01)  # half of 40 to 200 W; the first poll has none before it
    tree = one_package(tmp_path, 5_000)
    assert methods(node.second(node.estimated)) == {"rapl"}
    assert node.line.totals.energy_j == modelled_j  # 5,000 J are the register's origin and no one's energy
    for _ in range(5):
        tree.tick(70)
        node.second(node.estimated)
    assert node.line.totals.energy_j == pytest.approx(modelled_j + 350)


def test_a_counter_that_answers_is_kept_though_a_better_one_comes(tmp_path, node):
    pmu(tmp_path)
    node.second(node.measured)
    one_package(tmp_path, 5_000)
    assert methods(node.second(node.measured, 100)) == {"perf"}


def test_from_one_counter_to_the_other_and_back_no_joule_is_invented(tmp_path, node):
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


def test_a_change_of_ways_is_logged_with_what_it_leaves_uncounted(tmp_path, node, caplog):
    tree = one_package(tmp_path, 5_000)
    pmu(tmp_path)
    node.second(node.measured)
    tree.break_zone("intel-rapl:0")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            node.second(node.measured)
    (record,) = caplog.records
    assert (
        "is read by perf; what was drawn in the 1.0 s before is not counted (not by powercap: " in record.getMessage()
    )


@pytest.mark.parametrize("shown_j", [5_050, 9_000, 250_000])
def test_an_exporter_that_finds_what_another_left_by_the_other_way_invents_no_joule(tmp_path, node, shown_j):
    """Perf has counted 5,000 J when the exporter stops; 5 s later powercap may be read, and shows what it shows."""
    pmu(tmp_path)
    node.second(node.measured)
    for _ in range(50):
        node.second(node.measured, 100)
    left = node.line.totals
    assert left.energy_j == pytest.approx(5_000)

    node.now_s += 4
    tree = one_package(tmp_path, shown_j)
    node.line = DeviceMeter(left, update_s=0.001, last=Poll(PACKAGE, node.now_s - 4, node.now_s - 4, left.raw_j))
    successor = CpuSource([RaplSource(tmp_path, node.clock, lambda: 0.0), node.perf], node.clock)
    for _ in range(20):
        node.second(successor)
        tree.tick(100)
    assert node.line.totals.energy_j == pytest.approx(7_000, abs=350)  # 19 s at 100 W, but for the first two polls


@pytest.mark.parametrize("left_j", [0.5, 50, 5_000, 250_000])
def test_an_exporter_that_has_to_do_with_perf_after_powercap_invents_no_joule(tmp_path, node, left_j):
    pmu(tmp_path)
    node.line = DeviceMeter(
        MeterTotals(1_000.0, raw_j=left_j), update_s=0.001, last=Poll(PACKAGE, 995.0, 995.0, left_j)
    )
    for _ in range(20):
        node.second(node.measured, 100)
    assert node.line.totals.energy_j == pytest.approx(2_900, abs=250)


def test_a_source_that_was_down_is_bridged_by_its_own_counter(tmp_path, node):
    tree = one_package(tmp_path, 5_000)
    node.second(node.measured)
    tree.break_zone("intel-rapl:0")
    with pytest.raises(SourceError):
        node.second(node.measured)
    tree.mend_zone("intel-rapl:0", 5_300)
    node.second(node.measured)
    assert node.line.totals.energy_j == pytest.approx(300)
