"""The board's power sensors, and the sockets of a Grace among them.

Sensors overlap: a module's power contains its GPU, its CPU and its memory. So they are devices of kind `hwmon`, which
belong to no component and are never added to anything, with one exception:

A Grace has no RAPL; its firmware gives, for each socket, `Grace Power Socket N` (the whole socket), `CPU Power
Socket N` (the rail of the cores) and `SysIO Power Socket N` (the rail of the SoC), and on a GH200 `Module Power
Socket N` (Grace, GPU, HBM, DRAM and the losses of the regulators):
https://docs.nvidia.com/grace-perf-tuning-guide/power-thermals.html#power-telemetry. RAPL's package is the cores and
what surrounds them (caches, interconnect, memory controllers, I/O). The rail of the cores alone would be its zone
`core`, and misses up to half of what the socket draws, so `Grace Power Socket N` is taken as package N. It may hold
memory and losses that an x86 shows as dram or not at all; no `dram` stands beside it, so nothing is counted twice.
Where the firmware does not show it the rail of the cores has to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from exporter.contract.metrics import CPU_ENERGY_METHOD, HWMON_POWER
from exporter.model import Batch, Device, Poll, Reading, SourceError, boottime
from exporter.sources.board import Sensor, sensors

REDISCOVER_S = 60.0
QUIET_S = 60.0
"""For how long a sensor stays named that failed: one that fails now and then is named once, not each time."""
_SOCKET = re.compile(r"(Grace|CPU) Power Socket ([0-9]{1,4})", re.IGNORECASE)


class _Sensors:
    """Looks for the sensors once a minute and reads them, each for itself."""

    def __init__(
        self, root: Path, clock: Callable[[], float], choose: Callable[[list[Sensor]], dict[Device, Sensor]]
    ) -> None:
        self.chosen: dict[Device, Sensor] = {}
        self._folder = root / "class" / "hwmon"
        self._clock = clock
        self._choose = choose
        self._discover_at_s = float("-inf")
        self._failed: dict[Device, tuple[float, str]] = {}

    def read(self) -> list[Poll]:
        now_s = self._clock()
        if now_s >= self._discover_at_s:
            self.chosen = self._choose(sensors(self._folder))
            self._discover_at_s = now_s + REDISCOVER_S
        polls = []
        for device, sensor in self.chosen.items():
            before_s = self._clock()
            try:
                power_w = sensor.power_w()
            except (OSError, ValueError) as error:
                self._failed[device] = before_s, _explain(sensor, error)
                continue
            polls.append(Poll(device, before_s, self._clock(), instant_w=power_w))
        self._failed = {device: (at_s, why) for device, (at_s, why) in self._failed.items() if now_s - at_s < QUIET_S}
        return polls

    def problems(self) -> tuple[str, ...]:
        return tuple(why for _, why in self._failed.values())


def _explain(sensor: Sensor, error: OSError | ValueError) -> str:
    cause = error.strerror if isinstance(error, OSError) else "no power"
    return f"cannot read {sensor.name} of {sensor.chip} ({cause}): see: cat {' '.join(sensor.files)}"


class HwmonSource:
    """Every power sensor of the board; empty on a board without. `root` is where sysfs is mounted."""

    name = "hwmon"

    def __init__(self, root: Path = Path("/sys"), clock: Callable[[], float] = boottime) -> None:
        self._sensors = _Sensors(root, clock, lambda found: {Device("hwmon", sensor.id): sensor for sensor in found})

    def read(self) -> Batch:
        """Raises SourceError where there are sensors and none answers."""
        polls, problems = self._sensors.read(), self._sensors.problems()
        if problems and not polls:
            raise SourceError("no power sensor of the board answers", "; ".join(problems))
        names = {device: (sensor.chip, sensor.name) for device, sensor in self._sensors.chosen.items()}
        readings = [
            Reading(HWMON_POWER, names[poll.device], poll.instant_w) for poll in polls if poll.instant_w is not None
        ]
        return Batch(tuple(readings), tuple(polls), problems)


class SocketSource:
    """The sockets of a Grace as packages. A way to the CPU's energy where there is no RAPL."""

    name = "hwmon"

    def __init__(self, root: Path = Path("/sys"), clock: Callable[[], float] = boottime) -> None:
        self._names: dict[Device, str] = {}
        self._sensors = _Sensors(root, clock, self._packages)

    def read(self) -> Batch:
        """Raises SourceError where there is no such sensor, or none answers."""
        polls, problems = self._sensors.read(), self._sensors.problems()
        if not polls and problems:
            raise SourceError("the sockets' power sensors do not answer", "; ".join(problems))
        if not polls:
            raise SourceError("the board has no power sensor of a CPU socket", "see: ls /sys/class/hwmon")
        methods = [Reading(CPU_ENERGY_METHOD, (poll.device.id, "hwmon"), 1) for poll in polls]
        return Batch(tuple(methods), tuple(polls), problems)

    def _packages(self, found: list[Sensor]) -> dict[Device, Sensor]:
        """A socket by `Grace`, else by `CPU`, and once chosen by the same."""
        chosen: dict[Device, Sensor] = {}
        for sensor in sorted(found, key=lambda sensor: sensor.name.lower(), reverse=True):  # Grace before CPU
            match = _SOCKET.fullmatch(sensor.name)
            if match is None:
                continue
            device = Device("package", str(int(match[2])))
            if device not in chosen and self._names.get(device, sensor.name) == sensor.name:
                chosen[device] = sensor
        self._names |= {device: sensor.name for device, sensor in chosen.items()}
        return dict(sorted(chosen.items()))
