"""Recommendation of a sweep and the figures it is based on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analyzer.model.interval import Interval
from analyzer.studies.objective import SweepCosts, SweepQuestion
from analyzer.studies.sweep import Setting, Sweep, SweepRun

Verdict = Literal["apply", "keep", "no_clear_difference", "no_cap_bound", "too_few_repeats", "not_feasible", "no_sweep"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Figures of one setting.

    `saving` and `slowdown` are ratios relative to the baseline. `rate` is in units of work (or runs) per second,
    `fitted_rate` is its monotone fit over the limits. `binds` is None where unknown. `p_worse` is the p-value of the
    difference from the best, with Holm's correction.
    """

    setting: Setting
    runs: tuple[SweepRun, ...]
    outliers: int | None
    cost: Interval
    rate: Interval
    fitted_rate: float
    saving: Interval
    slowdown: Interval
    p95_power_w: float | None
    capped_share: float | None
    temperature_celsius: float | None
    binds: bool | None
    broken: tuple[str, ...] = ()
    p_worse: float | None = None
    like_best: bool = False
    on_front: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """Recommendation of one sweep. `advised` is the fastest setting without a clear difference from the best;
    differences below the ratio `detectable` are not detectable. `unbound` settings did not limit anything.
    """

    sweep: Sweep
    question: SweepQuestion
    costs: SweepCosts | None
    verdict: Verdict
    baseline: Candidate | None = None
    best: Candidate | None = None
    advised: Candidate | None = None
    candidates: tuple[Candidate, ...] = ()
    paired: bool = False
    detectable: float | None = None
    unbound: tuple[Setting, ...] = ()

    @property
    def best_candidates(self) -> tuple[Candidate, ...]:
        """Settings without a clear difference from the best."""
        return tuple(candidate for candidate in self.candidates if candidate.like_best)
