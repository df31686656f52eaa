"""Faults in the loadable driver, while real exporters measure runs: `make faults`.

Each trial is one fault during a run on one GPU. The command prints a line for each kind of fault.
It returns 1 if a figure is outside of its interval without a note, or if a healthy GPU is affected.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fakes import nvml
from tests.fault_trials import table
from tests.fault_trials.cases import CASES, Case
from tests.fault_trials.trial import Outcome, measure
from tests.laboratory.results import current_commit, write_rows

FAILING = 6
"""Failing GPUs of a node."""


def nodes(cases: Sequence[Case], trials: int, rng: random.Random) -> Iterator[list[Case]]:
    """Return the faults of each node, so that each fault is tried `trials` times."""
    for _ in range(trials):
        yield from ([case] for case in cases if case.has_own_node)
        shared = [case for case in cases if not case.has_own_node]
        rng.shuffle(shared)
        yield from (shared[at : at + FAILING] for at in range(0, len(shared), FAILING))


def run_trials(
    cases: Sequence[Case],
    trials: int,
    seed: int,
    folder: Path,
    at_once: int,
    *,
    shows: bool = False,
) -> list[Outcome]:
    """Return the outcomes of all trials."""
    nvml.library()  # built here, not by several threads
    jobs = list(enumerate(nodes(cases, trials, random.Random(seed))))

    def one(job: tuple[int, list[Case]]) -> list[Outcome]:
        number, failing = job
        found = measure(failing, seed + number, folder / str(number))
        for outcome in found if shows else ():
            if (
                outcome.is_outside
                or outcome.is_first_outside
                or (not outcome.case and outcome.is_declared)
            ):
                print(number, outcome, file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(at_once) as pool:
        return [outcome for found in pool.map(one, jobs) for outcome in found]


def main() -> int:
    current_commit()
    parser = argparse.ArgumentParser(prog="python -m tests.fault_trials", description=__doc__)
    parser.add_argument(
        "--case", nargs="+", choices=CASES, metavar="CASE", help="these kinds (default: all)"
    )
    parser.add_argument(
        "--trials", type=int, default=1, metavar="N", help="trials of each kind (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of loads and times")
    parser.add_argument(
        "--at-once", type=int, default=4, metavar="N", help="nodes at once (default: 4)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    given = parser.parse_args()
    cases = [CASES[name] for name in given.case] if given.case else list(CASES.values())
    with tempfile.TemporaryDirectory(prefix="wattline-faults-") as folder:
        outcomes = run_trials(
            cases, given.trials, given.seed, Path(folder), given.at_once, shows=True
        )
    rows = table.summarize(outcomes)
    print(table.text(rows))
    if given.json:
        write_rows(given.json, rows)
    return int(any(row["silent"] for row in rows) or rows[-1]["outside"] > 0)


if __name__ == "__main__":
    sys.exit(main())
