"""Numbers as people read them: each with its unit, and no more digits than its interval allows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from analyzer.model.interval import Interval

_WATT_HOUR_J = 3_600.0
_KILOWATT_HOUR_J = 3.6e6
_LARGE = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"), (1e-15, "f"))


def largest(values: Iterable[Interval | float | None]) -> float:
    """What decides the unit of a column, so that all of its figures have the same; those that are absent do not."""
    plain = (value if value is None or isinstance(value, float | int) else value.value for value in values)
    return max((abs(value) for value in plain if value is not None), default=0.0)


def energy(quantity: Interval, of: float | None = None) -> str:
    """`950 ± 12 J`, `1.234 ± 0.005 Wh`, `12.30 ± 0.05 kWh`; the unit is that of the `largest` beside it."""
    unit, joules = energy_unit(quantity.value if of is None else of)
    return _with_unit(quantity.scaled(1 / joules), unit)


def marked(text: str, estimated: bool) -> str:
    """With a word where it was not measured, which an interval would hide."""
    return f"{text} (estimate)" if estimated else text


def plain_energy(value_j: float, of: float | None = None) -> str:
    """Without an interval, where none is known."""
    return energy(Interval(value_j), of)


def energy_parts(quantity: Interval) -> tuple[str, str, str]:
    """Value, half of the interval (empty where it is not known) and unit, for a headline."""
    unit, joules = energy_unit(quantity.value)
    value, half = _digits(quantity.scaled(1 / joules))
    return value, half, unit


def energy_bound(bound: Interval, of: float | None = None) -> str:
    """`3,480 J (3,010 to 3,950)`."""
    unit, joules = energy_unit(bound.value if of is None else of)
    low_j, high_j = bound.ends
    decimals = _decimals((high_j - low_j) / 2 / joules, bound.value / joules)
    value, low, high = (f"{x / joules:,.{decimals}f}" for x in (bound.value, low_j, high_j))
    return f"{value} {unit} ({low} to {high})"


def power(quantity: Interval) -> str:
    if abs(quantity.value) >= 10_000:
        return _with_unit(quantity.scaled(1e-3), "kW")
    return _with_unit(quantity, "W")


def mass(quantity: Interval, of: float | None = None) -> str:
    """Of CO2 equivalent, in mg, g, kg or t."""
    for limit, factor, unit in ((1, 1e3, "mg"), (1e3, 1, "g"), (1e6, 1e-3, "kg")):
        if abs(quantity.value if of is None else of) < limit:
            return f"{_with_unit(quantity.scaled(factor), unit)} CO₂eq"
    return f"{_with_unit(quantity.scaled(1e-6), 't')} CO₂eq"


def plain_mass(value_g: float, of: float | None = None) -> str:
    return mass(Interval(value_g), of)


def energy_per_unit(quantity: Interval, unit: str, of: float | None = None) -> str:
    """`46.7 ± 0.2 mJ per generated token`: SI prefixes below a joule, Wh and kWh above."""
    what, size = f"per {singular(unit)}", abs(quantity.value if of is None else of)
    if size >= 1 or size == 0:
        return f"{energy(quantity, of)} {what}"
    factor, prefix = next(((f, p) for f, p in _SMALL if size >= f), _SMALL[-1])
    return f"{_with_unit(quantity.scaled(1 / factor), f'{prefix}J')} {what}"


def amount(value: float, unit: str) -> str:
    """`1,234 generated tokens`, `1.5 Tflop`."""
    factor, prefix = next(((f, p) for f, p in _LARGE if abs(value) >= 10 * f), (1.0, ""))
    number = f"{value:,.0f}" if factor == 1 and value == int(value) else f"{value / factor:,.4g}"
    return f"{number} {prefix}{unit.replace('_', ' ')}"


def rate(value: float, unit: str) -> str:
    """`1,234 generated tokens/s`."""
    factor, prefix = next(((f, p) for f, p in _LARGE if abs(value) >= 10 * f), (1.0, ""))
    return f"{_significant(value / factor)} {prefix}{unit.replace('_', ' ')}/s"


def singular(unit: str) -> str:
    words = unit.replace("_", " ")
    return words[:-1] if words.endswith("s") and not words.endswith("ss") else words


def duration(seconds: float) -> str:
    """`10.02 s`, `2 min 5.3 s`, `1 h 2 min 3 s`."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    if seconds < 3_600:
        minutes, rest = divmod(round(seconds, 1), 60)
        return f"{minutes:.0f} min {rest:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {rest} s"


def percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %" if ratio < 0.9995 else "100 %"


def span(start_s: float, end_s: float | None) -> str:
    """`2026-11-20 10:15:00 to 10:16:35, UTC+00:00`, in local time."""
    start = datetime.fromtimestamp(start_s).astimezone()
    zone = f"UTC{start.isoformat()[-6:]}"
    if end_s is None:
        return f"since {start:%Y-%m-%d %H:%M:%S}, {zone}"
    end = datetime.fromtimestamp(end_s).astimezone()
    until = end.strftime("%H:%M:%S" if end.date() == start.date() else "%Y-%m-%d %H:%M:%S")
    return f"{start:%Y-%m-%d %H:%M:%S} to {until}, {zone}"


def moment(unix_s: float) -> str:
    """Local time with its offset, ISO 8601."""
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="seconds")


def number(value: float) -> str:
    """A result of the job: four significant digits, as it comes."""
    return _significant(value)


def plain(value: float, half: float) -> str:
    """`31.20 ± 0.25`, where the unit stands elsewhere."""
    return " ± ".join(filter(None, _digits(Interval(value, half))))


def energy_unit(value_j: float) -> tuple[str, float]:
    if abs(value_j) < _WATT_HOUR_J:
        return "J", 1.0
    return ("Wh", _WATT_HOUR_J) if abs(value_j) < _KILOWATT_HOUR_J else ("kWh", _KILOWATT_HOUR_J)


def _with_unit(quantity: Interval, unit: str) -> str:
    value, half = _digits(quantity)
    return f"{value} ± {half} {unit}" if half else f"{value} {unit}"


def _digits(quantity: Interval) -> tuple[str, str]:
    if not quantity.half:
        return _significant(quantity.value), ""
    decimals = _decimals(quantity.half, quantity.value)
    return f"{quantity.value:,.{decimals}f}", f"{quantity.half:,.{decimals}f}"


def _decimals(half: float, value: float) -> int:
    """So many that the half-width shows two significant digits where it begins with 1 or 2, else one; and no more than
    seven digits of the value.
    """
    exponent = math.floor(math.log10(half)) if half > 0 else -4
    wanted = (1 if half < 3 * 10.0**exponent else 0) - exponent
    allowed = 6 - math.floor(math.log10(abs(value))) if value else 6
    return max(min(wanted, allowed), 0)


def _significant(value: float) -> str:
    """Four significant digits, thousands separated: `12,346`, `0.04670`, `3.142`."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4 or abs(value) >= 1e9:
        return f"{value:.3e}"
    return f"{value:,.{max(3 - math.floor(math.log10(abs(value))), 0)}f}"
