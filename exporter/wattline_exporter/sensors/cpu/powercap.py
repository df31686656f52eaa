"""CPU energy from RAPL in powercap; wraps are counted by `wattline.counters.counter_step`.

AMD's counters are below `intel-rapl`, too. Each poll has the raw counter and the range at which it
wraps, from `_wrap_range_j`; the meter adds up the increases. A joule could be counted twice in
three ways:

- Zones overlap: psys contains package, package contains core. Each zone is a separate device; they
  are never added.
- Two registers for one zone: a package shown by MSR and by MMIO is read by MSR, by MMIO only if MSR
  is absent or unreadable. The choice is kept, since the two have different origins and a switch
  would look like energy.
- Several zones for one register: Zen 1 and 2, and newer AMD CPUs with Linux 6.10, show a zone per
  die, each of which is the socket's one counter (https://github.com/mlco2/codecarbon/issues/1274).
  On Cascade Lake AP each die has its own counter (`rapl_msrs_are_pkg_scope` in the kernel).
  `mirrored_dies` distinguishes both cases by the counters' values.

A register may have been reset when its zone had disappeared or the host was suspended. It is then
reported without its range for a while, so that a decrease is taken for a reset and not for a wrap,
which would add up to a range of joules.

The lowest die of a package has the package's number as id (`0`), a further distinct die `0-die-1`.
So no id changes its meaning when two dies turn out to be distinct.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from wattline.contract.metrics import CPU_ENERGY_METHOD
from wattline_exporter.sensors.cpu.mirrored_dies import MirroredDies
from wattline_exporter.sensors.readings import (
    Batch,
    Device,
    DeviceKind,
    Poll,
    Reading,
    SourceError,
    boottime,
)

_END_UJ = 2**64

_ENTRY = re.compile(
    r"(intel-rapl(?:-mmio)?):([0-9a-f]+)(?::([0-9a-f]+))?"
)  # the kernel numbers zones with %x
_PACKAGE = re.compile(r"package-([0-9]{1,6})(?:-die-([0-9]{1,6}))?")
_PSYS = re.compile(r"psys(?:-([0-9]{1,6}))?")
_INNER: dict[str, DeviceKind] = {"core": "core", "uncore": "uncore", "dram": "dram"}


@dataclass(frozen=True, slots=True)
class RaplZone:
    """One RAPL zone; `interface` is `intel-rapl` (MSR or TPMI) or `intel-rapl-mmio`."""

    kind: DeviceKind
    package: str
    die: int
    interface: str
    energy_file: str
    range_j: float | None


def find_zones(powercap: Path) -> list[RaplZone]:
    """Return all zones below `powercap`, none without RAPL. Unknown entries are skipped."""
    try:
        entries = [match for entry in powercap.iterdir() if (match := _ENTRY.fullmatch(entry.name))]
    except OSError:
        return []
    entries.sort(key=lambda match: (match[1], int(match[2], 16), int(match[3] or "-1", 16)))
    zones: list[RaplZone] = []
    parents: dict[tuple[str, str], tuple[str, int]] = {}
    visited: set[tuple[str, DeviceKind, str, int]] = set()
    for entry in entries:
        folder = powercap / entry[0]
        try:
            kind, package, die = _identity(
                (folder / "name").read_text().strip(), parents.get((entry[1], entry[2]))
            )
        except (OSError, ValueError):
            continue
        while (
            entry[1],
            kind,
            package,
            die,
        ) in visited:  # `package-0` twice: further dies with the same name
            die += 1
        visited.add((entry[1], kind, package, die))
        if entry[3] is None:
            parents[entry[1], entry[2]] = (package, die)
        zones.append(
            RaplZone(kind, package, die, entry[1], str(folder / "energy_uj"), _range_of(folder))
        )
    return zones


def _identity(name: str, parent: tuple[str, int] | None) -> tuple[DeviceKind, str, int]:
    """Return kind, package and die. Raises ValueError for an unknown zone."""
    if package := _PACKAGE.fullmatch(name):
        return "package", package[1], int(package[2] or 0)
    if psys := _PSYS.fullmatch(name):
        return "psys", psys[1] or "0", 0
    if name in _INNER and parent is not None:
        return _INNER[name], *parent
    raise ValueError(name)


def _range_of(folder: Path) -> float | None:
    try:
        return parse_microjoules((folder / "max_energy_range_uj").read_bytes()) / 1e6 or None
    except (OSError, ValueError):
        return None


def parse_microjoules(raw: bytes) -> int:
    """Return the counter. Raises ValueError for text that is not a register's value."""
    value = int(raw)
    if not 0 <= value < _END_UJ:
        raise ValueError(raw)
    return value


REDISCOVER_S = 60.0
WITHOUT_RANGE_S = 10.0
"""Time for which a counter that was possibly reset is reported without its range: for some polls,
since a decrease counts at the second one. A wrap in that time loses the energy of one poll.
"""
_MIN_SUSPENSION_S = 1.0
_GONE = (errno.ENOENT, errno.ENODEV)


def suspended_s() -> float:
    """Return the seconds for which the host has been suspended since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


class RaplSource:
    """Source of the powercap zones; `root` is the mount point of sysfs."""

    name = "powercap"

    def __init__(
        self,
        root: Path = Path("/sys"),
        clock: Callable[[], float] = boottime,
        suspended_s: Callable[[], float] = suspended_s,
    ) -> None:
        self._powercap = root / "class" / "powercap"
        self._clock = clock
        self._suspended_s = suspended_s
        self._last_suspended_s = suspended_s()
        self._zones: dict[Device, tuple[RaplZone, ...]] = {}
        self._discover_at_s = float("-inf")
        self._chosen: dict[Device, str] = {}
        self._lowest_die: dict[tuple[DeviceKind, str], int] = {}
        self._dies = MirroredDies()
        self._vanished: set[Device] = set()
        self._ranged_from_s: dict[Device, float] = {}

    def read(self) -> Batch:
        if not self._zones or self._clock() >= self._discover_at_s:
            self._discover()
        self._check_suspension()
        polls, failures = self._poll_all()
        if any(isinstance(failure, OSError) and failure.errno in _GONE for failure in failures):
            self._discover()
            polls, failures = self._poll_all()
        problems = _problems(failures, len(self._zones), self._powercap)
        if not polls:
            raise _no_energy(problems, self._powercap) from next(iter(failures), None)
        polls = self._dies.remove_mirrors(polls)
        methods = (
            Reading(CPU_ENERGY_METHOD, (p.device.id, "rapl"), 1)
            for p in polls
            if p.device.kind == "package"
        )
        lines = [f"{cause}: {remedy}" for cause, remedy in problems]
        return Batch(tuple(methods), tuple(polls), (*lines, *_missing(self._vanished)))

    def _discover(self) -> None:
        """Group zones by device: dies of a package adjacent, the preferred interface first."""
        zones: defaultdict[Device, list[RaplZone]] = defaultdict(list)
        for zone in sorted(
            find_zones(self._powercap), key=lambda z: (z.kind, z.package, z.die, z.interface)
        ):
            lowest = self._lowest_die.setdefault((zone.kind, zone.package), zone.die)
            device = Device(
                zone.kind, zone.package if zone.die == lowest else f"{zone.package}-die-{zone.die}"
            )
            if self._chosen.get(device, zone.interface) == zone.interface:
                zones[device].append(zone)
        self._withhold_range(self._vanished & zones.keys())
        self._vanished = self._chosen.keys() - zones.keys()
        self._zones = {device: tuple(candidates) for device, candidates in zones.items()}
        self._discover_at_s = self._clock() + REDISCOVER_S

    def _check_suspension(self) -> None:
        suspended_s = self._suspended_s()
        if suspended_s - self._last_suspended_s > _MIN_SUSPENSION_S:
            self._withhold_range(self._zones.keys())
        self._last_suspended_s = suspended_s

    def _withhold_range(self, devices: Iterable[Device]) -> None:
        """Report these counters without range until they have been read for a while: they may have
        been reset.
        """
        self._ranged_from_s.update(dict.fromkeys(devices, float("inf")))

    def _poll_all(self) -> tuple[list[Poll], list[OSError | ValueError]]:
        polls: list[Poll] = []
        failures: list[OSError | ValueError] = []
        for device, candidates in list(self._zones.items()):
            failed: OSError | ValueError | None = None
            for zone in candidates:
                try:
                    polls.append(self._poll(device, zone))
                except (OSError, ValueError) as error:
                    failed = failed or error
                    continue
                if len(candidates) > 1 or device not in self._chosen:
                    self._chosen[device] = zone.interface
                    self._zones[device] = (zone,)
                break
            else:
                assert failed is not None
                failures.append(failed)
        return polls, failures

    def _poll(self, device: Device, zone: RaplZone) -> Poll:
        # Opening the file each time takes microseconds, and detects a removed or forbidden zone at
        # once.
        descriptor = os.open(zone.energy_file, os.O_RDONLY)
        try:
            before_s = self._clock()
            raw = os.read(descriptor, 32)
            after_s = self._clock()
        finally:
            os.close(descriptor)
        counter_j = parse_microjoules(raw) / 1e6
        range_j = self._wrap_range_j(device, zone, counter_j, after_s)
        return Poll(device, before_s, after_s, counter_j, counter_range_j=range_j)

    def _wrap_range_j(
        self, device: Device, zone: RaplZone, counter_j: float, now_s: float
    ) -> float | None:
        """Return the range in joules at which the counter wraps, None where it is unknown or the
        counter may have been reset.

        `wattline.counters.counter_step` adds this range to a decrease. Without a range, a decrease
        is a restart at 0.
        """
        if device in self._ranged_from_s:
            from_s = self._ranged_from_s[device] = min(
                self._ranged_from_s[device], now_s + WITHOUT_RANGE_S
            )
            if now_s < from_s:
                return None
            del self._ranged_from_s[device]
        # a counter above its range has an unknown range
        return zone.range_j if zone.range_j is not None and counter_j <= zone.range_j else None


def _problems(
    failures: list[OSError | ValueError], total: int, powercap: Path
) -> list[tuple[str, str]]:
    """Return cause and remedy, once for all zones with the same cause."""
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    for failure in failures:
        counts[_explain(failure, powercap)] += 1
    return [
        (f"cannot read energy_uj of {count} of {total} RAPL zones ({cause})", remedy)
        for (cause, remedy), count in counts.items()
    ]


def _explain(failure: OSError | ValueError, powercap: Path) -> tuple[str, str]:
    files = f"{powercap}/intel-rapl*:*/energy_uj"
    if isinstance(failure, PermissionError):
        remedy = f"run as root, or: sudo chgrp wattline {files} && sudo chmod g+r {files}"
        return "permission denied, root-only since Linux 5.10", remedy
    cause = failure.strerror if isinstance(failure, OSError) else "not a number"
    return str(cause), f"see: cat {files}; sudo dmesg | grep -i rapl"


def _missing(vanished: Iterable[Device]) -> tuple[str, ...]:
    gone = sorted(f"{device.kind} {device.id}" for device in vanished)
    if not gone:
        return ()
    return (
        (
            f"RAPL zones missing: {', '.join(gone)}; check for offline CPUs, and that "
            "intel_rapl_msr "
            "is loaded"
        ),
    )


def _no_energy(problems: list[tuple[str, str]], powercap: Path) -> SourceError:
    if problems:
        return SourceError("; ".join(cause for cause, _ in problems), problems[0][1])
    if any(powercap.glob("intel-rapl*:*")):
        return SourceError(
            f"the RAPL zones in {powercap} are not accessible (container runtimes mask them)",
            "run on the host, or unmask them: docker run --security-opt systempaths=unconfined",
        )
    return SourceError(
        "no RAPL on this host (a VM, or the module intel_rapl_msr is not loaded)",
        "sudo modprobe intel_rapl_msr",
    )
