"""Powercap tree in the kernel's layout: flat links in class/powercap to zones nested in
devices/virtual.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

RANGE_UJ = 262_143_328_850
"""Range of a Xeon: 2^32 units of 61 uJ."""


@dataclass
class Powercap:
    root: Path
    range_uj: dict[str, int] = field(default_factory=dict)

    def zone(self, entry: str, name: str, energy_j: float = 0.0, range_uj: int = RANGE_UJ) -> None:
        """Create a zone with the kernel's entry name: `intel-rapl:0`, `intel-rapl:0:1`,
        `intel-rapl-mmio:0`.
        """
        control, *numbers = entry.split(":")
        folder = self.root / "devices/virtual/powercap" / control
        for depth in range(len(numbers)):
            folder /= ":".join([control, *numbers[: depth + 1]])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(name + "\n")
        (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
        (folder / "energy_uj").write_text(f"{round(energy_j * 1e6)}\n")
        link = self.root / "class/powercap" / entry
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(folder, link.parent))
        if not (link.parent / control).exists():
            (link.parent / control).symlink_to(
                os.path.relpath(folder.parents[len(numbers) - 1], link.parent)
            )
        self.range_uj[entry] = range_uj

    def energy_file(self, entry: str) -> Path:
        return self.root / "class/powercap" / entry / "energy_uj"

    def tick(self, joules: float, *entries: str) -> None:
        """Add to the counters, which wrap at their range as the registers do."""
        for entry in entries or tuple(self.range_uj):
            shown_uj = int(self.energy_file(entry).read_text())
            self._show(entry, (shown_uj + round(joules * 1e6)) % self.range_uj[entry])

    def set(self, entry: str, joules: float) -> None:
        self._show(entry, round(joules * 1e6))

    def _show(self, entry: str, energy_uj: int) -> None:
        """Write the value atomically, as sysfs does: concurrent readers get the old or the new
        value.
        """
        file = self.energy_file(entry)
        unseen = file.with_name("energy_uj.new")
        unseen.write_text(f"{energy_uj}\n")
        shutil.copymode(file, unseen)
        unseen.replace(file)

    def break_zone(self, entry: str) -> None:
        """Make reads of the zone fail with an error other than missing permission."""
        file = self.energy_file(entry)
        file.unlink()
        file.mkdir()

    def mend_zone(self, entry: str, joules: float) -> None:
        self.energy_file(entry).rmdir()
        self.energy_file(entry).touch()
        self.set(entry, joules)

    def forbid(self, *entries: str) -> None:
        """Let only root read the zones, as since Linux 5.10."""
        for entry in entries or tuple(self.range_uj):
            self.energy_file(entry).chmod(0o400)

    def permit(self, *entries: str) -> None:
        for entry in entries or tuple(self.range_uj):
            self.energy_file(entry).chmod(0o444)

    def remove(self, entry: str) -> None:
        """Remove the zone, as unloading its module does."""
        link = self.root / "class/powercap" / entry
        shutil.rmtree(link.resolve(strict=True))
        link.unlink()


def intel_two_packages(root: Path) -> Powercap:
    """Create two sockets with core and dram, psys, and the MMIO duplicates of the packages."""
    tree = Powercap(root)
    tree.zone("intel-rapl:0", "package-0", 1_000)
    tree.zone("intel-rapl:0:0", "core", 600)
    tree.zone("intel-rapl:0:1", "dram", 100)
    tree.zone("intel-rapl:1", "package-1", 2_000)
    tree.zone("intel-rapl:1:0", "core", 1_200)
    tree.zone("intel-rapl:1:1", "dram", 200)
    tree.zone("intel-rapl:2", "psys", 5_000)
    tree.zone("intel-rapl-mmio:0", "package-0", 71)
    tree.zone("intel-rapl-mmio:1", "package-1", 72)
    return tree


def amd(root: Path) -> Powercap:
    tree = Powercap(root)
    tree.zone("intel-rapl:0", "package-0", 300, range_uj=65_532_610_987)
    tree.zone("intel-rapl:0:0", "core", 40, range_uj=65_532_610_987)
    return tree


def mirrored_dies(root: Path) -> Powercap:
    """Create a Threadripper 1950X: one zone per die, both with the socket's counter."""
    tree = Powercap(root)
    tree.zone("intel-rapl:0", "package-0-die-0", 68_000)
    tree.zone("intel-rapl:1", "package-0-die-1", 68_000)
    return tree


def distinct_dies(root: Path) -> Powercap:
    """Create a Cascade Lake AP, whose dies have separate counters."""
    tree = Powercap(root)
    tree.zone("intel-rapl:0", "package-0-die-0", 10_000)
    tree.zone("intel-rapl:1", "package-0-die-1", 12_500)
    return tree
