"""Output of `analyzer gate`: verdict, figures and the next step, as a table, a document or
Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattline_analyzer.compare.comparison import RunGroup
from wattline_analyzer.compare.gate import FALSE_ALARM, FALSE_PASS, GateResult, Verdict
from wattline_analyzer.compare.output import figure_name, signed_percent, value_text
from wattline_analyzer.core.tables import CommandOutput

_TITLES = {
    Verdict.PASS: "pass",
    Verdict.REGRESSION: "regression",
    Verdict.CANNOT_TELL: "cannot tell",
}


def gate_output(
    result: GateResult, groups: Sequence[RunGroup], max_increase: float, warnings: Sequence[str]
) -> CommandOutput:
    record = {
        "verdict": str(result.verdict),
        "figure": result.figure.key,
        "baseline": result.baseline.value,
        "candidate": result.candidate.value,
        "ratio": result.ratio,
        "ratio_low": result.low,
        "ratio_high": result.high,
        "confidence_low": 1 - FALSE_ALARM,
        "confidence_high": 1 - FALSE_PASS,
        "max_increase": max_increase,
        "repeats": result.repeats,
        "max_repeats": result.planned,
        "paired": result.paired,
    }
    without = {
        "runs_without_uncertainty": list(result.without_uncertainty),
        "outliers": list(result.outliers),
    }
    names = [
        {"name": group.name, "runs": [one.run_id for one in group.members]} for group in groups
    ]
    document = {
        "version": 1,
        **record,
        **without,
        "groups": names,
        "warnings": list(warnings),
    }
    parts = [*_lines(result, groups, max_increase), *(f"warning: {text}" for text in warnings)]
    return CommandOutput(["\n".join(parts)], document, [record])


def gate_mark(result: GateResult, groups: Sequence[RunGroup]) -> str:
    """Return the comment around the section of these groups and this figure in a summary."""
    names = ", ".join((*(group.name for group in groups), result.figure.key))
    return f"<!-- analyzer gate: {names.replace('--', '- -')} -->\n"


def gate_markdown(
    result: GateResult, groups: Sequence[RunGroup], max_increase: float, warnings: Sequence[str]
) -> str:
    """Return the summary as Markdown, for the page of a CI job."""
    title, *lines = _lines(result, groups, max_increase)
    baseline, candidate = (
        value_text(result.figure, value) for value in (result.baseline, result.candidate)
    )
    names = [group.name.replace("|", "\\|") for group in groups]
    table = [
        f"| {figure_name(result.figure)} | {names[0]} | {names[1]} | change | repeats |",
        "|---|--:|--:|--:|--:|",
        (
            f"| geometric mean | {baseline} | {candidate} | {signed_percent(result.ratio - 1)} | "
            f"{result.repeats} |"
        ),
    ]
    notes = [f"- {text}" for text in (*lines[1:], *(f"Warning: {text}" for text in warnings))]
    return "\n".join([f"### Energy gate: {title}", "", *table, "", *notes, "", ""])


def _lines(result: GateResult, groups: Sequence[RunGroup], max_increase: float) -> Iterator[str]:
    limit = signed_percent(max_increase)
    yield _TITLES[result.verdict]
    values = [value_text(result.figure, value) for value in (result.baseline, result.candidate)]
    yield (
        f"{figure_name(result.figure)}: {values[0]} → {values[1]}, "
        f"{signed_percent(result.ratio - 1)}"
    )
    method = "compared repeat by repeat" if result.paired else "compared as groups"
    yield f"repeats: {result.repeats} of at most {result.planned}, {method}"
    if result.low is None or result.high is None:
        yield "The scatter is unknown with one repeat: run each side again."
        return
    low = signed_percent(result.low - 1)
    high = signed_percent(result.high - 1)
    match result.verdict:
        case Verdict.PASS:
            yield f"The change is between {low} and {high}, so it is less than {limit}."
        case Verdict.REGRESSION:
            yield f"The energy increased: the change is between {low} and {high}."
        case Verdict.CANNOT_TELL if result.repeats < result.planned:
            yield (
                f"The change is between {low} and {high}, so it may be 0 or more than {limit}: "
                "run each side again."
            )
        case _:
            yield (
                f"The change is between {low} and {high} after all repeats: use longer runs, more "
                "repeats or a larger "
                "--max-increase."
            )
    yield (
        f"Confidence of the limits, over all repeats together: {100 * (1 - FALSE_ALARM):g} % that "
        "the change is above "
        f"the lower one, {100 * (1 - FALSE_PASS):g} % that it is below the upper one."
    )
    if result.outliers:
        yield (
            f"Left out as outliers: {', '.join(result.outliers)}; run each command once before the "
            "first repeat if its first run needs more."
        )
    if result.without_uncertainty:
        yield (
            "The measurement uncertainty is unknown for "
            f"{', '.join(result.without_uncertainty)}: the limits contain the scatter of the "
            "repeats, and the uncertainty of the other runs only."
        )
    if not _interleaved(groups):
        yield (
            "The runs were not interleaved, so a drift between baseline and candidate counts as "
            "a change."
        )


def _interleaved(groups: Sequence[RunGroup]) -> bool:
    """Return False if all runs of one group are before those of the other one."""
    first, second = ([one.started_at_s for one in group.members] for group in groups)
    return max(first) > min(second) and max(second) > min(first)
