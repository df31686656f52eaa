"""Energy PMUs of the kernel: their folders in sysfs, and a fake of opening their counters.

`FakeKernel.open_event` gives the read end of a pipe, into which each `draw` writes the count as the
kernel would give it: eight bytes to a read. A reader that asks twice between two draws gets EAGAIN,
and so is found out.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SCALE = "2.3283064365386962890625e-10"
UNITS_PER_J = 2**32
CODES = {
    "energy-cores": 1,
    "energy-pkg": 2,
    "energy-ram": 3,
    "energy-gpu": 4,
    "energy-psys": 5,
    "energy-core": 1,
}


def pmu(root: Path, name: str, pmu_type: int, cpumask: str, events: Iterable[str]) -> Path:
    folder = root / "bus/event_source/devices" / name
    (folder / "events").mkdir(parents=True)
    (folder / "type").write_text(f"{pmu_type}\n")
    (folder / "cpumask").write_text(f"{cpumask}\n")
    for event in events:
        (folder / "events" / event).write_text(f"event=0x{CODES[event]:02x}\n")
        (folder / "events" / f"{event}.scale").write_text(f"{SCALE}\n")
        (folder / "events" / f"{event}.unit").write_text("Joules\n")
    return folder


def cpu(root: Path, number: int, package: int, die: int = 0) -> None:
    topology = root / f"devices/system/cpu/cpu{number}/topology"
    topology.mkdir(parents=True)
    (topology / "physical_package_id").write_text(f"{package}\n")
    (topology / "die_id").write_text(f"{die}\n")


def intel_two_packages(root: Path) -> None:
    """Create two Xeons with 28 CPUs each."""
    pmu(root, "power", 21, "0,28", ["energy-pkg", "energy-cores", "energy-ram"])
    cpu(root, 0, 0)
    cpu(root, 28, 1)


def amd(root: Path, cores: int = 4) -> None:
    """Create an EPYC since Linux 6.14: the package in one PMU, the cores in another."""
    pmu(root, "power", 9, "0", ["energy-pkg"])
    pmu(root, "power_core", 10, f"0-{cores - 1}", ["energy-core"])
    for number in range(cores):
        cpu(root, number, 0)


Key = tuple[int, int, int]
"""PMU type, event, CPU."""


@dataclass
class FakeKernel:
    """Kernel that opens counters, or fails with errno `refuse` where that is not 0."""

    refuse: int = 0
    opened: list[Key] = field(default_factory=list)
    _drawn_j: dict[Key, float] = field(default_factory=dict)
    _pipes: dict[int, tuple[int, Key, float]] = field(default_factory=dict)

    def open_event(self, pmu_type: int, config: int, cpu: int) -> int:
        if self.refuse:
            raise OSError(self.refuse, os.strerror(self.refuse))
        key = (pmu_type, config, cpu)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.opened.append(key)
        self._pipes[writing] = (reading, key, self._drawn_j.setdefault(key, 0.0))
        os.write(writing, struct.pack("=Q", 0))
        return reading

    def draw(self, joules: dict[Key, float]) -> None:
        """Add to the registers, and make each open counter readable once more."""
        for key, more_j in joules.items():
            self._drawn_j[key] = self._drawn_j.get(key, 0.0) + more_j
        for writing, (_, key, origin_j) in list(self._pipes.items()):
            count = round((self._drawn_j[key] - origin_j) * UNITS_PER_J)
            try:
                os.write(writing, struct.pack("=Q", count))
            except BrokenPipeError:  # the reader has closed the pipe
                self._forget(writing)

    def give_up(self, key: Key) -> None:
        """Make the counter return no data, as an event in the error state does."""
        for writing, (_, other, _) in list(self._pipes.items()):
            if other == key:
                self._forget(writing)

    def close(self) -> None:
        for writing in list(self._pipes):
            self._forget(writing)

    def _forget(self, writing: int) -> None:
        os.close(writing)
        del self._pipes[writing]
