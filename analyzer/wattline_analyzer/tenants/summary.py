"""Summary of tenants by mix, and effect of MPS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wattline.figures import Figure
from wattline_analyzer.core.group_ratios import (
    RatioDifference,
    RunValue,
    geometric_means,
    ratios_to_first,
)
from wattline_analyzer.tenants.figures import (
    ConcurrentStep,
    Evenness,
    SoloRun,
    cliffs_delta,
    evenness,
    figure_intervals,
)


@dataclass(frozen=True, slots=True)
class TenantMix:
    """Repeats of the same tenants in the same case; `unit` is None if the tenants count different
    units.
    """

    case: str
    mps: bool
    tenants: tuple[str, ...]
    unit: str | None
    repeats: int
    overlap_s: float
    least_overlap_ratio: float
    figures: Mapping[str, Figure]
    evenness: Evenness | None


@dataclass(frozen=True, slots=True)
class MpsEffect:
    """Effect of MPS on a figure of the same tenants, with Cliff's delta and p of the exact
    Mann-Whitney test.
    """

    tenants: tuple[str, ...]
    figure: str
    difference: RatioDifference
    cliffs_delta: float
    p: float


@dataclass(frozen=True, slots=True)
class TenantSummary:
    mixes: tuple[TenantMix, ...]
    effects: tuple[MpsEffect, ...]
    without_solo: tuple[str, ...]


_COMPARED_FIGURES = (
    "total_per_second",
    "stp",
    "antt",
    "worst_slowdown",
    "fairness",
    "energy_per_unit_joules",
)


def summarize_tenants(
    steps: Sequence[ConcurrentStep], alone: Mapping[str, SoloRun]
) -> TenantSummary:
    grouped: dict[tuple[str, bool, tuple[str, ...]], list[ConcurrentStep]] = {}
    for step in steps:
        names = tuple(sorted(share.tenant for share in step.shares))
        grouped.setdefault((step.case, step.mps, names), []).append(step)
    mixes = [_mix(key, found, alone) for key, found in sorted(grouped.items())]
    without = sorted({name for _, _, names in grouped for name in names} - set(alone))
    return TenantSummary(tuple(mixes), tuple(_effects(grouped, alone)), tuple(without))


def _mix(
    key: tuple[str, bool, tuple[str, ...]],
    steps: Sequence[ConcurrentStep],
    alone: Mapping[str, SoloRun],
) -> TenantMix:
    figures = [figure_intervals(step, alone) for step in steps]
    known = [name for name in figures[0] if all(name in one for one in figures)]
    found = {name: _mean([one[name] for one in figures]) for name in known}
    return TenantMix(
        *key,
        steps[0].unit,
        len(steps),
        sum(step.seconds for step in steps) / len(steps),
        min(share.overlap_ratio for step in steps for share in step.shares),
        found,
        evenness(steps, alone),
    )


def _mean(values: Sequence[Figure]) -> Figure:
    """Return the geometric mean. The CI of the repeats is widened by the limits, whose errors need
    not cancel.
    """
    mean = geometric_means(
        [[RunValue(Figure(one.value), position) for position, one in enumerate(values)]]
    )[0]
    if mean.skewed is None and (len(values) > 1 or values[0].low is None):
        return mean
    low, high = mean.skewed or (mean.number, mean.number)
    limits = low * _mean_ratio(values, 0), high * _mean_ratio(values, 1)
    return Figure(mean.value, skewed=limits)


def _mean_ratio(values: Sequence[Figure], end: int) -> float:
    """Return the geometric mean of one limit over the value; 0 where a limit is 0."""
    ratios = [
        max(one.limits[end] / one.number, 0.0) if one.low is not None else 1.0 for one in values
    ]
    return math.prod(ratios) ** (1 / len(ratios))


def _effects(
    grouped: Mapping[tuple[str, bool, tuple[str, ...]], Sequence[ConcurrentStep]],
    alone: Mapping[str, SoloRun],
) -> list[MpsEffect]:
    """Pair mixes by their tenants, because cases with and without MPS have different names."""
    found = []
    for names in sorted({names for _, _, names in grouped}):
        sides = {
            mps: [
                figure_intervals(step, alone)
                for key, steps in grouped.items()
                if key[1:] == (mps, names)
                for step in steps
            ]
            for mps in (False, True)
        }
        if not all(sides.values()):
            continue
        known = [
            name
            for name in _COMPARED_FIGURES
            if all(name in one for side in sides.values() for one in side)
        ]
        found += [_effect(names, name, sides) for name in known]
    return found


def _effect(
    names: tuple[str, ...], name: str, sides: Mapping[bool, Sequence[Mapping[str, Figure]]]
) -> MpsEffect:
    from scipy.stats import mannwhitneyu

    without, under = ([one[name] for one in sides[mps]] for mps in (False, True))
    groups = [
        [RunValue(value, (mps, position)) for position, value in enumerate(values)]
        for mps, values in ((False, without), (True, under))
    ]
    values = [[one.number for one in side] for side in (under, without)]
    p = float(mannwhitneyu(*values, method="auto").pvalue)
    difference = _widened(ratios_to_first(groups)[0], sides[False], sides[True], name)
    return MpsEffect(names, name, difference, cliffs_delta(*values), p)


def _widened(
    difference: RatioDifference,
    without: Sequence[Mapping[str, Figure]],
    under: Sequence[Mapping[str, Figure]],
    name: str,
) -> RatioDifference:
    """Return the difference with the limits of its figures, which need not cancel."""
    if difference.low is None or difference.high is None:
        return difference
    base, other = ([one[name] for one in side] for side in (without, under))
    lowest, highest = _mean_ratio(base, 0), _mean_ratio(base, 1)
    low = difference.low * _mean_ratio(other, 0) / highest
    high = difference.high * _mean_ratio(other, 1) / lowest if lowest > 0 else math.inf
    return replace(difference, low=low, high=high, clear=difference.clear and not low <= 1 <= high)
