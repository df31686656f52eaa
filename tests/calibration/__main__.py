"""Command that measures the coverage of all intervals: `make calibrate SEED=1 DRAWS=2000`."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.calibration.coverage import Coverage, measure
from tests.calibration.kinds import KINDS
from tests.calibration.table import RESULTS
from tests.laboratory.results import draw_parser, write_rows


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    draws = "Intervals of each kind; expensive kinds have fewer."
    parser = draw_parser("tests.calibration", __doc__, 2_000, draws)
    parser.add_argument(
        "--only", default="", help="Part of the names of the kinds to measure; the rest is kept."
    )
    return parser.parse_args(arguments)


def main() -> None:
    given = parse_arguments(sys.argv[1:])
    logging.disable(logging.CRITICAL)  # of the generated sensors
    for kind in KINDS:
        if given.only in kind.name:
            found = measure(kind, given.seed, given.draws)
            print(line(found), flush=True)
            row = {**found.row(), "seed": given.seed}
            write_rows(RESULTS, [row], key=("interval",))


def line(found: Coverage) -> str:
    shares = " ".join(f"{100 * share:5.1f}" for share in found.coverage)
    return f"{found.name:62s} {shares} %  {found.draws} draws, {found.refused} without an interval"


if __name__ == "__main__":
    main()
