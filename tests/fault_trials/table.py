"""Results of fault trials by kind of fault, and their tables."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fault_trials.trial import Outcome
from tests.laboratory.results import (
    Row,
    file_of,
    percent,
    text_table,
)

RESULTS = file_of("fault_trials")
HEALTHY = "healthy GPU of the same node"


def summarize(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return one row for each kind of fault, and a last one for the healthy GPUs."""
    names = sorted({outcome.case for outcome in outcomes if outcome.case})
    rows = [{"case": name, **_row([one for one in outcomes if one.case == name])} for name in names]
    healthy = [one for one in outcomes if not one.case]
    return [*rows, {"case": HEALTHY, **_row(healthy)}]


def _row(outcomes: Sequence[Outcome]) -> Row:
    outside = [one for one in outcomes if one.is_outside]
    worst = max((one.error for one in outcomes), key=abs, default=0.0)
    return {
        "runs": len(outcomes),
        "worst": round(worst, 5),
        "half_width": round(max((one.half_width for one in outcomes), default=0.0), 5),
        "outside": len(outside),
        "outside_at_end": sum(one.is_first_outside for one in outcomes),
        "silent": sum(not one.is_declared for one in outside),
        "declared": sum(one.is_declared for one in outcomes),
        "without_energy": sum(one.energy_j is None for one in outcomes),
    }


_HEAD = "fault", "trials", "worst error", "widest half-width", "with a note", "outside", "silent"


def _cells(row: Row) -> list[str]:
    return [
        row["case"],
        str(row["runs"]),
        f"{100 * row['worst']:+.2f} %",
        percent(row["half_width"], 2),
        *(str(row[key]) for key in ("declared", "outside", "silent")),
    ]


def text(rows: Sequence[Row]) -> str:
    """Return the table for a terminal, and a summary."""
    return f"{text_table(_HEAD, [_cells(row) for row in rows])}\n{summary(rows)}"


def summary(rows: Sequence[Row]) -> str:
    """Return the totals in one sentence."""
    *faults, healthy = rows
    total = {
        key: sum(row[key] for row in faults)
        for key in ("runs", "outside", "silent", "outside_at_end")
    }
    return (
        f"{total['runs']} trials of {len(faults)} kinds: {total['outside']} outside of their "
        f"interval, {total['silent']} of them without a note; in the answer to the end of the run, "
        f"{total['outside_at_end']} outside. {healthy['runs']} runs on healthy GPUs: "
        f"{healthy['outside']} outside, {healthy['declared']} with a note."
    )
