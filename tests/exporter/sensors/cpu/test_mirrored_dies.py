"""Packages of several dies: mirrored and distinct counters."""

from __future__ import annotations

from itertools import count

from tests.exporter.sensors.cpu.powercap_batch import packages
from tests.fakes import powercap
from wattline.contract.metrics import CPU_ENERGY_METHOD
from wattline_exporter.sensors.cpu.mirrored_dies import same_counter
from wattline_exporter.sensors.cpu.powercap import RaplSource
from wattline_exporter.sensors.readings import Device, Poll, Reading


def test_dies_with_one_register_are_counted_once(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    source = RaplSource(tmp_path)
    for step in range(5):
        batch = source.read()
        assert packages(batch) == {"0": 68_000 + 68 * step}  # 68 W, not 137 W
        tree.tick(68)
    assert batch.readings == (Reading(CPU_ENERGY_METHOD, ("0", "rapl"), 1),)


def test_dies_mirror_updated_between_reads_is_detected(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    ticks = count()
    source = RaplSource(
        tmp_path, clock=lambda: next(ticks) * 0.1
    )  # the process was delayed: 0.1 s between reads
    tree.tick(30, "intel-rapl:1")  # 100 W for the 0.3 s between the two reads
    assert packages(source.read()) == {"0": 68_000}


def test_dies_mirror_after_wrap_is_detected(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    tree.set("intel-rapl:0", powercap.RANGE_UJ / 1e6 - 0.1)
    tree.set("intel-rapl:1", 0.1)
    assert set(packages(RaplSource(tmp_path).read())) == {"0"}


def test_dies_four_mirrors_on_two_sockets_are_two_packages(tmp_path):
    tree = powercap.Powercap(tmp_path)
    for number in range(8):
        package = number // 4
        tree.zone(
            f"intel-rapl:{number:x}", f"package-{package}-die-{number}", 5_000 + 3_000 * package
        )
    assert packages(RaplSource(tmp_path).read()) == {"0": 5_000, "1": 8_000}


def test_dies_with_distinct_registers_are_all_counted(tmp_path):
    tree = powercap.distinct_dies(tmp_path)
    source = RaplSource(tmp_path)
    assert packages(source.read()) == {"0": 10_000, "0-die-1": 12_500}
    tree.tick(100)
    assert packages(source.read()) == {"0": 10_100, "0-die-1": 12_600}


def test_dies_distinct_that_cross_stay_distinct(tmp_path):
    tree = powercap.distinct_dies(tmp_path)
    source = RaplSource(tmp_path)
    source.read()
    tree.set("intel-rapl:0", 12_500)
    assert packages(source.read()) == {"0": 12_500, "0-die-1": 12_500}


def test_dies_initially_equal_are_counted_once_they_differ(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    source = RaplSource(tmp_path)
    assert packages(source.read()) == {"0": 68_000}
    tree.tick(50, "intel-rapl:0")
    tree.tick(90, "intel-rapl:1")
    assert packages(source.read()) == {"0": 68_050, "0-die-1": 68_090}


def test_dies_mirror_replaces_an_unreadable_die(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    source = RaplSource(tmp_path)
    source.read()
    tree.break_zone("intel-rapl:0")
    tree.tick(68, "intel-rapl:1")
    batch = source.read()
    assert packages(batch) == {"0": 68_068}
    assert len(batch.problems) == 1


def test_dies_package_shown_twice_is_counted_once(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0", 900)
    tree.zone("intel-rapl:1", "package-0", 900)
    assert packages(RaplSource(tmp_path).read()) == {"0": 900}


def test_dies_two_registers_with_one_name_are_counted(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0", 900)
    tree.zone("intel-rapl:1", "package-0", 950)
    assert packages(RaplSource(tmp_path).read()) == {"0": 900, "0-die-1": 950}


def test_same_counter_depends_on_the_possible_energy():
    def poll(at_s: float, counter_j: float) -> Poll:
        return Poll(
            Device("package", "0"), at_s, at_s, counter_j=counter_j, counter_range_j=65_532.0
        )

    assert same_counter(poll(0.0, 100.0), poll(0.0, 102.0))
    assert not same_counter(poll(0.0, 100.0), poll(0.0, 102.1))
    assert same_counter(poll(0.0, 100.0), poll(1.0, 1_100.0))
    assert not same_counter(poll(0.0, 100.0), poll(1.0, 1_200.0))
