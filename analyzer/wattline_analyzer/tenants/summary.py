"""Summary of tenants by mix, and effect of MPS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattline.figures import Figure
from wattline_analyzer.core.statistics import (
    RatioDifference,
    RunValue,
    geometric_means,
    outliers,
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
    """Effect of MPS on a figure of the same tenants, with Cliff's delta, which describes how far
    the repeats overlap.
    """

    tenants: tuple[str, ...]
    figure: str
    difference: RatioDifference
    cliffs_delta: float


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
    """Return the geometric mean of the repeats that are no outliers."""
    return geometric_means(_kept([_run_values(values, None)]))[0]


def _run_values(values: Sequence[Figure], side: object) -> list[RunValue]:
    """Return figures of repeats. Their errors may be the same in each repeat, as those of the time
    between two scrapes, so that their limits are common ones.
    """
    return [
        RunValue(
            Figure(one.value) if one.low is None else Figure(one.value, skewed=one.limits),
            (side, position),
        )
        for position, one in enumerate(values)
    ]


def _kept(groups: Sequence[Sequence[RunValue]]) -> list[list[RunValue]]:
    return [
        [one for one, is_outlier in zip(group, marks, strict=True) if not is_outlier]
        for group, marks in zip(groups, outliers(groups), strict=True)
    ]


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
    without, under = (_run_values([one[name] for one in sides[mps]], mps) for mps in (False, True))
    groups = _kept([without, under])
    values = [[one.value.number for one in group] for group in groups]
    difference = ratios_to_first(groups)[0]
    return MpsEffect(names, name, difference, cliffs_delta(values[1], values[0]))
