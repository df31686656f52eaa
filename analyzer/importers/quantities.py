"""Quantities in imported files: number, unit and plausible range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from analyzer.importers.text import is_absent

_UNIT_IN_COLUMN = re.compile(r"^(.*?)\s*[\[(]\s*([^\])]*?)\s*[\])]\s*$")
_GROUPED = re.compile(r"^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$")
_PLAIN = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
_CELL = re.compile(r"^([-+]?[\d.,]+(?:[eE][-+]?\d+)?)\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Quantity:
    """Kind of value with the factors of its units to Wattline's unit, the usual unit, and its plausible range."""

    name: str
    units: Mapping[str, float]
    usual: str
    low: float
    high: float

    def factor(self, unit: str) -> float:
        """Return the factor of a unit, the usual one for an empty text. Raises ValueError."""
        wanted = unit.strip() or self.usual
        lower = {known.lower(): factor for known, factor in reversed(list(self.units.items()))}
        if wanted not in self.units and wanted.lower() not in lower:
            raise ValueError(f"unknown unit {wanted[:20]!r} of {self.name}; known: {', '.join(self.units)}")
        return self.units[wanted] if wanted in self.units else lower[wanted.lower()]

    def checked(self, value: float) -> float:
        """Return the value. Raises ValueError for a value that no such device has."""
        if not self.low <= value <= self.high:
            raise ValueError(
                f"implausible {self.name}: {value:,.10g}, expected {self.low:,g} to {self.high:,g}; "
                "check the unit in the column's name"
            )
        return value

    def parse(self, text: str, column_unit: str = "") -> float | None:
        """Return the value of a cell, whose own unit precedes that of its column; None if absent. Raises ValueError."""
        if is_absent(text):
            return None
        match = _CELL.match(text.strip())
        if not match:
            raise ValueError(f"{text.strip()[:60]!r} is not a number")
        return self.checked(_number(match[1], text) * self.factor(match[2] or column_unit))


def _number(digits: str, text: str) -> float:
    """Return a number, which may have commas between thousands. Raises ValueError."""
    plain = digits.replace(",", "") if _GROUPED.match(digits) else digits
    if not _PLAIN.match(plain) or not math.isfinite(float(plain)):
        raise ValueError(f"{text.strip()[:60]!r} is not a number; write it like 1250.5")
    return float(plain)


def split_column(column: str) -> tuple[str, str]:
    """Return a column's name and its unit, which may be empty: `power.draw [W]`, `Power (mW)`."""
    match = _UNIT_IN_COLUMN.match(column)
    return (match[1].strip().lower(), match[2]) if match else (column.strip().lower(), "")


_WATTS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "MW": 1e6, "watts": 1.0, "watt": 1.0}
GPU_POWER_W = Quantity("GPU power in W", _WATTS, "W", 0.0, 3_000.0)
"""No GPU draws 3 kW: the largest modules have limits of 1.4 kW."""
NODE_POWER_W = Quantity("power in W", _WATTS, "W", 0.0, 200_000.0)
"""Power of all GPUs of a node, or of the load of a wall meter or PDU."""
CPU_POWER_W = Quantity("CPU power in W", _WATTS, "W", 0.0, 3_000.0)
RATIO = Quantity("share in %", {"%": 0.01}, "%", 0.0, 2.0)
TEMPERATURE_CELSIUS = Quantity("temperature in °C", {"C": 1.0, "°C": 1.0}, "C", -60.0, 250.0)
CLOCK_HZ = Quantity("clock in Hz", {"MHz": 1e6, "GHz": 1e9, "kHz": 1e3, "Hz": 1.0}, "MHz", 0.0, 2e10)
MEMORY_BYTES = Quantity(
    "memory in bytes",
    {"MiB": 2.0**20, "GiB": 2.0**30, "KiB": 2.0**10, "MB": 1e6, "GB": 1e9, "KB": 1e3, "B": 1.0},
    "MiB",
    0.0,
    2.0**45,
)
