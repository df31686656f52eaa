"""A sweep's advice as a table, and for machines: JSON, YAML and CSV with stable keys that carry their units."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from analyzer.output import units
from analyzer.output.studies import recommend as advice_text
from analyzer.output.terminal import Sheet
from analyzer.output.view import finite
from analyzer.studies.advice import Advice, Candidate, Span
from analyzer.studies.sweep import SweepRun

DOCUMENT_VERSION = 1


def tables(advices: Sequence[Advice]) -> RenderableType:
    return Group(*(_one(advice) for advice in advices))


def _one(advice: Advice) -> RenderableType:
    parts: list[RenderableType] = [Text(advice.sweep.title, "bold"), Text(advice_text.asked(advice), "dim"), Text()]
    parts.append(Text(advice_text.headline(advice), "bold"))
    parts += [Text(f"  {line}   (as root)") for line in advice_text.commands(advice)]
    if advice.candidates:
        parts += [Text(), _table(advice)]
    parts += [Text(), *(Text(f"- {line}") for line in advice_text.remarks(advice))]
    return Padding(Group(*parts), (0, 0, 1, 0), expand=False)


def _table(advice: Advice) -> Sheet:
    assert advice.costs
    unit = (advice.costs.unit or "runs").replace("_", " ")
    columns = ("setting", "n", advice.costs.measure, "saves", "slower", f"{unit}/s", "p95 W", "binds", "°C", "")
    rows = [
        (
            str(each.setting),
            str(len(each.runs)),
            advice_text.cost(advice, each.cost),
            advice_text.percent(each.saving),
            advice_text.percent(each.slowdown),
            units.number(each.rate.value),
            "–" if each.p95_power_w is None else f"{each.p95_power_w:.0f}",
            {True: "yes", False: "no", None: "?"}[each.binds],
            "–" if each.temperature_celsius is None else f"{each.temperature_celsius:.0f}",
            ", ".join(_marks(advice, each)),
        )
        for each in advice.candidates
    ]
    return Sheet(columns, rows, left=(0, 7, 9))


def _marks(advice: Advice, each: Candidate) -> list[str]:
    marks = {
        "advised": advice.verdict == "apply" and advice.advised is not None and each.setting == advice.advised.setting,
        "best": advice.best is not None and each.setting == advice.best.setting,
        "like the best": each.in_set and advice.best is not None and each.setting != advice.best.setting,
        "baseline": advice.baseline is not None and each.setting == advice.baseline.setting,
        "frontier": each.on_front,
    }
    return [mark for mark, holds in marks.items() if holds]


def document(advices: Sequence[Advice], source: str) -> dict[str, Any]:
    """An end of an interval that is endless is null."""
    found: dict[str, Any] = finite(
        {"version": DOCUMENT_VERSION, "source": source, "sweeps": [_advice(advice) for advice in advices]}
    )
    return found


def _advice(advice: Advice) -> dict[str, Any]:
    price, question = advice.costs, advice.question
    return {
        "title": advice.sweep.title,
        "verdict": advice.verdict,
        "answer": advice_text.headline(advice),
        "commands": advice_text.commands(advice),
        "objective": str(price.objective) if price else None,
        "cost_unit": price.measure if price else None,
        "unit": price.unit if price else None,
        "max_slowdown_ratio": question.max_slowdown,
        "slos": dict(question.slos),
        "simulated": any(run.simulated for run in advice.sweep.runs),
        **{
            name: str(found.setting) if found else None
            for name, found in (("advised", advice.advised), ("best", advice.best), ("baseline", advice.baseline))
        },
        "not_distinguishable_from_best": [str(each.setting) for each in advice.set_],
        "pareto_front": [str(each.setting) for each in advice.candidates if each.on_front],
        "paired": advice.paired,
        "detectable_ratio": advice.detectable,
        "settings": [_candidate(advice, each) for each in advice.candidates],
        "left_out": [{"run_id": run.run_id, "reason": run.unfit} for run in advice.sweep.unfit],
        "remarks": list(advice_text.remarks(advice)),
    }


def _candidate(advice: Advice, each: Candidate) -> dict[str, Any]:
    assert advice.costs
    shown = [None if x is None else advice.costs.shown(x) for x in (each.cost.value, each.cost.low, each.cost.high)]
    ends: list[float | None] = [*sorted(x for x in shown[1:] if x is not None)] or [None, None]
    return {
        "setting": str(each.setting),
        "power_limit_watts": each.setting.power_limit_w,
        "sm_clock_hertz": each.setting.sm_clock_hz,
        **dict(each.setting.others),
        "runs": len(each.runs),
        "outliers": each.outliers,
        "cost": shown[0],
        "cost_low": ends[0],
        "cost_high": ends[1],
        **_span("saving_ratio", each.saving),
        **_span("slowdown_ratio", each.slowdown),
        **_span("units_per_second", each.rate),
        "fitted_units_per_second": each.fitted_rate,
        "p95_power_watts": each.p95_power_w,
        "capped_ratio": each.capped_share,
        "temperature_celsius": each.temperature_celsius,
        "binds": each.binds,
        "broken_constraints": list(each.broken),
        "p_against_best": each.p_worse,
        "like_best": each.in_set,
        "on_pareto_front": each.on_front,
        "marks": _marks(advice, each),
    }


def _span(name: str, span: Span) -> dict[str, float | None]:
    return {name: span.value, f"{name}_low": span.low, f"{name}_high": span.high}


def runs_csv(advices: Sequence[Advice]) -> str:
    """One row a run, those that were left out too."""
    rows = [_run(advice, run) for advice in advices for run in (*advice.sweep.runs, *advice.sweep.unfit)]
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _run(advice: Advice, run: SweepRun) -> dict[str, Any]:
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
        "gpu_energy_uncertainty_joules": run.energy.half,
        "unit": unit,
        "work": work.amount if work else None,
        "units_per_second": work.per_second if work else None,
        "energy_per_unit_joules": per_unit.value if per_unit else None,
        "energy_per_unit_uncertainty_joules": per_unit.half if per_unit else None,
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
