"""Text of a recommendation, and the commands that apply it."""

from __future__ import annotations

from collections.abc import Iterator

from wattline.contract.work import unit_of_one
from wattline.figures import Figure, number_text, significant_text
from wattline_analyzer.core.statistics import (
    CONFIDENCE,
    FEWEST_FOR_OUTLIERS,
    OUTLIER_SCALES,
    SMALL,
)
from wattline_analyzer.recommend.advice import FEWEST_REPEATS, NEGLIGIBLE
from wattline_analyzer.recommend.objective import Advice, Candidate, Objective

_OBJECTIVES = {
    Objective.ENERGY: "minimum energy for the same work",
    Objective.ENERGY_PER_UNIT: "minimum energy per {unit}",
    Objective.EDP: "minimum energy × time",
    Objective.ED2P: "minimum energy × time²",
    Objective.ZEUS: "minimum η × energy + (1 − η) × highest limit × time, η = {eta:g}",
    Objective.UNITS_PER_JOULE: "maximum {units} per joule",
}


def advice_headline(advice: Advice) -> str:  # noqa: PLR0911  # one for each verdict
    """Return the recommendation in one sentence."""
    chosen = advice.advised
    base = advice.baseline
    match advice.verdict:
        case "no_sweep":
            count = len(advice.sweep.settings)
            return (
                f"nothing to compare: {count} setting{'s' if count != 1 else ''} with a run "
                "that counts"
            )
        case "no_cap_bound":
            return "no power limit was binding: the power stayed below all limits; try a clock lock"
        case "not_feasible":
            return "no setting meets the constraints"
        case "too_few_repeats":
            assert chosen
            best = f"too few repeats: {chosen.setting} was best with {_repeats(advice)} per setting"
            return (
                f"{best}, the baseline"
                if base and chosen.setting == base.setting
                else f"{best}; {_gain(advice, chosen)}"
            )
        case "keep" | "no_clear_difference" if _only_baseline(advice):
            assert base
            return f"keep {base.setting}: no other setting meets the constraints"
        case "no_clear_difference":
            assert base
            return f"no clear difference: keep {base.setting}"
        case "keep":
            assert base
            return f"keep {base.setting}: no setting is clearly better"
        case "apply":
            assert chosen
            return f"set {chosen.setting}: {_gain(advice, chosen)}"


def _only_baseline(advice: Advice) -> bool:
    """Return whether every other setting violates a constraint."""
    return all(each.broken for each in advice.candidates if each is not advice.baseline)


def _repeats(advice: Advice) -> str:
    most = max(len(each.runs) for each in advice.candidates)
    return "one run" if most == 1 else f"at most {most} runs"


def _gain(advice: Advice, chosen: Candidate) -> str:
    assert advice.baseline
    what = "longer" if chosen.slowdown.number >= 0 else "less time"
    interval = "" if chosen.slowdown.low is None else f" ({percent_limits(chosen.slowdown)})"
    slowdown = f"{100 * abs(chosen.slowdown.number):.1f} %"
    return (
        f"saves {percent_interval(chosen.saving)} and takes {slowdown} {what}{interval} "
        f"than {advice.baseline.setting}, n = {len(chosen.runs)}"
    )


def percent_interval(ratio: Figure) -> str:
    """Return `7.0 % (4.1 to 9.8 %)`."""
    interval = f" ({percent_limits(ratio)})" if ratio.low is not None else ""
    return f"{100 * ratio.number:.1f} %{interval}"


def percent_limits(ratio: Figure) -> str:
    return (
        ""
        if ratio.low is None or ratio.high is None
        else f"{100 * ratio.low:.1f} to {100 * ratio.high:.1f} %"
    )


def question_text(advice: Advice) -> str:
    """Return the objective and the constraints."""
    question = advice.question
    costs = advice.costs
    if costs is None:
        return ""
    words = {
        "unit": unit_of_one(costs.unit or "run"),
        "units": (costs.unit or "").replace("_", " "),
        "eta": question.eta,
    }
    parts = [
        _OBJECTIVES[costs.objective].format(**words),
        "+".join(name.upper() for name in costs.components),
    ]
    if question.max_slowdown is not None:
        parts.append(f"at most {100 * question.max_slowdown:g} % longer")
    parts += [f"{name} ≤ {most:g}" for name, most in question.slos.items()]
    return ", ".join(parts)


def advice_remarks(advice: Advice) -> Iterator[str]:
    """Yield the basis of the recommendation, and what would improve it."""
    if advice.verdict in ("apply", "keep", "no_clear_difference"):
        yield from _settings_near_best(advice)
    if advice.detectable is not None:
        way = "paired by repeat" if advice.paired else "unpaired"
        yield (
            f"t-test {way}, Holm's correction; smallest detectable difference: "
            f"{100 * advice.detectable:.1f} %"
        )
    if advice.verdict == "too_few_repeats":
        yield f"run each setting at least {FEWEST_REPEATS} times: workloads sweep … --repeats 5"
    if advice.verdict == "no_cap_bound":
        yield (
            "sweep the SM clock instead: workloads sweep … --sm-clocks 600:1800:200, then run "
            "recommend again"
        )
    elif advice.unbound:
        yield f"not binding, so not considered: {'; '.join(map(str, advice.unbound))}"
    unknown = [str(each.setting) for each in advice.candidates if each.binds is None]
    if unknown:
        yield (
            "unknown whether binding (no clock events, and too few samples of power): "
            f"{'; '.join(unknown)}"
        )
    if advice.sweep.in_whole_runs:
        yield (
            "energy and time of whole runs, loading included: in some runs the phases of the work "
            "have no energy, for "
            "example below 1 s; use more iterations"
        )
    yield from _constraint_remarks(advice)
    yield from _excluded_runs(advice)
    if advice.candidates and any(run.simulated for run in advice.sweep.runs):
        yield "SIMULATED hardware: the figures do not describe a real GPU"


def _constraint_remarks(advice: Advice) -> Iterator[str]:
    broken = [_broken_text(each) for each in advice.candidates if each.broken]
    if broken:
        yield f"not allowed by the constraints: {'; '.join(broken)}"
    is_open = advice.verdict == "apply" and advice.question.max_slowdown is None
    if is_open and advice.advised and advice.advised.slowdown.number > NEGLIGIBLE:
        yield "limit the extra time with --max-slowdown PERCENT"
    elif (
        broken
        and advice.question.max_slowdown is not None
        and any(_is_slow(each) for each in advice.candidates)
    ):
        yield "change the limit of the extra time with --max-slowdown PERCENT"


def _is_slow(candidate: Candidate) -> bool:
    return any(text.startswith("takes ") for text in candidate.broken)


def _broken_text(candidate: Candidate) -> str:
    """Return the setting and its violations; the table has the extra time."""
    results = [text for text in candidate.broken if not text.startswith("takes ")]
    return f"{candidate.setting} ({', '.join(results)})" if results else str(candidate.setting)


def _settings_near_best(advice: Advice) -> Iterator[str]:
    if advice.best is None:
        return
    others = [each for each in advice.best_candidates if each.setting != advice.best.setting]
    unclear = [str(each.setting) for each in others if not is_within_tolerance(each)]
    is_chosen_here = (
        advice.verdict == "apply"
        and advice.advised
        and advice.advised.setting != advice.best.setting
    )
    if unclear:
        yield f"no clear difference from the best ({advice.best.setting}): {'; '.join(unclear)}"
    for each in filter(is_within_tolerance, others):
        more = each.cost.number / advice.best.cost.number - 1
        yield (
            f"{each.setting} costs {100 * more:.1f} % more than the best ({advice.best.setting}), "
            "within the tolerance "
            f"of {100 * NEGLIGIBLE:g} %"
        )
    if is_chosen_here and advice.advised:
        yield f"{advice.advised.setting} is the fastest of these, so it is recommended"


def is_within_tolerance(candidate: Candidate) -> bool:
    """Return whether the setting costs clearly more than the best one, but at most the
    tolerance.
    """
    return (
        candidate.like_best and candidate.p_worse is not None and candidate.p_worse < 1 - CONFIDENCE
    )


def _excluded_runs(advice: Advice) -> Iterator[str]:
    outliers = {each.setting: each.outliers for each in advice.candidates if each.outliers}
    for setting, count in outliers.items():
        yield (
            f"{setting}: {count} run{'s' if count > 1 else ''} excluded (far from the median: over "
            f"{OUTLIER_SCALES:g} MAD and {100 * SMALL:g} %)"
        )
    few = [each for each in advice.candidates if each.outliers is None]
    if few and advice.verdict != "too_few_repeats":
        where = (
            "any setting"
            if len(few) == len(advice.candidates)
            else "; ".join(str(each.setting) for each in few)
        )
        yield f"no outlier detection at {where}: it needs {FEWEST_FOR_OUTLIERS} repeats"
    for run in advice.sweep.unfit:
        yield f"run {run.run_id} ({run.setting}) is excluded: {run.unfit}"


def advice_commands(advice: Advice) -> list[str]:
    """Return the commands to run as root, per node; empty if nothing is to be set."""
    if advice.verdict != "apply" or advice.advised is None:
        return []
    setting = advice.advised.setting
    base = advice.baseline
    if base and (setting.power_limit_w, setting.sm_clock_hz) == (
        base.setting.power_limit_w,
        base.setting.sm_clock_hz,
    ):
        return []
    gpus = sorted({(gpu.instance, gpu.index) for run in advice.advised.runs for gpu in run.gpus})
    found = []
    for instance in dict.fromkeys(instance for instance, _ in gpus):
        which = f"nvidia-smi -i {','.join(index for where, index in gpus if where == instance)}"
        at = f"  # on {instance}" if len({where for where, _ in gpus}) > 1 else ""
        if setting.power_limit_w is not None:
            found.append(f"{which} -pl {setting.power_limit_w:g}{at}")
        if setting.sm_clock_hz is not None:
            found.append(
                f"{which} -lgc {setting.sm_clock_hz / 1e6:.0f},{setting.sm_clock_hz / 1e6:.0f}{at}"
            )
    return found


def cost_text(advice: Advice, estimate: Figure) -> str:
    """Return a cost in the unit of the objective, with the half-width of its 95 % CI."""
    assert advice.costs
    value = advice.costs.shown(estimate.number)
    if estimate.low is None or estimate.high is None:
        return significant_text(value)
    low, high = sorted((advice.costs.shown(estimate.low), advice.costs.shown(estimate.high)))
    return number_text(Figure(value, (high - low) / 2))
