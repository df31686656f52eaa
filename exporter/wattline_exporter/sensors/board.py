"""Power sensors of the board from the kernel's hwmon class, and CPU sockets of NVIDIA Grace.

- Sensors are `powerN_average` or `powerN_input`, in microwatts, in the chip's folder
  (https://www.kernel.org/doc/html/latest/hwmon/sysfs-interface.html). An ACPI meter such as Grace's
  has them in `device/`. Rails of an INA3221 have voltage and current only.
- Sensors overlap: a module's power contains its GPU, CPU and memory. So they are devices of kind
  `hwmon`, which belong to no component and are never added. Grace is the exception.
- Grace has no RAPL. Its firmware reports per socket `Grace Power Socket N` (whole socket), `CPU
  Power Socket N` (rail of the cores) and `SysIO Power Socket N` (rail of the SoC). A GH200 also has
  `Module Power Socket N` (Grace, GPU, HBM, DRAM and regulator losses):
  https://docs.nvidia.com/grace-perf-tuning-guide/power-thermals.html#power-telemetry. RAPL's
  package contains cores, caches, interconnect, memory controllers and I/O; the rail of the cores
  lacks up to half of the socket's power. So `Grace Power Socket N` is package N, and the rail of
  the cores only if it is missing. The socket may include memory and losses; no `dram` is reported
  with it, so nothing is counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattline.contract.metrics import CPU_ENERGY_METHOD, HWMON_POWER
from wattline_exporter.sensors.readings import Batch, Device, Poll, Reading, SourceError, boottime
from wattline_exporter.sensors.registry import CheckLine, NoOptions, SensorContext, SensorKind

MAX_BOARD_W = 100_000.0
"""Upper bound of a board's power."""
_POWER = re.compile(r"(power[0-9]{1,3})_(average|input)")
_RAILS = {"ina3221": (1, 2, 3)}
_INVALID_CHARACTERS = re.compile(r"[^\x21-\x7e ]|/")
_MAX_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class HwmonSensor:
    """Sensor with one file in microwatts, or two in millivolts and milliamperes."""

    chip: str
    name: str
    files: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.chip}/{self.name}"

    def power_w(self) -> float:
        """Return the power. Raises OSError, and ValueError for an implausible value."""
        values = []
        for file in self.files:
            with open(file, "rb") as opened:  # noqa: PTH123  # creating a Path takes as long as the read
                values.append(int(opened.read(32)))
        if len(values) > 1:
            values[1] = max(0, values[1])  # a rail without load may show a small negative current
            power_w = values[0] * values[1] / 1e6
        else:
            power_w = values[0] / 1e6
        if not 0 <= power_w <= MAX_BOARD_W:
            raise ValueError(power_w)
        return power_w


def find_power_sensors(hwmon: Path) -> list[HwmonSensor]:
    """Return all power sensors below `hwmon`, in an order that does not depend on hwmonN."""
    try:
        chips = sorted((_chip(folder), folder) for folder in hwmon.iterdir())
    except OSError:
        return []
    sensors: dict[str, HwmonSensor] = {}
    for chip, folder in chips:
        driver = _text(folder / "name")
        channels = ([*_powers(one), *_rails(one, driver)] for one in (folder, folder / "device"))
        for channel, label, files in next(filter(None, channels), []):
            name = next(name for name in _names(label, channel) if f"{chip}/{name}" not in sensors)
            sensors[f"{chip}/{name}"] = HwmonSensor(chip, name, files)
    return list(sensors.values())


def _chip(folder: Path) -> str:
    device = folder / "device"
    parent = device.resolve().name if device.exists() else ""
    return (
        "-".join(part for part in (_clean(_text(folder / "name")), _clean(parent)) if part)
        or "unknown"
    )


def _names(label: str, channel: str) -> Iterator[str]:
    """Yield the label, then label and channel for a second sensor of the chip with the same
    label.
    """
    if label:
        yield label
        yield f"{label} {channel}"
    yield channel
    yield from (f"{channel} {number}" for number in range(2, 1_000_000))


def _powers(folder: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield channel, label and files."""
    best: dict[str, str] = {}
    for name in _entries(folder):
        match = _POWER.fullmatch(name)
        if match and (match[2] == "average" or match[1] not in best):
            best[match[1]] = name
    for channel in sorted(best, key=lambda name: (len(name), name)):
        number = channel.removeprefix("power")
        labels = (
            _text(folder / f"{channel}_oem_info"),
            _text(folder / f"{channel}_label"),
            _text(folder / f"in{number}_label"),
        )
        yield channel, _clean(next(filter(None, labels), "")), (str(folder / best[channel]),)


def _rails(folder: Path, driver: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    entries = set(_entries(folder))
    for number in _RAILS.get(driver, ()):
        files = (f"in{number}_input", f"curr{number}_input")
        measured = {f"power{number}_average", f"power{number}_input"} & entries
        if measured or not entries.issuperset(files) or _text(folder / f"in{number}_enable") == "0":
            continue
        yield (
            f"in{number}",
            _clean(_text(folder / f"in{number}_label")),
            tuple(str(folder / file) for file in files),
        )


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _clean(text: str) -> str:
    return _INVALID_CHARACTERS.sub("_", text.strip())[:_MAX_CHARACTERS].strip()


def _text(path: Path) -> str:
    """Return the text of the file, empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()
    except OSError:
        return ""


REDISCOVER_S = 60.0
PROBLEM_S = 60.0
"""Time for which a failure is reported, so that a sensor that fails now and then is logged once."""
_SOCKET = re.compile(r"(Grace|CPU) Power Socket ([0-9]{1,4})", re.IGNORECASE)


class _SensorReader:
    """Reader of sensors, which are searched once a minute."""

    def __init__(
        self,
        root: Path,
        clock: Callable[[], float],
        choose: Callable[[list[HwmonSensor]], dict[Device, HwmonSensor]],
    ) -> None:
        self.chosen: dict[Device, HwmonSensor] = {}
        self._folder = root / "class" / "hwmon"
        self._clock = clock
        self._choose = choose
        self._discover_at_s = float("-inf")
        self._failed: dict[Device, tuple[float, str]] = {}

    def read(self) -> list[Poll]:
        now_s = self._clock()
        if now_s >= self._discover_at_s:
            self.chosen = self._choose(find_power_sensors(self._folder))
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
        self._failed = {
            device: (at_s, cause)
            for device, (at_s, cause) in self._failed.items()
            if now_s - at_s < PROBLEM_S
        }
        return polls

    def problems(self) -> tuple[str, ...]:
        return tuple(cause for _, cause in self._failed.values())


def _explain(sensor: HwmonSensor, error: OSError | ValueError) -> str:
    cause = error.strerror if isinstance(error, OSError) else "invalid power"
    return (
        f"cannot read {sensor.name} of {sensor.chip} ({cause}): see: cat {' '.join(sensor.files)}"
    )


class HwmonSource:
    """Source of all power sensors of the board; `root` is the mount point of sysfs."""

    name = "hwmon"

    def __init__(self, root: Path = Path("/sys"), clock: Callable[[], float] = boottime) -> None:
        self._sensors = _SensorReader(
            root, clock, lambda found: {Device("hwmon", sensor.id): sensor for sensor in found}
        )

    def read(self) -> Batch:
        """Read all sensors. Raises SourceError if there are sensors and all fail."""
        polls = self._sensors.read()
        problems = self._sensors.problems()
        if problems and not polls:
            raise SourceError("cannot read any power sensor of the board", "; ".join(problems))
        names = {
            device: (sensor.chip, sensor.name) for device, sensor in self._sensors.chosen.items()
        }
        readings = [
            Reading(HWMON_POWER, names[poll.device], poll.instant_w)
            for poll in polls
            if poll.instant_w is not None
        ]
        return Batch(tuple(readings), tuple(polls), problems)


class GraceSocketSource:
    """Source of Grace sockets as CPU packages, where RAPL is missing."""

    name = "hwmon"

    def __init__(self, root: Path = Path("/sys"), clock: Callable[[], float] = boottime) -> None:
        self._names: dict[Device, str] = {}
        self._sensors = _SensorReader(root, clock, self._packages)

    def read(self) -> Batch:
        """Read the sockets. Raises SourceError if there are none, or all fail."""
        polls = self._sensors.read()
        problems = self._sensors.problems()
        if not polls and problems:
            raise SourceError(
                "cannot read the power sensors of the CPU sockets", "; ".join(problems)
            )
        if not polls:
            raise SourceError(
                "the board has no power sensor of a CPU socket", "see: ls /sys/class/hwmon"
            )
        methods = [Reading(CPU_ENERGY_METHOD, (poll.device.id, "hwmon"), 1) for poll in polls]
        return Batch(tuple(methods), tuple(polls), problems)

    def _packages(self, sensors: list[HwmonSensor]) -> dict[Device, HwmonSensor]:
        """Return the sensor of each socket, `Grace` before `CPU`; a choice is kept."""
        chosen: dict[Device, HwmonSensor] = {}
        for sensor in sorted(
            sensors, key=lambda sensor: sensor.name.lower(), reverse=True
        ):  # Grace before CPU
            match = _SOCKET.fullmatch(sensor.name)
            if match is None:
                continue
            device = Device("package", str(int(match[2])))
            if device not in chosen and self._names.get(device, sensor.name) == sensor.name:
                chosen[device] = sensor
        self._names |= {device: sensor.name for device, sensor in chosen.items()}
        return dict(sorted(chosen.items()))


def find_board(_options: NoOptions, context: SensorContext) -> Sequence[HwmonSource]:
    """Return the source of the board's sensors, none for a board without power sensors."""
    hwmon = context.sysfs / "class" / "hwmon"
    return [HwmonSource(context.sysfs)] if find_power_sensors(hwmon) else []


def board_lines(source: HwmonSource) -> list[CheckLine]:
    """Return no line for a board without power sensors; they are not part of runs."""
    try:
        batch = source.read()
    except SourceError as error:
        return [CheckLine(f"hwmon   off: {error}")]
    works = (
        [CheckLine(f"hwmon   works: {', '.join(poll.device.id for poll in batch.polls)}")]
        if batch.polls
        else []
    )
    return [*works, *(CheckLine(f"hwmon   in part: {problem}") for problem in batch.problems)]


SENSOR = SensorKind(
    name="hwmon",
    help="Read the power sensors of the board.",
    period_s=1.0,
    find=find_board,
    check=board_lines,
    position=2,
)
