"""Tables of the examination: one meter in the terminal, all of them in the documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.exam.cases import CASES
from tests.exam.registry import METERS

RESULTS = Path(__file__).with_name("results.json")
CPU_STEP = 0.002
"""Smallest share of one core that is measured."""


def percent(value: float | None) -> str:
    """Return a ratio as percent with two digits; `–` where there is none."""
    if value is None:
        return "–"
    if 0 < abs(value) < 0.0005:
        return "< 0.05 %"
    digits = 0 if abs(value) >= 0.1 else 1
    return f"{100 * value:,.{digits}f} %"


def _cpu(share: float | None) -> str:
    """Return a share of one core as percent; the kernel counts steps of 10 ms in windows of about 5
    s.
    """
    return "< 0.2 %" if share is not None and share < CPU_STEP else percent(share)


def one_meter(name: str, result: Mapping[str, Any]) -> str:
    """Return the scores of one meter as text."""
    head = (
        "case",
        "points",
        "median error",
        "worst error",
        "interval contains",
        "wrong",
        "declared",
    )
    rows = [head, *(_case_row(case) for case in result["cases"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    of = result["summary"]
    summary = (
        f"{name}: {of['points']:.0f} of 100 points; median error {percent(of['median_error'])} "
        "without a fault; wrong "
        f"without a warning {percent(of['wrong'])}; interval contains the true energy "
        f"{percent(of['covered'])}; CPU of "
        f"one core {_cpu(of['cpu'])}"
    )
    return "\n".join([*lines, summary])


def _case_row(case: Mapping[str, Any]) -> tuple[str, ...]:
    of = f" of {case['answers']}"
    return (
        case["case"],
        f"{case['points']:.2f}",
        percent(case["median_error"]),
        percent(case["worst_error"]),
        percent(case["covered"]),
        f"{case['wrong']}{of}",
        f"{case['declared']}{of}",
    )


def summary_table() -> str:
    """Return the summary of the recorded results as Markdown."""
    results = json.loads(RESULTS.read_text())
    lines = [
        (
            "| meter | version | points | median error | wrong, no warning | interval contains | "
            "false "
            "alarms | CPU |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in sorted(results.items(), key=lambda item: -item[1]["summary"]["points"]):
        of = result["summary"]
        cells = [percent(of[key]) for key in ("median_error", "wrong", "covered", "false_alarms")]
        cells.append(_cpu(of["cpu"]))
        lines.append(f"| {name} | {result['version']} | {of['points']:.0f} | {' | '.join(cells)} |")
    dates = sorted({result["date"] for result in results.values()})
    repeats = sorted({result["repeats"] for result in results.values()})
    lines += [
        "",
        (
            f"Date: {' to '.join(dict.fromkeys((dates[0], dates[-1])))}. Windows of each case: "
            f"{repeats[0]}."
        ),
    ]
    return "\n".join(lines)


def case_table() -> str:
    """Return the worst error of each meter in each case, as Markdown."""
    results = json.loads(RESULTS.read_text())
    names = [name for name in METERS if name in results]
    lines = [f"| case | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    scores = {name: {case["case"]: case for case in results[name]["cases"]} for name in names}
    for case in CASES.values():
        cells = [_cell(scores[name].get(case.name)) for name in names]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(case: Mapping[str, Any] | None) -> str:
    """Return the worst error of a case, in bold if a figure is wrong without a warning."""
    if case is None:
        return "–"
    error = "refused" if case["worst_error"] is None else percent(case["worst_error"])
    return f"**{error}**" if case["wrong"] else error


def meaning_table() -> str:
    """Return what each case is, as Markdown."""
    lines = ["| case | meaning | length |", "|---|---|---|"]
    lines += [f"| {case.name} | {case.about} | {case.seconds:g} s |" for case in CASES.values()]
    return "\n".join(lines)


def meter_table() -> str:
    """Return how each known meter measures, as Markdown."""
    lines = ["| meter | package | method |", "|---|---|---|"]
    lines += [
        f"| {meter.name} | {meter.package or 'wattline'} | {meter.method} |"
        for meter in METERS.values()
    ]
    return "\n".join(lines)
