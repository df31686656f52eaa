"""Sequential test for an increase of the energy between two groups of repeated runs.

After each repeat, outliers are left out, for example a cold first run. Then one-sided t-tests ask
whether the energy increased at all, and whether it increased by less than the largest allowed
increase. The probabilities of both errors are divided among all repeats that are planned
(Bonferroni), more of it to later ones, so that stopping at the first answer adds no false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from wattline.contract.work import is_useful, most_common_first, primary_first
from wattline.figures import Figure
from wattline_analyzer.compare.comparison import GroupMember, RunFigure, RunGroup, unequal_work
from wattline_analyzer.core.statistics import (
    FEWEST_PAIRS,
    LogDifference,
    RunValue,
    geometric_means,
    is_beyond_chance,
    log_difference,
    outliers,
)

FALSE_ALARM = 0.01
"""Largest probability of `regression` where the energy did not increase."""
FALSE_PASS = 0.05
"""Largest probability of `pass` where the energy increased by the largest allowed increase."""
FEWEST_REPEATS = 2
_SPENDING_POWER = 2.0
"""The part of an error probability that a repeat gets rises with this power of its number."""


class GateError(ValueError):
    """Runs that a gate cannot judge; the message names cause and remedy."""


class Verdict(StrEnum):
    """Answer of a gate."""

    PASS = "pass"  # noqa: S105  # no password
    REGRESSION = "regression"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True, slots=True)
class GateResult:
    """Verdict after `repeats` of at most `planned` repeats.

    `ratio` is candidate to baseline, geometric mean; `low` and `high` are the limits of the
    one-sided tests at this repeat, None where the scatter is unknown. `paired`: repeats were
    compared one by one.
    """

    verdict: Verdict
    figure: RunFigure
    baseline: Figure
    candidate: Figure
    ratio: float
    low: float | None
    high: float | None
    repeats: int
    planned: int
    paired: bool
    without_uncertainty: tuple[str, ...] = ()
    """Runs whose measurement uncertainty is unknown: the limits are those of the scatter alone."""
    outliers: tuple[str, ...] = ()
    """Runs that are left out; with pairs, both runs of a pair."""


def gate_figure(groups: Sequence[RunGroup], key: str | None = None) -> RunFigure:
    """Return the figure with this key, else the energy per primary unit of work, else the energy of
    the GPUs.

    Raises GateError if a run lacks it, or if runs without energy per unit did different amounts of
    work.
    """
    members = [one for group in groups for one in group.members]
    known = [
        {
            figure
            for figure, value in one.figures.items()
            if value.number > 0 and figure.kind != "rate"
        }
        for one in members
    ]
    by_key = {figure.key: figure for figure in set.intersection(*known)}
    if key is not None:
        if key not in by_key:
            raise GateError(
                f"not every run has the figure {key!r}; use one of: "
                f"{', '.join(sorted(by_key)) or 'none'}"
            )
        return by_key[key]
    units = {
        figure.of
        for figure in by_key.values()
        if figure.kind == "energy_per_unit" and is_useful(figure.of)
    }
    orders = [[unit for unit in one.work if unit in units] for one in members]
    for unit in (most_common_first(orders) or primary_first(units))[:1]:
        return by_key[f"energy_per_{unit}_joules"]
    for warning in unequal_work(groups):
        raise GateError(
            f"no common energy per unit, and {warning}; or choose a figure with --figure"
        )
    found = by_key.get("energy_gpu_joules") or by_key.get("energy_cpu_joules")
    if found is None:
        raise GateError(
            "the runs have no common energy; see what each of them has with: analyzer report"
        )
    return found


def selection_warnings(groups: Sequence[RunGroup], planned: int) -> Iterator[str]:
    """Yield a warning for each group with too many runs, or with several runs of one repeat, so of
    two experiments.
    """
    for group in groups:
        labels = [one.repeat for one in group.members if one.repeat]
        if len(group.members) > planned:
            yield (
                f"{group.name}: only the first {planned} of {len(group.members)} runs count; "
                "select the runs of one "
                "experiment by a label, or give a shorter --since"
            )
        elif len(set(labels)) < len(labels):
            yield (
                f"{group.name}: several runs have the same label repeat; select the runs of one "
                "experiment by a label"
            )


def judge(
    groups: Sequence[RunGroup], figure: RunFigure, max_increase: float, planned: int
) -> GateResult:
    """Return the first verdict of the sequential test; repeats after it, and beyond `planned`, are
    not used.

    `groups` are baseline and candidate, their members in the order of their starts; `max_increase`
    is a ratio, 0.03 for 3 %.
    """
    pairs = _pairs(*(group.members for group in groups))
    columns = list(zip(*pairs, strict=True)) if pairs else [group.members for group in groups]
    longest = min(planned, *map(len, columns))
    look = _Look.after(columns, figure, 1, paired=bool(pairs))
    decision = _Decision(Verdict.CANNOT_TELL, None, None)
    for repeat in range(FEWEST_REPEATS, longest + 1):
        look = _Look.after(columns, figure, repeat, paired=bool(pairs))
        decision = _test(look.difference, math.log1p(max_increase), _part(repeat, planned))
        if decision.verdict is Verdict.PASS and look.candidate_outliers > 1:
            decision = replace(decision, verdict=Verdict.CANNOT_TELL)
        if decision.verdict is not Verdict.CANNOT_TELL:
            break
    low, high = (
        None if limit is None else math.exp(limit) for limit in (decision.low, decision.high)
    )
    baseline, candidate = geometric_means(look.values)
    return GateResult(
        decision.verdict,
        figure,
        Figure(baseline.value),
        Figure(candidate.value),
        math.exp(look.difference.log),
        low,
        high,
        look.repeats,
        planned,
        bool(pairs),
        tuple(one.run_id for one in look.kept if one.figures[figure].half_width is None),
        look.outliers,
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """Runs up to one repeat, without outliers, and their difference."""

    repeats: int
    kept: tuple[GroupMember, ...]
    outliers: tuple[str, ...]
    candidate_outliers: int
    """Number of the candidate's runs among them. One may be a cold first run; several may be part
    of what the candidate does, so that it does not pass without them."""
    values: Sequence[Sequence[RunValue]]
    difference: LogDifference

    @classmethod
    def after(
        cls,
        columns: Sequence[Sequence[GroupMember]],
        figure: RunFigure,
        repeats: int,
        *,
        paired: bool,
    ) -> _Look:
        members = [column[:repeats] for column in columns]
        values = [
            [
                RunValue(one.figures[figure], at if paired else one.run_id)
                for at, one in enumerate(column)
            ]
            for column in members
        ]
        flags = outliers(values)
        groups = [
            [one for one, is_outlier in zip(column, marks, strict=True) if not is_outlier]
            for column, marks in zip(values, flags, strict=True)
        ]
        marked = [
            pair
            for column, marks in zip(members, flags, strict=True)
            for pair in zip(column, marks, strict=True)
        ]
        return cls(
            repeats,
            tuple(one for one, is_outlier in marked if not is_outlier),
            tuple(one.run_id for one, is_outlier in marked if is_outlier),
            sum(flags[1]),
            groups,
            log_difference(groups[0], groups[1], paired=paired),
        )


@dataclass(frozen=True, slots=True)
class _Decision:
    verdict: Verdict
    low: float | None
    high: float | None


def _test(difference: LogDifference, limit: float, part: float) -> _Decision:
    """Return the decision at one repeat, which has this part of the probabilities of error."""
    below = difference.half_width(1 - FALSE_ALARM * part)
    above = difference.half_width(1 - FALSE_PASS * part)
    assert below is not None
    assert above is not None
    low = difference.log - below
    high = difference.log + above
    if high < limit:
        return _Decision(Verdict.PASS, low, high)
    # an increase that is certain, but closer to 0 than to the limit, is no regression yet
    is_found = low > 0 and difference.log > limit / 2
    is_regression = is_found and is_beyond_chance(difference.log, difference.repeats)
    return _Decision(Verdict.REGRESSION if is_regression else Verdict.CANNOT_TELL, low, high)


def _part(repeat: int, planned: int) -> float:
    """Return the part of an error probability for this repeat."""
    weights = [number**_SPENDING_POWER for number in range(FEWEST_REPEATS, planned + 1)]
    return float(repeat**_SPENDING_POWER / math.fsum(weights))


def _pairs(
    baseline: Sequence[GroupMember], candidate: Sequence[GroupMember]
) -> list[tuple[GroupMember, GroupMember]]:
    """Return the runs of the repeats that both groups have once; empty if there are fewer than
    FEWEST_PAIRS.
    """
    by_repeat = [
        {one.repeat: one for one in group if one.repeat} for group in (baseline, candidate)
    ]
    if any(
        len(found) < len(group)
        for found, group in zip(by_repeat, (baseline, candidate), strict=True)
    ):
        return []
    common = [repeat for repeat in by_repeat[0] if repeat in by_repeat[1]]
    pairs = [(by_repeat[0][repeat], by_repeat[1][repeat]) for repeat in common]
    return pairs if len(pairs) >= FEWEST_PAIRS else []
