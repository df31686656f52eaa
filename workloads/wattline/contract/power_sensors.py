"""Power sensors of GPU architectures, as metered in arXiv 2312.02741."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

IDLE_LEVEL_RATIO = 0.05
"""Width of the lowest level of power, whose mean is the idle power, as a ratio to its lowest 10 s.

An energy counter that is updated each 0.1 s gives means over 10 s within ± 1 to 2 %.
"""


@dataclass(frozen=True, slots=True)
class SensorWindow:
    """A sensor that averages `window_s` of each `update_s`."""

    update_s: float
    window_s: float

    @property
    def seen_ratio(self) -> float:
        return self.window_s / self.update_s


@dataclass(frozen=True, slots=True)
class SystematicBand:
    """The reading relative to the true energy, in percent, as external meters found it."""

    architecture: str
    low_percent: float
    high_percent: float


@dataclass(frozen=True, slots=True)
class PowerSensor:
    """`marks` are parts of a GPU's name or architecture. `band` is None where no meter was
    attached.
    """

    marks: tuple[str, ...]
    window: SensorWindow
    band: SystematicBand | None


_QUARTER = SensorWindow(0.1, 0.025)
_HALF = SensorWindow(0.02, 0.01)
_WHOLE = SensorWindow(0.1, 0.1)
_FAST = SensorWindow(0.015, 0.015)

# Yang, Adamek, Armour, arXiv 2312.02741, raw results; H200, GH200 and Blackwell were not metered.
# The first match wins.
POWER_SENSORS = (
    PowerSensor(
        ("a100", "a800", "a30", "ga100", "drive-pg199"), _QUARTER, SystematicBand("GA100", -6, 3)
    ),
    PowerSensor(
        ("h100",),
        _QUARTER,
        SystematicBand("GH100, none metered, so the default of its class", -6, 6),
    ),
    PowerSensor(("ada", "rtx 40", "l40", " l4"), _WHOLE, SystematicBand("Ada", -6, 3)),
    PowerSensor(
        ("ampere", "rtx 30", "a40", "a10", "a6000", "a5000"),
        _WHOLE,
        SystematicBand("Ampere GA10x", -7, 3),
    ),
    PowerSensor(("turing", "rtx 20", " t4"), _WHOLE, SystematicBand("Turing", -8, 13)),
    PowerSensor(("volta", "v100", "titan v"), _HALF, None),
    PowerSensor(("pascal", "p100", "p40", "gtx 10"), _HALF, SystematicBand("Pascal", -1, 1)),
    PowerSensor(("kepler", "k40", "k80"), _FAST, SystematicBand("Kepler", -9, 4)),
    PowerSensor(("maxwell",), _FAST, SystematicBand("Maxwell", -41, 3)),
)
UNKNOWN_BAND = SystematicBand(
    "no GPU of this architecture was metered; the band of most GPUs", -9, 3
)


@lru_cache(maxsize=256)
def find_power_sensor(name: str, architecture: str) -> PowerSensor | None:
    """Return the sensor of a GPU by its name and architecture; None where it was not metered.

    The Quadro RTX 4000 is no RTX 40, and the RTX A3000 no A30.
    """
    text = f" {name} {architecture}".lower()
    text = text.replace("quadro rtx", "turing").replace("rtx a", "ampere rtx-a-")
    return next(
        (sensor for sensor in POWER_SENSORS if any(mark in text for mark in sensor.marks)), None
    )


def sensor_window(name: str, architecture: str) -> SensorWindow | None:
    sensor = find_power_sensor(name, architecture)
    return sensor.window if sensor else None


def systematic_band(name: str, architecture: str) -> SystematicBand:
    sensor = find_power_sensor(name, architecture)
    return sensor.band if sensor and sensor.band else UNKNOWN_BAND


def band_limits_j(energy_j: float, band: SystematicBand) -> tuple[float, float]:
    """Return the limits of the true value minus the reading; the band is of the reading, relative
    to the true value.
    """
    truths_j = [energy_j / (1 + percent / 100) for percent in (band.high_percent, band.low_percent)]
    return truths_j[0] - energy_j, truths_j[1] - energy_j


def gpu_limits_j(energy_j: float, name: str, architecture: str) -> tuple[float, float]:
    """Return the limits of the true value minus the reading of a GPU, by its name and
    architecture.
    """
    return band_limits_j(energy_j, systematic_band(name, architecture))
