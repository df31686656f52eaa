"""Sequential test for an increase of the energy between two groups of repeated runs.

After each repeat, one-sided t-tests ask whether the energy increased at all, and whether it
increased by less than the largest allowed increase. The probabilities of both errors are divided
among all repeats that are planned (Bonferroni), more of it to later ones, so that stopping at the
first answer adds no false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from wattline.contract.work import is_useful, most_common_first, primary_first
from wattline.figures import Figure, sum_of_independent, unknown
from wattline_analyzer.compare.comparison import GroupMember, RunFigure, RunGroup, unequal_work
from wattline_analyzer.core.group_ratios import FEWEST_PAIRS
from wattline_analyzer.core.statistics import FloatArray, student_quantile

FALSE_ALARM = 0.01
"""Largest probability of `regression` where the energy did not increase."""
FALSE_PASS = 0.05
"""Largest probability of `pass` where the energy increased by the largest allowed increase."""
FEWEST_REPEATS = 2
NO_UNCERTAINTY = "the measurement uncertainty is unknown"
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
    """Runs whose measurement uncertainty is unknown: the limits contain only that of the others."""


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
    values = [
        np.array([one.figures[figure].value for one in column[:planned]]) for column in columns
    ]
    longest = min(len(group) for group in values)
    decision = _Decision(Verdict.CANNOT_TELL, math.log(values[1][0] / values[0][0]), None, None)
    repeats = 1
    for repeats in range(FEWEST_REPEATS, longest + 1):
        logs = [np.log(group[:repeats]) for group in values]
        measured = sum_of_independent(
            _relative_mean([one.figures[figure] for one in column[:repeats]]) for column in columns
        )
        spread = _standard_error(logs[0], logs[1], paired=bool(pairs))
        decision = _test(
            logs,
            spread,
            measured.half_width,
            math.log1p(max_increase),
            _part(repeats, planned),
        )
        if decision.verdict is not Verdict.CANNOT_TELL:
            break
    means = [Figure(float(np.exp(np.mean(np.log(group[:repeats]))))) for group in values]
    low, high = (
        None if limit is None else math.exp(limit) for limit in (decision.low, decision.high)
    )
    return GateResult(
        decision.verdict,
        figure,
        means[0],
        means[1],
        math.exp(decision.log),
        low,
        high,
        repeats,
        planned,
        bool(pairs),
        tuple(
            one.run_id
            for column in columns
            for one in column[:repeats]
            if one.figures[figure].half_width is None
        ),
    )


@dataclass(frozen=True, slots=True)
class _Decision:
    verdict: Verdict
    log: float
    low: float | None
    high: float | None


def _test(
    logs: Sequence[FloatArray],
    spread: tuple[float, float],
    measured: float | None,
    limit: float,
    part: float,
) -> _Decision:
    """Return the decision at one repeat; without `measured`, its limits are the scatter alone."""
    error, freedom = spread
    log = float(np.mean(logs[1]) - np.mean(logs[0]))
    least = [] if measured is None else [measured]
    low = log - max([student_quantile(freedom, 1 - FALSE_ALARM * part) * error, *least])
    high = log + max([student_quantile(freedom, 1 - FALSE_PASS * part) * error, *least])
    if high < limit:
        return _Decision(Verdict.PASS, log, low, high)
    # an increase that is certain, but closer to 0 than to the limit, is no regression yet
    found = low > 0 and log > limit / 2
    return _Decision(Verdict.REGRESSION if found else Verdict.CANNOT_TELL, log, low, high)


def _part(repeat: int, planned: int) -> float:
    """Return the part of an error probability for this repeat."""
    weights = [number**_SPENDING_POWER for number in range(FEWEST_REPEATS, planned + 1)]
    return float(repeat**_SPENDING_POWER / math.fsum(weights))


def _standard_error(first: FloatArray, second: FloatArray, *, paired: bool) -> tuple[float, float]:
    """Return the standard error of the difference of the means, and its degrees of freedom (Welch's
    without pairs).
    """
    n = len(first)
    if paired:
        return float(np.std(second - first, ddof=1)) / math.sqrt(n), n - 1.0
    variances = [float(np.var(group, ddof=1)) / n for group in (first, second)]
    spread = math.fsum(variance**2 for variance in variances) / (n - 1)
    total = math.fsum(variances)
    return math.sqrt(total), total**2 / spread if spread > 0 else 2.0 * (n - 1)


def _relative_mean(values: Sequence[Figure]) -> Figure:
    """Return a mean as a ratio to itself, with the measurement uncertainty of the runs.

    It is partial where that of a run is unknown: its half-width contains the others only.
    """
    runs = [
        unknown(NO_UNCERTAINTY)
        if value.half_width is None
        else Figure(1.0, value.relative_half_width)
        for value in values
    ]
    return sum_of_independent(runs).scaled(1 / len(runs))


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
