"""Values as text in Grafana's units: 210000 with the unit joule is 210 kJ."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_IEC = ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1.0, ""))
_SCALED = {"watt": "W", "joule": "J", "hertz": "Hz", "massg": "g"}
_FIXED = {"celsius": " °C"}


def amount(value: float, unit: str) -> str:  # noqa: PLR0911  # one return for each kind of unit
    if not math.isfinite(value):
        return "–"
    if unit in _SCALED:
        return _scaled(value, f" {{}}{_SCALED[unit]}")
    if unit == "kwatth":
        return _scaled(1_000 * value, " {}Wh")
    if unit == "bytes":
        return _scaled(value, " {}B", _IEC)
    if unit == "short":
        return _scaled(value, " {}") if abs(value) >= 1_000 else _plain(value)
    if unit == "percentunit":
        return f"{_plain(100 * value)} %"
    if unit == "s":
        return _seconds(value)
    if unit == "dateTimeAsIso":
        return datetime.fromtimestamp(value / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"{_plain(value)} {unit.removeprefix('suffix:')}"
        if unit.startswith("suffix:")
        else _plain(value) + _FIXED.get(unit, "")
    )


def _seconds(value: float) -> str:
    if abs(value) >= 7_200:
        return f"{_plain(value / 3_600)} h"
    if abs(value) >= 120:
        return f"{_plain(value / 60)} min"
    return _scaled(value, " {}s") if abs(value) < 1 else f"{_plain(value)} s"


def _scaled(value: float, after: str, prefixes: tuple[tuple[float, str], ...] = _SI) -> str:
    if value == 0:
        return f"0{after.format('')}".rstrip()
    factor, prefix = next((each for each in prefixes if abs(value) >= each[0]), prefixes[-1])
    return f"{_plain(value / factor)}{after.format(prefix)}".rstrip()


def _plain(value: float) -> str:
    """Format with three significant digits, or all digits of a large whole number."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
