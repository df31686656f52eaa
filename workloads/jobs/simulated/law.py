"""Known laws of how fast a job goes under a cap: so a sweep's best cap is known before it is measured.

A step takes `step_s` at full speed and costs power × step_s / speed. Of a GPU that draws `w` under its cap, and `peak`
and `idle` without one and without a load:

    compute   speed = ∛((w − static) / (peak − static)), at least 1/5; a static power is drawn at any clock, and the
              rest goes with the clock's cube. w / ∛(w − static) is least at w = 3/2 static.
    memory    speed = w / peak: a step costs peak × step_s at every cap, which only makes it slower.
    light     demands 9/10 of the least cap that the card takes, so no cap binds: speed 1 at each of them. A clock lock
              to the share r of the highest clock does: speed r at idle + (demand − idle) r³, which is least a step at
              r = ∛(idle / (2 (demand − idle))).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from exporter.simulation import Product

Name = Literal["compute", "memory", "light"]
_LEAST_SPEED = 0.2
_STATIC_SHARE = 3 / 7
_LIGHT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Law:
    """`best_w` is the cap at which a step of `compute` costs least; 9/14 of the card's peak where it is left out."""

    name: Name
    product: Product
    best_w: float | None = None

    def __post_init__(self) -> None:
        make = self.product
        if self.name == "compute" and not make.limit_min_w <= self.cheapest_w <= make.peak_w:
            raise ValueError(
                f"--best {self.cheapest_w:g}: {make.name} takes caps of {make.limit_min_w:g} to {make.peak_w:g} W"
            )

    @property
    def cheapest_w(self) -> float:
        return self.best_w or 1.5 * _STATIC_SHARE * self.product.peak_w

    @property
    def utilization(self) -> float:
        """The share of the card's dynamic power that it wants."""
        make = self.product
        demanded_w = _LIGHT_SHARE * make.limit_min_w if self.name == "light" else make.peak_w
        return (demanded_w - make.idle_w) / (make.peak_w - make.idle_w)

    def speed(self, power_w: float, clock_ratio: float) -> float:
        """The share of full speed at this power and, of `light`, under this clock lock."""
        match self.name:
            case "light":
                return clock_ratio
            case "memory":
                return min(1.0, power_w / self.product.peak_w)
            case "compute":
                static_w = self.cheapest_w / 1.5
                dynamic = max(0.0, power_w - static_w) / (self.product.peak_w - static_w)
                return min(1.0, max(_LEAST_SPEED, math.cbrt(dynamic)))
