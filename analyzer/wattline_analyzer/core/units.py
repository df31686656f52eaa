"""Numbers as text, with units and as many digits as their intervals justify."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from wattline.contract.work import unit_of_one
from wattline_analyzer.core.interval import Interval
from wattline_analyzer.core.times import local_time

_WATT_HOUR_J = 3_600.0
_KILOWATT_HOUR_J = 3.6e6
_LEAST_RATIO = 0.01
"""Ratio to its half-width from which on a value has two digits at least."""
_LARGE = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"), (1e-15, "f"))


def largest(values: Iterable[Interval | float | None]) -> float:
    """Return the largest absolute value that is known, which chooses the unit of a column."""
    plain = (
        value if value is None or isinstance(value, float | int) else value.value
        for value in values
    )
    return max((abs(value) for value in plain if value is not None), default=0.0)


def energy(
    quantity: Interval,
    largest_j: float | None = None,
    *,
    half: bool = True,
    least_digits: bool = True,
) -> str:
    """Return `950 ± 12 J`, `1.234 ± 0.005 Wh` or `12.30 ± 0.05 kWh`, in the unit that fits
    `largest_j`.

    The half-width covers random and systematic errors. It decides the digits, also with
    `half=False`; the value has two of them at least, except without `least_digits`, for energies
    that may be 0 or less: `-10 ± 80 J`.
    """
    unit, joules = energy_unit(quantity.value if largest_j is None else largest_j)
    return _with_unit(quantity.scaled(1 / joules), unit, half=half, least_digits=least_digits)


def marked(text: str, estimated: bool) -> str:
    """Append `(estimate)` to a figure that was not measured."""
    return f"{text} (estimate)" if estimated else text


def plain_energy(value_j: float, largest_j: float | None = None) -> str:
    """Return an energy without an interval."""
    return energy(Interval(value_j), largest_j)


def energy_parts(quantity: Interval) -> tuple[str, str, str]:
    """Return value, half-width of all errors together (empty where unknown) and unit, as texts."""
    unit, joules = energy_unit(quantity.value)
    value, half = _digits(quantity.scaled(1 / joules))
    return value, half, unit


def random_error(quantity: Interval) -> str:
    """Return `± 3.7 J (0.060 %)`, in the unit of the energy; empty where it is unknown."""
    return (
        "" if quantity.half is None else error_half(quantity.half, quantity.value, quantity.value)
    )


def systematic_error(quantity: Interval) -> str:
    """Return `-180 to +610 J (9.9 %)`, in the unit of the energy; empty without one."""
    return (
        error_limits(quantity.systematic, quantity.value, quantity.value)
        if quantity.systematic
        else ""
    )


def error_half(half_j: float, energy_j: float, largest_j: float) -> str:
    """Return a half-width in the unit that fits `largest_j`, with its ratio to the energy."""
    unit, joules = energy_unit(largest_j)
    return f"± {_two_digits(half_j / joules)} {unit}{_percent(half_j, energy_j)}"


def error_limits(limits_j: tuple[float, float], energy_j: float, largest_j: float) -> str:
    """Return limits of an error, with the ratio of the larger one to the energy."""
    unit, joules = energy_unit(largest_j)
    low, high = (_signed(limit / joules) for limit in limits_j)
    return f"{low} to {high} {unit}{_percent(max(limits_j, key=abs), energy_j)}"


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{_two_digits(abs(value))}" if value else "0"


def _percent(part: float, whole: float) -> str:
    return f" ({_two_digits(100 * abs(part) / whole)} %)" if whole > 0 else ""


def _two_digits(value: float) -> str:
    if value <= 0:
        return "0"
    decimals = 1 - math.floor(math.log10(value))
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def energy_bound(bound: Interval, largest_j: float | None = None) -> str:
    """Return `3,480 J (3,010 to 3,950)`."""
    unit, joules = energy_unit(bound.value if largest_j is None else largest_j)
    low_j, high_j = bound.ends
    decimals = _decimals((high_j - low_j) / 2 / joules, bound.value / joules)
    value, low, high = (f"{x / joules:,.{max(decimals, 0)}f}" for x in (bound.value, low_j, high_j))
    return f"{value} {unit} ({low} to {high})"


def power(quantity: Interval) -> str:
    if abs(quantity.value) >= 10_000:
        return _with_unit(quantity.scaled(1e-3), "kW")
    return _with_unit(quantity, "W")


def mass(quantity: Interval, largest_g: float | None = None, *, half: bool = True) -> str:
    """Return a mass of CO2eq in mg, g, kg or t."""
    for limit, factor, unit in ((1, 1e3, "mg"), (1e3, 1, "g"), (1e6, 1e-3, "kg")):
        if abs(quantity.value if largest_g is None else largest_g) < limit:
            return f"{_with_unit(quantity.scaled(factor), unit, half=half)} CO₂eq"
    return f"{_with_unit(quantity.scaled(1e-6), 't', half=half)} CO₂eq"


def plain_mass(value_g: float, largest_g: float | None = None) -> str:
    return mass(Interval(value_g), largest_g)


def energy_per_unit(
    quantity: Interval, unit: str, largest_j: float | None = None, *, half: bool = True
) -> str:
    """Return `46.7 ± 0.2 mJ per generated token`."""
    return f"{energy_of_one(quantity, largest_j, half=half)} per {unit_of_one(unit)}"


def energy_of_one(quantity: Interval, largest_j: float | None = None, *, half: bool = True) -> str:
    """Return `46.7 ± 0.2 mJ`: SI prefixes below a joule, Wh and kWh above."""
    unit, joules = _unit_of_one(quantity.value if largest_j is None else largest_j)
    return _with_unit(quantity.scaled(1 / joules), unit, half=half)


def _unit_of_one(value_j: float) -> tuple[str, float]:
    if abs(value_j) >= 1 or value_j == 0:
        return energy_unit(value_j)
    factor, prefix = next(((f, p) for f, p in _SMALL if abs(value_j) >= f), _SMALL[-1])
    return f"{prefix}J", factor


def amount(value: float, unit: str) -> str:
    """Return `1,234 generated tokens` or `1.5 Tflop`."""
    factor, prefix = next(((f, p) for f, p in _LARGE if abs(value) >= 10 * f), (1.0, ""))
    number = f"{value / factor:,.4g}" if abs(value / factor) < 9_999.5 else f"{value / factor:,.0f}"
    return f"{number} {prefix}{unit.replace('_', ' ')}"


def rate(value: float, unit: str) -> str:
    """Return `1,234 generated tokens/s`."""
    factor, prefix = next(((f, p) for f, p in _LARGE if abs(value) >= 10 * f), (1.0, ""))
    return f"{_significant(value / factor)} {prefix}{unit.replace('_', ' ')}/s"


def duration(seconds: float) -> str:
    """Return `10.02 s`, `2 min 5.3 s` or `1 h 2 min 3 s`."""
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
    """Return `2026-11-20 10:15:00 to 10:16:35, UTC+00:00`, in local time; both offsets if the
    clocks change.
    """
    start = datetime.fromtimestamp(start_s).astimezone()
    zone = f"UTC{start.isoformat()[-6:]}"
    if end_s is None:
        return f"since {start:%Y-%m-%d %H:%M:%S}, {zone}"
    end = datetime.fromtimestamp(end_s).astimezone()
    until = end.strftime("%H:%M:%S" if end.date() == start.date() else "%Y-%m-%d %H:%M:%S")
    if end.utcoffset() != start.utcoffset():
        return f"{start:%Y-%m-%d %H:%M:%S} {zone} to {until} UTC{end.isoformat()[-6:]}"
    return f"{start:%Y-%m-%d %H:%M:%S} to {until}, {zone}"


def moment(unix_s: float) -> str:
    """Return the local time with its UTC offset, in ISO 8601."""
    return local_time(unix_s)


def number(value: float) -> str:
    """Return four significant digits."""
    return _significant(value)


def money(amount: Interval) -> str:
    """Return an amount without its half-width, which decides the digits, and without an exponent:
    `0.0000510`.
    """
    if amount.total_half or abs(amount.value) >= 1e-4 or amount.value == 0:
        return _digits(amount)[0]
    return f"{amount.value:.{3 - math.floor(math.log10(abs(amount.value)))}f}"


def plain(value: float, half: float) -> str:
    """Return `31.20 ± 0.25`, for columns whose title has the unit."""
    return " ± ".join(filter(None, _digits(Interval(value, half))))


def energy_unit(value_j: float) -> tuple[str, float]:
    if abs(value_j) < _WATT_HOUR_J:
        return "J", 1.0
    return ("Wh", _WATT_HOUR_J) if abs(value_j) < _KILOWATT_HOUR_J else ("kWh", _KILOWATT_HOUR_J)


def _with_unit(
    quantity: Interval, unit: str, *, half: bool = True, least_digits: bool = True
) -> str:
    value, half_text = _digits(quantity, least_digits=least_digits)
    return f"{value} ± {half_text} {unit}" if half and half_text else f"{value} {unit}"


def _digits(quantity: Interval, *, least_digits: bool = True) -> tuple[str, str]:
    half = quantity.total_half
    if not half:
        return _significant(quantity.value), ""
    decimals = _decimals(half, quantity.value)
    of_value = decimals
    if least_digits and abs(quantity.value) >= _LEAST_RATIO * half:
        of_value = max(decimals, 1 - math.floor(math.log10(abs(quantity.value))))
    if of_value > max(decimals, 0):  # both have the same decimals
        decimals = of_value = min(of_value, max(decimals, 0) + 1)
    return _rounded(quantity.value, of_value), _rounded(half, decimals)


def _rounded(value: float, decimals: int) -> str:
    return f"{round(value, decimals):z,.{max(decimals, 0)}f}"


def _decimals(half: float, value: float) -> int:
    """Return the decimals that show two digits of a half-width that starts with 1 or 2, else one
    digit; and at most seven digits of the value, unless the half-width needs more. They are
    negative for a half-width above 30, since further digits are unknown.
    """
    exponent = math.floor(math.log10(half)) if half > 0 else -4
    wanted = (1 if half < 3 * 10.0**exponent else 0) - exponent
    allowed = 6 - math.floor(math.log10(abs(value))) if value else 6
    return min(wanted, max(allowed, 0, -exponent if half > 0 else 0))


def _significant(value: float) -> str:
    """Return four significant digits with separated thousands: `12,346`, `0.04670`, `3.142`."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4 or abs(value) >= 1e9:
        return f"{value:.3e}"
    return f"{value:,.{max(3 - math.floor(math.log10(abs(value))), 0)}f}"
