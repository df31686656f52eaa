"""Amounts, rates, durations and dates as text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from wattline.contract.work import unit_of_one
from wattline.figures import Figure, energy_of_one_text, short_text, significant_text
from wattline_analyzer.core.times import local_time

WHOLE_RATIO = 0.9995
"""Ratio of a run or a time from which on it counts as all of it, and is printed as 100 %."""
_LARGE = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


def largest(values: Iterable[Figure | float | None]) -> float:
    """Return the largest absolute value that is known, which chooses the unit of a column."""
    plain = (
        value if value is None or isinstance(value, float | int) else value.value
        for value in values
    )
    return max((abs(value) for value in plain if value is not None), default=0.0)


def marked(text: str, estimated: bool) -> str:
    """Append `(estimate)` to a figure that was not measured."""
    return f"{text} (estimate)" if estimated else text


def energy_per_unit(
    quantity: Figure, unit: str, largest_j: float | None = None, *, half: bool = True
) -> str:
    """Return `46.7 ± 0.2 mJ per generated token`."""
    return f"{energy_of_one_text(quantity, largest_j, half=half)} per {unit_of_one(unit)}"


def amount(value: float, unit: str) -> str:
    """Return `1,234 generated tokens` or `1.5 Tflop`."""
    factor, prefix = next(((f, p) for f, p in _LARGE if abs(value) >= 10 * f), (1.0, ""))
    return f"{short_text(value / factor)} {prefix}{unit.replace('_', ' ')}"


def rate(value: float, unit: str) -> str:
    """Return `1,234 generated tokens/s`."""
    factor, prefix = next(((f, p) for f, p in _LARGE if abs(value) >= 10 * f), (1.0, ""))
    return f"{significant_text(value / factor)} {prefix}{unit.replace('_', ' ')}/s"


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
    return f"{100 * ratio:.1f} %" if ratio < WHOLE_RATIO else "100 %"


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
