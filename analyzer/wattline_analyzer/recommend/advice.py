"""Recommendation of a power limit or clock from the runs of a sweep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from wattline.figures import Figure, short_text
from wattline_analyzer.core import statistics as stats
from wattline_analyzer.core.statistics import FloatArray
from wattline_analyzer.recommend.equal_work import of_equal_work
from wattline_analyzer.recommend.objective import (
    Advice,
    Candidate,
    QuestionError,
    SweepCosts,
    SweepQuestion,
    Verdict,
    sweep_costs,
)
from wattline_analyzer.recommend.sweep import Setting, Sweep, SweepRun

BINDS = 0.97
"""Ratio of power to limit from which the limit binds."""
_CAPPED_SHARE = 0.05
NEGLIGIBLE = 0.01
"""Ratio of cost below which a difference is ignored, however significant."""
FEWEST_REPEATS = 3


def advise(sweep: Sweep, question: SweepQuestion) -> Advice:
    """Recommend a setting. Raises QuestionError if the sweep cannot answer the question."""
    if len(sweep.settings) < 2:
        return Advice(sweep, question, None, "no_sweep")
    sweep, unit = of_equal_work(sweep, question)
    costs = sweep_costs(sweep, unit, question)
    groups = [
        [at for at, run in enumerate(sweep.runs) if run.setting == each] for each in sweep.settings
    ]
    flags = stats.outliers(_run_values(sweep, costs.cost, groups))
    kept = [
        [at for at, is_outlier in zip(group, marks, strict=True) if not is_outlier]
        for group, marks in zip(groups, flags, strict=True)
    ]
    outliers = [sum(marks) if len(marks) >= stats.FEWEST_FOR_OUTLIERS else None for marks in flags]
    base = _baseline(sweep.settings, question)
    cost, time = (
        _comparison(sweep, values, kept, question) for values in (costs.cost, costs.time_s)
    )
    table = _Comparisons(sweep, costs, kept, base, cost, time)
    candidates = [_candidate(table, number, excluded) for number, excluded in enumerate(outliers)]
    candidates = _with_fitted_rates(_with_pareto_front(candidates))
    broken = [
        replace(each, broken=tuple(_broken_constraints(each, candidates[base], question)))
        for each in candidates
    ]
    return _decide(Advice(sweep, question, costs, "no_cap_bound", broken[base]), broken, base, cost)


def _baseline(settings: Sequence[Setting], question: SweepQuestion) -> int:
    """Return the position of the highest limit, or of the node's default, with the baseline labels
    of the question.
    """
    others = tuple((name, question.baseline.get(name, "")) for name, _ in settings[0].others)
    like = [number for number, setting in enumerate(settings) if setting.others == others]
    if not like:
        given = " ".join(f"{name}={text}" for name, text in others)
        raise QuestionError(
            f"no run has {given}; give --baseline {settings[0].others[0][0]}=VALUE of one of the "
            "runs"
        )
    return like[-1]


def _comparison(
    sweep: Sweep, values: Sequence[float], kept: Sequence[Sequence[int]], question: SweepQuestion
) -> stats.SettingComparison | None:
    """Compare the settings; None if half of them have fewer than three repeats."""
    if np.median([len(group) for group in kept]) < FEWEST_REPEATS:
        return None
    return stats.compare_settings(_run_values(sweep, values, kept), question.confidence)


def _run_values(
    sweep: Sweep, values: Sequence[float], groups: Sequence[Sequence[int]]
) -> list[list[stats.RunValue]]:
    return [
        [stats.RunValue(Figure(values[at]), sweep.runs[at].repeat) for at in group]
        for group in groups
    ]


@dataclass(frozen=True, slots=True)
class _Comparisons:
    """Runs without outliers by setting, and the comparisons of their costs and times."""

    sweep: Sweep
    costs: SweepCosts
    kept: Sequence[Sequence[int]]
    base: int
    cost: stats.SettingComparison | None
    time: stats.SettingComparison | None


def _candidate(table: _Comparisons, number: int, outliers: int | None) -> Candidate:
    costs = table.costs
    kept = table.kept
    base = table.base
    setting = table.sweep.settings[number]
    runs = tuple(table.sweep.runs[at] for at in kept[number])
    seconds = _level([costs.time_s[at] for at in kept[number]], table.time, number)
    shares = [
        run.capped_s / run.duration_s
        for run in runs
        if run.capped_s is not None and run.duration_s > 0
    ]
    powers_w = [run.p95_power_w for run in runs if run.p95_power_w is not None]
    heats = [run.temperature_celsius for run in runs if run.temperature_celsius is not None]
    limits = None if seconds.skewed is None else (1 / seconds.skewed[1], 1 / seconds.skewed[0])
    rate = Figure(1 / seconds.number, skewed=limits)
    return Candidate(
        setting=setting,
        runs=runs,
        outliers=outliers,
        cost=_level([costs.cost[at] for at in kept[number]], table.cost, number),
        rate=rate,
        fitted_rate=rate.number,
        saving=_change(costs.cost, kept, (base, number), table.cost, -1),
        slowdown=_change(costs.time_s, kept, (number, base), table.time, 1),
        p95_power_w=float(np.median(powers_w)) if powers_w else None,
        capped_share=float(np.median(shares)) if shares else None,
        temperature_celsius=float(np.median(heats)) if heats else None,
        binds=_binds(setting, runs, shares),
    )


def _binds(setting: Setting, runs: Sequence[SweepRun], shares: Sequence[float]) -> bool | None:
    """Return whether the limit was binding, from clock events, power or clock; None if unknown.

    A mean power below the limit proves nothing, because the run may have pauses.
    """
    if setting.sm_clock_hz is not None:
        clocks_hz = [run.sm_clock_hz for run in runs if run.sm_clock_hz is not None]
        return bool(np.median(clocks_hz) >= BINDS * setting.sm_clock_hz) if clocks_hz else None
    limit_w = setting.power_limit_w or max(
        (run.limit_w for run in runs if run.limit_w), default=None
    )
    known = []
    if shares:
        known.append(bool(np.median(shares) >= _CAPPED_SHARE))
    if limit_w and (peaks_w := [run.p95_power_w for run in runs if run.p95_power_w is not None]):
        known.append(bool(np.median(peaks_w) >= BINDS * limit_w))
    if limit_w and (means_w := [run.mean_power_w for run in runs if run.mean_power_w is not None]):
        known += [True] * bool(np.median(means_w) >= BINDS * limit_w)
    return any(known) if known else None


def _level(
    values: Sequence[float], comparison: stats.SettingComparison | None, number: int
) -> Figure:
    """Return the geometric mean, in which a run with twice the work has no more weight."""
    mean = float(np.exp(np.log(values).mean()))
    if comparison is None:
        return Figure(mean)
    half = float(comparison.half[number])
    return Figure(mean, skewed=(mean * math.exp(-half), mean * math.exp(half)))


def _change(
    values: Sequence[float],
    kept: Sequence[Sequence[int]],
    pair: tuple[int, int],
    comparison: stats.SettingComparison | None,
    sign: Literal[1, -1],
) -> Figure:
    """Return the excess of the first over the second (`sign` 1), or the saving of the second (-1),
    as ratios.
    """
    first, second = pair if sign == 1 else pair[::-1]
    if first == second:
        return Figure(0.0)
    if comparison is None:
        logs = [
            float(np.log([values[at] for at in kept[number]]).mean()) for number in (first, second)
        ]
        return Figure(sign * math.expm1(logs[0] - logs[1]))
    middle = float(comparison.difference[first, second])
    half = float(comparison.difference_half[first, second])
    low, high = sorted(sign * math.expm1(end) for end in (middle - half, middle + half))
    return Figure(sign * math.expm1(middle), skewed=(low, high))


def _with_pareto_front(candidates: list[Candidate]) -> list[Candidate]:
    front = pareto_front([(each.cost.number, 1 / each.rate.number) for each in candidates])
    return [replace(each, on_front=number in front) for number, each in enumerate(candidates)]


def _with_fitted_rates(candidates: list[Candidate]) -> list[Candidate]:
    """Add rates that never fall as the limit rises, because more power makes nothing slower."""
    found = []
    for _, family in itertools.groupby(candidates, key=lambda each: each.setting.others):
        members = list(family)
        weights = [float(len(each.runs)) for each in members]
        rates = monotone_fit([each.rate.number for each in members], weights)
        found += [
            replace(each, fitted_rate=float(rate))
            for each, rate in zip(members, rates, strict=True)
        ]
    return found


def monotone_fit(y: Sequence[float], weights: Sequence[float] | None = None) -> FloatArray:
    """Return the closest values to `y` that never fall (isotonic regression)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(y, weights or [1.0] * len(y), strict=True):
        mean = float(value)
        mass = weight
        count = 1
        while blocks and blocks[-1][0] >= mean:  # neighbors in the wrong order get their mean
            other, other_mass, other_count = blocks.pop()
            mean = (other * other_mass + mean * mass) / (other_mass + mass)
            mass = other_mass + mass
            count = other_count + count
        blocks.append((mean, mass, count))
    return np.repeat([mean for mean, _, _ in blocks], [count for _, _, count in blocks])


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the positions of the points that no other point beats in both coordinates; less is
    better.
    """
    order = sorted(range(len(points)), key=lambda position: points[position])
    front: list[int] = []
    for position in order:
        if not front or points[position][1] < points[front[-1]][1]:
            front.append(position)
    return front


def _broken_constraints(
    candidate: Candidate, base: Candidate, question: SweepQuestion
) -> list[str]:
    """Return the violated constraints; each run of the setting has to meet an SLO."""
    found = []
    if question.max_slowdown is not None and candidate.slowdown.number > question.max_slowdown:
        found.append(f"takes {100 * candidate.slowdown.number:.1f} % longer than {base.setting}")
    for name, most in question.slos.items():
        values = [run.results[name] for run in candidate.runs if name in run.results]
        if not values:
            there = sorted({each for run in candidate.runs for each in run.results})
            raise QuestionError(
                f"the runs at {candidate.setting} have no result {name!r}; known results: "
                f"{', '.join(there) or 'none'}"
            )
        if max(values) > most:
            found.append(f"{name} is {short_text(max(values))}")
        elif len(values) < (count := len(candidate.runs)):
            found.append(f"{name} is unknown for {count - len(values)} of {count} runs")
    return found


def _level_of(candidate: Candidate) -> tuple[float | None, float | None]:
    return candidate.setting.power_limit_w, candidate.setting.sm_clock_hz


def _decide(
    advice: Advice,
    candidates: list[Candidate],
    base: int,
    comparison: stats.SettingComparison | None,
) -> Advice:
    """Choose among the settings whose limit was binding."""
    highest = [
        number
        for number, each in enumerate(candidates)
        if _level_of(each) == _level_of(candidates[base])
    ]
    unbound = tuple(
        each.setting
        for number, each in enumerate(candidates)
        if each.binds is False and number not in highest
    )
    advice = replace(
        advice,
        candidates=tuple(candidates),
        unbound=unbound,
        paired=bool(comparison and comparison.paired),
    )
    open_ = [
        number
        for number, each in enumerate(candidates)
        if number in highest or each.binds is not False
    ]
    if comparison is not None:
        pairs = comparison.difference_half[np.triu_indices(len(candidates), 1)]
        advice = replace(advice, detectable=math.expm1(float(np.median(pairs))))
    if len(open_) == len(highest) == 1:
        return advice
    open_ = [number for number in open_ if not candidates[number].broken]
    if not open_:
        return replace(advice, verdict="not_feasible")
    best = min(open_, key=lambda number: candidates[number].cost.number)
    if comparison is None:
        chosen = replace(candidates[best], like_best=True)
        final = tuple(chosen if number == best else each for number, each in enumerate(candidates))
        return replace(
            advice, verdict="too_few_repeats", best=chosen, advised=chosen, candidates=final
        )
    near = math.log1p(NEGLIGIBLE)
    p_worse = comparison.p_against(best, open_)
    equal = {
        n
        for n in open_
        if p_worse[n] >= 1 - stats.CONFIDENCE or comparison.difference[n, best] <= near
    }
    final = tuple(
        replace(each, like_best=number in equal, p_worse=float(p_worse[number]))
        for number, each in enumerate(candidates)
    )
    fastest = max(
        equal, key=lambda number: (round(final[number].fitted_rate, 12), -final[number].cost.number)
    )
    chosen = final[fastest]
    verdict: Verdict = "apply"
    if base in equal or not comparison.is_clear(base, best, open_):
        chosen = final[base]
        verdict = "no_clear_difference" if equal == set(open_) else "keep"
    return replace(
        advice,
        verdict=verdict,
        baseline=final[base],
        best=final[best],
        advised=chosen,
        candidates=final,
    )
