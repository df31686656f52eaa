"""CPU energy by RAPL, from the kernel's powercap tree. AMD's counters stand under `intel-rapl` as well.

Counters go out raw, as the registers give them; they wrap at `counter_range_j`; `exporter.energy.meter` unwraps them.

Three ways to count a joule twice, and what is done about each:

- *Zones overlap.* psys contains package, package contains core: each zone is a device of its own, never added to
  another.
- *One zone, two registers.* A package that MSR and MMIO both show is read by MSR, by MMIO only where MSR is absent or
  unreadable. A choice once made is kept: the two count from different origins, and a switch would look like energy.
- *One register, several zones.* Zen 1 and 2, and Linux 6.10 on newer AMD, show a zone for each die, and each of them is
  the socket's one counter (https://github.com/mlco2/codecarbon/issues/1274); on Cascade Lake AP each die has a counter
  of its own (`rapl_msrs_are_pkg_scope` in the kernel). The names do not tell, so the counters are asked: the dies of
  a package are read one after the other, and two that at every look were no further apart than a package can draw
  between the two reads are one counter, shown once. A pair seen apart once is distinct for good. Two distinct counters
  pass for one only while they are, by chance, within 2 J of each other in a range of 65 kJ or more; what the second
  draws in that time is not counted.

Where a register may have begun anew (its zone had vanished with its package, the machine slept) it goes out without its
range for a while: what falls then has begun again at 0, and is not taken for a wrap, which would invent up to a range
of joules. Over a zone that merely could not be read the counter bridges.

The lowest die of a package has the package's number as its id (`0`), mirrored or not; a further distinct die is
`0-die-1`. So no id changes its meaning when two dies turn out to be distinct.
"""

from __future__ import annotations

import errno
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from exporter.contract.metrics import CPU_ENERGY_METHOD
from exporter.model import Batch, Device, DeviceKind, Poll, Reading, SourceError, boottime
from exporter.sources.cpu_energy.mirrored_dies import Dies
from exporter.sources.cpu_energy.powercap import Zone, microjoules, zones

REDISCOVER_S = 60.0
WITHOUT_RANGE_S = 10.0
"""For how long after its return a counter goes out without its range: for some polls, a fall being believed at the
second. One that wraps in that time loses what it had left to its range, which is a poll's worth."""
_SLEPT_S = 1.0
_GONE = (errno.ENOENT, errno.ENODEV)


def asleep() -> float:
    """Seconds for which the machine has been suspended since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


class RaplSource:
    """`root` is where sysfs is mounted."""

    name = "powercap"

    def __init__(
        self,
        root: Path = Path("/sys"),
        clock: Callable[[], float] = boottime,
        asleep: Callable[[], float] = asleep,
    ) -> None:
        self._powercap = root / "class" / "powercap"
        self._clock = clock
        self._asleep = asleep
        self._slept_s = asleep()
        self._zones: dict[Device, tuple[Zone, ...]] = {}
        self._discover_at_s = float("-inf")
        self._chosen: dict[Device, str] = {}
        self._lowest_die: dict[tuple[DeviceKind, str], int] = {}
        self._dies = Dies()
        self._vanished: set[Device] = set()
        self._ranged_from_s: dict[Device, float] = {}

    def read(self) -> Batch:
        if not self._zones or self._clock() >= self._discover_at_s:
            self._discover()
        self._notice_sleep()
        polls, failures = self._look()
        if any(isinstance(failure, OSError) and failure.errno in _GONE for failure in failures):
            self._discover()
            polls, failures = self._look()
        problems = _problems(failures, len(self._zones), self._powercap)
        if not polls:
            raise _nothing(problems, self._powercap) from next(iter(failures), None)
        polls = self._dies.without_mirrors(polls)
        methods = (Reading(CPU_ENERGY_METHOD, (p.device.id, "rapl"), 1) for p in polls if p.device.kind == "package")
        lines = [f"{cause}: {remedy}" for cause, remedy in problems]
        return Batch(tuple(methods), tuple(polls), (*lines, *_missing(self._vanished)))

    def _discover(self) -> None:
        """Zones by device, the dies of a package side by side, the preferred interface first."""
        found: defaultdict[Device, list[Zone]] = defaultdict(list)
        for zone in sorted(zones(self._powercap), key=lambda z: (z.kind, z.package, z.die, z.interface)):
            lowest = self._lowest_die.setdefault((zone.kind, zone.package), zone.die)
            device = Device(zone.kind, zone.package if zone.die == lowest else f"{zone.package}-die-{zone.die}")
            if self._chosen.get(device, zone.interface) == zone.interface:
                found[device].append(zone)
        self._doubt_range(self._vanished & found.keys())
        self._vanished = self._chosen.keys() - found.keys()
        self._zones = {device: tuple(candidates) for device, candidates in found.items()}
        self._discover_at_s = self._clock() + REDISCOVER_S

    def _notice_sleep(self) -> None:
        slept_s = self._asleep()
        if slept_s - self._slept_s > _SLEPT_S:
            self._doubt_range(self._zones.keys())
        self._slept_s = slept_s

    def _doubt_range(self, devices: Iterable[Device]) -> None:
        """From now on, and until they have been read for a while, these may have begun anew."""
        self._ranged_from_s.update(dict.fromkeys(devices, float("inf")))

    def _look(self) -> tuple[list[Poll], list[OSError | ValueError]]:
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

    def _poll(self, device: Device, zone: Zone) -> Poll:
        # Opened anew each time: some microseconds, for which a zone that is gone or forbidden is seen at once.
        descriptor = os.open(zone.energy_file, os.O_RDONLY)
        try:
            before_s = self._clock()
            raw = os.read(descriptor, 32)
            after_s = self._clock()
        finally:
            os.close(descriptor)
        counter_j = microjoules(raw) / 1e6
        range_j = self._range_j(device, zone, counter_j, after_s)
        return Poll(device, before_s, after_s, counter_j, counter_range_j=range_j)

    def _range_j(self, device: Device, zone: Zone, counter_j: float, now_s: float) -> float | None:
        if device in self._ranged_from_s:
            from_s = self._ranged_from_s[device] = min(self._ranged_from_s[device], now_s + WITHOUT_RANGE_S)
            if now_s < from_s:
                return None
            del self._ranged_from_s[device]
        # a counter beyond its range has another one
        return zone.range_j if zone.range_j is not None and counter_j <= zone.range_j else None


def _problems(failures: list[OSError | ValueError], total: int, powercap: Path) -> list[tuple[str, str]]:
    """Cause and remedy, once for all zones that share the cause."""
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
    return (f"RAPL no longer shows {', '.join(gone)}: was a CPU taken offline, or intel_rapl_msr unloaded?",)


def _nothing(problems: list[tuple[str, str]], powercap: Path) -> SourceError:
    if problems:
        return SourceError("; ".join(cause for cause, _ in problems), problems[0][1])
    if any(powercap.glob("intel-rapl*:*")):
        return SourceError(
            f"the RAPL zones in {powercap} lead nowhere (container runtimes mask them)",
            "run on the host, or unmask them: docker run --security-opt systempaths=unconfined",
        )
    return SourceError(
        "no RAPL on this machine (a VM, or the intel_rapl_msr module is not loaded)", "sudo modprobe intel_rapl_msr"
    )
