"""Which setting a sweep advises, and what it rests on. Frozen results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analyzer.studies.objective import Costs, Question
from analyzer.studies.sweep import Setting, Sweep, SweepRun

Verdict = Literal["apply", "keep", "no_clear_difference", "no_cap_bound", "too_few_repeats", "not_feasible", "no_sweep"]


@dataclass(frozen=True, slots=True)
class Span:
    """A value with the limits of its 95 % interval, which are None where the repeats are too few for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the runs at one setting say. `saving` and `slowdown` are ratios, against the baseline; `p_worse` is Holm's
    corrected p of its difference from the best. `rate` is units of work (runs, without one) a second, `fitted_rate`
    that of a curve which never falls as the limit rises. `binds` is None where nothing tells.
    """

    setting: Setting
    runs: tuple[SweepRun, ...]
    outliers: int | None
    cost: Span
    rate: Span
    fitted_rate: float
    saving: Span
    slowdown: Span
    p95_power_w: float | None
    capped_share: float | None
    temperature_celsius: float | None
    binds: bool | None
    broken: tuple[str, ...] = ()
    p_worse: float | None = None
    in_set: bool = False
    on_front: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """`set_` are those that cannot be told from the best, of which `advised` is the fastest; `detectable` is the ratio
    below which a difference between two settings would not have been seen.
    """

    sweep: Sweep
    question: Question
    costs: Costs | None
    verdict: Verdict
    baseline: Candidate | None = None
    best: Candidate | None = None
    advised: Candidate | None = None
    candidates: tuple[Candidate, ...] = ()
    paired: bool = False
    detectable: float | None = None
    unbound: tuple[Setting, ...] = ()

    @property
    def set_(self) -> tuple[Candidate, ...]:
        return tuple(candidate for candidate in self.candidates if candidate.in_set)
