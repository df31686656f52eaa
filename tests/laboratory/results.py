"""Results of the laboratory's studies: files of rows, and tables of them.

A file is a JSON array with one row a line. A row is the summary of the outcomes of one class: the
names of the class, `runs`, the measured values, and the `commit` and `date` of the measurement.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ENOUGH = 0.93
"""Coverage that each class must have."""
FOLDER = Path(__file__).with_name("results")
WINDOWS = Path(__file__).parents[1] / "calibration" / "windows.json"


def file_of(study: str) -> Path:
    return FOLDER / f"{study}.json"


def stored_rows(file: Path) -> list[Row]:
    rows: list[Row] = json.loads(file.read_text())
    return rows


def write_rows(file: Path, rows: Sequence[Row], key: Sequence[str] = ()) -> None:
    """Write rows with this commit and date. With a `key`, keep stored rows of another key."""
    measured = {"commit": current_commit(), "date": time.strftime("%Y-%m-%d")}
    new = [{**row, **measured} for row in rows]
    if key and file.exists():
        replaced = {tuple(row[name] for name in key) for row in new}
        kept = [
            row for row in stored_rows(file) if tuple(row[name] for name in key) not in replaced
        ]
        new = [*kept, *new]
    lines = [json.dumps(row, ensure_ascii=False) for row in new]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n")


@functools.cache
def current_commit() -> str:
    """Return the short hash of the checked out commit, with a `+` if files are changed.

    A study calls it before it measures: the later result is that of the code loaded then.
    """
    described = ["git", "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty=+"]
    folder = Path(__file__).parent
    return subprocess.run(
        described, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def measured_at(rows: Sequence[Row]) -> str:
    """Return the dates and commits of the rows, the earliest first."""
    found = sorted({(row.get("date", ""), row.get("commit", "not recorded")) for row in rows})
    return ", ".join(f"{date} ({commit})".strip() for date, commit in found)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> str:
    """Return a table whose first `text` columns are aligned to the left."""
    align = [*["---"] * text, *["--:"] * (len(header) - text)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, align, *rows))


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal."""
    every = [header, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    )


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent; `–` where there is none."""
    return "–" if share is None else f"{100 * share:,.{digits}f} %"


def marked(coverage: float) -> str:
    """Return a coverage in whole percent, in bold if it is too low."""
    text = percent(coverage, 0)
    return text if coverage >= ENOUGH else f"**{text}**"


def draw_parser(
    program: str, about: str | None, draws: int, draws_help: str
) -> argparse.ArgumentParser:
    current_commit()
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("--seed", type=int, default=1, help="Seed of the random numbers.")
    parser.add_argument("--draws", type=int, default=draws, help=draws_help)
    return parser
