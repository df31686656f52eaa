from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from tests.exporter.sensors.cpu.powercap_batch import Clock, joules, packages
from tests.fakes import powercap
from tests.unprivileged import unprivileged
from wattline.contract.metrics import CPU_ENERGY_METHOD
from wattline_exporter.sensors.cpu.powercap import RaplSource, find_zones
from wattline_exporter.sensors.readings import Reading, SourceError


def test_powercap_zones_of_two_packages_are_separate_devices(tmp_path):
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


def test_powercap_amd_package_and_core_are_found(tmp_path):
    powercap.amd(tmp_path)
    assert joules(RaplSource(tmp_path).read()) == {("package", "0"): 300, ("core", "0"): 40}


def test_powercap_counter_and_range_are_in_joules(tmp_path):
    tree = powercap.amd(tmp_path)
    tree.set("intel-rapl:0", 65_532.0)
    source = RaplSource(tmp_path)
    assert packages(source.read()) == {"0": 65_532.0}
    tree.tick(1.0, "intel-rapl:0")  # 65,533.000000 J - 65,532.610987 J = 0.389013 J past the wrap
    batch = source.read()
    assert packages(batch) == {"0": pytest.approx(0.389013)}
    assert {poll.counter_range_j for poll in batch.polls} == {65_532.610987}


def test_powercap_poll_times_enclose_the_read(tmp_path):
    powercap.amd(tmp_path)
    ticks = count(100)
    batch = RaplSource(tmp_path, clock=lambda: float(next(ticks))).read()
    assert all(poll.after_s - poll.before_s == 1.0 for poll in batch.polls)


def test_powercap_only_packages_have_a_method(tmp_path):
    powercap.intel_two_packages(tmp_path)
    assert RaplSource(tmp_path).read().readings == (
        Reading(CPU_ENERGY_METHOD, ("0", "rapl"), 1),
        Reading(CPU_ENERGY_METHOD, ("1", "rapl"), 1),
    )


def test_powercap_without_msr_reads_mmio(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl-mmio:0", "package-0", 71)
    assert packages(RaplSource(tmp_path).read()) == {"0": 71}


def test_powercap_unreadable_msr_falls_back_to_mmio(tmp_path):
    tree = powercap.intel_two_packages(tmp_path)
    tree.break_zone("intel-rapl:1")
    batch = RaplSource(tmp_path).read()
    assert packages(batch) == {"0": 1_000, "1": 72}
    assert batch.problems == ()


def test_powercap_keeps_its_choice_of_msr_or_mmio(tmp_path):
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


def test_powercap_zone_numbers_are_hexadecimal(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:c", "package-12", 12)
    tree.zone("intel-rapl:c:a", "dram", 3)
    assert joules(RaplSource(tmp_path).read()) == {("package", "12"): 12, ("dram", "12"): 3}


def test_powercap_second_psys_has_its_number(tmp_path):
    tree = powercap.Powercap(tmp_path)
    tree.zone("intel-rapl:0", "psys", 7)
    tree.zone("intel-rapl:1", "psys-1", 8)
    assert joules(RaplSource(tmp_path).read()) == {("psys", "0"): 7, ("psys", "1"): 8}


def test_powercap_unknown_zone_is_skipped(tmp_path):
    tree = powercap.amd(tmp_path)
    tree.zone("intel-rapl:0:1", "npu", 1)
    assert ("core", "0") in joules(RaplSource(tmp_path).read())
    assert len(find_zones(tmp_path / "class/powercap")) == 2


def test_powercap_unreadable_zone_does_not_hide_others(tmp_path):
    tree = powercap.intel_two_packages(tmp_path)
    tree.break_zone("intel-rapl:0:1")
    batch = RaplSource(tmp_path).read()
    assert ("dram", "0") not in joules(batch)
    assert len(batch.polls) == 6
    (problem,) = batch.problems
    assert problem.startswith(
        "cannot read energy_uj of 1 of 7 RAPL zones (Is a directory): see: cat "
    )


def test_powercap_invalid_counter_is_a_problem(tmp_path):
    tree = powercap.amd(tmp_path)
    tree.energy_file("intel-rapl:0").write_text("\n")
    batch = RaplSource(tmp_path).read()
    assert joules(batch) == {("core", "0"): 40}
    assert "1 of 2 RAPL zones (not a number)" in batch.problems[0]


def test_powercap_zones_without_permission_are_one_line(open_folder):
    tree = powercap.intel_two_packages(open_folder)
    for entry in ("intel-rapl:0:1", "intel-rapl:1:1"):
        tree.energy_file(entry).chmod(0o000)
    with unprivileged():
        batch = RaplSource(open_folder).read()
    files = f"{open_folder}/class/powercap/intel-rapl*:*/energy_uj"
    assert len(batch.polls) == 5
    (problem,) = batch.problems
    assert problem == (
        "cannot read energy_uj of 2 of 7 RAPL zones (permission denied, root-only since Linux "
        "5.10): "
        f"run as root, or: sudo chgrp wattline {files} && sudo chmod g+r {files}"
    )


def test_powercap_no_readable_zone_fails_with_remedy(open_folder):
    tree = powercap.amd(open_folder)
    for entry in ("intel-rapl:0", "intel-rapl:0:0"):
        tree.energy_file(entry).chmod(0o000)
    with unprivileged(), pytest.raises(SourceError) as caught:
        RaplSource(open_folder).read()
    assert caught.value.cause == (
        "cannot read energy_uj of 2 of 2 RAPL zones (permission denied, root-only since Linux 5.10)"
    )
    assert caught.value.remedy.startswith("run as root, or: sudo chgrp wattline ")


def test_powercap_later_permission_is_used_at_next_read(open_folder):
    tree = powercap.amd(open_folder)
    tree.energy_file("intel-rapl:0").chmod(0o000)
    source = RaplSource(open_folder)
    with unprivileged():
        assert packages(source.read()) == {}
    tree.energy_file("intel-rapl:0").chmod(0o444)
    with unprivileged():
        batch = source.read()
    assert packages(batch) == {"0": 300}
    assert batch.problems == ()


def test_powercap_missing_fails_with_remedy(tmp_path):
    with pytest.raises(SourceError) as caught:
        RaplSource(tmp_path).read()
    assert str(caught.value) == (
        "no RAPL on this host (a VM, or the module intel_rapl_msr is not loaded); sudo modprobe "
        "intel_rapl_msr"
    )


def test_powercap_empty_folder_fails_like_missing(tmp_path):
    (tmp_path / "class/powercap").mkdir(parents=True)
    with pytest.raises(SourceError, match="no RAPL on this host"):
        RaplSource(tmp_path).read()


def test_powercap_masked_zones_are_reported_as_such(tmp_path):
    powercap.amd(tmp_path)
    shutil.rmtree(tmp_path / "devices")
    with pytest.raises(SourceError, match="container runtimes mask them"):
        RaplSource(tmp_path).read()


def test_powercap_appearing_later_is_found_at_next_read(tmp_path):
    source = RaplSource(tmp_path, Clock())
    with pytest.raises(SourceError):
        source.read()
    powercap.amd(tmp_path)
    assert packages(source.read()) == {"0": 300}


def test_powercap_vanished_zone_is_named_and_others_work(tmp_path):
    tree = powercap.intel_two_packages(tmp_path)
    source = RaplSource(tmp_path, Clock())
    source.read()
    for entry in ("intel-rapl:1:0", "intel-rapl:1:1", "intel-rapl:1"):
        tree.remove(entry)
    tree.remove("intel-rapl-mmio:1")
    batch = source.read()
    assert set(joules(batch)) == {("package", "0"), ("core", "0"), ("dram", "0"), ("psys", "0")}
    assert batch.problems == (
        (
            "RAPL zones missing: core 1, dram 1, package 1; check for offline CPUs, and that "
            "intel_rapl_msr is loaded"
        ),
    )


def test_powercap_all_zones_vanished_fails(tmp_path):
    powercap.amd(tmp_path)
    source = RaplSource(tmp_path)
    source.read()
    shutil.rmtree(tmp_path / "class")
    with pytest.raises(SourceError, match="no RAPL on this host"):
        source.read()


def test_powercap_new_zone_is_found_within_a_minute(tmp_path):
    tree, clock = powercap.amd(tmp_path), Clock()
    source = RaplSource(tmp_path, clock)
    source.read()
    tree.zone("intel-rapl:1", "package-1", 77)
    clock.now_s += 59
    assert packages(source.read()) == {"0": 300}
    clock.now_s += 2
    assert packages(source.read()) == {"0": 300, "1": 77}


def test_powercap_reading_keeps_no_file_open(tmp_path):
    powercap.intel_two_packages(tmp_path)
    source = RaplSource(tmp_path)
    source.read()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        source.read()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
