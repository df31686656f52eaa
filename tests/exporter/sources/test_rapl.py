from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from exporter.contract.metrics import CPU_ENERGY_METHOD
from exporter.model import Reading, SourceError
from exporter.sources.cpu_energy.powercap import zones
from exporter.sources.cpu_energy.powercap_source import RaplSource
from tests.exporter.sources.nobody import as_nobody
from tests.exporter.sources.rapl_batch import Clock, joules, packages
from tests.fakes import powercap

NOBODY = 65_534


def test_each_zone_of_two_intel_packages_is_a_device_of_its_own(tmp_path):
    powercap.intel_two_packages(tmp_path)
    assert joules(RaplSource(tmp_path).read()) == {
        ("package", "0"): 1_000,
        ("package", "1"): 2_000,
        ("core", "0"): 600,
        ("core", "1"): 1_200,
        ("dram", "0"): 100,
        ("dram", "1"): 200,
        ("psys", "0"): 5_000,
    }


def test_amd_shows_package_and_core_under_the_same_folder(tmp_path):
    powercap.amd(tmp_path)
    assert joules(RaplSource(tmp_path).read()) == {("package", "0"): 300, ("core", "0"): 40}


def test_the_counter_and_its_range_go_out_raw_in_joules(tmp_path):
    tree = powercap.amd(tmp_path)
    tree.set("intel-rapl:0", 65_532.0)
    source = RaplSource(tmp_path)
    assert packages(source.read()) == {"0": 65_532.0}
    tree.tick(1.0, "intel-rapl:0")  # 65,533.000000 J - 65,532.610987 J = 0.389013 J past the wrap
    batch = source.read()
    assert packages(batch) == {"0": pytest.approx(0.389013)}
    assert {poll.counter_range_j for poll in batch.polls} == {65_532.610987}


def test_the_read_lies_between_the_two_times_of_its_poll(tmp_path):
    powercap.amd(tmp_path)
    ticks = count(100)
    batch = RaplSource(tmp_path, clock=lambda: float(next(ticks))).read()
    assert all(poll.after_s - poll.before_s == 1.0 for poll in batch.polls)


def test_only_packages_say_where_their_energy_comes_from(tmp_path):
    powercap.intel_two_packages(tmp_path)
    assert RaplSource(tmp_path).read().readings == (
        Reading(CPU_ENERGY_METHOD, ("0", "rapl"), 1),
        Reading(CPU_ENERGY_METHOD, ("1", "rapl"), 1),
    )


def test_mmio_is_read_where_there_is_no_msr(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl-mmio:0", "package-0", 71)
    assert packages(RaplSource(tmp_path).read()) == {"0": 71}


def test_mmio_stands_in_for_an_msr_that_cannot_be_read(tmp_path):
    tree = powercap.intel_two_packages(tmp_path)
    tree.break_zone("intel-rapl:1")
    batch = RaplSource(tmp_path).read()
    assert packages(batch) == {"0": 1_000, "1": 72}
    assert batch.problems == ()


def test_a_package_never_switches_between_msr_and_mmio_while_it_is_read(tmp_path):
    tree, clock = powercap.intel_two_packages(tmp_path), Clock()
    source = RaplSource(tmp_path, clock)
    source.read()
    tree.break_zone("intel-rapl:1")
    clock.now_s += 61
    batch = source.read()
    assert packages(batch) == {"0": 1_000}
    assert len(batch.problems) == 1
    tree.mend_zone("intel-rapl:1", 2_100)
    assert packages(source.read()) == {"0": 1_000, "1": 2_100}


def test_zones_are_numbered_in_hexadecimal(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:c", "package-12", 12)
    tree.zone("intel-rapl:c:a", "dram", 3)
    assert joules(RaplSource(tmp_path).read()) == {("package", "12"): 12, ("dram", "12"): 3}


def test_psys_of_a_second_platform_has_its_own_number(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:0", "psys", 7)
    tree.zone("intel-rapl:1", "psys-1", 8)
    assert joules(RaplSource(tmp_path).read()) == {("psys", "0"): 7, ("psys", "1"): 8}


def test_a_zone_of_a_kind_unknown_to_us_is_left_out(tmp_path):
    tree = powercap.amd(tmp_path)
    tree.zone("intel-rapl:0:1", "npu", 1)
    assert ("core", "0") in joules(RaplSource(tmp_path).read())
    assert len(zones(tmp_path / "class/powercap")) == 2


def test_one_unreadable_zone_does_not_hide_the_others(tmp_path):
    tree = powercap.intel_two_packages(tmp_path)
    tree.break_zone("intel-rapl:0:1")
    batch = RaplSource(tmp_path).read()
    assert ("dram", "0") not in joules(batch)
    assert len(batch.polls) == 6
    (problem,) = batch.problems
    assert problem.startswith("cannot read energy_uj of 1 of 7 RAPL zones (Is a directory): see: cat ")


def test_garbage_in_a_counter_is_a_problem_and_not_a_reading(tmp_path):
    tree = powercap.amd(tmp_path)
    tree.energy_file("intel-rapl:0").write_text("\n")
    batch = RaplSource(tmp_path).read()
    assert joules(batch) == {("core", "0"): 40}
    assert "1 of 2 RAPL zones (not a number)" in batch.problems[0]


def test_zones_without_permission_are_told_in_one_line_with_what_to_type(open_folder):
    tree = powercap.intel_two_packages(open_folder)
    for entry in ("intel-rapl:0:1", "intel-rapl:1:1"):
        tree.energy_file(entry).chmod(0o000)
    with as_nobody():
        batch = RaplSource(open_folder).read()
    files = f"{open_folder}/class/powercap/intel-rapl*:*/energy_uj"
    assert len(batch.polls) == 5
    (problem,) = batch.problems
    assert problem == (
        "cannot read energy_uj of 2 of 7 RAPL zones (permission denied, root-only since Linux 5.10): "
        f"run as root, or: sudo chgrp wattline {files} && sudo chmod g+r {files}"
    )


def test_where_no_zone_may_be_read_the_source_fails_with_what_to_type(open_folder):
    tree = powercap.amd(open_folder)
    for entry in ("intel-rapl:0", "intel-rapl:0:0"):
        tree.energy_file(entry).chmod(0o000)
    with as_nobody(), pytest.raises(SourceError) as caught:
        RaplSource(open_folder).read()
    assert caught.value.cause == (
        "cannot read energy_uj of 2 of 2 RAPL zones (permission denied, root-only since Linux 5.10)"
    )
    assert caught.value.remedy.startswith("run as root, or: sudo chgrp wattline ")


def test_permission_given_later_is_seen_at_the_next_read(open_folder):
    tree = powercap.amd(open_folder)
    tree.energy_file("intel-rapl:0").chmod(0o000)
    source = RaplSource(open_folder)
    with as_nobody():
        assert packages(source.read()) == {}
    tree.energy_file("intel-rapl:0").chmod(0o444)
    with as_nobody():
        batch = source.read()
    assert packages(batch) == {"0": 300}
    assert batch.problems == ()


def test_a_machine_without_powercap_says_what_to_do(tmp_path):
    with pytest.raises(SourceError) as caught:
        RaplSource(tmp_path).read()
    assert str(caught.value) == (
        "no RAPL on this machine (a VM, or the intel_rapl_msr module is not loaded); sudo modprobe intel_rapl_msr"
    )


def test_an_empty_powercap_folder_is_no_rapl_either(tmp_path):
    (tmp_path / "class/powercap").mkdir(parents=True)
    with pytest.raises(SourceError, match="no RAPL on this machine"):
        RaplSource(tmp_path).read()


def test_zones_masked_by_a_container_runtime_are_told_apart_from_no_rapl(tmp_path):
    powercap.amd(tmp_path)
    shutil.rmtree(tmp_path / "devices")
    with pytest.raises(SourceError, match="container runtimes mask them"):
        RaplSource(tmp_path).read()


def test_rapl_that_comes_after_the_start_is_found_at_the_next_read(tmp_path):
    source = RaplSource(tmp_path, Clock())
    with pytest.raises(SourceError):
        source.read()
    powercap.amd(tmp_path)
    assert packages(source.read()) == {"0": 300}


def test_a_zone_that_goes_is_named_and_breaks_no_other(tmp_path):
    tree = powercap.intel_two_packages(tmp_path)
    source = RaplSource(tmp_path, Clock())
    source.read()
    for entry in ("intel-rapl:1:0", "intel-rapl:1:1", "intel-rapl:1"):
        tree.remove(entry)
    tree.remove("intel-rapl-mmio:1")
    batch = source.read()
    assert set(joules(batch)) == {("package", "0"), ("core", "0"), ("dram", "0"), ("psys", "0")}
    assert batch.problems == (
        "RAPL no longer shows core 1, dram 1, package 1: was a CPU taken offline, or intel_rapl_msr unloaded?",
    )


def test_all_zones_gone_is_no_rapl(tmp_path):
    powercap.amd(tmp_path)
    source = RaplSource(tmp_path)
    source.read()
    shutil.rmtree(tmp_path / "class")
    with pytest.raises(SourceError, match="no RAPL on this machine"):
        source.read()


def test_a_zone_that_comes_later_is_found_within_a_minute(tmp_path):
    tree, clock = powercap.amd(tmp_path), Clock()
    source = RaplSource(tmp_path, clock)
    source.read()
    tree.zone("intel-rapl:1", "package-1", 77)
    clock.now_s += 59
    assert packages(source.read()) == {"0": 300}
    clock.now_s += 2
    assert packages(source.read()) == {"0": 300, "1": 77}


def test_reading_keeps_no_file_open(tmp_path):
    powercap.intel_two_packages(tmp_path)
    source = RaplSource(tmp_path)
    source.read()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        source.read()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
