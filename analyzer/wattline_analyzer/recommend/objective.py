"""Question and answer of a recommendation: objective, constraints, costs, candidates, advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np

from wattline.contract.work import unit_of_one
from wattline.figures import Figure, short_joules_text
from wattline_analyzer.core.statistics import CONFIDENCE
from wattline_analyzer.recommend.sweep import Setting, Sweep, SweepRun

Verdict = Literal[
    "apply",
    "keep",
    "no_clear_difference",
    "no_cap_bound",
    "too_few_repeats",
    "not_feasible",
    "no_sweep",
]


class Objective(StrEnum):
    """Quantity to optimize. All are minimized: units per joule as energy per unit."""

    ENERGY = "energy"
    ENERGY_PER_UNIT = "energy-per-unit"
    EDP = "edp"
    ED2P = "ed2p"
    ZEUS = "zeus"
    UNITS_PER_JOULE = "units-per-joule"


PER_UNIT = (Objective.ENERGY_PER_UNIT, Objective.UNITS_PER_JOULE)
WITHOUT_TIME = (None, Objective.ENERGY, *PER_UNIT)
"""Objectives in which time has no weight, so that the extra time needs a limit; None is the default
objective.
"""
DEFAULT_MAX_SLOWDOWN = 0.10
"""Limit of the extra time, as a ratio, where the user gives none."""


@dataclass(frozen=True, slots=True)
class SweepQuestion:
    """Objective, constraints and baseline. `max_slowdown` is a ratio: 0.05 allows 5 % more time per
    unit of work.

    `slos` are upper limits of results. `eta` is the weight of energy in Zeus's cost. `baseline` has
    the values of the labels that are chosen along with the limit. `confidence` is the level of the
    intervals.
    """

    objective: Objective | None = None
    unit: str | None = None
    max_slowdown: float | None = None
    slos: Mapping[str, float] = field(default_factory=dict)
    eta: float = 0.5
    baseline: Mapping[str, str] = field(default_factory=dict)
    confidence: float = CONFIDENCE


class QuestionError(ValueError):
    """A question that the sweep cannot answer; the message names possible questions."""


@dataclass(frozen=True, slots=True)
class SweepCosts:
    """Costs by run, in the order of the sweep: energy and time per unit of work, or per run where
    `unit` is None.

    `amount` is the median work of a run, to which costs of whole runs are scaled.
    """

    objective: Objective
    unit: str | None
    amount: float
    energy_j: Sequence[float]
    time_s: Sequence[float]
    cost: Sequence[float]
    components: tuple[str, ...] = ("gpu",)
    """Components whose energy is counted: the GPUs, and CPU and DRAM where they are measured for
    all runs.
    """

    @property
    def measure(self) -> str:
        """Unit of the displayed cost."""
        match self.objective:
            case Objective.ENERGY | Objective.ZEUS:
                return "J"
            case Objective.EDP:
                return "J s"
            case Objective.ED2P:
                return "J s²"
            case Objective.ENERGY_PER_UNIT:
                return f"J/{unit_of_one(self.unit or 'run')}"
            case Objective.UNITS_PER_JOULE:
                return f"{(self.unit or '').replace('_', ' ')}/J"

    def shown(self, cost: float) -> float:
        return 1 / cost if self.objective is Objective.UNITS_PER_JOULE else cost


def sweep_costs(sweep: Sweep, unit: str | None, question: SweepQuestion) -> SweepCosts:
    """Return the cost of each run for equal work, see `wattline_analyzer.recommend.equal_work`.
    Raises QuestionError.
    """
    objective = question.objective or (Objective.ENERGY_PER_UNIT if unit else Objective.ENERGY)
    if unit is None and objective in PER_UNIT:
        raise QuestionError(f"{sweep.title}: no run reports work; use --objective energy")
    components = _counted_components(sweep, unit)
    pairs = [_of_unit(run, unit, with_host=components != ("gpu",)) for run in sweep.runs]
    amount = float(np.median([run.work[unit].amount for run in sweep.runs])) if unit else 1.0
    scale = 1.0 if objective in PER_UNIT else amount
    highest_w = max((_limit_w(run) for run in sweep.runs), default=0.0)
    if objective is Objective.ZEUS and highest_w <= 0:
        raise QuestionError(
            f"{sweep.title}: cannot compute the Zeus cost: no power limit is known; choose another "
            "--objective"
        )
    cost = []
    for energy_j, time_s in pairs:
        joules = energy_j * scale
        seconds = time_s * scale
        match objective:
            case Objective.EDP:
                cost.append(joules * seconds)
            case Objective.ED2P:
                cost.append(joules * seconds * seconds)
            case Objective.ZEUS:  # section 4.2 of Zeus, NSDI 2023
                cost.append(question.eta * joules + (1 - question.eta) * highest_w * seconds)
            case _:
                cost.append(joules)
    energies_j = [pair[0] for pair in pairs]
    times_s = [pair[1] for pair in pairs]
    return SweepCosts(objective, unit, amount, energies_j, times_s, cost, components)


def _counted_components(sweep: Sweep, unit: str | None) -> tuple[str, ...]:
    """Return the components of the widest boundary that all runs have, else the GPUs."""
    hosts = [run.with_host for run in sweep.runs]
    known = [host for host in hosts if host is not None and (unit is None or unit in host.per_unit)]
    if len(known) < len(hosts) or len({host.components for host in known}) != 1:
        return ("gpu",)
    return known[0].components


def _of_unit(run: SweepRun, unit: str | None, *, with_host: bool) -> tuple[float, float]:
    host = run.with_host if with_host else None
    if unit is None:
        energy_j = host.energy.number if host else run.energy.number
        if energy_j <= 0 or run.duration_s <= 0:
            raise QuestionError(
                f"{run.run_id}: energy is {short_joules_text(energy_j)}; "
                "exclude the run with --run-id"
            )
        return energy_j, run.duration_s
    work = run.work[unit]
    per_unit = host.per_unit[unit] if host else work.energy_per_unit
    if per_unit is None or per_unit.number <= 0 or not work.per_second:
        raise QuestionError(
            f"{run.run_id}: energy or rate of {unit} is unknown; choose another --unit"
        )
    return per_unit.number, 1 / work.per_second


def _limit_w(run: SweepRun) -> float:
    """Return the power limit of all GPUs of the run together."""
    return (run.setting.power_limit_w or run.limit_w or 0.0) * len(run.gpus)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Figures of one setting.

    `saving` and `slowdown` are ratios relative to the baseline. `rate` is in units of work (or
    runs) per second, `fitted_rate` is its monotone fit over the limits. `binds` is None where
    unknown. `p_worse` is the p-value of the difference from the best, with Holm's correction.
    """

    setting: Setting
    runs: tuple[SweepRun, ...]
    outliers: int | None
    cost: Figure
    rate: Figure
    fitted_rate: float
    saving: Figure
    slowdown: Figure
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
    """Recommendation of one sweep. `advised` is the fastest setting without a clear difference from
    the best; differences below the ratio `detectable` are not detectable. `unbound` settings did
    not limit anything.
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
