"""Examination of energy meters on simulated GPUs, whose true energy is known.

`make exam METER=NAME` or `python -m tests.exam --meter NAME`. NAME is a known meter, or a command
as described in exporter/docs/examination-cases.md.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from tests.exam import table
from tests.exam.cases import CASES, Case
from tests.exam.registry import METERS, NoMetersError, meter
from tests.exam.scores import Answer, rows
from tests.exam.window import Meter, measure
from tests.fakes import nvml
from tests.laboratory.results import current_commit, write_rows

WINDOWS_AT_ONCE = 4


def examine(
    examined: Meter,
    cases: Iterable[Case],
    repeats: int,
    folder: Path,
    at_once: int = WINDOWS_AT_ONCE,
) -> list[Answer]:
    """Return the answers of `repeats` windows of each case."""
    nvml.library()  # built here, not by several threads
    jobs = list(product(cases, range(repeats)))
    with ThreadPoolExecutor(at_once) as pool:
        windows = pool.map(
            lambda job: measure(
                examined, job[0], job[1], folder / f"{job[0].name} {job[1]}".replace("/", " ")
            ),
            jobs,
        )
        return [answer for window in windows for answer in window]


def main() -> int:
    """Return 0 if all meters were examined, 1 if one could not be installed."""
    current_commit()
    options = _options()
    cases = [CASES[name] for name in options.case] if options.case else list(CASES.values())
    for name in options.meter:
        print(f"exam: {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="wattline-exam-") as folder:
            try:
                examined = meter(name, Path(folder))
            except NoMetersError as error:
                print(error, file=sys.stderr)
                return 1
            answers = examine(examined, cases, options.repeats, Path(folder), options.at_once)
        found = rows(_conditions(name, options.repeats), answers)
        print(table.one_meter(found), flush=True)
        if options.answers:
            _print_answers(answers)
        if options.json:
            write_rows(options.json, found, key=("meter", "case"))
    return 0


def _conditions(name: str, repeats: int) -> dict[str, Any]:
    known = METERS.get(name)
    return {
        "meter": name,
        "version": known.installed_version if known else None,
        "python": platform.python_version(),
        "repeats": repeats,
    }


def _print_answers(answers: Sequence[Answer]) -> None:
    for answer in answers:
        figure, half = answer.figure_j, answer.uncertainty_j
        print(
            f"{answer.case} GPU {answer.gpu}: true {answer.true_j:.2f} J, figure {figure} ± {half} "
            f"J: {answer.verdict}"
        )
        for note in answer.notes:
            print(f"  {note}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.exam", description=__doc__.splitlines()[0]
    )
    names = ", ".join(METERS)
    parser.add_argument(
        "--meter", nargs="+", required=True, metavar="NAME", help=f"{names}, or a command"
    )
    parser.add_argument(
        "--case", nargs="+", choices=CASES, metavar="CASE", help="these cases (default: all)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="windows of each case (default: 3)"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=WINDOWS_AT_ONCE,
        metavar="N",
        help="windows at once (default: 4)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the scores to this file")
    parser.add_argument("--answers", action="store_true", help="print every answer")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
