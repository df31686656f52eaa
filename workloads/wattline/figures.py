"""Values with their uncertainty: sums, scaling, rounding, texts and JSON.

Every program adds and prints its figures with this module. It needs only the standard library,
since it also runs inside users' training processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Literal

Limits = tuple[float, float]
"""Lower and upper limit; infinite where there is none."""
State = Literal["known", "partial", "unknown"]

JOULES_PER_WH = 3_600.0
JOULES_PER_KWH = 3.6e6
NORMAL_95 = 1.96
"""Half-width of the 95 % interval of a normal distribution, in standard deviations."""
MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""
NOTHING_MEASURED = "nothing was measured"
"""Reason of a sum without parts."""
_UNLIMITED_REST: Limits = (0.0, math.inf)
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"), (1e-15, "f"))
"""Factors and SI prefixes of energies below a joule."""
_LEAST_RATIO = 0.01
"""Ratio to its half-width from which on a value has at least two digits."""


class UnknownFigureError(ValueError):
    """A number was asked of a figure that has none."""


class FigureFormatError(ValueError):
    """JSON that is no figure; the message names the field."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 95 % interval, in the unit that the field's name states.

    The interval by random errors is `half_width` where it is symmetric, else `skewed`; it is
    unknown where both are None. The limits of the other errors are differences, the true value
    minus `value`. Raises ValueError for a figure that contradicts itself.
    """

    value: float | None
    """None: unknown."""
    half_width: float | None = None
    """Half-width of the interval by random errors."""
    bias: Limits | None = None
    """Limits by the accuracy of the sensors, which the interval does not include."""
    rest: Limits | None = None
    """Limits by the part that was not measured; such a figure is partial."""
    covered_ratio: float = 1.0
    """Share of the time for which there are measurements."""
    reason: str = ""
    """Why the figure is unknown or partial."""
    skewed: Limits | None = None
    """Ends of the interval by random errors where it is not symmetric."""

    def __post_init__(self) -> None:
        if self.half_width is not None and self.skewed is not None:
            raise ValueError("a figure has either a half-width or a skewed interval")
        errors = (self.half_width, self.bias, self.rest, self.skewed)
        if self.value is None and any(error is not None for error in errors):
            raise ValueError("an unknown figure has no errors")
        if self.state != "known" and not self.reason:
            raise ValueError(f"a figure that is {self.state} needs a reason")

    @property
    def state(self) -> State:
        """State: `partial` figures lack a part, `unknown` ones have no number."""
        if self.value is None:
            return "unknown"
        return "known" if self.rest is None else "partial"

    @property
    def number(self) -> float:
        """Value of a figure that is not unknown. Raises UnknownFigureError."""
        if self.value is None:
            raise UnknownFigureError(f"the figure is unknown: {self.reason}")
        return self.value

    @property
    def low(self) -> float | None:
        """Lower end of the interval; None where it is unknown."""
        ends = self._ends
        return None if ends is None else ends[0]

    @property
    def high(self) -> float | None:
        """Upper end of the interval; None where it is unknown."""
        ends = self._ends
        return None if ends is None else ends[1]

    @property
    def limits(self) -> Limits:
        """Ends of the interval by random errors and by the part that was not measured.

        Raises UnknownFigureError where the value or its random error is unknown.
        """
        value = self.number
        ends = self._ends
        if ends is None:
            raise UnknownFigureError(f"the interval of {value} is unknown")
        return ends

    @property
    def _ends(self) -> Limits | None:
        ends = self.skewed
        if self.value is not None and self.half_width is not None:
            ends = self.value - self.half_width, self.value + self.half_width
        if ends is None or self.rest is None:
            return ends
        return ends[0] + self.rest[0], ends[1] + self.rest[1]

    @property
    def known_half_width(self) -> float:
        """Half-width of a figure that has one. Raises UnknownFigureError."""
        if self.half_width is None:
            raise UnknownFigureError(f"the half-width of {self.value} is unknown")
        return self.half_width

    @property
    def relative_half_width(self) -> float | None:
        """Half-width as a ratio to the value; None where it is unknown, and of 0."""
        if self.half_width is None or not self.value:
            return None
        return self.half_width / abs(self.value)

    @property
    def total_half_width(self) -> float | None:
        """Half-width of random error and sensor accuracy together; None where the random error is
        unknown.
        """
        return None if self.half_width is None else self.known_error

    @property
    def known_error(self) -> float | None:
        """Half-width of the errors that are known, which decides the digits: without the random
        error where that is unknown. None where none is known.
        """
        half_widths = [] if self.half_width is None else [self.half_width]
        half_widths += [] if self.bias is None else [max(map(abs, self.bias))]
        return math.hypot(*half_widths) if half_widths else None

    def scaled(self, factor: float) -> Figure:
        """Return the figure in another unit, or of `factor` as much."""
        if self.value is None:
            return self
        half_width = None if self.half_width is None else self.half_width * abs(factor)
        return replace(
            self,
            value=self.value * factor,
            half_width=half_width,
            bias=_scaled(self.bias, factor),
            rest=_scaled(self.rest, factor),
            skewed=_scaled(self.skewed, factor),
        )

    def complete(self) -> Figure:
        """Return the figure as a number that counts all of it: unknown where it is partial."""
        return self if self.state == "known" else unknown(self.reason)

    def symmetric(self) -> Figure:
        """Return the figure with the smallest symmetric interval that contains its own."""
        if self.value is None or self.skewed is None:
            return self
        low, high = self.skewed
        half_width = max(self.value - low, high - self.value)
        return replace(self, half_width=half_width, skewed=None)

    def with_accuracy_of(self, whole: Figure) -> Figure:
        """Return the figure with the relative sensor accuracy of `whole`, which the same sensors
        measured.
        """
        if whole.bias is None or not whole.value or self.value is None:
            return self
        return replace(self, bias=_scaled(whole.bias, self.value / whole.value))


def unknown(reason: str) -> Figure:
    """Return a figure without a number."""
    return Figure(None, covered_ratio=0.0, reason=reason)


def _scaled(limits: Limits | None, factor: float) -> Limits | None:
    if limits is None:
        return None
    if not factor:  # infinite limits as well
        return 0.0, 0.0
    low, high = sorted(limit * factor for limit in limits)
    return low, high


# Sums


def sum_of_one_job(parts: Iterable[Figure]) -> Figure:
    """Return the sum over the devices of one job; half-widths add.

    Nearly all of a half-width bounds the load between two updates of the sensor. Devices that a job
    loads at the same time have that error alike, whether or not their sensors update together.
    `tests/calibration/devices.py` measures the coverage: with added squares, it was 52 to 85 % for
    eight GPUs whose load has a period of one to two updates.
    """
    return sum_of_correlated(parts)


def sum_of_independent(parts: Iterable[Figure]) -> Figure:
    """Return the sum of figures with independent random errors, whose squares add.

    Limits by sensor accuracy add, since all sensors of a product may deviate in the same way.
    """
    return _sum(parts, lambda widths: math.hypot(*sorted(widths)))


def sum_of_correlated(parts: Iterable[Figure]) -> Figure:
    """Return the sum of figures whose errors may be the same, such as those of one sensor in
    several phases; their half-widths add.
    """
    return _sum(parts, math.fsum)


def _sum(parts: Iterable[Figure], add: Callable[[Iterable[float]], float]) -> Figure:
    """Return the sum of parts in any order, with their random errors joined by `add`.

    A sum with an unknown part is a lower limit; a sum without a known part is unknown.
    """
    figures = list(parts)
    known = [part for part in figures if part.value is not None]
    stated = {reason for part in figures for reason in part.reason.split("; ") if reason}
    reasons = sorted(stated) or [NOTHING_MEASURED]
    if not known:
        return unknown("; ".join(reasons))
    rests = [part.rest or _UNLIMITED_REST for part in figures if part.state != "known"]
    value = math.fsum(part.number for part in known)
    half_width = None
    skewed = None
    half_widths = [part.half_width for part in known if part.half_width is not None]
    if len(half_widths) == len(known):
        half_width = add(half_widths)
    elif all(part.half_width is not None or part.skewed for part in known):
        skewed = _sum_of_ends(known)
    return Figure(
        value,
        half_width,
        bias=_sum_of_limits([part.bias for part in known if part.bias is not None]),
        rest=_sum_of_limits(rests),
        covered_ratio=min(part.covered_ratio for part in figures),
        reason="; ".join(reasons) if rests else "",
        skewed=skewed,
    )


def _sum_of_ends(parts: list[Figure]) -> Limits | None:
    """Return the sum of intervals of which one is not symmetric: nothing is known of the values
    between the ends, so that these add.
    """
    return _sum_of_limits([replace(part, rest=None, reason="").limits for part in parts])


def _sum_of_limits(limits: list[Limits]) -> Limits | None:
    if not limits:
        return None
    return math.fsum(low for low, _ in limits), math.fsum(high for _, high in limits)


# Products and ratios. Their errors may be the same, so that relative half-widths add.


def product(one: Figure, other: Figure) -> Figure:
    """Return the product of two figures that are not unknown, with their random errors."""
    return _with_relative_errors(one, other, lambda left, right: left * right)


def ratio(one: Figure, other: Figure) -> Figure:
    """Return the ratio of two figures that are not unknown, of which `other` is not 0, with their
    random errors.
    """
    return _with_relative_errors(one, other, _quotient)


def _quotient(one: float, other: float) -> float:
    """Return one / other; infinite for a divisor of 0, as the limit of a divisor may be."""
    return one / other if other else math.copysign(math.inf, one)


def _with_relative_errors(
    one: Figure, other: Figure, calculate: Callable[[float, float], float]
) -> Figure:
    """Return a value with the half-widths of its factors as ratios; unknown where one of them is,
    and where a factor is 0, which has no such ratio.

    It is partial where a factor is, within the limits of both.
    """
    value = calculate(one.number, other.number)
    relative = [figure.symmetric().relative_half_width for figure in (one, other)]
    known = [part for part in relative if part is not None]
    half_width = abs(value) * math.fsum(known) if len(known) == len(relative) else None
    if one.state == other.state == "known":
        return Figure(value, half_width)
    ends = [calculate(left, right) for left in _ends_of_rest(one) for right in _ends_of_rest(other)]
    finite = [0.0 if math.isnan(end) else end for end in ends]  # 0 of an amount without a limit
    reasons = {reason for figure in (one, other) for reason in figure.reason.split("; ") if reason}
    return Figure(
        value,
        half_width,
        rest=(min(finite) - value, max(finite) - value),
        covered_ratio=min(one.covered_ratio, other.covered_ratio),
        reason="; ".join(sorted(reasons)),
    )


def _ends_of_rest(figure: Figure) -> Limits:
    """Return the smallest and the largest value with the part that was not measured."""
    low, high = figure.rest or (0.0, 0.0)
    return figure.number + low, figure.number + high


# JSON


def to_json(figure: Figure, name: str, unit: str) -> dict[str, object]:
    """Return the fields of a figure: for `energy` and `joules` these are `energy_joules` and
    `energy_uncertainty_joules`, null where they are unknown.

    Unknown and partial figures have `energy_state` and `energy_reason`, too. Other fields without
    information are left out. Limits are pairs, with null for an infinite one. The ends of an
    interval that is not symmetric are `energy_limits_joules`; those of the sensor and of what was
    not measured are differences from the value.
    """
    fields: dict[str, object] = {
        f"{name}_{unit}": figure.value,
        f"{name}_uncertainty_{unit}": figure.half_width,
    }
    rest = None if figure.rest == _UNLIMITED_REST else figure.rest
    limits = {"limits": figure.skewed, "sensor_limits": figure.bias, "rest_limits": rest}
    for kind, pair in limits.items():
        if pair is not None:
            ends = [end if math.isfinite(end) else None for end in pair]
            fields[f"{name}_{kind}_{unit}"] = ends
    if figure.covered_ratio != 1.0:
        fields[f"{name}_covered_ratio"] = figure.covered_ratio
    if figure.state != "known":
        fields[f"{name}_state"] = figure.state
        fields[f"{name}_reason"] = figure.reason
    return fields


def from_json(document: Mapping[str, object], name: str, unit: str) -> Figure:
    """Return the figure whose fields `to_json` made; other fields are ignored.

    Raises FigureFormatError.
    """
    value = _number_of(document, f"{name}_{unit}")
    half_width = _number_of(document, f"{name}_uncertainty_{unit}", may_lack=True)
    covered_ratio = _number_of(document, f"{name}_covered_ratio", may_lack=True)
    skewed = _finite_limits_of(document, f"{name}_limits_{unit}")
    bias = _finite_limits_of(document, f"{name}_sensor_limits_{unit}")
    rest = _limits_of(document, f"{name}_rest_limits_{unit}")
    state = document.get(f"{name}_state", "known")
    if rest is None and state == "partial":
        rest = _UNLIMITED_REST
    reason = document.get(f"{name}_reason", "")
    if not isinstance(reason, str):
        raise FigureFormatError(f"{name}_reason: not a text")
    if half_width is not None and half_width < 0:
        raise FigureFormatError(f"{name}_uncertainty_{unit}: negative")
    covered = 1.0 if covered_ratio is None else covered_ratio
    if not 0 <= covered <= 1:
        raise FigureFormatError(f"{name}_covered_ratio: not between 0 and 1")
    try:
        figure = Figure(value, half_width, bias, rest, covered, reason, skewed)
    except ValueError as error:
        raise FigureFormatError(f"{name}_{unit}: {error}") from error
    if figure.state != state:
        raise FigureFormatError(f"{name}_state: {state!r}, but the figure is {figure.state}")
    return figure


def _number_of(document: Mapping[str, object], key: str, *, may_lack: bool = False) -> float | None:
    if key not in document and not may_lack:
        raise FigureFormatError(f"{key}: missing")
    value = document.get(key)
    return None if value is None else _finite(value, key)


def _limits_of(document: Mapping[str, object], key: str) -> Limits | None:
    pair = document.get(key)
    if pair is None:
        return None
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise FigureFormatError(f"{key}: not a pair of limits")
    low = -math.inf if pair[0] is None else _finite(pair[0], key)
    high = math.inf if pair[1] is None else _finite(pair[1], key)
    if low > high:
        raise FigureFormatError(f"{key}: the lower limit is above the upper one")
    return low, high


def _finite_limits_of(document: Mapping[str, object], key: str) -> Limits | None:
    limits = _limits_of(document, key)
    if limits is not None and math.isinf(limits[1] - limits[0]):
        raise FigureFormatError(f"{key}: not a pair of finite limits")
    return limits


def _finite(value: object, key: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # TypeError
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise FigureFormatError(f"{key}: not a finite number")
    return number


# Texts. A partial figure reads `at least 312 ± 4 J`, an unknown one `unknown (reason)`.


def number_text(figure: Figure, *, half: bool = True) -> str:
    """Return `1,710 ± 170`, for places that name the unit; the value alone without `half`."""
    return _with_unit(figure, "", half=half)


def joules_text(figure: Figure, *, half: bool = True) -> str:
    """Return `1,710 ± 170 J`, always in joules and without an exponent."""
    if figure.value is None or figure.known_error:
        return _with_unit(figure, "J", half=half)
    return _stated(figure, f"{_fixed(figure.value)} J", "J")


def energy_text(
    figure: Figure,
    largest_j: float | None = None,
    *,
    half: bool = True,
    least_digits: bool = True,
) -> str:
    """Return `950 ± 12 J`, `1.234 ± 0.005 Wh` or `12.30 ± 0.05 kWh`, in the unit that fits
    `largest_j`.

    The half-width covers random error and sensor accuracy. It decides the digits, also with
    `half=False`. The value has at least two of them, except without `least_digits`, for energies
    that may be 0 or less: `-10 ± 80 J`.
    """
    unit, joules = energy_unit(_size(figure, largest_j))
    return _with_unit(figure.scaled(1 / joules), unit, half=half, least_digits=least_digits)


def energy_of_one_text(figure: Figure, largest_j: float | None = None, *, half: bool = True) -> str:
    """Return `46.7 ± 0.2 mJ`: SI prefixes below a joule, Wh and kWh above."""
    size_j = _size(figure, largest_j)
    unit, joules = energy_unit(size_j) if size_j >= 1 or size_j == 0 else _small_unit(size_j)
    return _with_unit(figure.scaled(1 / joules), unit, half=half)


def small_energy_text(joules: float) -> str:
    """Return `46.7 mJ`, with SI prefixes below a joule and the digits of `short_text`."""
    unit, factor = _small_unit(joules) if joules > 0 else ("J", 1.0)
    return f"{short_text(joules / factor)} {unit}"


def short_joules_text(joules: float) -> str:
    """Return `420.5 J` or `12,346 J`, for messages: the digits of `short_text`."""
    return f"{short_text(joules)} J"


def signed_joules_text(joules: float) -> str:
    """Return `+610 J`, with the digits of `signed_text`."""
    return f"{signed_text(joules)} J"


def kilowatt_hours_text(joules: float) -> str:
    """Return `1.81116 kWh`, with six digits, for the sums above a table in kWh."""
    return f"{joules / JOULES_PER_KWH:,.6g} kWh"


def energy_parts(figure: Figure) -> tuple[str, str, str]:
    """Return value, half-width of all errors together (empty where unknown) and unit, as texts."""
    unit, joules = energy_unit(figure.number)
    value, half = _digits(figure.scaled(1 / joules))
    return value, half, unit


def energy_ends_text(figure: Figure) -> str:
    """Return `938 to 962 J`, the ends of the interval that `energy_text` states; empty where its
    half-width is unknown, and where a part was not measured.

    The lower end is at least 0, except where the whole interval is below 0.
    """
    half_width = figure.total_half_width
    if not half_width or not math.isfinite(half_width) or figure.state != "known":
        return ""
    unit, joules = energy_unit(figure.number)
    value = figure.number / joules
    half = half_width / joules
    decimals = _decimals_of_value(value, half)
    value = float(_round(value, decimals))
    half = float(_round(half, _decimals(half)))
    low = value - half
    high = value + half
    if high > 0:
        low = max(low, 0.0)
    return f"{_rounded(low, decimals)} to {_rounded(high, decimals)} {unit}"


def bounded_energy_text(figure: Figure, largest_j: float | None = None) -> str:
    """Return `3,480 J (3,010 to 3,950)`, with two digits of the limits' distance from the middle;
    limits are rounded outwards.

    Raises UnknownFigureError without an interval.
    """
    unit, joules = energy_unit(_size(figure, largest_j))
    low_j, high_j = figure.limits
    if math.isinf(high_j - low_j):
        return energy_text(figure, largest_j)
    half_width = (high_j - low_j) / 2 / joules
    decimals = 1 - _magnitude(half_width) if half_width else 3 - _magnitude(figure.number / joules)
    low = _rounded(low_j / joules, decimals, ROUND_FLOOR)
    high = _rounded(high_j / joules, decimals, ROUND_CEILING)
    return f"{_rounded(figure.number / joules, decimals)} {unit} ({low} to {high})"


def power_text(figure: Figure, *, half: bool = True) -> str:
    """Return a power in W or kW; the value alone without `half`, with the digits that are known."""
    if _size(figure) >= 10_000:
        return _with_unit(figure.scaled(1e-3), "kW", half=half)
    return _with_unit(figure, "W", half=half)


def mass_text(figure: Figure, largest_g: float | None = None, *, half: bool = True) -> str:
    """Return a mass of CO2eq in mg, g, kg or t."""
    size_g = _size(figure, largest_g)
    for limit, factor, unit in ((1, 1e3, "mg CO₂eq"), (1e3, 1, "g CO₂eq"), (1e6, 1e-3, "kg CO₂eq")):
        if size_g < limit:
            return _with_unit(figure.scaled(factor), unit, half=half)
    return _with_unit(figure.scaled(1e-6), "t CO₂eq", half=half)


def money_text(amount: Figure) -> str:
    """Return an amount without its half-width, which decides the digits, and without an exponent:
    `0.0000510`.
    """
    size = _size(amount)
    if amount.value is None or amount.known_error or size >= 1e-4 or size == 0:
        return number_text(amount, half=False)
    return _stated(amount, _fixed(amount.value), "")


def random_error_text(figure: Figure) -> str:
    """Return `± 3.7 J (0.060 %)`, in the unit of the energy; empty where it is unknown."""
    if figure.half_width is None:
        return ""
    return half_width_text(figure.half_width, figure.number, figure.number)


def bias_text(figure: Figure) -> str:
    """Return `-180 to +610 J (9.9 %)`, in the unit of the energy; empty without one."""
    if figure.bias is None:
        return ""
    return error_limits_text(figure.bias, figure.number, figure.number)


def half_width_text(half_j: float, energy_j: float, largest_j: float) -> str:
    """Return a half-width in the unit that fits `largest_j`, with its ratio to the energy."""
    unit, joules = energy_unit(largest_j)
    ratio = f" ({half_text(100 * half_j / energy_j)} %)" if energy_j > 0 else ""
    return f"± {half_text(half_j / joules)} {unit}{ratio}"


def error_limits_text(limits_j: Limits, energy_j: float, largest_j: float) -> str:
    """Return limits of an error, with the ratio of the larger one to the energy."""
    unit, joules = energy_unit(largest_j)
    low, high = (signed_text(limit / joules) for limit in limits_j)
    greatest_j = max(map(abs, limits_j))
    ratio = f" ({_two_digits(100 * greatest_j / energy_j)} %)" if energy_j > 0 else ""
    return f"{low} to {high} {unit}{ratio}"


def joules_errors_text(figure: Figure) -> str:
    """Return `± 2.5 J random, -180 to +610 J sensor accuracy`; empty without the accuracy of a
    sensor, since the half-width is printed next to the value then.
    """
    if figure.bias is None:
        return ""
    random = f"± {half_text(figure.half_width)} J random, " if figure.half_width else ""
    low, high = (signed_text(limit) for limit in figure.bias)
    return f"{random}{low} to {high} J sensor accuracy"


def proportional_text(value: float, whole: Figure) -> str:
    """Return a value that is proportional to `whole`, with as many digits as that has and without
    a half-width; at most four digits where no error is known.
    """
    if whole.value and whole.known_error and value:
        error = abs(value / whole.value) * whole.known_error
        return number_text(Figure(value, error), half=False)
    return short_text(value)


def part_text(joules: float, whole: Figure) -> str:
    """Return `450.0 J`, a part of the energy `whole`, with as many digits as that has."""
    if whole.value and whole.known_error:
        return f"{proportional_text(joules, whole)} J"
    return joules_text(Figure(joules))


def mean_power_text(energy: Figure, duration_s: float) -> str:
    """Return `mean 78.0 W` of an energy that is not unknown, with as many digits as that has."""
    power_w = energy.scaled(1 / duration_s)
    text = f"{proportional_text(power_w.number, energy)} W"
    return f"mean {_stated(power_w, text, 'W')}"


def short_text(value: float) -> str:
    """Return at most four significant digits without trailing zeros, or all digits of a larger
    number.
    """
    return f"{value:,.0f}" if abs(value) >= 9_999.5 else f"{value:,.4g}"


def significant_text(value: float) -> str:
    """Return four significant digits with separated thousands: `12,346`, `0.04670`, `3.142`."""
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3e}"
    return _fixed(value)


def half_text(half_width: float) -> str:
    """Return a half-width with the digits that it has everywhere: two if they start with 1 or 2,
    else one; `0` of none, and `inf` without a limit.
    """
    if not half_width or not math.isfinite(half_width):
        return f"{half_width:g}"
    return _rounded(half_width, _decimals(half_width))


def signed_text(value: float) -> str:
    """Return two significant digits with their sign: `+610`."""
    if not value:
        return "0"
    return f"{'-' if value < 0 else '+'}{_two_digits(abs(value))}"


def _two_digits(value: float) -> str:
    return _rounded(value, 1 - _magnitude(value)) if value else "0"


def energy_unit(value_j: float) -> tuple[str, float]:
    """Return the unit for an energy, and its joules."""
    if abs(value_j) < JOULES_PER_WH:
        return "J", 1.0
    if abs(value_j) < JOULES_PER_KWH:
        return "Wh", JOULES_PER_WH
    return "kWh", JOULES_PER_KWH


def _small_unit(value_j: float) -> tuple[str, float]:
    """Return joules with the SI prefix for an energy that is not 0, and its joules."""
    fitting = ((factor, prefix) for factor, prefix in _SMALL if abs(value_j) >= factor)
    factor, prefix = next(fitting, _SMALL[-1])
    return f"{prefix}J", factor


def _size(figure: Figure, largest: float | None = None) -> float:
    """Return the absolute value that chooses the unit."""
    return abs((figure.value or 0.0) if largest is None else largest)


def _with_unit(figure: Figure, unit: str, *, half: bool = True, least_digits: bool = True) -> str:
    if figure.value is None:
        return f"unknown ({figure.reason})"
    value, half_text = _digits(figure, least_digits=least_digits)
    text = f"{value} ± {half_text}" if half and half_text else value
    return _stated(figure, f"{text} {unit}" if unit else text, unit)


def _stated(figure: Figure, text: str, unit: str) -> str:
    """Return the text of a figure with the part that is not measured."""
    if figure.rest is None:
        return text
    low, high = figure.rest
    if low >= 0 and math.isinf(high):
        return f"at least {text}"
    if high <= 0 and math.isinf(low):
        return f"at most {text}"
    return f"{text} ({_rest_text(low, high, unit)} not measured)"


def _rest_text(low: float, high: float, unit: str) -> str:
    """Return the limits of the part that is not measured; one of them may be infinite."""
    if math.isinf(low) and math.isinf(high):
        return "any amount"
    if math.isinf(high):
        return f"{signed_text(low)} {unit}".rstrip() + " or more"
    if math.isinf(low):
        return f"{signed_text(high)} {unit}".rstrip() + " or less"
    return f"{signed_text(low)} to {signed_text(high)} {unit}".rstrip()


def _digits(figure: Figure, *, least_digits: bool = True) -> tuple[str, str]:
    """Return a value and its half-width as texts.

    The errors that are known decide the digits of the value, which has four significant ones
    without any. The half-width is empty where the random error is unknown.
    """
    value = figure.number
    error = figure.known_error
    if not error or not math.isfinite(error):
        return significant_text(value), ""
    decimals = _decimals_of_value(value, error, least_digits=least_digits)
    half = figure.total_half_width
    return _rounded(value, decimals), half_text(half) if half else ""


def _decimals_of_value(value: float, error: float, *, least_digits: bool = True) -> int:
    """Return the decimals of a value: those of its error, or, with `least_digits`, one more where
    it has not two digits then.
    """
    decimals = _decimals(error)
    if not least_digits or abs(value) < _LEAST_RATIO * error:
        return decimals
    wanted = max(decimals, 1 - _magnitude(value))
    return min(wanted, max(decimals, 0) + 1)


def _decimals(half: float) -> int:
    """Return the decimals that show two digits of a half-width that starts with 1 or 2 once it is
    rounded to two, else one digit.

    They are negative for a half-width above 30, since further digits are unknown.
    """
    two_digits = _round(half, 1 - _magnitude(half))
    exponent = two_digits.adjusted()
    return (1 if two_digits < Decimal(3).scaleb(exponent) else 0) - exponent


def _fixed(value: float) -> str:
    """Return four significant digits, or all digits of a larger number; `0` of none."""
    if not value:
        return "0"
    return f"{value:,.{max(3 - _magnitude(value), 0)}f}"


def _rounded(value: float, decimals: int, direction: str = ROUND_HALF_UP) -> str:
    if not math.isfinite(value):
        return f"{value}"
    return f"{_round(value, decimals, direction):z,.{max(decimals, 0)}f}"


def _round(value: float, decimals: int, direction: str = ROUND_HALF_UP) -> Decimal:
    """Return a finite value rounded as its shortest decimal text is: 0.95 to 1.0."""
    exact = Decimal(repr(float(value)))
    digits = max(exact.adjusted() + decimals + 2, 1)
    return exact.quantize(Decimal(1).scaleb(-decimals), direction, Context(prec=digits))


def _magnitude(value: float) -> int:
    """Return the decimal exponent of a number, 0 for 0."""
    return math.floor(math.log10(abs(value))) if value else 0
