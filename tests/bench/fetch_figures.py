"""Rows of the cost of reading."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.fetch import (
    DAY_S,
    HOUR_S,
    IMPORTED_ROWS,
    LEANEST,
    OURS,
    STUDY_RUNS,
    THEIRS,
    Fetch,
    typical,
)
from tests.bench.figures import Figure

FASTER_GOAL, MEMORY_GOAL = 4.0, 1 / 3
IMPORT_GROWTH_GOAL = 1.1
STUDY_GOAL_S = 3.0
HELP_GOAL_S, REPORT_GOAL_S, REPORT_GOAL_BYTES = 0.3, 2.5, 300e6


def fetch_figures(results: Fetch) -> Iterator[Figure]:
    if OURS in results.day:
        yield from _day(results)
    if results.help:
        yield _alone("analyzer --help", "ms", typical(results.help, "seconds"), HELP_GOAL_S)
    for length_s, spent in results.reports.items():
        what = (
            "an hour"
            if length_s == HOUR_S
            else f"{length_s / DAY_S:g} days"
            if length_s > DAY_S
            else "a day"
        )
        goal_s = REPORT_GOAL_S if length_s == HOUR_S else None
        yield _alone(f"report of {what}, 8 GPUs at 1 s", "ms", typical(spent, "seconds"), goal_s)
        if length_s == HOUR_S and results.script:
            ours, theirs = typical(spent, "cpu_s"), typical(results.script, "cpu_s")
            yield Figure(
                f"report of {what}, CPU time", "ms", ours, f"{THEIRS}, power only", theirs, theirs
            )
        yield _alone(
            f"report of {what}, peak memory", "MB", typical(spent, "peak_bytes"), REPORT_GOAL_BYTES
        )
    for command, spent in results.studies.items():
        name = f"{command} with {STUDY_RUNS} short runs of a local history, CPU time"
        yield _alone(name, "ms", typical(spent, "cpu_s"), STUDY_GOAL_S)
    few, many = IMPORTED_ROWS
    if results.imports:
        cost = results.imports[many]
        yield _alone("import of a log, CPU time of a row", "µs", cost.cpu_s / many, None)
        yield _alone(f"import of {many:,} rows, peak memory", "MB", cost.peak_bytes, None)
        growth = cost.peak_bytes / results.imports[few].peak_bytes
        yield _alone(
            f"import, memory for {many:,} to {few:,} rows", "×", growth, IMPORT_GROWTH_GOAL
        )


def _day(results: Fetch) -> Iterator[Figure]:
    """Yield rows with the goal for the peer's documented usage."""
    what = f"{results.samples} samples fetched and integrated"
    for name, unit, label in (
        ("seconds", "ms", ""),
        ("cpu_s", "ms", ", CPU time"),
        ("peak_bytes", "MB", ", peak memory"),
    ):
        ours = typical(results.day[OURS], name)
        if THEIRS not in results.day:
            yield _alone(f"{what}{label}", unit, ours, None)
            continue
        theirs, leanest = (typical(results.day[peer], name) for peer in (THEIRS, LEANEST))
        goal = theirs * (MEMORY_GOAL if name == "peak_bytes" else 1 / FASTER_GOAL)
        yield Figure(f"{what}{label}", unit, ours, THEIRS, theirs, goal)
        yield Figure(f"{what}{label}", unit, ours, LEANEST, leanest)


def _alone(name: str, unit: str, value: float, goal: float | None) -> Figure:
    return Figure(name, unit, value, goal=goal)
