"""Decisions of the commands that compare repeated runs, over generated runs of a known difference.

`make calibrate` prints for each command and law of scatter the share of false alarms, where all
runs are of one kind, and the share of found differences, where one side needs 5 % more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tests.analyzer.recommend.sample_sweeps import sample_run
from tests.laboratory.results import draw_parser
from wattline.figures import Figure
from wattline_analyzer.compare.comparison import GroupMember, RunFigure, RunGroup, compare_groups
from wattline_analyzer.compare.gate import Verdict, judge
from wattline_analyzer.recommend.advice import advise
from wattline_analyzer.recommend.objective import SweepQuestion
from wattline_analyzer.recommend.sweep import Sweep
from wattline_analyzer.tenants.figures import ConcurrentStep, TenantShare
from wattline_analyzer.tenants.summary import summarize_tenants
from wattline_analyzer.variability.figures import GpuRun, gpu_variability

INCREASE = 0.05
GATE_REPEATS = 8
MAX_INCREASE = 0.03
_ENERGY = RunFigure("energy_gpu_joules", "energy", "energy, GPU")
_TYPICAL_J = 500.0

Scatter = Callable[[np.random.Generator, int, int], np.ndarray]
"""Logarithms of the scatter, by repeat and side, from a generator and their numbers."""


def _independent(rng: np.random.Generator, repeats: int, sides: int) -> np.ndarray:
    """Normal scatter of 1 %."""
    return 0.01 * rng.standard_normal((repeats, sides))


def _cold_first(rng: np.random.Generator, repeats: int, sides: int) -> np.ndarray:
    """Normal scatter of 1 %; the first run of one side, drawn at random, needs 25 % more."""
    found = _independent(rng, repeats, sides)
    found[0, rng.integers(sides)] += math.log(1.25)
    return found


def _outliers(rng: np.random.Generator, repeats: int, sides: int) -> np.ndarray:
    """Normal scatter of 1 %; 8 % of the runs need 10 to 30 % more."""
    found = _independent(rng, repeats, sides)
    more = np.log(rng.uniform(1.1, 1.3, found.shape))
    return np.where(rng.random(found.shape) < 0.08, found + more, found)


def _autoregressive(rng: np.random.Generator, repeats: int, sides: int) -> np.ndarray:
    """Scatter of 1 % with a correlation of 0.6 between a run and the next one.

    The sides run in turn, every second repeat in reverse order.
    """
    correlation = 0.6
    noise = rng.standard_normal(repeats * sides)
    found = [noise[0]]
    for step in noise[1:]:
        found.append(correlation * found[-1] + math.sqrt(1 - correlation**2) * step)
    in_turn = 0.01 * np.array(found).reshape(repeats, sides)
    in_turn[1::2] = in_turn[1::2, ::-1]
    return in_turn


def _two_states(rng: np.random.Generator, repeats: int, sides: int) -> np.ndarray:
    """Normal scatter of 0.3 % in two clock states that differ by 3 % and are equally frequent."""
    states = 0.03 * rng.integers(0, 2, (repeats, sides))
    return states + 0.003 * rng.standard_normal((repeats, sides))


def _unequal(rng: np.random.Generator, repeats: int, sides: int) -> np.ndarray:
    """Normal scatter of 0.5 % of the first side, and of 1.5 % of the others."""
    spreads = np.array([0.005] + [0.015] * (sides - 1))
    return spreads * rng.standard_normal((repeats, sides))


LAWS: Mapping[str, Scatter] = {
    "independent": _independent,
    "cold first run": _cold_first,
    "8 % outliers": _outliers,
    "AR(1)": _autoregressive,
    "two clock states": _two_states,
    "unequal spread": _unequal,
}


def _group(name: str, values: np.ndarray, *, paired: bool) -> RunGroup:
    members = [
        GroupMember(
            f"{name}-{repeat}",
            str(repeat) if paired else None,
            {},
            frozenset(),
            {_ENERGY: Figure(float(value), 1e-4 * float(value))},
        )
        for repeat, value in enumerate(values)
    ]
    return RunGroup(name, tuple(members))


def _energies(logs: np.ndarray, increase: float) -> np.ndarray:
    """Return joules by repeat and side; all sides but the first need more by this ratio."""
    levels = np.ones(logs.shape[1])
    levels[1:] += increase
    energies: np.ndarray = _TYPICAL_J * levels * np.exp(logs)
    return energies


def compare_claims(rng: np.random.Generator, scatter: Scatter, increase: float) -> bool:
    """Return whether `compare` calls a difference of two or three groups clear."""
    repeats = GATE_REPEATS if increase else int(rng.integers(2, 9))
    energies_j = _energies(scatter(rng, repeats, int(rng.integers(2, 4))), increase)
    paired = bool(rng.integers(2))
    groups = [_group(str(at), side, paired=paired) for at, side in enumerate(energies_j.T)]
    (line,) = compare_groups(groups).lines
    return any(one is not None and one.clear for one in line.differences)


def gate_claims(rng: np.random.Generator, scatter: Scatter, increase: float) -> bool:
    """Return whether `gate` finds a regression in at most eight repeats."""
    energies_j = _energies(scatter(rng, GATE_REPEATS, 2), increase)
    paired = bool(rng.integers(2))
    groups = [_group(str(at), side, paired=paired) for at, side in enumerate(energies_j.T)]
    return judge(groups, _ENERGY, MAX_INCREASE, GATE_REPEATS).verdict is Verdict.REGRESSION


def recommend_claims(rng: np.random.Generator, scatter: Scatter, increase: float) -> bool:
    """Return whether `recommend` says to set a limit below the highest one.

    The time is equal at each limit, so that only the energy decides.
    """
    repeats = GATE_REPEATS if increase else int(rng.integers(3, 9))
    limits_w = (300, 400, 500, 600)
    # the baseline is the highest limit, and the first side that of the lowest one
    energies_j = _energies(scatter(rng, repeats, len(limits_w)), increase)
    runs = [
        sample_run(limit_w, joules, 10.0, repeat=str(repeat), p95_power_w=limit_w, capped_s=10.0)
        for repeat, row in enumerate(energies_j)
        for limit_w, joules in zip(limits_w, row, strict=True)
    ]
    return advise(Sweep("generated", tuple(runs)), SweepQuestion()).verdict == "apply"


def tenants_claims(rng: np.random.Generator, scatter: Scatter, increase: float) -> bool:
    """Return whether `tenants` calls the effect of MPS on the energy per unit clear."""
    repeats = GATE_REPEATS if increase else int(rng.integers(2, 9))
    energies_j = _energies(scatter(rng, repeats, 2), increase)
    steps = []
    for mps, side in enumerate(energies_j.T):
        for repeat, joules in enumerate(side):
            energy = Figure(float(joules), 1e-4 * float(joules))
            share = TenantShare("a", "tokens", Figure(100.0, 0.0), energy, 1.0, {})
            steps.append(ConcurrentStep("case", str(repeat), bool(mps), 10.0, (share,), energy))
    effects = {one.figure: one for one in summarize_tenants(steps, {}).effects}
    return effects["energy_per_unit_joules"].difference.clear


def variability_claims(rng: np.random.Generator, scatter: Scatter, increase: float) -> bool:
    """Return whether `variability` calls the first GPU of a fleet an outlier.

    The GPUs differ by 1 %. Each has five runs. With an increase, the other GPUs need more.
    """
    gpus = GATE_REPEATS if increase else int(rng.integers(5, 41))
    energies_j = _energies(scatter(rng, 5, gpus), increase)
    energies_j *= np.exp(0.01 * rng.standard_normal(gpus))
    runs = [
        GpuRun(f"{gpu:03}", float(joules)) for row in energies_j for gpu, joules in enumerate(row)
    ]
    return bool(gpu_variability(runs).gpus[0].outlier)


COMMANDS: Mapping[str, Callable[[np.random.Generator, Scatter, float], bool]] = {
    "compare": compare_claims,
    "gate": gate_claims,
    "recommend": recommend_claims,
    "tenants": tenants_claims,
    "variability": variability_claims,
}


@dataclass(frozen=True, slots=True)
class Rate:
    """Share of decisions that claim a difference; `increase` is the true one, as a ratio."""

    command: str
    law: str
    increase: float
    decisions: int
    claims: int

    @property
    def share(self) -> float:
        return self.claims / self.decisions

    def line(self) -> str:
        what = "found" if self.increase else "false alarms"
        return (
            f"{self.command:12} {self.law:17} {what:12} {100 * self.share:6.2f} % "
            f"of {self.decisions:,}"
        )


def measure_claims(command: str, law: str, increase: float, decisions: int, seed: int) -> Rate:
    """Return the share of claims; the same seed and number give the same result."""
    rng = np.random.default_rng([seed, *f"{command} {law} {increase}".encode()])
    decide = COMMANDS[command]
    claims = sum(decide(rng, LAWS[law], increase) for _ in range(decisions))
    return Rate(command, law, increase, decisions, claims)


def main() -> None:
    parser = draw_parser("tests.calibration.decisions", __doc__, 2_000, "Decisions of each kind.")
    parser.add_argument("--only", default="", help="Part of the names of the commands to measure.")
    given = parser.parse_args(sys.argv[1:])
    for command in COMMANDS:
        if given.only in command:
            for law in LAWS:
                for increase in (0.0, INCREASE):
                    rate = measure_claims(command, law, increase, given.draws, given.seed)
                    print(rate.line(), flush=True)


if __name__ == "__main__":
    main()
