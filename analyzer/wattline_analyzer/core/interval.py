"""A value with its interval, sums of them, and the quantile of Student's t."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

JOULES_PER_KWH = 3.6e6
_MOST_STEPS = 100_000
_PRECISION = 1e-15
_FEW = 300
"""Degrees of freedom up to which the gamma function is finite."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95 % confidence interval, or the limits of the true value.

    `half` is the half-width of a symmetric interval; `limits` are the ends of any other one. Both
    are None where the interval is unknown. `n` is the number of repeats behind it, 0 where there
    are none. `systematic` are the limits of the true value minus the value by the accuracy of a
    sensor, which the interval does not include.
    """

    value: float
    half: float | None = None
    limits: tuple[float, float] | None = None
    n: int = 0
    systematic: tuple[float, float] | None = None

    @property
    def total_half(self) -> float | None:
        """Half-width of random and systematic error together, which decides the digits of the
        value.
        """
        if self.systematic is None:
            return self.half
        return math.hypot(self.half or 0.0, max(map(abs, self.systematic)))

    @property
    def low(self) -> float | None:
        """The lower end; None where the interval is unknown."""
        if self.limits is not None:
            return self.limits[0]
        return None if self.half is None else self.value - self.half

    @property
    def high(self) -> float | None:
        """The upper end; None where the interval is unknown."""
        if self.limits is not None:
            return self.limits[1]
        return None if self.half is None else self.value + self.half

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends. Raises ValueError where the interval is unknown."""
        low, high = self.low, self.high
        if low is None or high is None:
            raise ValueError(f"the interval of {self.value} is unknown")
        return low, high

    def scaled(self, factor: float) -> Interval:
        half = None if self.half is None else self.half * abs(factor)
        limits, systematic = _scaled(self.limits, factor), _scaled(self.systematic, factor)
        return Interval(self.value * factor, half, limits, self.n, systematic)

    def with_accuracy_of(self, whole: Interval) -> Interval:
        """Return the interval with the relative systematic error of `whole`, which the same sensors
        measured.
        """
        if whole.systematic is None or not whole.value:
            return self
        return replace(self, systematic=_scaled(whole.systematic, self.value / whole.value))


def _scaled(limits: tuple[float, float] | None, factor: float) -> tuple[float, float] | None:
    if limits is None:
        return None
    low, high = sorted(limit * factor for limit in limits)
    return low, high


def total(intervals: Iterable[Interval]) -> Interval:
    """Return the sum of symmetric intervals; half-widths add linearly.

    One job loads all devices of a run at the same time, so that their errors are correlated. One
    unknown half-width makes that of the sum unknown.
    """
    parts = list(intervals)
    value = math.fsum(part.value for part in parts)
    known = [part.systematic for part in parts if part.systematic is not None]
    systematic = (
        (math.fsum(low for low, _ in known), math.fsum(high for _, high in known))
        if known
        else None
    )
    half = (
        None
        if any(part.half is None for part in parts)
        else math.fsum(part.half or 0.0 for part in parts)
    )
    return Interval(value, half, systematic=systematic)


def total_limits(intervals: Iterable[Interval]) -> Interval:
    """Return the sum of intervals with limits, which add linearly: nothing is known of the values
    between them.
    """
    parts = list(intervals)
    ends = [part.ends for part in parts]
    limits = math.fsum(low for low, _ in ends), math.fsum(high for _, high in ends)
    return Interval(math.fsum(part.value for part in parts), limits=limits)


@lru_cache(maxsize=256)
def student_quantile(freedom: float, probability: float) -> float:
    """Return the quantile of Student's t for a probability in (0.5, 1), as `scipy.special.stdtrit`
    does.

    The import of scipy takes a third of the CPU time of a report. Newton's method begins at the
    normal quantile and rises, because the upper tail is convex.
    """
    tail = 1 - probability
    if not (freedom > 0 and 0 < tail < 0.5):
        return math.nan
    from statistics import NormalDist

    scale, t = _gamma_ratio(freedom) / math.sqrt(math.pi), NormalDist().inv_cdf(probability)
    for _ in range(100):
        power = scale * math.exp(-freedom / 2 * math.log1p(t * t / freedom))
        density = power / math.sqrt(freedom + t * t)
        step = (_student_tail(t, freedom, power) - tail) / density
        t += step
        if abs(step) <= 1e-9 * t:  # the next step would be its square
            break
    return t


def _student_tail(t: float, freedom: float, power: float) -> float:
    """Return the probability above t: I(ν / 2, 1/2) / 2 at ν / (ν + t²), where I is the incomplete
    beta function.
    """
    whole = freedom + t * t
    front = power * t / math.sqrt(whole)
    if t * t * (freedom + 2) < 3 * freedom:
        return 0.5 - front * _beta_fraction(0.5, freedom / 2, t * t / whole)
    return front * _beta_fraction(freedom / 2, 0.5, freedom / whole) / freedom


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's
    method.
    """
    inverse, ratio = 1 / (1 - (a + b) * x / (a + 1)), 1.0
    value = inverse
    for n in range(1, _MOST_STEPS):
        for numerator in (
            n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n)),
            -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1)),
        ):
            inverse, ratio = 1 / (1 + numerator * inverse), 1 + numerator / ratio
            value *= inverse * ratio
        if abs(inverse * ratio - 1) <= _PRECISION:
            break
    return value


def _gamma_ratio(freedom: float) -> float:
    """Return Γ((ν + 1) / 2) / Γ(ν / 2), for many degrees of freedom by its asymptotic series."""
    if freedom < _FEW:
        return math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2)
    part = 1 / freedom
    series = (
        1
        - part / 4
        + part**2 / 32
        + 5 * part**3 / 128
        - 21 * part**4 / 2_048
        - 399 * part**5 / 8_192
    )
    return math.sqrt(freedom / 2) * series
