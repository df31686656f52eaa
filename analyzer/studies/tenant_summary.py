"""Repeats of each mix of tenants put together, and MPS held against none. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzer.model.interval import Interval
from analyzer.studies.contrast import Difference, Sample, differences, levels
from analyzer.studies.spread import Estimate
from analyzer.studies.tenants import Alone, Evenness, Together, evenness, figures, superiority


@dataclass(frozen=True, slots=True)
class Mix:
    """The same tenants in the same case, over its repeats; `unit` is None where they do not count the same."""

    case: str
    mps: bool
    tenants: tuple[str, ...]
    unit: str | None
    repeats: int
    overlap_s: float
    least_overlap_ratio: float
    figures: Mapping[str, Estimate]
    evenness: Evenness | None


@dataclass(frozen=True, slots=True)
class Contrast:
    """MPS against none, of the same tenants: Cliff's delta, and p of Mann and Whitney's exact test beside it."""

    tenants: tuple[str, ...]
    figure: str
    difference: Difference
    superiority: float
    p: float


@dataclass(frozen=True, slots=True)
class Summary:
    mixes: tuple[Mix, ...]
    contrasts: tuple[Contrast, ...]
    without_solo: tuple[str, ...]


_HELD_AGAINST = ("total_per_second", "stp", "antt", "worst_slowdown", "fairness", "energy_per_unit_joules")


def summary(steps: Sequence[Together], alone: Mapping[str, Alone]) -> Summary:
    grouped: dict[tuple[str, bool, tuple[str, ...]], list[Together]] = {}
    for step in steps:
        names = tuple(sorted(share.tenant for share in step.shares))
        grouped.setdefault((step.case, step.mps, names), []).append(step)
    mixes = [_mix(key, found, alone) for key, found in sorted(grouped.items())]
    without = sorted({name for _, _, names in grouped for name in names} - set(alone))
    return Summary(tuple(mixes), tuple(_contrasts(grouped, alone)), tuple(without))


def _mix(key: tuple[str, bool, tuple[str, ...]], steps: Sequence[Together], alone: Mapping[str, Alone]) -> Mix:
    made = [figures(step, alone) for step in steps]
    known = [name for name in made[0] if all(name in one for one in made)]
    found = {name: levels([_samples(made, name)])[0] for name in known}
    return Mix(
        *key,
        steps[0].unit,
        len(steps),
        sum(step.seconds for step in steps) / len(steps),
        min(share.overlap_ratio for step in steps for share in step.shares),
        found,
        evenness(steps, alone),
    )


def _samples(made: Sequence[Mapping[str, float]], name: str) -> list[Sample]:
    return [Sample(Interval(one[name]), position) for position, one in enumerate(made)]


def _contrasts(
    grouped: Mapping[tuple[str, bool, tuple[str, ...]], Sequence[Together]], alone: Mapping[str, Alone]
) -> list[Contrast]:
    """Cases differ by name where MPS differs, so the tenants tell what belongs together."""
    found = []
    for names in sorted({names for _, _, names in grouped}):
        sides = {
            mps: [figures(step, alone) for key, steps in grouped.items() if key[1:] == (mps, names) for step in steps]
            for mps in (False, True)
        }
        if not all(sides.values()):
            continue
        known = [name for name in _HELD_AGAINST if all(name in one for side in sides.values() for one in side)]
        found += [_contrast(names, name, sides) for name in known]
    return found


def _contrast(names: tuple[str, ...], name: str, sides: Mapping[bool, Sequence[Mapping[str, float]]]) -> Contrast:
    from scipy.stats import mannwhitneyu

    without, under = ([one[name] for one in sides[mps]] for mps in (False, True))
    groups = [
        [Sample(Interval(value), (mps, position)) for position, value in enumerate(values)]
        for mps, values in ((False, without), (True, under))
    ]
    p = float(mannwhitneyu(under, without, method="auto").pvalue)
    return Contrast(names, name, differences(groups)[0], superiority(under, without), p)
