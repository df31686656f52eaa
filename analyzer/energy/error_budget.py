"""How far each part of a measurement can be off, in joules. Pure.

Random parts make the interval of 95 %, in quadrature. What only has limits (gaps, aliasing) and what is the same in
every run on a card (its sensor's gain and offset) stand apart: adding them in would hide which is which.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.energy.aliasing import updates
from analyzer.model.samples import GAP_FACTOR, Gap, Samples, median_spacing_s
from exporter.contract.power_sensors import SystematicBand

_SIDES_95 = 1.96


@dataclass(frozen=True, slots=True)
class Budget:
    """In joules; None where a part is not known or does not apply.

    `edges_j`: half of the ledger's interval, mostly what the sensor's updates leave open at begin and end.
    `sampling_j`: half of the interval of what happened between samples. `gaps_j`: the least and the most that was not
    counted. `sensor_j`: the truth less what was read, least and most. `aliasing_j`: the most, either way.
    `residual_j`: what a calibration leaves, either way.
    """

    energy_j: float
    edges_j: float | None = None
    sampling_j: float | None = None
    gaps_j: tuple[float, float] | None = None
    sensor_j: tuple[float, float] | None = None
    aliasing_j: float | None = None
    residual_j: float | None = None

    @property
    def random_j(self) -> float | None:
        """Half of the interval of 95 %."""
        known = [part for part in (self.edges_j, self.sampling_j) if part is not None]
        return math.hypot(*known) if known else None

    @property
    def sizes_j(self) -> dict[str, float]:
        """By part, how far it alone can be off."""
        sensor_j = max(map(abs, self.sensor_j)) if self.sensor_j else 0.0
        return {
            "sensor": sensor_j if self.residual_j is None else self.residual_j,
            "aliasing": self.aliasing_j or 0.0,
            "gaps": max(self.gaps_j) if self.gaps_j else 0.0,
            "sampling": self.sampling_j or 0.0,
            "edges": self.edges_j or 0.0,
        }

    @property
    def largest(self) -> str | None:
        part, size_j = max(self.sizes_j.items(), key=lambda item: item[1])
        return part if size_j > 0 else None


def sensor_limits_j(energy_j: float, band: SystematicBand) -> tuple[float, float]:
    """The band is of the reading, relative to the truth."""
    truths_j = [energy_j / (1 + percent / 100) for percent in (band.high_percent, band.low_percent)]
    return truths_j[0] - energy_j, truths_j[1] - energy_j


def sampling_half_j(power: Samples, longest_s: float | None = None) -> float | None:
    """Half of the 95 % interval of a trapezoid: a jump lies anywhere between two samples, sd h·√(ΣΔP²/12).

    Samples that come faster than the sensor updates tell no more than its updates do. Gaps are left to `gap_limits_j`.
    """
    seen = updates(power)
    if seen:
        return _SIDES_95 * seen.period_s * math.sqrt(float((np.diff(seen.value) ** 2).sum()) / 12)
    spacing_s = median_spacing_s(power)
    if spacing_s is None or power.exact:
        return None
    widths_s, jumps_w = np.diff(power.t), np.diff(power.value)
    close = widths_s <= (longest_s or GAP_FACTOR * spacing_s)
    return _SIDES_95 * math.sqrt(float(((widths_s * jumps_w)[close] ** 2).sum()) / 12)


def gap_limits_j(power: Samples, gaps: Sequence[Gap]) -> tuple[float, float] | None:
    """What can have been drawn meanwhile, at no less and no more power than was seen; None where there is no gap."""
    if not gaps or not len(power):
        return None
    missing_s = math.fsum(gap.duration_s for gap in gaps)
    return missing_s * float(power.value.min()), missing_s * float(power.value.max())


def total(budgets: Sequence[Budget]) -> Budget:
    """Of several devices: parts add up, since one job moves all devices at once. What one of them lacks is left out of
    the sum, except for the interval, which is then unknown.
    """
    return Budget(
        math.fsum(one.energy_j for one in budgets),
        _known_sum([one.edges_j for one in budgets]),
        _sum([one.sampling_j for one in budgets]),
        _limits([one.gaps_j for one in budgets]),
        _limits([one.sensor_j for one in budgets]),
        _sum([one.aliasing_j for one in budgets]),
        _known_sum([one.residual_j for one in budgets]),
    )


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known else None


def _known_sum(parts: Sequence[float | None]) -> float | None:
    return None if None in parts else _sum(parts)


def _limits(parts: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [part for part in parts if part is not None]
    return (math.fsum(low for low, _ in known), math.fsum(high for _, high in known)) if known else None
