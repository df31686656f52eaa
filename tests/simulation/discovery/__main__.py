"""Thousands of discovered jobs on a simulated node: `python -m tests.simulation.discovery --jobs
10000 --seed N`.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from time import perf_counter

from tests.simulation.discovery.node import JobPlan, JobsOutcome, simulate_jobs

SHOWN = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="seed to replay; without it, a new one")
    parser.add_argument("--jobs", type=int, default=10_000, help="number of jobs")
    parser.add_argument("--gpus", type=int, default=4, help="GPUs of the node")
    parser.add_argument("--max-open", type=int, default=256, help="as --runs.max of the exporter")
    parser.add_argument(
        "--burst", type=int, default=200, help="jobs that start within a second, now and then"
    )
    arguments = parser.parse_args()
    seed = secrets.randbelow(1 << 40) if arguments.seed is None else arguments.seed
    begin_s = perf_counter()
    plan = JobPlan(
        arguments.jobs,
        gpus=arguments.gpus,
        burst=arguments.burst,
        max_open=arguments.max_open,
        progress=_progress(begin_s),
    )
    print(f"seed {seed}", file=sys.stderr, flush=True)
    outcome = simulate_jobs(seed, plan)
    for event in outcome.result.events if outcome.violations else ():
        print(f"  {event}")
    for violation in outcome.violations[:SHOWN]:
        print(violation)
    print(summary(outcome, perf_counter() - begin_s))
    return int(bool(outcome.violations))


def _progress(begin_s: float):
    def show(text: str) -> None:
        print(f"{perf_counter() - begin_s:5.0f} s: {text}", file=sys.stderr, flush=True)

    return show


def summary(outcome: JobsOutcome, took_s: float) -> str:
    result, verdict = outcome.result, outcome.verdict
    return (
        f"seed {result.seed}: {verdict.attempts} jobs in {result.hours:.2f} simulated hours, "
        f"{verdict.runs} runs, "
        f"{verdict.unseen} jobs too short or too disturbed to be seen; {result.faults} faults, "
        f"{result.kills} kills; "
        f"{verdict.outside} of {verdict.energies} energies outside of their 95 % interval, "
        f"sum {verdict.joules:.0f} J, true {verdict.true_joules:.0f} J; latest end "
        f"{verdict.worst_end_s:.2f} s; "
        f"at most {outcome.most_series} series and {outcome.most_runs} runs in memory, "
        f"{outcome.folded:.0f} folded; "
        f"{len(outcome.violations)} violations; {took_s:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
