"""Tables of the examination: one meter in the terminal, all of them in the documents."""

from __future__ import annotations

from collections.abc import Sequence

from tests.exam.cases import CASES
from tests.exam.registry import METERS
from tests.exam.scores import ALL
from tests.laboratory.results import (
    Row,
    file_of,
    markdown_table,
    measured_at,
    stored_rows,
    text_table,
)

RESULTS = file_of("examination")
CPU_STEP = 0.002
"""Smallest share of one core that is measured."""


def short_percent(value: float | None) -> str:
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
    return "< 0.2 %" if share is not None and share < CPU_STEP else short_percent(share)


def one_meter(rows: Sequence[Row]) -> str:
    """Return the scores of one meter as text."""
    of, *cases = rows
    head = (
        "case",
        "points",
        "median error",
        "worst error",
        "interval contains",
        "wrong",
        "declared",
    )
    summary = (
        f"{of['meter']}: {of['points']:.0f} of 100 points; median error "
        f"{short_percent(of['median_error'])} without a fault; wrong without a warning "
        f"{short_percent(of['wrong'])}; interval contains the true energy "
        f"{short_percent(of['covered'])}; CPU of one core {_cpu(of['cpu'])}"
    )
    return f"{text_table(head, [_case_row(case) for case in cases])}\n{summary}"


def _case_row(case: Row) -> list[str]:
    of = f" of {case['runs']}"
    return [
        case["case"],
        f"{case['points']:.2f}",
        short_percent(case["median_error"]),
        short_percent(case["worst_error"]),
        short_percent(case["covered"]),
        f"{case['wrong']}{of}",
        f"{case['declared']}{of}",
    ]


def summary_table() -> str:
    """Return the summary of the recorded results as Markdown, the best meter first."""
    head = (
        "meter",
        "version",
        "points",
        "median error",
        "wrong, no warning",
        "interval contains",
        "false alarms",
        "CPU",
    )
    rows = [row for row in stored_rows(RESULTS) if row["case"] == ALL]
    rows.sort(key=lambda row: -row["points"])
    cells = [
        [
            row["meter"],
            row["version"],
            f"{row['points']:.0f}",
            *(
                short_percent(row[key])
                for key in ("median_error", "wrong", "covered", "false_alarms")
            ),
            _cpu(row["cpu"]),
        ]
        for row in rows
    ]
    (repeats,) = {row["repeats"] for row in rows}
    table = markdown_table(head, cells, text=2)
    return f"{table}\n\nMeasured on {measured_at(rows)}, {repeats} windows of each case."


def case_table() -> str:
    """Return the worst error of each meter in each case, as Markdown."""
    cases: dict[str, dict[str, Row]] = {}
    for row in stored_rows(RESULTS):
        cases.setdefault(row["case"], {})[row["meter"]] = row
    rows = [[name, *(_cell(cases[name].get(meter)) for meter in METERS)] for name in CASES]
    return markdown_table(["case", *METERS], rows)


def _cell(case: Row | None) -> str:
    """Return the worst error of a case, in bold if a figure is wrong without a warning."""
    if case is None:
        return "–"
    error = "refused" if case["worst_error"] is None else short_percent(case["worst_error"])
    return f"**{error}**" if case["wrong"] else error


def meaning_table() -> str:
    """Return what each case is, as Markdown."""
    rows = [[case.name, case.about, f"{case.seconds:g} s"] for case in CASES.values()]
    return markdown_table(["case", "meaning", "length"], rows, text=2)


def meter_table() -> str:
    """Return how each known meter measures, as Markdown."""
    rows = [[meter.name, meter.package or "wattline", meter.method] for meter in METERS.values()]
    return markdown_table(["meter", "package", "method"], rows, text=3)
