"""CPU energy by perf_event, the second way to RAPL's counters: where `energy_uj` is root-only, or powercap absent.

The kernel extends the registers to 64 bits of 2^-32 J, so that nothing wraps here. A counter begins anew when it is
opened, and here at `ORIGIN_J`: an exporter that finds what the last one left by this way, or by powercap, must never
take the distance for energy, and from that far no distance is one that a package could have drawn.

To open one for all processes of a CPU needs CAP_PERFMON, or kernel.perf_event_paranoid of 0 or less
(https://man7.org/linux/man-pages/man2/perf_event_open.2.html).

A kernel that shows a package once for each die is told from one whose dies count for themselves as in `rapl.py`. The
dies of a package are therefore opened together.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from exporter.contract.metrics import CPU_ENERGY_METHOD
from exporter.model import Batch, Device, Poll, Reading, SourceError, boottime
from exporter.sources.cpu_energy.mirrored_dies import Dies, group_of
from exporter.sources.cpu_energy.pmu import PMUS, Event, Layout, layout, text_of

OpenEvent = Callable[[int, int, int], int]
"""PMU type, config and CPU to a file descriptor, from which eight bytes are the count. Raises OSError."""

REOPEN_S = 60.0
ORIGIN_J = 2.0**33
"""Beyond the range of any register, and still resolved to 2 uJ."""
_SYSCALL = {"x86_64": 298}
_FLAG_CLOEXEC = 8
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
"""perf_event_attr as far as its first version went: type, size, config; all else is 0, which is to count everything."""
_COUNT = struct.Struct("=Q")


def open_event(pmu_type: int, config: int, cpu: int) -> int:
    """perf_event_open for every process on `cpu`. Raises OSError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = ctypes.create_string_buffer(
        _ATTRIBUTES.pack(pmu_type, _ATTRIBUTES.size, config, 0, 0, 0, 0, 0, 0, 0), _ATTRIBUTES.size
    )
    everybody, no_group = ctypes.c_int(-1), ctypes.c_int(-1)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(
        ctypes.c_long(number), attributes, everybody, ctypes.c_int(cpu), no_group, ctypes.c_ulong(_FLAG_CLOEXEC)
    )
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


class PerfSource:
    """`root` and `proc` are where sysfs and procfs are mounted."""

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
        self._open: dict[Device, list[tuple[Event, int]]] = {}
        self._layout: Layout = {}
        self._shown: dict[str, str] = {}
        self._reopen_at_s = -math.inf
        self._refused: dict[Device, OSError] = {}
        self._dies = Dies()

    def read(self) -> Batch:
        shown = {pmu: text_of(self._pmu(pmu) / "cpumask") for pmu in PMUS}
        if not self._open or shown != self._shown or self._clock() >= self._reopen_at_s:
            self._reopen()
            self._shown = shown
        polls, failures = self._polls()
        if not polls:
            raise self._nothing(failures) from next(iter(failures.values()), None)
        polls = self._dies.without_mirrors(polls)
        methods = (Reading(CPU_ENERGY_METHOD, (p.device.id, "perf"), 1) for p in polls if p.device.kind == "package")
        return Batch(tuple(methods), tuple(polls), self._problems(failures))

    def close(self) -> None:
        self._close(self._open)

    def _pmu(self, name: str) -> Path:
        return self._root / "bus/event_source/devices" / name

    def _reopen(self) -> None:
        """Opens what is new and closes what has gone. What stays is left alone: where its CPU goes offline, the kernel
        moves the counter to another of the package.
        """
        self._layout = layout([self._pmu(name) for name in PMUS], self._root / "devices/system/cpu")
        self._refused = {device: error for device, error in self._refused.items() if device in self._layout}
        for group in dict.fromkeys(group_of(device) for device in (*self._layout, *self._open)):
            wanted = {device: len(events) for device, events in self._layout.items() if group_of(device) == group}
            opened = {device: len(found) for device, found in self._open.items() if group_of(device) == group}
            if not opened or opened != {device: n for device, n in wanted.items() if device not in self._refused}:
                self._close(opened)
                for device in wanted:
                    self._try(device)
        self._reopen_at_s = self._clock() + REOPEN_S

    def _try(self, device: Device) -> None:
        self._refused.pop(device, None)
        opened = self._open[device] = []
        try:
            for event in self._layout[device]:
                opened.append((event, self._open_event(event.pmu_type, event.config, event.cpu)))  # noqa: PERF401  # what was opened before an error is to be closed
        except OSError as error:
            self._refused[device] = error
            self._close([device])

    def _close(self, devices: Iterable[Device]) -> None:
        for device in list(devices):
            for _, descriptor in self._open.pop(device):
                os.close(descriptor)

    def _polls(self) -> tuple[list[Poll], dict[Device, OSError | ValueError]]:
        """In the order of the layout: the dies of a package side by side."""
        polls: list[Poll] = []
        failures: dict[Device, OSError | ValueError] = dict(self._refused)
        for device in self._layout:
            if device not in self._open:
                continue
            try:
                before_s = self._clock()
                counter_j = ORIGIN_J + math.fsum(_joules(event, descriptor) for event, descriptor in self._open[device])
                polls.append(Poll(device, before_s, self._clock(), counter_j=counter_j))
            except (OSError, ValueError) as error:
                failures[device] = error
                self._close([device])  # the kernel gives up a counter for good; a new one may do
                self._reopen_at_s = -math.inf
        return polls, failures

    def _problems(self, failures: dict[Device, OSError | ValueError]) -> tuple[str, ...]:
        counts: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for device, failure in failures.items():
            counts[self._explain(failure)].append(f"{device.kind} {device.id}")
        return tuple(
            f"no energy of {', '.join(sorted(names))} by perf_event ({cause}): {remedy}"
            for (cause, remedy), names in counts.items()
        )

    def _explain(self, failure: OSError | ValueError) -> tuple[str, str]:
        if isinstance(failure, PermissionError):
            level = text_of(self._proc / "sys/kernel/perf_event_paranoid").strip() or "?"
            return f"not permitted, kernel.perf_event_paranoid is {level}", (
                "to count the energy of the whole CPU the exporter needs CAP_PERFMON (systemd: "
                "AmbientCapabilities=CAP_PERFMON), or: sudo sysctl kernel.perf_event_paranoid=0"
            )
        cause = failure.strerror if isinstance(failure, OSError) else "no count"
        return str(cause), "see: sudo perf stat -a -e power/energy-pkg/ sleep 1; sudo dmesg | grep -i rapl"

    def _nothing(self, failures: dict[Device, OSError | ValueError]) -> SourceError:
        for failure in failures.values():
            cause, remedy = self._explain(failure)
            return SourceError(f"perf_event_open: {cause}", remedy)
        return SourceError("the kernel shows no PMU `power` with the CPU's energy", "sudo modprobe rapl")


def _joules(event: Event, descriptor: int) -> float:
    """Raises OSError, and ValueError where the kernel has given the counter up and has no count."""
    raw = os.read(descriptor, _COUNT.size)
    if len(raw) != _COUNT.size:
        raise ValueError(raw)
    count: int = _COUNT.unpack(raw)[0]
    return count * event.scale_j
