"""Figures as text, rounded as `wattline_analyzer.core.units` rounds them.

Only the standard library is imported, since it also runs inside users' training processes.
"""

from __future__ import annotations

import math

_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"), (1e-15, "f"))
_MOST_DIGITS = 7
_LEAST_RATIO = 0.01


def with_half(value: float, half: float | None) -> str:
    """Return `1,710 ± 170`, or four digits where the half-width is unknown."""
    if not half or not math.isfinite(half):
        return f"{value:,.{max(3 - _magnitude(value), 0)}f}"
    of_value, of_half = _decimals(value, half)
    return f"{_text(value, of_value)} ± {_text(half, of_half)}"


def rounded(value: float, half: float) -> str:
    """Return the value with two digits of a half-width that starts with 1 or 2, else one.

    It has at most seven digits, unless the half-width needs more, and at least two from a hundredth
    of that on.
    """
    return _text(value, _decimals(value, half)[0])


def _decimals(value: float, half: float) -> tuple[int, int]:
    """Return the decimals of a value and of its half-width, which are the same unless one of them
    is negative.
    """
    exponent = _magnitude(half)
    wanted = (1 if half < 3 * 10.0**exponent else 0) - exponent
    decimals = min(wanted, max(_MOST_DIGITS - 1 - _magnitude(value), 0, -exponent))
    of_value = (
        max(decimals, 1 - _magnitude(value)) if abs(value) >= _LEAST_RATIO * half else decimals
    )
    if of_value > max(decimals, 0):
        decimals = of_value = min(of_value, max(decimals, 0) + 1)
    return of_value, decimals


def _text(value: float, decimals: int) -> str:
    return f"{round(value, decimals):z,.{max(decimals, 0)}f}"


def plain(value: float) -> str:
    """Return at most four significant digits, or all digits of a larger number."""
    return f"{value:,.0f}" if abs(value) >= 9_999.5 else f"{value:,.4g}"


def two_digits(value: float) -> str:
    decimals = 1 - _magnitude(value)
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def small_energy(joules: float, ratio: float | None = None) -> str:
    """Return `46.7 mJ`, with SI prefixes below a joule; `ratio` is its relative half-width."""
    factor, prefix = next(
        ((f, p) for f, p in _SMALL if joules >= f), _SMALL[-1] if joules > 0 else _SMALL[0]
    )
    value = joules / factor
    return f"{rounded(value, value * ratio) if ratio and value else plain(value)} {prefix}J"


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0
