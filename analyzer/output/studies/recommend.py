"""A sweep's advice in words, and the commands that apply it."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.output import units
from analyzer.studies.advice import Advice, Candidate, Span
from analyzer.studies.objective import Objective, singular
from analyzer.studies.recommend import FEWEST_REPEATS
from analyzer.studies.stats import FEWEST_FOR_OUTLIERS

_OBJECTIVES = {
    Objective.ENERGY: "least energy for the same work",
    Objective.ENERGY_PER_UNIT: "least energy per {unit}",
    Objective.EDP: "least energy × time",
    Objective.ED2P: "least energy × time²",
    Objective.ZEUS: "least η × energy + (1 − η) × highest limit × time, η = {eta:g}",
    Objective.UNITS_PER_JOULE: "most {units} per joule",
}


def headline(advice: Advice) -> str:  # noqa: PLR0911  # one for each verdict
    """The answer in one sentence."""
    chosen, base = advice.advised, advice.baseline
    match advice.verdict:
        case "no_sweep":
            return f"{len(advice.sweep.settings)} setting only: there is nothing to compare"
        case "no_cap_bound":
            return "no cap bound: the GPUs drew less than each of them, so none did anything; try a clock lock"
        case "not_feasible":
            return "no setting keeps the constraints"
        case "too_few_repeats":
            assert chosen
            said = f"too few repeats to tell: {chosen.setting} was best where each was measured "
            return f"{said}{_times(advice)}; {_gain(advice, chosen)}"
        case "keep" | "no_clear_difference" if _alone(advice):
            assert base
            return f"leave it at {base.setting}: no other setting keeps the constraints"
        case "no_clear_difference":
            assert base
            return f"no clear difference: leave it at {base.setting}"
        case "keep":
            assert base
            return f"leave it at {base.setting}: no setting is clearly better"
        case "apply":
            assert chosen
            return f"set {chosen.setting}: {_gain(advice, chosen)}"


def _alone(advice: Advice) -> bool:
    """Nothing but the baseline may be chosen."""
    return all(each.broken for each in advice.candidates if each is not advice.baseline)


def _times(advice: Advice) -> str:
    most = max(len(each.runs) for each in advice.candidates)
    return "once" if most == 1 else f"{most} times at most"


def _gain(advice: Advice, chosen: Candidate) -> str:
    assert advice.baseline
    what = "slower" if chosen.slowdown.value >= 0 else "faster"
    interval = "" if chosen.slowdown.low is None else f" ({percents(chosen.slowdown)})"
    return (
        f"saves {percent(chosen.saving)} and is {100 * abs(chosen.slowdown.value):.1f} % {what}{interval} than at "
        f"{advice.baseline.setting}, n = {len(chosen.runs)}"
    )


def percent(span: Span) -> str:
    """`7.0 % (4.1 to 9.8 %)`."""
    inside = f" ({percents(span)})" if span.low is not None else ""
    return f"{100 * span.value:.1f} %{inside}"


def percents(span: Span) -> str:
    return "" if span.low is None or span.high is None else f"{100 * span.low:.1f} to {100 * span.high:.1f} %"


def asked(advice: Advice) -> str:
    """The objective and the constraints."""
    question, price = advice.question, advice.costs
    if price is None:
        return ""
    words = {"unit": singular(price.unit), "units": (price.unit or "").replace("_", " "), "eta": question.eta}
    parts = [_OBJECTIVES[price.objective].format(**words)]
    if question.max_slowdown is not None:
        parts.append(f"at most {100 * question.max_slowdown:g} % slower")
    parts += [f"{name} ≤ {most:g}" for name, most in question.slos.items()]
    return ", ".join(parts)


def remarks(advice: Advice) -> Iterator[str]:
    """What the answer rests on, and what to do to make it firmer."""
    names = [str(each.setting) for each in advice.set_]
    if advice.best and len(names) > 1 and advice.verdict in ("apply", "keep", "no_clear_difference"):
        yield (
            f"not distinguishable from the best ({advice.best.setting}): {'; '.join(names)}"
            + ("; the fastest of them is advised" if advice.verdict == "apply" else "")
        )
    if advice.detectable is not None:
        way = "paired by repeat" if advice.paired else "not paired"
        yield f"bootstrap {way}, Holm's correction; two settings look alike below {100 * advice.detectable:.1f} %"
    if advice.verdict == "too_few_repeats":
        yield f"give at least {FEWEST_REPEATS} runs at each setting: workloads sweep … --repeats 5"
    if advice.verdict == "no_cap_bound":
        yield "lock the SM clock instead: workloads sweep … --sm-clocks 600:1800:200, then recommend again"
    elif advice.unbound:
        yield f"did not bind, so nothing is claimed for it: {'; '.join(map(str, advice.unbound))}"
    unknown = [str(each.setting) for each in advice.candidates if each.binds is None]
    if unknown:
        yield f"not known whether it bound (no clock events, and no power): {'; '.join(unknown)}"
    for each in advice.candidates:
        if each.broken:
            yield f"{each.setting} is out: {', '.join(each.broken)}"
    yield from _runs_left_out(advice)
    if advice.candidates and any(run.simulated for run in advice.sweep.runs):
        yield "SIMULATED hardware: this shows that the path works, not what a GPU does"


def _runs_left_out(advice: Advice) -> Iterator[str]:
    odd = {each.setting: each.outliers for each in advice.candidates if each.outliers}
    for setting, count in odd.items():
        yield f"{setting}: {count} run{'s' if count > 1 else ''} left out, further than 3.5 MAD from the median"
    few = [each for each in advice.candidates if each.outliers is None]
    if few and advice.verdict != "too_few_repeats":
        where = "any setting" if len(few) == len(advice.candidates) else "; ".join(str(each.setting) for each in few)
        yield f"outliers were not looked for at {where}: that takes {FEWEST_FOR_OUTLIERS} repeats"
    for run in advice.sweep.unfit:
        yield f"run {run.run_id} ({run.setting}) is left out: {run.unfit}"


def commands(advice: Advice) -> list[str]:
    """What to type as root, one for each node; none where nothing is to be set."""
    if advice.verdict not in ("apply", "too_few_repeats") or advice.advised is None:
        return []
    setting, base = advice.advised.setting, advice.baseline
    if base and (setting.power_limit_w, setting.sm_clock_hz) == (base.setting.power_limit_w, base.setting.sm_clock_hz):
        return []
    gpus = sorted({(gpu.instance, gpu.index) for run in advice.advised.runs for gpu in run.gpus})
    found = []
    for instance in dict.fromkeys(instance for instance, _ in gpus):
        which = f"nvidia-smi -i {','.join(index for where, index in gpus if where == instance)}"
        at = f"  # on {instance}" if len({where for where, _ in gpus}) > 1 else ""
        if setting.power_limit_w is not None:
            found.append(f"{which} -pl {setting.power_limit_w:g}{at}")
        if setting.sm_clock_hz is not None:
            found.append(f"{which} -lgc {setting.sm_clock_hz / 1e6:.0f},{setting.sm_clock_hz / 1e6:.0f}{at}")
    return found


def cost(advice: Advice, span: Span) -> str:
    """In the objective's own measure, with half of its interval."""
    assert advice.costs
    value = advice.costs.shown(span.value)
    if span.low is None or span.high is None:
        return units.number(value)
    low, high = sorted((advice.costs.shown(span.low), advice.costs.shown(span.high)))
    return units.plain(value, (high - low) / 2)
