"""Simulation of a node with faults, in virtual time: `make simulate`, or `make simulate SEED=N` to
replay one seed.

Each seed is one node for some hours, or with --quiet for 30 days with few faults. The command
prints the first seed that violates an invariant, with its last events. Idle hours without open
runs, with --quiet all hours without an event, are skipped in one step, as a stop of all processes.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable
from functools import partial

from tests.simulation.episode import HOURS, Plan, Result, simulate
from tests.simulation.quiet import QUIET_HOURS, simulate_quiet

PROGRESS_S = 10.0
SHORT_HOURS = 0.06
SHORT_PLAN = Plan(faults=("driver", "kill", "kill worker", "stop", "cpu", "sleep"), mean_s=12.0)
"""Simulation of `make test`, without faults of disk and clocks, restarts and power cuts."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="seed to replay; without it, new seeds")
    parser.add_argument("--hours", type=float, help="simulated hours of each seed")
    parser.add_argument("--short", action="store_true", help="the short simulation of make test")
    parser.add_argument(
        "--quiet", action="store_true", help="runs of hours to days, and a fault every day or two"
    )
    parser.add_argument("--cpu-seconds", type=float, default=60.0, help="budget for new seeds")
    arguments = parser.parse_args()
    started_s = time.process_time()
    first = secrets.randbelow(1 << 40) if arguments.seed is None else arguments.seed
    mode, options = choose_mode(hours=arguments.hours, quiet=arguments.quiet, short=arguments.short)
    results: list[Result] = []
    shown_s = -PROGRESS_S
    while not results or (
        arguments.seed is None and time.process_time() - started_s < arguments.cpu_seconds
    ):
        seed = first + len(results)
        if time.monotonic() - shown_s >= PROGRESS_S:
            shown_s = time.monotonic()
            print(
                progress(seed, results, time.process_time() - started_s),
                file=sys.stderr,
                flush=True,
            )
        result = mode(seed)
        results.append(result)
        if result.violation:
            print(report(result, options))
            break
    print(summary(results, time.process_time() - started_s))
    if arguments.seed is not None:
        print(f"trace {results[0].trace_hash}")
    return int(bool(results[-1].violation))


def choose_mode(
    *, hours: float | None, quiet: bool, short: bool
) -> tuple[Callable[[int], Result], str]:
    """Return the simulation of a seed, and the options of make that choose it."""
    if short:
        return simulate_short, " SHORT=1"
    if quiet:
        return partial(
            simulate_quiet, hours=hours or QUIET_HOURS
        ), f" QUIET=1 HOURS={hours or QUIET_HOURS:g}"
    return partial(simulate, hours=hours or HOURS), f" HOURS={hours or HOURS:g}"


def progress(seed: int, results: list[Result], cpu_s: float) -> str:
    hours, faults = sum(r.hours for r in results), sum(r.faults for r in results)
    return (
        f"simulate: {cpu_s:.0f} s of CPU, {len(results)} seeds, {hours:.1f} hours, {faults} "
        f"faults; now seed {seed}"
    )


def simulate_short(seed: int) -> Result:
    return simulate(seed, SHORT_HOURS, SHORT_PLAN)


def report(result: Result, options: str) -> str:
    """Return the violation, the last events before it, and the command that replays them."""
    events = "\n".join(f"  {event}" for event in result.events)
    return (
        f"{events}\nseed {result.seed}: {result.violation}\nreplay: make simulate "
        f"SEED={result.seed}{options}"
    )


def summary(results: list[Result], cpu_s: float) -> str:
    hours, skipped = sum(r.hours for r in results), sum(r.skipped_hours for r in results)
    runs = sum(r.tally.runs for r in results)
    noted, chance = (
        sum(r.tally.outside_noted for r in results),
        sum(r.tally.undeclared for r in results),
    )
    return (
        f"seeds {results[0].seed} to {results[-1].seed}: {hours:.0f} simulated hours "
        f"({hours - skipped:.1f} of them "
        f"polled, {skipped:.0f} skipped), {hours / cpu_s * 60:.0f} per minute of CPU; "
        f"{sum(r.faults for r in results)} faults, {sum(r.kills for r in results)} kills, "
        f"{sum(r.polls for r in results)} polls of GPUs, {sum(r.tally.pages for r in results)} "
        "pages, "
        f"{runs} runs: {noted} outside of the interval with a note, "
        f"{chance} within chance; {sum(bool(r.violation) for r in results)} violations"
    )


if __name__ == "__main__":
    sys.exit(main())
