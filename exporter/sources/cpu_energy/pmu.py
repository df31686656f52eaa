"""The kernel's PMUs of energy: which events there are, and on which CPU of a package each counts.

`power` counts on one CPU of each package, or of each die: energy-pkg, energy-cores (PP0), energy-gpu (PP1), energy-ram
and energy-psys, of which AMD has the first only. Since Linux 6.14 AMD has `power_core` beside it, which counts
energy-core on one CPU of each core; their sum is the zone `core`
(https://github.com/torvalds/linux/blob/master/arch/x86/events/rapl.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from exporter.model import Device, DeviceKind

PER_CORE = "power_core"
PMUS: dict[str, dict[str, DeviceKind]] = {
    "power": {
        "energy-pkg": "package",
        "energy-cores": "core",
        "energy-gpu": "uncore",
        "energy-ram": "dram",
        "energy-psys": "psys",
    },
    PER_CORE: {"energy-core": "core", "energy-cores": "core"},
}
_EVENT = re.compile(r"event=(0x[0-9a-fA-F]{1,2}|[0-9]{1,3})")
_MOST_CPUS = 65_536


class Event(NamedTuple):
    """One counter to open: what it counts and on which CPU."""

    pmu_type: int
    config: int
    scale_j: float
    cpu: int


Layout = dict[Device, tuple[Event, ...]]
"""The events whose sum is a device's energy: one, but for cores that count each for itself."""


def layout(pmus: list[Path], cpus: Path) -> Layout:
    """What there is to open, the dies of a package side by side. What cannot be understood is left out.

    `cpus` is sysfs's folder of CPUs.
    """
    found: dict[Device, tuple[Event, ...]] = {}
    for pmu in pmus:
        places = sorted((*_place(cpus / f"cpu{cpu}/topology"), cpu) for cpu in cpus_of(text_of(pmu / "cpumask")))
        for kind, pmu_type, config, scale_j in _events(pmu):
            if any(device.kind == kind for device in found):
                continue  # by the PMU before, for the package as a whole
            lowest: dict[int, int] = {}
            for package, die, cpu in places:
                event = Event(pmu_type, config, scale_j, cpu)
                whole = pmu.name == PER_CORE or lowest.setdefault(package, die) == die
                device = Device(kind, str(package) if whole else f"{package}-die-{die}")
                if pmu.name == PER_CORE or device not in found:
                    found[device] = (*found.get(device, ()), event)
    return found


def _events(pmu: Path) -> Iterator[tuple[DeviceKind, int, int, float]]:
    """Kind, PMU type, config and joules a count, of each event of energy."""
    type_text = text_of(pmu / "type").strip()
    if not re.fullmatch("[0-9]{1,9}", type_text):
        return
    for name, kind in PMUS[pmu.name].items():
        event = _EVENT.fullmatch(text_of(pmu / "events" / name).strip())
        if event is None or text_of(pmu / "events" / f"{name}.unit").strip() != "Joules":
            continue
        try:
            scale_j = float(text_of(pmu / "events" / f"{name}.scale"))
        except ValueError:
            continue
        config = int(event[1], 16 if event[1].startswith("0x") else 10)
        if 0 < scale_j <= 1 and config < 256:
            yield kind, int(type_text), config, scale_j


def _place(topology: Path) -> tuple[int, int]:
    """Package and die, 0 where the kernel does not tell: a machine of one package."""
    numbers = []
    for name in ("physical_package_id", "die_id"):
        text = text_of(topology / name).strip()
        numbers.append(int(text) if re.fullmatch("[0-9]{1,6}", text) else 0)
    return numbers[0], numbers[1]


def cpus_of(mask: str) -> list[int]:
    """`0-1,8` as [0, 1, 8]; empty for what is no list of CPUs."""
    found: set[int] = set()
    for part in mask.strip().split(","):
        match = re.fullmatch("([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if match is None or int(match[2] or match[1]) >= _MOST_CPUS:
            return []
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(found)


def text_of(path: Path) -> str:
    """Empty where it cannot be read, or is no text."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
