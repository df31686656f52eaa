"""Which power limit to set, by the runs of a sweep: the best, and what cannot be told from it. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from analyzer.studies import stats
from analyzer.studies.advice import Advice, Candidate, Span, Verdict
from analyzer.studies.objective import Costs, Question, QuestionError, costs
from analyzer.studies.sweep import Setting, Sweep, SweepRun

BINDS = 0.97
"""A power that stays this near to the limit was held by it."""
_CAPPED_SHARE = 0.05
WORTHLESS = 0.01
"""A difference that nobody would slow a job down for, however surely it is one."""
FEWEST_REPEATS = 3


def advise(sweep: Sweep, question: Question) -> Advice:
    """Raises QuestionError where the sweep cannot be asked that."""
    if len(sweep.settings) < 2:
        return Advice(sweep, question, None, "no_sweep")
    price = costs(sweep, question)
    groups = [[at for at, run in enumerate(sweep.runs) if run.setting == each] for each in sweep.settings]
    odd = stats.outliers([[price.cost[at] for at in group] for group in groups])
    kept = [
        [at for position, at in enumerate(group) if not (marks and marks[position])]
        for group, marks in zip(groups, odd, strict=True)
    ]
    base = _baseline(sweep.settings, question)
    cost, time = (_compared(sweep, values, kept, question.seed) for values in (price.cost, price.time_s))
    table = _Table(sweep, price, kept, base, cost, time)
    candidates = [_candidate(table, number, None if marks is None else sum(marks)) for number, marks in enumerate(odd)]
    candidates = _fitted(_on_front(candidates))
    broken = [replace(each, broken=tuple(_broken(each, candidates[base], question))) for each in candidates]
    return _decided(Advice(sweep, question, price, "no_cap_bound", broken[base]), broken, base, cost)


def _baseline(settings: Sequence[Setting], question: Question) -> int:
    """The highest limit, or the node as it was; labels that are chosen along with it have to be given."""
    others = tuple((name, question.baseline.get(name, "")) for name, _ in settings[0].others)
    like = [number for number, setting in enumerate(settings) if setting.others == others]
    if not like:
        given = " ".join(f"{name}={text}" for name, text in others)
        raise QuestionError(f"no run has {given}; give --baseline {settings[0].others[0][0]}=VALUE of one of the runs")
    return like[-1]


def _compared(
    sweep: Sweep, values: Sequence[float], kept: Sequence[Sequence[int]], seed: int
) -> stats.Comparison | None:
    """None where the repeats are too few: half of the settings have fewer than three."""
    if np.median([len(group) for group in kept]) < FEWEST_REPEATS:
        return None
    rows = [(values[at], number, sweep.runs[at].repeat) for number, group in enumerate(kept) for at in group]
    costs_, numbers, repeats = zip(*rows, strict=True)
    return stats.compare(costs_, numbers, repeats, seed=seed)


@dataclass(frozen=True, slots=True)
class _Table:
    """The runs that are `kept`, by setting, and the comparisons of their costs and of their times."""

    sweep: Sweep
    price: Costs
    kept: Sequence[Sequence[int]]
    base: int
    cost: stats.Comparison | None
    time: stats.Comparison | None


def _candidate(table: _Table, number: int, outliers: int | None) -> Candidate:
    price, kept, base, setting = table.price, table.kept, table.base, table.sweep.settings[number]
    runs = tuple(table.sweep.runs[at] for at in kept[number])
    seconds = _level([price.time_s[at] for at in kept[number]], table.time, number)
    shares = [run.capped_s / run.duration_s for run in runs if run.capped_s is not None and run.duration_s > 0]
    powers_w = [max(known) for run in runs if (known := [w for w in (run.p95_power_w, run.mean_power_w) if w])]
    heats = [run.temperature_celsius for run in runs if run.temperature_celsius is not None]
    rate = Span(1 / seconds.value, 1 / seconds.high if seconds.high else None, 1 / seconds.low if seconds.low else None)
    return Candidate(
        setting=setting,
        runs=runs,
        outliers=outliers,
        cost=_level([price.cost[at] for at in kept[number]], table.cost, number),
        rate=rate,
        fitted_rate=rate.value,
        saving=_change(price.cost, kept, (base, number), table.cost, -1),
        slowdown=_change(price.time_s, kept, (number, base), table.time, 1),
        p95_power_w=float(np.median(powers_w)) if powers_w else None,
        capped_share=float(np.median(shares)) if shares else None,
        temperature_celsius=float(np.median(heats)) if heats else None,
        binds=_binds(setting, runs, shares),
    )


def _binds(setting: Setting, runs: Sequence[SweepRun], shares: Sequence[float]) -> bool | None:
    """By the driver's own word, or by a power, or a clock, that stayed at the limit. A mean power that did not says
    nothing: there may have been pauses.
    """
    if setting.sm_clock_hz is not None:
        clocks_hz = [run.sm_clock_hz for run in runs if run.sm_clock_hz is not None]
        return bool(np.median(clocks_hz) >= BINDS * setting.sm_clock_hz) if clocks_hz else None
    limit_w = setting.power_limit_w or max((run.limit_w for run in runs if run.limit_w), default=None)
    known = []
    if shares:
        known.append(bool(np.median(shares) >= _CAPPED_SHARE))
    if limit_w and (peaks_w := [run.p95_power_w for run in runs if run.p95_power_w is not None]):
        known.append(bool(np.median(peaks_w) >= BINDS * limit_w))
    if limit_w and (means_w := [run.mean_power_w for run in runs if run.mean_power_w is not None]):
        known += [True] * bool(np.median(means_w) >= BINDS * limit_w)
    return any(known) if known else None


def _level(values: Sequence[float], compared: stats.Comparison | None, number: int) -> Span:
    """The geometric mean: a run of twice the work has no more say than another."""
    mean = float(np.exp(np.log(values).mean()))
    if compared is None:
        return Span(mean)
    half = float(compared.half[number])
    return Span(mean, mean * math.exp(-half), mean * math.exp(half))


def _change(
    values: Sequence[float],
    kept: Sequence[Sequence[int]],
    pair: tuple[int, int],
    compared: stats.Comparison | None,
    sign: Literal[1, -1],
) -> Span:
    """`sign` 1: by how much the first is more than the second; -1: what the second saves of the first."""
    first, second = pair if sign == 1 else pair[::-1]
    if first == second:
        return Span(0.0)
    if compared is None:
        logs = [float(np.log([values[at] for at in kept[number]]).mean()) for number in (first, second)]
        return Span(sign * math.expm1(logs[0] - logs[1]))
    middle, half = float(compared.difference[first, second]), float(compared.difference_half[first, second])
    low, high = sorted(sign * math.expm1(end) for end in (middle - half, middle + half))
    return Span(sign * math.expm1(middle), low, high)


def _on_front(candidates: list[Candidate]) -> list[Candidate]:
    front = stats.pareto([(each.cost.value, 1 / each.rate.value) for each in candidates])
    return [replace(each, on_front=number in front) for number, each in enumerate(candidates)]


def _fitted(candidates: list[Candidate]) -> list[Candidate]:
    """More power, or a higher clock, makes nothing slower; what looks so is noise, and is levelled."""
    found = []
    for _, family in itertools.groupby(candidates, key=lambda each: each.setting.others):
        members = list(family)
        weights = [float(len(each.runs)) for each in members]
        rates = stats.rising([each.rate.value for each in members], weights)
        found += [replace(each, fitted_rate=float(rate)) for each, rate in zip(members, rates, strict=True)]
    return found


def _broken(candidate: Candidate, base: Candidate, question: Question) -> list[str]:
    """The constraints that it does not keep; an SLO is kept only where each of the runs does."""
    found = []
    if question.max_slowdown is not None and candidate.slowdown.value > question.max_slowdown:
        found.append(f"{100 * candidate.slowdown.value:.1f} % slower than {base.setting}")
    for name, most in question.slos.items():
        values = [run.results[name] for run in candidate.runs if name in run.results]
        if not values:
            there = sorted({each for run in candidate.runs for each in run.results})
            raise QuestionError(
                f"the runs at {candidate.setting} have no result {name!r}; they have {', '.join(there) or 'none'}"
            )
        if max(values) > most:
            found.append(f"{name} is {max(values):.4g}")
        elif len(values) < (count := len(candidate.runs)):
            found.append(f"{name} is not known of {count - len(values)} of its {count} runs")
    return found


def _level_of(candidate: Candidate) -> tuple[float | None, float | None]:
    return candidate.setting.power_limit_w, candidate.setting.sm_clock_hz


def _decided(advice: Advice, found: list[Candidate], base: int, compared: stats.Comparison | None) -> Advice:
    """A limit that did not bind did nothing, whatever its runs happened to cost, so it is no candidate."""
    highest = [number for number, each in enumerate(found) if _level_of(each) == _level_of(found[base])]
    unbound = tuple(each.setting for number, each in enumerate(found) if each.binds is False and number not in highest)
    advice = replace(advice, candidates=tuple(found), unbound=unbound, paired=bool(compared and compared.paired))
    open_ = [number for number, each in enumerate(found) if number in highest or each.binds is not False]
    if compared is not None:
        pairs = compared.difference_half[np.triu_indices(len(found), 1)]
        advice = replace(advice, detectable=math.expm1(float(np.median(pairs))))
    if len(open_) == len(highest) == 1:
        return advice
    open_ = [number for number in open_ if not found[number].broken]
    if not open_:
        return replace(advice, verdict="not_feasible")
    best = min(open_, key=lambda number: found[number].cost.value)
    if compared is None:
        chosen = replace(found[best], in_set=True)
        told = tuple(chosen if number == best else each for number, each in enumerate(found))
        return replace(advice, verdict="too_few_repeats", best=chosen, advised=chosen, candidates=told)
    near = math.log1p(WORTHLESS)
    like = {n for n in open_ if not compared.differs(n, best) or compared.difference[n, best] <= near}
    told = tuple(
        replace(each, in_set=number in like, p_worse=float(compared.adjusted[number, best]))
        for number, each in enumerate(found)
    )
    fastest = max(like, key=lambda number: (round(told[number].fitted_rate, 12), -told[number].cost.value))
    chosen = told[fastest]
    verdict: Verdict = "apply"
    if base in like:
        chosen, verdict = told[base], "no_clear_difference" if like == set(open_) else "keep"
    return replace(advice, verdict=verdict, baseline=told[base], best=told[best], advised=chosen, candidates=told)
