"""The board's power sensors as the kernel's hwmon class shows them: which there are, and where their values stand.

- `powerN_average` and `powerN_input` in microwatts, in the chip's folder or, of an ACPI meter (a Grace has them), in
  `device/` (https://www.kernel.org/doc/html/latest/hwmon/sysfs-interface.html). Where a sensor has both, the average is
  read, which saw all of the time.
- Rails of an INA3221, as a Jetson has: `inN_input` mV times `currN_input` mA for its three channels. in4 to in6 are the
  shunts' voltages and curr4 is a sum (https://www.kernel.org/doc/html/latest/hwmon/ina3221.html).

hwmonN is numbered anew at each boot. A chip is called after its driver and its place: `ina3221-1-0040`,
`power_meter-ACPI000D:00`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_W = 100_000.0
"""More than any board draws."""
_POWER = re.compile(r"(power[0-9]{1,3})_(average|input)")
_RAILS = {"ina3221": (1, 2, 3)}
_UNFIT = re.compile(r"[^\x21-\x7e ]|/")
_LONGEST = 64


@dataclass(frozen=True, slots=True)
class Sensor:
    """`files` is one of microwatts, or two of millivolts and milliamperes."""

    chip: str
    name: str
    files: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.chip}/{self.name}"

    def power_w(self) -> float:
        """Raises OSError, and ValueError for what is no power."""
        values = []
        for file in self.files:
            with open(file, "rb") as opened:  # noqa: PTH123  # a Path for each read costs as much as the read
                values.append(int(opened.read(32)))
        if len(values) > 1:
            values[1] = max(0, values[1])  # a rail without load reads some milliamperes below zero
            power_w = values[0] * values[1] / 1e6
        else:
            power_w = values[0] / 1e6
        if not 0 <= power_w <= MOST_W:
            raise ValueError(power_w)
        return power_w


def sensors(hwmon: Path) -> list[Sensor]:
    """Every power sensor below `hwmon`, in an order that does not depend on hwmonN; none where there is none."""
    try:
        chips = sorted((_chip(folder), folder) for folder in hwmon.iterdir())
    except OSError:
        return []
    found: dict[str, Sensor] = {}
    for chip, folder in chips:
        driver = _text(folder / "name")
        places = ([*_powers(place), *_rails(place, driver)] for place in (folder, folder / "device"))
        for channel, label, files in next(filter(None, places), []):
            name = next(name for name in _names(label, channel) if f"{chip}/{name}" not in found)
            found[f"{chip}/{name}"] = Sensor(chip, name, files)
    return list(found.values())


def _chip(folder: Path) -> str:
    device = folder / "device"
    place = device.resolve().name if device.exists() else ""
    return "-".join(part for part in (_fit(_text(folder / "name")), _fit(place)) if part) or "unknown"


def _names(label: str, channel: str) -> Iterator[str]:
    """The label where there is one, and where two sensors of a chip have the same, the channel behind it."""
    if label:
        yield label
        yield f"{label} {channel}"
    yield channel
    yield from (f"{channel} {again}" for again in range(2, 1_000_000))


def _powers(place: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Channel, label, files."""
    best: dict[str, str] = {}
    for name in _entries(place):
        match = _POWER.fullmatch(name)
        if match and (match[2] == "average" or match[1] not in best):
            best[match[1]] = name
    for channel in sorted(best, key=lambda name: (len(name), name)):
        number = channel.removeprefix("power")
        labels = (
            _text(place / f"{channel}_oem_info"),
            _text(place / f"{channel}_label"),
            _text(place / f"in{number}_label"),
        )
        yield channel, _fit(next(filter(None, labels), "")), (str(place / best[channel]),)


def _rails(place: Path, driver: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    entries = set(_entries(place))
    for number in _RAILS.get(driver, ()):
        files = (f"in{number}_input", f"curr{number}_input")
        measured = {f"power{number}_average", f"power{number}_input"} & entries
        if measured or not entries.issuperset(files) or _text(place / f"in{number}_enable") == "0":
            continue
        yield f"in{number}", _fit(_text(place / f"in{number}_label")), tuple(str(place / file) for file in files)


def _entries(place: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in place.iterdir())
    except OSError:
        return []


def _fit(text: str) -> str:
    return _UNFIT.sub("_", text.strip())[:_LONGEST].strip()


def _text(path: Path) -> str:
    """Empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()
    except OSError:
        return ""
