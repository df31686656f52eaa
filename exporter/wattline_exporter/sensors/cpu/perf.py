"""CPU energy from RAPL counters by perf_event, where `energy_uj` is root-only or powercap is
missing.

The kernel extends the registers to 64 bits of 2^-32 J, so that they do not wrap. A counter restarts
when it is opened, here at `ORIGIN_J`: so far from any register's value that the difference to a
counter of a previous exporter, or of powercap, is never taken for energy.

Opening a counter for all processes needs CAP_PERFMON, or kernel.perf_event_paranoid of 0 or less
(https://man7.org/linux/man-pages/man2/perf_event_open.2.html).

The PMU `power` counts on one CPU per package, or per die: energy-pkg, energy-cores (PP0),
energy-gpu (PP1), energy-ram and energy-psys; AMD has the first only. Since Linux 6.14 AMD also has
`power_core`, which counts energy-core on one CPU per core; their sum is the zone `core`
(https://github.com/torvalds/linux/blob/master/arch/x86/events/rapl.c). Dies that share a register
are detected by `mirrored_dies`, for which the dies of a package are opened together.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from wattline.contract.metrics import CPU_ENERGY_METHOD
from wattline_exporter.sensors.cpu.mirrored_dies import MirroredDies, package_of
from wattline_exporter.sensors.readings import (
    Batch,
    Device,
    DeviceKind,
    Poll,
    Reading,
    SourceError,
    boottime,
)

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
_MAX_CPUS = 65_536


class PerfEvent(NamedTuple):
    """Event to open on one CPU."""

    pmu_type: int
    config: int
    scale_j: float
    cpu: int


PerfLayout = dict[Device, tuple[PerfEvent, ...]]
"""Events whose sum is the energy of a device: one, except for counters per core."""


def find_events(pmus: list[Path], cpus: Path) -> PerfLayout:
    """Return the events of each device, dies of a package adjacent. Unknown events are skipped.

    `cpus` is the folder of CPUs in sysfs.
    """
    events: dict[Device, tuple[PerfEvent, ...]] = {}
    for pmu in pmus:
        topology = sorted(
            (*_topology(cpus / f"cpu{cpu}/topology"), cpu)
            for cpu in parse_cpu_list(read_ascii(pmu / "cpumask"))
        )
        for kind, pmu_type, config, scale_j in _events(pmu):
            if any(device.kind == kind for device in events):
                continue  # counted by the previous PMU for the whole package
            lowest: dict[int, int] = {}
            for package, die, cpu in topology:
                event = PerfEvent(pmu_type, config, scale_j, cpu)
                whole = pmu.name == PER_CORE or lowest.setdefault(package, die) == die
                device = Device(kind, str(package) if whole else f"{package}-die-{die}")
                if pmu.name == PER_CORE or device not in events:
                    events[device] = (*events.get(device, ()), event)
    return events


def _events(pmu: Path) -> Iterator[tuple[DeviceKind, int, int, float]]:
    """Yield kind, PMU type, config and joules per count of each energy event."""
    type_text = read_ascii(pmu / "type").strip()
    if not re.fullmatch("[0-9]{1,9}", type_text):
        return
    for name, kind in PMUS[pmu.name].items():
        event = _EVENT.fullmatch(read_ascii(pmu / "events" / name).strip())
        if event is None or read_ascii(pmu / "events" / f"{name}.unit").strip() != "Joules":
            continue
        try:
            scale_j = float(read_ascii(pmu / "events" / f"{name}.scale"))
        except ValueError:
            continue
        config = int(event[1], 16 if event[1].startswith("0x") else 10)
        if 0 < scale_j <= 1 and config < 256:
            yield kind, int(type_text), config, scale_j


def _topology(folder: Path) -> tuple[int, int]:
    """Return package and die, 0 where the kernel does not report them."""
    numbers = []
    for name in ("physical_package_id", "die_id"):
        text = read_ascii(folder / name).strip()
        numbers.append(int(text) if re.fullmatch("[0-9]{1,6}", text) else 0)
    return numbers[0], numbers[1]


def parse_cpu_list(mask: str) -> list[int]:
    """Parse `0-1,8` into [0, 1, 8]; return an empty list for invalid text."""
    cpus: set[int] = set()
    for part in mask.strip().split(","):
        match = re.fullmatch("([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if match is None or int(match[2] or match[1]) >= _MAX_CPUS:
            return []
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(cpus)


def read_ascii(path: Path) -> str:
    """Return the text of the file, empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


OpenEvent = Callable[[int, int, int], int]
"""Function of PMU type, config and CPU that returns a file descriptor of the 8-byte count. Raises
OSError.
"""

REOPEN_S = 60.0
ORIGIN_J = 2.0**33
"""Start value above the range of any register, with a resolution of 2 uJ."""
_SYSCALL = {"x86_64": 298}
_FLAG_CLOEXEC = 8
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
"""First version of perf_event_attr: type, size and config; zeros elsewhere count everything."""
_COUNT = struct.Struct("=Q")


def open_event(pmu_type: int, config: int, cpu: int) -> int:
    """Call perf_event_open for all processes on `cpu`. Raises OSError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = ctypes.create_string_buffer(
        _ATTRIBUTES.pack(pmu_type, _ATTRIBUTES.size, config, 0, 0, 0, 0, 0, 0, 0), _ATTRIBUTES.size
    )
    all_processes = ctypes.c_int(-1)
    no_group = ctypes.c_int(-1)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(
        ctypes.c_long(number),
        attributes,
        all_processes,
        ctypes.c_int(cpu),
        no_group,
        ctypes.c_ulong(_FLAG_CLOEXEC),
    )
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


class PerfSource:
    """Source of perf events; `root` and `proc` are the mount points of sysfs and procfs."""

    name = "perf"

    def __init__(
        self,
        root: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = boottime,
        open_event: OpenEvent = open_event,
    ) -> None:
        self._root = root
        self._proc = proc
        self._clock = clock
        self._open_event = open_event
        self._open: dict[Device, list[tuple[PerfEvent, int]]] = {}
        self._layout: PerfLayout = {}
        self._cpumasks: dict[str, str] = {}
        self._reopen_at_s = -math.inf
        self._refused: dict[Device, OSError] = {}
        self._dies = MirroredDies()

    def read(self) -> Batch:
        cpumasks = {pmu: read_ascii(self._pmu(pmu) / "cpumask") for pmu in PMUS}
        if not self._open or cpumasks != self._cpumasks or self._clock() >= self._reopen_at_s:
            self._reopen()
            self._cpumasks = cpumasks
        polls, failures = self._polls()
        if not polls:
            raise self._no_energy(failures) from next(iter(failures.values()), None)
        polls = self._dies.remove_mirrors(polls)
        methods = (
            Reading(CPU_ENERGY_METHOD, (p.device.id, "perf"), 1)
            for p in polls
            if p.device.kind == "package"
        )
        return Batch(tuple(methods), tuple(polls), self._problems(failures))

    def close(self) -> None:
        self._close(self._open)

    def _pmu(self, name: str) -> Path:
        return self._root / "bus/event_source/devices" / name

    def _reopen(self) -> None:
        """Open new events and close removed ones; the kernel moves counters of CPUs that go
        offline.
        """
        self._layout = find_events(
            [self._pmu(name) for name in PMUS], self._root / "devices/system/cpu"
        )
        self._refused = {
            device: error for device, error in self._refused.items() if device in self._layout
        }
        for group in dict.fromkeys(package_of(device) for device in (*self._layout, *self._open)):
            expected = {
                device: len(events)
                for device, events in self._layout.items()
                if package_of(device) == group
            }
            opened = {
                device: len(counters)
                for device, counters in self._open.items()
                if package_of(device) == group
            }
            if not opened or opened != {
                device: n for device, n in expected.items() if device not in self._refused
            }:
                self._close(opened)
                for device in expected:
                    self._open_device(device)
        self._reopen_at_s = self._clock() + REOPEN_S

    def _open_device(self, device: Device) -> None:
        self._refused.pop(device, None)
        opened = self._open[device] = []
        try:
            for event in self._layout[device]:
                opened.append((event, self._open_event(event.pmu_type, event.config, event.cpu)))  # noqa: PERF401  # those opened before an error must be closed
        except OSError as error:
            self._refused[device] = error
            self._close([device])

    def _close(self, devices: Iterable[Device]) -> None:
        for device in list(devices):
            for _, descriptor in self._open.pop(device):
                os.close(descriptor)

    def _polls(self) -> tuple[list[Poll], dict[Device, OSError | ValueError]]:
        """Return polls in the order of the layout: dies of a package adjacent."""
        polls: list[Poll] = []
        failures: dict[Device, OSError | ValueError] = dict(self._refused)
        for device in self._layout:
            if device not in self._open:
                continue
            try:
                before_s = self._clock()
                counter_j = ORIGIN_J + math.fsum(
                    _joules(event, descriptor) for event, descriptor in self._open[device]
                )
                polls.append(Poll(device, before_s, self._clock(), counter_j=counter_j))
            except (OSError, ValueError) as error:
                failures[device] = error
                self._close([device])  # a counter that failed once stays failed; a new one may work
                self._reopen_at_s = -math.inf
        return polls, failures

    def _problems(self, failures: dict[Device, OSError | ValueError]) -> tuple[str, ...]:
        counts: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for device, failure in failures.items():
            counts[self._explain(failure)].append(f"{device.kind} {device.id}")
        return tuple(
            f"cannot read {', '.join(sorted(names))} by perf_event ({cause}): {remedy}"
            for (cause, remedy), names in counts.items()
        )

    def _explain(self, failure: OSError | ValueError) -> tuple[str, str]:
        if isinstance(failure, PermissionError):
            level = read_ascii(self._proc / "sys/kernel/perf_event_paranoid").strip() or "?"
            return f"not permitted, kernel.perf_event_paranoid is {level}", (
                "give the exporter CAP_PERFMON (systemd: AmbientCapabilities=CAP_PERFMON), or run: "
                "sudo sysctl "
                "kernel.perf_event_paranoid=0"
            )
        cause = failure.strerror if isinstance(failure, OSError) else "no value"
        return str(
            cause
        ), "see: sudo perf stat -a -e power/energy-pkg/ sleep 1; sudo dmesg | grep -i rapl"

    def _no_energy(self, failures: dict[Device, OSError | ValueError]) -> SourceError:
        for failure in failures.values():
            cause, remedy = self._explain(failure)
            return SourceError(f"perf_event_open: {cause}", remedy)
        return SourceError(
            "the kernel has no PMU `power` with CPU energy", "run: sudo modprobe rapl"
        )


def _joules(event: PerfEvent, descriptor: int) -> float:
    """Return the counter. Raises OSError, and ValueError for a counter that the kernel has
    stopped.
    """
    raw = os.read(descriptor, _COUNT.size)
    if len(raw) != _COUNT.size:
        raise ValueError(raw)
    count: int = _COUNT.unpack(raw)[0]
    return count * event.scale_j
