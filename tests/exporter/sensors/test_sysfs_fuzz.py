"""Arbitrary bytes in sysfs files: no crash, no negative or implausible energy."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import hwmon, power_pmu, powercap
from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.sensors.board import GraceSocketSource, HwmonSource
from wattline_exporter.sensors.cpu.perf import PerfSource
from wattline_exporter.sensors.cpu.powercap import RaplSource
from wattline_exporter.sensors.readings import Batch, Device, Source, SourceError

MAX_W = 100_000.0
"""Upper bound for a board sensor; that of a counter is lower."""

NASTY = [
    b"",
    b"\n",
    b"\0",
    b"-1",
    b"0",
    b"nan",
    b"inf",
    b"1e400",
    b"1_0",
    b"+7\n",
    b"9" * 5_000,
    b"\xff\xfe",
    "٣".encode(),
    b"package-0",
    b"package-0-die-1",
    b"psys",
    b"core",
    b"0-4294967295",
    b"0,0-1,",
    b"event=0x02,umask=0x1",
    b"2.3283064365386962890625e-10",
    b"Grace Power Socket 0",
]
contents = (
    st.binary(max_size=40)
    | st.sampled_from(NASTY)
    | st.integers(-(2**70), 2**70).map(lambda n: str(n).encode())
)
fuzzed = settings(max_examples=60, deadline=None)


class SourceMeters:
    """Energy meters of a source, and their clock."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.meters: dict[Device, DeviceMeter] = {}

    def clock(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def read(self, source: Source) -> None:
        """Advance the clock by a second."""
        self.now_s += 1.0
        batch = Batch()
        with contextlib.suppress(SourceError):
            batch = source.read()
        for problem in batch.problems:
            assert problem
        for reading in batch.readings:
            assert math.isfinite(reading.value)
            assert all(label.isprintable() for label in reading.labels)
        for poll in batch.polls:
            assert 0 <= (poll.counter_j if poll.instant_w is None else poll.instant_w) < 2**64
            added_j = self.meters.setdefault(poll.device, DeviceMeter(update_s=0.001)).push(poll)
            assert math.isfinite(added_j)
            assert 0 <= added_j <= MAX_W * 100

    def seconds(self, source: Source, count: int) -> None:
        for _ in range(count):
            self.read(source)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@fuzzed
@given(st.lists(contents, min_size=1, max_size=6), contents, contents)
def test_powercap_any_bytes_are_handled(energies, name, energy_range):
    with folder() as root:
        tree = powercap.intel_two_packages(root)
        zone = tree.energy_file("intel-rapl:0").parent
        source_meters = SourceMeters()
        source = RaplSource(root, source_meters.clock, lambda: 0.0)
        (zone / "max_energy_range_uj").write_bytes(energy_range)
        for energy in energies:
            (zone / "energy_uj").write_bytes(energy)
            source_meters.read(source)
        (zone / "name").write_bytes(name)
        source_meters.now_s += 61
        source_meters.seconds(source, 3)

        # the zones of the other package are always read
        assert source_meters.meters[Device("package", "1")].latest is not None


@fuzzed
@given(st.lists(st.integers(0, 2**64), min_size=2, max_size=10), st.integers(0, 2**64))
def test_powercap_any_counters_add_at_most_the_possible_energy(energies_uj, range_uj):
    with folder() as root:
        tree = powercap.Powercap(root)
        tree.zone("intel-rapl:0", "package-0", range_uj=range_uj)
        source_meters = SourceMeters()
        source = RaplSource(root, source_meters.clock, lambda: 0.0)
        for energy_uj in energies_uj:
            tree.energy_file("intel-rapl:0").write_text(str(energy_uj))
            source_meters.read(source)
        for energy in source_meters.meters.values():
            assert (
                0
                <= energy.totals.energy_j
                <= 4_000 * (source_meters.now_s - 1_000 + len(energies_uj))
            )


@fuzzed
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "type",
                "cpumask",
                "events/energy-pkg",
                "events/energy-pkg.scale",
                "events/energy-pkg.unit",
            ]
        ),
        contents,
        min_size=1,
    ),
    contents,
    contents,
    st.lists(st.binary(max_size=8), min_size=1, max_size=5),
)
def test_perf_any_bytes_are_handled(files, package, die, counts):
    with folder() as root:
        power_pmu.intel_two_packages(root)
        for name, content in files.items():
            (root / "bus/event_source/devices/power" / name).write_bytes(content)
        topology = root / "devices/system/cpu/cpu0/topology"
        (topology / "physical_package_id").write_bytes(package)
        (topology / "die_id").write_bytes(die)
        counter = root / "counter"
        counter.write_bytes(b"".join(counts))

        def open_counter(pmu_type: int, config: int, cpu: int) -> int:
            assert 0 <= pmu_type < 2**31
            assert 0 <= config < 256
            assert 0 <= cpu < 65_536
            return os.open(counter, os.O_RDONLY)

        source_meters = SourceMeters()
        source = PerfSource(root, root, source_meters.clock, open_counter)
        source_meters.seconds(source, 4)
        source.close()


@fuzzed
@given(
    st.dictionaries(
        st.sampled_from(["power1_average", "power1_oem_info", "power1_label"]), contents, min_size=1
    ),
    st.dictionaries(
        st.sampled_from(["in1_input", "curr1_input", "in1_label", "in1_enable"]),
        contents,
        min_size=1,
    ),
    contents,
)
def test_hwmon_any_bytes_are_handled(meter, rail, name):
    with folder() as root:
        places = hwmon.grace_hopper(root)
        for file, content in meter.items():
            (places[1] / file).write_bytes(content)
        rails = hwmon.chip(
            root, 9, "ina3221", "i2c/1-0040", {"in1_input": "5000", "curr1_input": "1000"}
        )
        for file, content in rail.items():
            (rails / file).write_bytes(content)
        (root / "class/hwmon/hwmon3/name").write_bytes(name)
        source_meters = SourceMeters()
        for source in (
            HwmonSource(root, source_meters.clock),
            GraceSocketSource(root, source_meters.clock),
        ):
            source_meters.seconds(source, 3)

        assert (
            Device("hwmon", "power_meter-ACPI000D:00/Module Power Socket 0") in source_meters.meters
        )
