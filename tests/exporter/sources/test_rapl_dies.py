"""Packages of several dies: counters that mirror one another, and those that are their own."""

from __future__ import annotations

from itertools import count

from exporter.contract.metrics import CPU_ENERGY_METHOD
from exporter.model import Device, Poll, Reading
from exporter.sources.cpu_energy.mirrored_dies import same_counter
from exporter.sources.cpu_energy.powercap_source import RaplSource
from tests.exporter.sources.rapl_batch import packages
from tests.fakes import powercap


def test_dies_that_mirror_one_counter_are_counted_once(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    source = RaplSource(tmp_path)
    for step in range(5):
        batch = source.read()
        assert packages(batch) == {"0": 68_000 + 68 * step}  # 68 W, not 137 W
        tree.tick(68)
    assert batch.readings == (Reading(CPU_ENERGY_METHOD, ("0", "rapl"), 1),)


def test_a_mirror_that_moved_on_between_the_two_reads_is_still_a_mirror(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    ticks = count()
    source = RaplSource(tmp_path, clock=lambda: next(ticks) * 0.1)  # the process was put aside: 0.1 s from look to look
    tree.tick(30, "intel-rapl:1")  # 100 W for the 0.3 s between the two reads
    assert packages(source.read()) == {"0": 68_000}


def test_a_mirror_read_just_after_the_wrap_is_still_a_mirror(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    tree.set("intel-rapl:0", powercap.RANGE_UJ / 1e6 - 0.1)
    tree.set("intel-rapl:1", 0.1)
    assert set(packages(RaplSource(tmp_path).read())) == {"0"}


def test_four_mirrors_on_each_of_two_sockets_are_two_packages(tmp_path):
    tree = powercap.Powercap(tmp_path)
    for number in range(8):
        package = number // 4
        tree.zone(f"intel-rapl:{number:x}", f"package-{package}-die-{number}", 5_000 + 3_000 * package)
    assert packages(RaplSource(tmp_path).read()) == {"0": 5_000, "1": 8_000}


def test_dies_with_counters_of_their_own_are_both_counted(tmp_path):
    tree = powercap.distinct_dies(tmp_path)
    source = RaplSource(tmp_path)
    assert packages(source.read()) == {"0": 10_000, "0-die-1": 12_500}
    tree.tick(100)
    assert packages(source.read()) == {"0": 10_100, "0-die-1": 12_600}


def test_distinct_dies_that_cross_stay_distinct(tmp_path):
    tree = powercap.distinct_dies(tmp_path)
    source = RaplSource(tmp_path)
    source.read()
    tree.set("intel-rapl:0", 12_500)
    assert packages(source.read()) == {"0": 12_500, "0-die-1": 12_500}


def test_dies_that_start_out_equal_are_counted_both_once_they_part(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    source = RaplSource(tmp_path)
    assert packages(source.read()) == {"0": 68_000}
    tree.tick(50, "intel-rapl:0")
    tree.tick(90, "intel-rapl:1")
    assert packages(source.read()) == {"0": 68_050, "0-die-1": 68_090}


def test_a_mirror_stands_in_for_the_die_that_cannot_be_read_now(tmp_path):
    tree = powercap.mirrored_dies(tmp_path)
    source = RaplSource(tmp_path)
    source.read()
    tree.break_zone("intel-rapl:0")
    tree.tick(68, "intel-rapl:1")
    batch = source.read()
    assert packages(batch) == {"0": 68_068}
    assert len(batch.problems) == 1


def test_a_package_that_is_shown_twice_under_one_name_is_counted_once(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0", 900)
    tree.zone("intel-rapl:1", "package-0", 900)
    assert packages(RaplSource(tmp_path).read()) == {"0": 900}


def test_two_counters_under_one_name_are_both_counted(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:0", "package-0", 900)
    tree.zone("intel-rapl:1", "package-0", 950)
    assert packages(RaplSource(tmp_path).read()) == {"0": 900, "0-die-1": 950}


def test_counters_are_one_only_as_far_as_power_allows():
    def poll(at_s: float, counter_j: float) -> Poll:
        return Poll(Device("package", "0"), at_s, at_s, counter_j=counter_j, counter_range_j=65_532.0)

    assert same_counter(poll(0.0, 100.0), poll(0.0, 102.0))
    assert not same_counter(poll(0.0, 100.0), poll(0.0, 102.1))
    assert same_counter(poll(0.0, 100.0), poll(1.0, 1_100.0))
    assert not same_counter(poll(0.0, 100.0), poll(1.0, 1_200.0))
