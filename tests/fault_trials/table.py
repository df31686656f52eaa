"""Results of fault trials by kind of fault, and their tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fault_trials.trial import Outcome

RESULTS = Path(__file__).with_name("results.json")


def summarize(outcomes: Sequence[Outcome], date: str) -> dict[str, Any]:
    """Return one row for each kind of fault, and one for the healthy GPUs."""
    names = dict.fromkeys(outcome.case for outcome in outcomes if outcome.case)
    rows = [
        {"case": name, **_row([one for one in outcomes if one.case == name])}
        for name in sorted(names)
    ]
    return {"date": date, "rows": rows, "healthy": _row([one for one in outcomes if not one.case])}


def _row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    outside = [one for one in outcomes if one.is_outside]
    worst = max((one.error for one in outcomes), key=abs, default=0.0)
    return {
        "trials": len(outcomes),
        "worst": round(worst, 5),
        "half_width": round(max((one.half_width for one in outcomes), default=0.0), 5),
        "outside": len(outside),
        "outside_at_end": sum(one.is_first_outside for one in outcomes),
        "silent": sum(not one.is_declared for one in outside),
        "declared": sum(one.is_declared for one in outcomes),
        "without_energy": sum(one.energy_j is None for one in outcomes),
    }


_HEAD = "fault", "trials", "worst error", "widest half-width", "with a note", "outside", "silent"


def _cells(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    error, half = f"{100 * row['worst']:+.2f} %", f"{100 * row['half_width']:.2f} %"
    return (
        name,
        str(row["trials"]),
        error,
        half,
        *(str(row[key]) for key in ("declared", "outside", "silent")),
    )


def _lines(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = [_cells(row, row["case"]) for row in result["rows"]]
    return [*rows, _cells(result["healthy"], "healthy GPU of the same node")]


def text(result: Mapping[str, Any]) -> str:
    """Return the table for a terminal, and a summary."""
    rows = [_HEAD, *_lines(result)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, summary(result)])


def summary(result: Mapping[str, Any]) -> str:
    """Return the totals in one sentence."""
    rows, healthy = result["rows"], result["healthy"]
    total = {
        key: sum(row[key] for row in rows)
        for key in ("trials", "outside", "silent", "outside_at_end")
    }
    return (
        f"{total['trials']} trials of {len(rows)} kinds: {total['outside']} outside of their "
        "interval, "
        f"{total['silent']} of them without a note; in the answer to the end of the run, "
        f"{total['outside_at_end']} "
        f"outside. {healthy['trials']} runs on healthy GPUs: {healthy['outside']} outside, "
        f"{healthy['declared']} with a note."
    )


def stored_results() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text()))


def markdown() -> str:
    """Return the table of the stored results."""
    result = stored_results()
    lines = [f"| {' | '.join(_HEAD)} |", f"|---{'|--:' * (len(_HEAD) - 1)}|"]
    lines += [f"| {' | '.join(row)} |" for row in _lines(result)]
    return "\n".join([*lines, "", f"{result['date']}: {summary(result)}"])
