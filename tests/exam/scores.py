"""Verdicts and scores of a meter's answers (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import Any

ALL = "all"
"""Name of the row of all cases."""
TOLERANCE = 0.05
"""Largest relative error of a right figure."""


class Verdict(StrEnum):
    """Verdict on one figure.

    right: the error is at most TOLERANCE. covered: it is larger, and the stated interval contains
    the true value. declared: the same without such an interval, but with a note, in a case with a
    fault. refused: no figure. wrong: none of these.
    """

    RIGHT = "right"
    COVERED = "covered"
    DECLARED = "declared"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a meter for one GPU, or `sum`, with the true energy. `figure_j` is None where it
    gave none.
    """

    case: str
    gpu: str
    has_fault: bool
    true_j: float
    figure_j: float | None
    uncertainty_j: float | None
    notes: tuple[str, ...]
    cpu: float | None
    """Share of one core between the meter's start and its end."""

    @property
    def error(self) -> float | None:
        return None if self.figure_j is None else self.figure_j / self.true_j - 1

    @property
    def contains_truth(self) -> bool | None:
        """Return True if the stated interval contains the true energy; None without an interval."""
        if self.figure_j is None or self.uncertainty_j is None:
            return None
        return abs(self.figure_j - self.true_j) <= self.uncertainty_j

    @property
    def verdict(self) -> Verdict:
        if self.error is None:
            return Verdict.REFUSED
        if abs(self.error) <= TOLERANCE:
            return Verdict.RIGHT
        if self.contains_truth:
            return Verdict.COVERED
        return Verdict.DECLARED if self.has_fault and self.notes else Verdict.WRONG

    @property
    def points(self) -> float:
        """Return 1 for a right figure, 0.5 for one that warns its reader, else 0.

        A refusal without a fault is worth nothing.
        """
        match self.verdict:
            case Verdict.RIGHT:
                return 1.0
            case Verdict.COVERED | Verdict.DECLARED:
                return 0.5
            case Verdict.REFUSED:
                return 0.5 if self.has_fault else 0.0
        return 0.0


@dataclass(frozen=True, slots=True)
class CaseScore:
    """Score of one case. Answers without a figure have no error."""

    case: str
    runs: int
    points: float
    median_error: float | None
    worst_error: float | None
    covered: float | None
    """Share of stated intervals that contain the true energy; None where none is stated."""
    wrong: int
    declared: int
    """Number of answers with a note or without a figure."""


@dataclass(frozen=True, slots=True)
class Score:
    """Summary of a meter: `points` of 100, each case with the same weight."""

    points: float
    median_error: float | None
    """Over the cases without a fault."""
    wrong: float
    """Share of answers that are wrong without an interval, a note or a refusal."""
    covered: float | None
    false_alarms: float
    """Share of answers with a note in the cases without a fault."""
    cpu: float | None


def score_case(answers: Sequence[Answer]) -> CaseScore:
    errors = [abs(answer.error) for answer in answers if answer.error is not None]
    return CaseScore(
        case=answers[0].case,
        runs=len(answers),
        points=fmean(answer.points for answer in answers),
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
        covered=_coverage(answers),
        wrong=sum(answer.verdict is Verdict.WRONG for answer in answers),
        declared=sum(bool(answer.notes) or answer.figure_j is None for answer in answers),
    )


def by_case(answers: Sequence[Answer]) -> list[CaseScore]:
    """Return the score of each case, in the order of the answers."""
    cases: dict[str, list[Answer]] = {}
    for answer in answers:
        cases.setdefault(answer.case, []).append(answer)
    return [score_case(each) for each in cases.values()]


def score(answers: Sequence[Answer]) -> Score:
    healthy = [answer for answer in answers if not answer.has_fault]
    errors = [abs(answer.error) for answer in healthy if answer.error is not None]
    cpu = [answer.cpu for answer in answers if answer.cpu is not None]
    return Score(
        points=100 * fmean(case.points for case in by_case(answers)),
        median_error=median(errors) if errors else None,
        wrong=fmean(answer.verdict is Verdict.WRONG for answer in answers),
        covered=_coverage(answers),
        false_alarms=fmean(bool(answer.notes) for answer in healthy) if healthy else 0.0,
        cpu=median(cpu) if cpu else None,
    )


def _coverage(answers: Sequence[Answer]) -> float | None:
    covered = [answer.contains_truth for answer in answers if answer.contains_truth is not None]
    return fmean(covered) if covered else None


def rows(meter: Mapping[str, Any], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return a row of results for all cases, and one for each; each has the entries of `meter`."""
    all_cases = {"case": ALL, "runs": len(answers), **asdict(score(answers))}
    cases = [asdict(case) for case in by_case(answers)]
    return [dict(_rounded({**meter, **row})) for row in (all_cases, *cases)]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.4g}")
    return value
