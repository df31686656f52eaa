"""Output of `analyzer recommend`: table, document and a row of CSV per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from wattline.figures import Figure
from wattline_analyzer.core.documents import as_csv, null_if_not_finite
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    CommandOutput,
    Table,
    count_cell,
    estimate_record,
    figure_columns,
    number_cell,
    text_cell,
)
from wattline_analyzer.recommend.advice import NEGLIGIBLE
from wattline_analyzer.recommend.objective import Advice, Candidate
from wattline_analyzer.recommend.sweep import SweepRun
from wattline_analyzer.recommend.text import (
    advice_commands,
    advice_headline,
    advice_remarks,
    cost_text,
    is_within_tolerance,
    percent_interval,
    question_text,
)

DOCUMENT_VERSION = 1


def recommendation_output(advices: Sequence[Advice], source: str) -> CommandOutput:
    parts = [part for advice in advices for part in _parts(advice)]
    return CommandOutput(parts, recommendation_document(advices, source), _run_records(advices))


def _parts(advice: Advice) -> list[str | Text | Table]:
    title = Text(f"{advice.sweep.title}\n", "bold").append(question_text(advice), "not bold dim")
    headline = Text(advice_headline(advice), "bold")
    commands = [f"{command}   (as root)" for command in advice_commands(advice)]
    if commands and any(run.simulated for run in advice.sweep.runs):
        commands = ["no command: the limits of SIMULATED GPUs have no effect on real ones"]
    for command in commands:
        headline.append(f"\n  {command}", "not bold")
    table = [_table(advice)] if advice.candidates else []
    return [title, headline, *table, "\n".join(f"- {line}" for line in advice_remarks(advice))]


def _table(advice: Advice) -> Table:
    assert advice.costs
    unit = (advice.costs.unit or "runs").replace("_", " ")
    columns = [
        *(
            Column("Setting", text=True, whole=True),
            *figure_columns("n", advice.costs.measure, "Saves", "Extra time"),
        ),
        *(
            *figure_columns(f"{unit}/s", "p95 W"),
            Column("Binds", text=True),
            Column("°C"),
            Column("Marks", text=True),
        ),
    ]
    return Table("", columns, [_row(advice, each) for each in advice.candidates])


def _row(advice: Advice, each: Candidate) -> list[Cell]:
    assert advice.costs
    return [
        text_cell(str(each.setting)),
        count_cell(len(each.runs)),
        Cell(
            cost_text(advice, each.cost), advice.costs.shown(each.cost.number), advice.costs.measure
        ),
        _ratio_cell(each.saving),
        _ratio_cell(each.slowdown),
        number_cell(each.rate.value),
        _rounded_cell(each.p95_power_w, "W"),
        Cell({True: "yes", False: "no", None: "unknown"}[each.binds], each.binds),
        _rounded_cell(each.temperature_celsius, "°C"),
        Cell(", ".join(_mark_texts(advice, each))),
    ]


def _ratio_cell(ratio: Figure) -> Cell:
    return Cell(percent_interval(ratio), ratio.value, low=ratio.low, high=ratio.high)


def _rounded_cell(value: float | None, unit: str) -> Cell:
    return Cell() if value is None else Cell(f"{value:.0f}", value, unit)


def _marks(advice: Advice, each: Candidate) -> list[str]:
    """Return the marks of a setting, as in the JSON document."""
    marks = {
        "advised": advice.verdict == "apply"
        and advice.advised is not None
        and each.setting == advice.advised.setting,
        "best": advice.best is not None and each.setting == advice.best.setting,
        "like the best": each.like_best
        and advice.best is not None
        and each.setting != advice.best.setting,
        "baseline": advice.baseline is not None and each.setting == advice.baseline.setting,
        "frontier": each.on_front,
    }
    return [mark for mark, holds in marks.items() if holds]


def _mark_texts(advice: Advice, each: Candidate) -> list[str]:
    texts = {}
    if any(one.broken for one in advice.candidates):
        texts["best"] = "best allowed"
    if is_within_tolerance(each):
        texts["like the best"] = f"within {100 * NEGLIGIBLE:g} % of best"
    return [texts.get(mark, mark) for mark in _marks(advice, each)]


def recommendation_document(advices: Sequence[Advice], source: str) -> dict[str, Any]:
    """Return the JSON document; infinite limits of intervals are null."""
    document: dict[str, Any] = null_if_not_finite(
        {
            "version": DOCUMENT_VERSION,
            "source": source,
            "sweeps": [_advice_record(advice) for advice in advices],
        }
    )
    return document


def _advice_record(advice: Advice) -> dict[str, Any]:
    costs = advice.costs
    question = advice.question
    return {
        "title": advice.sweep.title,
        "verdict": advice.verdict,
        "answer": advice_headline(advice),
        "commands": advice_commands(advice),
        "objective": str(costs.objective) if costs else None,
        "cost_unit": costs.measure if costs else None,
        "unit": costs.unit if costs else None,
        "max_slowdown_ratio": question.max_slowdown,
        "slos": dict(question.slos),
        "simulated": any(run.simulated for run in advice.sweep.runs),
        **{
            name: str(found.setting) if found else None
            for name, found in (
                ("advised", advice.advised),
                ("best", advice.best),
                ("baseline", advice.baseline),
            )
        },
        "not_distinguishable_from_best": [str(each.setting) for each in advice.best_candidates],
        "pareto_front": [str(each.setting) for each in advice.candidates if each.on_front],
        "paired": advice.paired,
        "detectable_ratio": advice.detectable,
        "settings": [_candidate_record(advice, each) for each in advice.candidates],
        "left_out": [{"run_id": run.run_id, "reason": run.unfit} for run in advice.sweep.unfit],
        "remarks": list(advice_remarks(advice)),
    }


def _candidate_record(advice: Advice, each: Candidate) -> dict[str, Any]:
    assert advice.costs
    shown = [
        None if x is None else advice.costs.shown(x)
        for x in (each.cost.value, each.cost.low, each.cost.high)
    ]
    limits: list[float | None] = [*sorted(x for x in shown[1:] if x is not None)] or [None, None]
    return {
        "setting": str(each.setting),
        "power_limit_watts": each.setting.power_limit_w,
        "sm_clock_hertz": each.setting.sm_clock_hz,
        **dict(each.setting.others),
        "runs": len(each.runs),
        "outliers": each.outliers,
        "cost": shown[0],
        "cost_low": limits[0],
        "cost_high": limits[1],
        **estimate_record(each.saving, "saving_ratio"),
        **estimate_record(each.slowdown, "slowdown_ratio"),
        **estimate_record(each.rate, "units_per_second"),
        "fitted_units_per_second": each.fitted_rate,
        "p95_power_watts": each.p95_power_w,
        "capped_ratio": each.capped_share,
        "temperature_celsius": each.temperature_celsius,
        "binds": each.binds,
        "broken_constraints": list(each.broken),
        "p_against_best": each.p_worse,
        "like_best": each.like_best,
        "on_pareto_front": each.on_front,
        "marks": _marks(advice, each),
    }


def sweep_csv(advices: Sequence[Advice]) -> str:
    """Return one row per run, excluded runs too."""
    return as_csv(_run_records(advices))


def _run_records(advices: Sequence[Advice]) -> list[dict[str, Any]]:
    return [
        _run_record(advice, run)
        for advice in advices
        for run in (*advice.sweep.runs, *advice.sweep.unfit)
    ]


def _run_record(advice: Advice, run: SweepRun) -> dict[str, Any]:
    unit = advice.costs.unit if advice.costs else None
    work = run.work.get(unit) if unit else None
    per_unit = work.energy_per_unit if work else None
    return {
        "sweep": advice.sweep.title,
        "run_id": run.run_id,
        "power_limit_watts": run.setting.power_limit_w,
        "sm_clock_hertz": run.setting.sm_clock_hz,
        **dict(run.setting.others),
        "repeat": run.repeat,
        "gpus": len(run.gpus),
        "duration_seconds": run.duration_s,
        "gpu_energy_joules": run.energy.value,
        "gpu_energy_uncertainty_joules": run.energy.half_width,
        "unit": unit,
        "work": work.amount if work else None,
        "units_per_second": work.per_second if work else None,
        "energy_per_unit_joules": per_unit.value if per_unit else None,
        "energy_per_unit_uncertainty_joules": per_unit.half_width if per_unit else None,
        "mean_power_watts": run.mean_power_w,
        "p95_power_watts": run.p95_power_w,
        "capped_seconds": run.capped_s,
        "slowed_seconds": run.slowed_s,
        "temperature_celsius": run.temperature_celsius,
        "observed_sm_clock_hertz": run.sm_clock_hz,
        "utilization_ratio": run.utilization,
        "memory_utilization_ratio": run.memory_utilization,
        "memory_used_bytes": run.memory_used_bytes,
        "left_out": run.unfit,
        **{f"result_{name}": value for name, value in run.results.items()},
    }
