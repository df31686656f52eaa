"""A value with its interval, and sums of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95 % confidence interval, or the limits of the true value.

    `half` is the half-width of a symmetric interval; `limits` are the ends of any other one. Both are None where the
    interval is unknown. `n` is the number of repeats behind it, 0 where there are none.
    """

    value: float
    half: float | None = None
    limits: tuple[float, float] | None = None
    n: int = 0

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
        if self.limits is None:
            return Interval(self.value * factor, half, n=self.n)
        low, high = sorted(end * factor for end in self.limits)
        return Interval(self.value * factor, half, (low, high), self.n)


def total(intervals: Iterable[Interval]) -> Interval:
    """Return the sum of symmetric intervals; half-widths add linearly.

    One job loads all devices of a run at the same time, so that their errors are correlated. One unknown half-width
    makes that of the sum unknown.
    """
    parts = list(intervals)
    value = math.fsum(part.value for part in parts)
    if any(part.half is None for part in parts):
        return Interval(value)
    return Interval(value, math.fsum(part.half or 0.0 for part in parts))


def total_limits(intervals: Iterable[Interval]) -> Interval:
    """Return the sum of intervals with limits, which add linearly: nothing is known of the values between them."""
    parts = list(intervals)
    ends = [part.ends for part in parts]
    limits = math.fsum(low for low, _ in ends), math.fsum(high for _, high in ends)
    return Interval(math.fsum(part.value for part in parts), limits=limits)
