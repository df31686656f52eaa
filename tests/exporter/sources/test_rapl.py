from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from exporter.contract.metrics import CPU_ENERGY_METHOD
from exporter.dies import same_counter
from exporter.powercap import zones
from exporter.reading import Batch, Device, Poll, Reading, SourceError
from exporter.sources.rapl import RaplSource
from tests.exporter.sources.nobody import as_nobody
from tests.fakes import powercap

NOBODY = 65_534


def joules(batch: Batch) -> dict[tuple[str, str], float | None]:
    return {(poll.device.kind, poll.device.id): poll.counter_j for poll in batch.polls}


def packages(batch: Batch) -> dict[str, float | None]:
    return {poll.device.id: poll.counter_j for poll in batch.polls if poll.device.kind == "package"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


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
