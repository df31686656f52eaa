"""Tables of the measured coverage, from the stored results of `make calibrate`, and the results'
files and options.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.calibration.coverage import LEVELS, RANK_SHARES, STATED

RESULTS = Path(__file__).with_name("results.json")


def draw_parser(
    program: str, about: str | None, draws: int, draws_help: str
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("--seed", type=int, default=1, help="Seed of the random numbers.")
    parser.add_argument("--draws", type=int, default=draws, help=draws_help)
    return parser


def stored_rows(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text(json.dumps(rows, indent=1) + "\n")


def stored() -> list[dict[str, Any]]:
    kinds: list[dict[str, Any]] = json.loads(RESULTS.read_text())["kinds"]
    return kinds


def coverage_table() -> str:
    header = [
        "interval",
        "level",
        "50 %",
        "80 %",
        "95 %",
        "99 %",
        "half-width",
        "of the error",
        "draws",
        "refused",
    ]
    rows = [
        [
            one["name"],
            one["meaning"],
            *(_percent(share) for share in one["coverage"]),
            _significant(100 * one["width"]) + " %",
            f"{one['width_ratio']:.1f}",
            f"{one['draws']:,}",
            _percent(one["refused"] / one["draws"]) if one["refused"] else "",
        ]
        for one in stored()
    ]
    return _markdown(header, rows, text=2)


def rank_table() -> str:
    below = [f"below {100 * level:.0f} %" for level in reversed(LEVELS)]
    above = [f"above {100 * level:.0f} %" for level in LEVELS]
    header = ["interval", *below, "lower half of 50 %", "upper half of 50 %", *above]
    expected = ["expected", *(_number(share) for share in RANK_SHARES)]
    rows = [
        [one["name"], *(_number(share) for share in one["ranks"])]
        for one in stored()
        if _has_levels(one)
    ]
    return _markdown(header, [expected, *rows], text=1)


def _has_levels(one: dict[str, Any]) -> bool:
    """Return whether the interval has another width at each level."""
    return str(one["meaning"]) != "bound"


def is_near_nominal(one: dict[str, Any]) -> bool:
    """Return whether the coverage at 95 % is within 2 points, or above where the interval has
    limits.
    """
    share = one["coverage"][STATED]
    return bool(share >= 0.93 and (one["meaning"] != "statistical" or share <= 0.97))


def _percent(share: float) -> str:
    return f"{_number(share)} %"


def _number(share: float) -> str:
    return f"{100 * share:.1f}"


def _significant(number: float) -> str:
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


def _markdown(header: list[str], rows: list[list[str]], *, text: int) -> str:
    align = [*["---"] * text, *["--:"] * (len(header) - text)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, align, *rows))
