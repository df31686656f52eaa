"""The kernel's powercap tree: which RAPL zones there are, and where their counters stand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from exporter.model import DeviceKind

_MOST_UJ = 2**64

_ENTRY = re.compile(r"(intel-rapl(?:-mmio)?):([0-9a-f]+)(?::([0-9a-f]+))?")  # the kernel numbers zones with %x
_PACKAGE = re.compile(r"package-([0-9]{1,6})(?:-die-([0-9]{1,6}))?")
_PSYS = re.compile(r"psys(?:-([0-9]{1,6}))?")
_INNER: dict[str, DeviceKind] = {"core": "core", "uncore": "uncore", "dram": "dram"}


@dataclass(frozen=True, slots=True)
class Zone:
    """One zone as the kernel shows it. `interface` is `intel-rapl` (MSR or TPMI) or `intel-rapl-mmio`."""

    kind: DeviceKind
    package: str
    die: int
    interface: str
    energy_file: str
    range_j: float | None


def zones(powercap: Path) -> list[Zone]:
    """Every zone below `powercap`; none where there is no RAPL. Entries that cannot be understood are left out."""
    try:
        entries = [match for entry in powercap.iterdir() if (match := _ENTRY.fullmatch(entry.name))]
    except OSError:
        return []
    entries.sort(key=lambda match: (match[1], int(match[2], 16), int(match[3] or "-1", 16)))
    found: list[Zone] = []
    parents: dict[tuple[str, str], tuple[str, int]] = {}
    taken: set[tuple[str, DeviceKind, str, int]] = set()
    for entry in entries:
        folder = powercap / entry[0]
        try:
            kind, package, die = _identity((folder / "name").read_text().strip(), parents.get((entry[1], entry[2])))
        except (OSError, ValueError):
            continue
        while (entry[1], kind, package, die) in taken:  # `package-0` twice: further dies under one name
            die += 1
        taken.add((entry[1], kind, package, die))
        if entry[3] is None:
            parents[entry[1], entry[2]] = (package, die)
        found.append(Zone(kind, package, die, entry[1], str(folder / "energy_uj"), _range_of(folder)))
    return found


def _identity(name: str, parent: tuple[str, int] | None) -> tuple[DeviceKind, str, int]:
    """Kind, package, die. Raises ValueError for a zone that is none of ours."""
    if package := _PACKAGE.fullmatch(name):
        return "package", package[1], int(package[2] or 0)
    if psys := _PSYS.fullmatch(name):
        return "psys", psys[1] or "0", 0
    if name in _INNER and parent is not None:
        return _INNER[name], *parent
    raise ValueError(name)


def _range_of(folder: Path) -> float | None:
    try:
        return microjoules((folder / "max_energy_range_uj").read_bytes()) / 1e6 or None
    except (OSError, ValueError):
        return None


def microjoules(raw: bytes) -> int:
    """Raises ValueError for what no register shows."""
    value = int(raw)
    if not 0 <= value < _MOST_UJ:
        raise ValueError(raw)
    return value
