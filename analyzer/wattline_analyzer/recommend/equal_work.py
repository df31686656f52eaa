"""Runs of a sweep that can be compared for equal work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattline.contract.work import energy_of_one, is_useful, most_common_first
from wattline_analyzer.recommend.objective import QuestionError, SweepQuestion
from wattline_analyzer.recommend.sweep import Sweep, SweepRun

WHOLE_RUNS = "runs"
"""Unit of work with which the user states that each run does the same work."""
_EQUAL_RATIO = 0.02
"""Difference between settings up to which durations count as equal."""
_EQUAL_ENERGY_RATIO = 0.01
_REMEDY = "report the work of all runs in one unit (client: run.work(samples=...))"


def of_equal_work(sweep: Sweep, question: SweepQuestion) -> tuple[Sweep, str | None]:
    """Return the runs to compare, and the unit of their work; None for whole runs.

    Runs without work in this unit move to `unfit`. Whole runs are compared only if no run reports
    work, and if their durations differ or the user states that each run does the same work. Raises
    QuestionError.
    """
    units = {run.run_id: _units(run) for run in sweep.runs}
    if question.unit == WHOLE_RUNS or not any(units.values()):
        return _whole_runs(sweep, question, units), None
    unit = question.unit or _common_unit(sweep, units)
    kept = tuple(run for run in sweep.runs if unit in units[run.run_id])
    if len({run.setting for run in kept}) < 2:
        given = (
            f"fewer than two settings have runs with work in {unit!r}"
            if unit
            else "the settings have no common unit"
        )
        raise QuestionError(
            f"{sweep.title}: cannot compare equal work: {given} "
            f"({_units_by_setting(sweep, units)}); {_REMEDY}"
        )
    left = tuple(
        replace(run, unfit=f"it reports no {unit}")
        for run in sweep.runs
        if unit not in units[run.run_id]
    )
    in_whole_runs = unit is not None and len({run.work[unit].phases for run in kept}) > 1
    if in_whole_runs and unit:
        kept = tuple(_in_whole_run(run, unit) for run in kept)
    return replace(sweep, runs=kept, unfit=(*sweep.unfit, *left), in_whole_runs=in_whole_runs), unit


def _in_whole_run(run: SweepRun, unit: str) -> SweepRun:
    """Return the run with rate and energy per unit over the whole run, loading and warm-up
    included.
    """
    work = run.work[unit]
    host = run.with_host
    rate = work.amount / run.duration_s if run.duration_s > 0 else None
    each = energy_of_one(run.energy.complete(), work.amount)
    own = replace(work, per_second=rate, energy_per_unit=each, phases=())
    if host is not None and unit in host.per_unit:
        with_host = energy_of_one(host.energy.complete(), work.amount)
        per_unit = None if with_host is None else {**host.per_unit, unit: with_host}
        host = None if per_unit is None else replace(host, per_unit=per_unit)
    return replace(run, work={**run.work, unit: own}, with_host=host)


def _units(run: SweepRun) -> list[str]:
    """Return the units of work with an amount above 0, the primary one first."""
    return [unit for unit, work in run.work.items() if work.amount > 0]


def _common_unit(sweep: Sweep, units: Mapping[str, Sequence[str]]) -> str | None:
    """Return the useful unit that each setting has and the most runs have; None if there is
    none.
    """
    counts = Counter(unit for run in sweep.runs for unit in units[run.run_id] if is_useful(unit))
    common = [
        unit
        for unit in most_common_first(
            [unit for unit in units[run.run_id] if unit in counts] for run in sweep.runs
        )
        if all(
            any(unit in units[run.run_id] for run in sweep.runs if run.setting == one)
            for one in sweep.settings
        )
    ]
    return max(common, key=lambda unit: counts[unit], default=None)


def _units_by_setting(sweep: Sweep, units: Mapping[str, Sequence[str]]) -> str:
    found = []
    for one in sweep.settings:
        names = most_common_first(units[run.run_id] for run in sweep.runs if run.setting == one)
        found.append(f"{one}: {', '.join(names) or 'no work'}")
    return "; ".join(found)


def _whole_runs(sweep: Sweep, question: SweepQuestion, units: Mapping[str, Sequence[str]]) -> Sweep:
    """Return the sweep if its whole runs do the same work. Raises QuestionError.

    Less power makes equal work slower. Runs of equal time that use different energies may do
    different amounts of work.
    """
    if question.unit == WHOLE_RUNS:
        reported = most_common_first(units.values())
        if reported:
            raise QuestionError(
                f"{sweep.title}: cannot compare whole runs: they report {', '.join(reported)}; "
                "choose one with --unit"
            )
        return sweep
    if question.unit is not None:
        raise QuestionError(
            f"{sweep.title}: no run has work in {question.unit!r}; give --unit {WHOLE_RUNS} if "
            "each run does equal work"
        )
    equal_time = any(
        _spread(sweep, seconds) <= max(_EQUAL_RATIO, _scatter(sweep, seconds))
        for seconds in (_duration_s, _longest_phase_s)
    )
    if equal_time and _spread(sweep, lambda run: run.energy.number) > _EQUAL_ENERGY_RATIO:
        raise QuestionError(
            f"{sweep.title}: the runs report no work and last equally long at all settings, so "
            "that their work may "
            f"differ; {_REMEDY}, or give --unit {WHOLE_RUNS} if each run does equal work"
        )
    return sweep


def _duration_s(run: SweepRun) -> float:
    return run.duration_s


def _longest_phase_s(run: SweepRun) -> float:
    return run.longest_phase_s or run.duration_s


def _spread(sweep: Sweep, value: Callable[[SweepRun], float]) -> float:
    """Return the largest difference between medians of settings, as a ratio."""
    levels = [
        float(np.median([value(run) for run in sweep.runs if run.setting == one]))
        for one in sweep.settings
    ]
    return max(levels) / min(levels) - 1 if min(levels) > 0 else 0.0


def _scatter(sweep: Sweep, value: Callable[[SweepRun], float]) -> float:
    """Return the usual difference between repeats of a setting, as a ratio."""
    groups = [[value(run) for run in sweep.runs if run.setting == one] for one in sweep.settings]
    return float(
        np.median([max(group) / min(group) - 1 if min(group) > 0 else 0.0 for group in groups])
    )
