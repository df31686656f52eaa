"""Coverage of intervals over generated true values: draws, rank histograms and their summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from scipy.special import bdtr, bdtrc, ndtri, stdtrit

from wattline.figures import Figure

LEVELS = (0.50, 0.80, 0.95, 0.99)
RANK_SHARES = (0.005, 0.02, 0.075, 0.15, 0.25, 0.25, 0.15, 0.075, 0.02, 0.005)
"""Expected shares of the true values between the ends of the nested intervals, from below to above
all of them.
"""
STATED = LEVELS.index(0.95)
_Z = [float(ndtri((1 + level) / 2)) for level in LEVELS]

Meaning = Literal["statistical", "conservative", "bound"]
"""Meaning of the level of an interval.

`statistical`: the true value is inside with this probability. `conservative`: with this probability
or a higher one, since parts of the interval are limits. `bound`: always; the interval is the same
at each level.
"""


@dataclass(frozen=True, slots=True)
class Draw:
    """One interval at each of LEVELS, around an estimate of a known true value; None where it was
    refused.
    """

    truth: float
    estimate: float
    ends: tuple[tuple[float, float], ...] | None

    @property
    def half_width(self) -> float:
        """Half of the width at 95 %."""
        if self.ends is None:
            return math.nan
        low, high = self.ends[STATED]
        return (high - low) / 2

    def covers(self, level: int) -> bool:
        if self.ends is None:
            return False
        low, high = self.ends[level]
        rounding = 1e-9 * max(abs(self.truth), abs(self.estimate))
        return low - rounding <= self.truth <= high + rounding

    @property
    def rank(self) -> int:
        """Number of the bin of RANK_SHARES that contains the true value."""
        beyond = sum(not self.covers(level) for level in range(len(LEVELS)))
        # an exact estimate counts by turns to either side; the last digits of the true value decide
        is_above = self.truth > self.estimate or (
            self.truth == self.estimate and hash(self.truth) % 2 == 1
        )
        return len(LEVELS) + 1 + beyond if is_above else len(LEVELS) - beyond


def from_half_width(
    truth: float, estimate: float, half_width: float | None, freedom: float = math.inf
) -> Draw:
    """Return a draw of a 95 % half-width; other levels have the intervals of Student's t
    distribution.

    With infinite degrees of freedom, it is the normal distribution.
    """
    if half_width is None:
        return Draw(truth, estimate, None)
    quantiles = (
        _Z
        if math.isinf(freedom)
        else [float(stdtrit(freedom, (1 + level) / 2)) for level in LEVELS]
    )
    halves = [half_width * one / quantiles[STATED] for one in quantiles]
    return Draw(truth, estimate, tuple((estimate - half, estimate + half) for half in halves))


def from_intervals(truth: float, intervals: Sequence[Figure]) -> Draw:
    """Return a draw of one interval for each of LEVELS."""
    ends = tuple(
        (one.low, one.high) for one in intervals if one.low is not None and one.high is not None
    )
    return Draw(truth, intervals[0].number, ends if len(ends) == len(LEVELS) else None)


def from_bound(truth: float, estimate: float, ends: tuple[float, float] | None) -> Draw:
    """Return a draw of limits, which hold at each level."""
    return Draw(truth, estimate, None if ends is None else (ends,) * len(LEVELS))


@dataclass(frozen=True, slots=True)
class Kind:
    """Interval that the product prints. `draws` yields that many draws from a random generator."""

    name: str
    meaning: Meaning
    draws: Callable[[np.random.Generator, int], Iterable[Draw]]
    cost: float = 1.0
    """Time of a draw relative to others: the more expensive, the fewer draws."""
    stream: str = ""
    """Kinds with the same name of a stream share its random numbers, and so their runs."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Summary of draws. `coverage` and `ranks` are shares of the draws with an interval.

    `width_ratio` is the mean half-width at 95 % over the root mean square error: 1.96 for normal
    errors with an exact interval. `width` is the median half-width over the true value. `bias` is
    the mean error over the root mean square error.
    """

    name: str
    meaning: Meaning
    draws: int
    refused: int
    coverage: tuple[float, ...]
    ranks: tuple[float, ...]
    width_ratio: float
    width: float
    bias: float

    @property
    def noise(self) -> float:
        """Standard deviation of the coverage at 95 % by the number of draws."""
        return math.sqrt(0.95 * 0.05 / max(1, self.draws - self.refused))

    def row(self) -> dict[str, Any]:
        """Return the row of a file of results."""
        found = asdict(self)
        return {"interval": found.pop("name"), "runs": found.pop("draws"), **found}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Coverage:
        """Return the summary of a row of a file of results."""
        names = [field.name for field in fields(cls) if field.name not in ("name", "draws")]
        known = {name: row[name] for name in names}
        return cls(name=row["interval"], draws=row["runs"], **known)


def summarize(name: str, meaning: Meaning, draws: Sequence[Draw]) -> Coverage:
    known = [draw for draw in draws if draw.ends is not None]
    if not known:
        raise ValueError(f"{name}: each draw was refused")
    errors = np.array([draw.estimate - draw.truth for draw in known])
    halves = np.array([draw.half_width for draw in known])
    truths = np.abs([draw.truth for draw in known])
    # relative to each true value where these differ in size, else to their typical amount
    scale = (
        truths
        if truths.min() > 0.01 * np.median(truths)
        else np.full(len(truths), np.median(truths) or 1.0)
    )
    errors, halves = errors / scale, halves / scale
    rms = float(np.sqrt(np.mean(errors**2)))
    ranks = np.bincount([draw.rank for draw in known], minlength=len(RANK_SHARES)) / len(known)
    return Coverage(
        name,
        meaning,
        len(draws),
        len(draws) - len(known),
        tuple(
            round(float(np.mean([draw.covers(level) for draw in known])), 4)
            for level in range(len(LEVELS))
        ),
        tuple(round(float(share), 4) for share in ranks),
        round(float(np.mean(halves)) / rms, 2) if rms else math.inf,
        float(f"{np.median(halves):.3g}"),
        round(float(np.mean(errors)) / rms, 2) if rms else 0.0,
    )


def measure(kind: Kind, seed: int, count: int) -> Coverage:
    """Return the coverage of a kind; the same seed and number give the same result."""
    rng = np.random.default_rng([seed, *(kind.stream or kind.name).encode()])
    return summarize(
        kind.name, kind.meaning, list(kind.draws(rng, max(1, round(count / kind.cost))))
    )


_UNLIKELY = 1e-3


def contradictions(found: Coverage, margin: float = 0.0) -> list[str]:
    """Return the levels whose coverage contradicts the meaning by more than the number of draws
    explains.

    A coverage that is too low by at most `margin` is no contradiction.
    """
    count = found.draws - found.refused
    problems = []
    for level, share in zip(LEVELS, found.coverage, strict=True):
        inside = round(share * count)
        nominal = 0.95 if found.meaning == "bound" else level
        if bdtr(inside, count, nominal - margin) < _UNLIKELY:
            problems.append(f"{found.name}: {100 * share:.1f} % at {100 * nominal:.0f} %")
        elif found.meaning == "statistical" and bdtrc(inside - 1, count, level) < _UNLIKELY:
            problems.append(
                f"{found.name}: {100 * share:.1f} % at {100 * level:.0f} %, wider than necessary"
            )
    return problems
