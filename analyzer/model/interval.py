"""A number with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Quantity:
    """`value ± half`: the interval holds the truth with 95 %. `half` is None where nobody knows it."""

    value: float
    half: float | None = None

    def scaled(self, factor: float) -> Quantity:
        return Quantity(self.value * factor, None if self.half is None else self.half * abs(factor))


@dataclass(frozen=True, slots=True)
class Bound:
    """`value`, and the limits between which the truth lies."""

    value: float
    low: float
    high: float


def total(quantities: Iterable[Quantity]) -> Quantity:
    """The sum; halves add up, since one job moves all devices of a run at once and their errors share a sign.

    One half that is not known leaves the sum's unknown.
    """
    parts = list(quantities)
    value = math.fsum(part.value for part in parts)
    if any(part.half is None for part in parts):
        return Quantity(value)
    return Quantity(value, math.fsum(part.half or 0.0 for part in parts))


def total_bound(bounds: Iterable[Bound]) -> Bound:
    """The sum of bounds: limits add linearly, as nothing is known of what lies between them."""
    parts = list(bounds)
    return Bound(
        math.fsum(part.value for part in parts),
        math.fsum(part.low for part in parts),
        math.fsum(part.high for part in parts),
    )
