"""Comparison of discovered runs with the jobs that ran: none lost, none twice, times and energies
right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Interval = tuple[float, float]
OwnerKey = tuple[str, str]
"""Kind and id of an owner."""

SEEN_S = 4.0
"""Time on a GPU, without a disturbance, within which each job becomes a run: two scans of a slow
driver.
"""
TICK_S = 0.011
"""Resolution of the start times of processes."""
END_S = 1.5
"""Latest end of a run after its last process: one scan, and the wait for the event loop."""
USER_S = 10.0
"""Time after the last process of a user at which the run has ended: the exporter waits for the next
one until then.
"""
MAX_BEGIN_AGE_S = 10.0
CHANCE = 3.0
"""Ratio of an error to its 95 % interval that no chance explains."""


@dataclass
class Attempt:
    """One execution of a job. `on_gpu`: times at which one of its processes was on a GPU."""

    owner: OwnerKey
    begin_s: float
    end_s: float = float("inf")
    on_gpu: list[Interval] = field(default_factory=list)
    gpus: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class FoundRun:
    """A run. `energies`: joules and half-width by GPU; `has_notes`: it declares a gap of its
    measurement.
    """

    run_id: str
    owner: OwnerKey
    begin_s: float
    end_s: float | None
    energies: Mapping[str, tuple[float, float]]
    has_notes: bool = False


@dataclass
class Verdict:
    """Result of a comparison. `unseen`: attempts too short, or too disturbed, to be seen that have
    no run.
    """

    attempts: int = 0
    visible: int = 0
    """Attempts that must have a run: on a GPU for `seen_s` without a disturbance."""
    runs: int = 0
    unseen: int = 0
    outside: int = 0
    """Energies outside of their 95 % interval."""
    energies: int = 0
    worst_end_s: float = 0.0
    joules: float = 0.0
    true_joules: float = 0.0
    has_folded: bool = False
    seen_s: float = SEEN_S
    late_s: float = END_S
    violations: list[str] = field(default_factory=list)


def verify(
    attempts: Sequence[Attempt],
    runs: Iterable[FoundRun],
    disturbed: Sequence[Interval],
    true_energy_j: Callable[[str, float, float], float],
    *,
    has_folded: bool = False,
    seen_s: float = SEEN_S,
    late_s: float = END_S,
) -> Verdict:
    """Compare runs with attempts.

    `disturbed`: times at which the exporter did not see all processes. `has_folded`: more jobs than
    runs can be open, so that a run may be missing, or begin late. `seen_s`: time on a GPU after
    which a job must have a run. `late_s`: latest end of a run after its last process.
    """
    verdict = Verdict(attempts=len(attempts), has_folded=has_folded, seen_s=seen_s, late_s=late_s)
    attempts_of: dict[OwnerKey, list[Attempt]] = defaultdict(list)
    runs_of: dict[OwnerKey, list[FoundRun]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda each: each.begin_s):
        attempts_of[attempt.owner].append(attempt)
    for run in sorted(runs, key=lambda each: each.begin_s):
        verdict.runs += 1
        runs_of[run.owner].append(run)
        _check_energy(run, true_energy_j, verdict)
    merged = _union(disturbed)
    for owner in runs_of.keys() - attempts_of.keys():
        verdict.violations.append(f"{owner}: runs {runs_of[owner]} of a job that never ran")
    for owner, own in attempts_of.items():
        _check_owner(own, runs_of[owner], merged, verdict)
    return verdict


def _check_owner(
    attempts: list[Attempt], runs: list[FoundRun], disturbed: list[Interval], verdict: Verdict
) -> None:
    fail = verdict.violations.append
    for earlier, later in pairwise(runs):
        if earlier.end_s is None or later.begin_s < earlier.end_s - TICK_S:
            fail(f"two runs at the same time: {earlier} and {later}")
    for run in runs:
        if not any(_overlaps(run, attempt) for attempt in attempts):
            fail(f"{run} is of no job: {attempts}")
    for attempt in attempts:
        found = [run for run in runs if _overlaps(run, attempt)]
        seen_s = max((_longest_clear_s(span, disturbed) for span in attempt.on_gpu), default=0.0)
        is_visible = seen_s >= verdict.seen_s and not verdict.has_folded
        verdict.visible += is_visible
        if not found:
            verdict.unseen += 1
            if is_visible:
                fail(f"{attempt} has no run; it was visible for {seen_s:.1f} s")
        if len(found) > 1:
            fail(f"{attempt} has {len(found)} runs: {found}")
        for run in found[:1]:
            _check_times(run, attempt, attempts, disturbed, verdict)


def _check_times(
    run: FoundRun,
    attempt: Attempt,
    attempts: list[Attempt],
    disturbed: list[Interval],
    verdict: Verdict,
) -> None:
    fail = verdict.violations.append
    if run.end_s is None:
        fail(f"{run} has not ended: {attempt}")
        return
    of_run = [each for each in attempts if _overlaps(run, each)]
    if attempt is of_run[0]:
        _check_begin(run, attempt, disturbed, verdict)
    if attempt is of_run[-1]:
        _check_end(run, attempt, disturbed, verdict)
    elif not any(
        -TICK_S <= each.begin_s - attempt.end_s < verdict.late_s for each in attempts
    ) and not near(attempt.end_s, disturbed):
        fail(f"{run} continued over the end of {attempt}")


def _check_begin(
    run: FoundRun, attempt: Attempt, disturbed: list[Interval], verdict: Verdict
) -> None:
    first_s, until_s = attempt.on_gpu[0] if attempt.on_gpu else (attempt.begin_s, attempt.begin_s)
    is_seen = (
        until_s - first_s >= verdict.seen_s
        and _longest_clear_s((first_s, first_s + verdict.seen_s), disturbed) >= verdict.seen_s
    )
    if (
        is_seen
        and first_s + verdict.seen_s - attempt.begin_s < MAX_BEGIN_AGE_S
        and not verdict.has_folded
    ):
        if abs(run.begin_s - attempt.begin_s) > TICK_S:
            verdict.violations.append(f"{run} did not begin with {attempt}")
    elif run.begin_s < attempt.begin_s - TICK_S:
        verdict.violations.append(f"{run} began before {attempt}")


def _check_end(
    run: FoundRun, attempt: Attempt, disturbed: list[Interval], verdict: Verdict
) -> None:
    assert run.end_s is not None
    late_s = run.end_s - attempt.end_s
    known_s = USER_S if attempt.owner[0] == "user" else verdict.late_s
    if (
        _longest_clear_s((attempt.end_s - verdict.seen_s, attempt.end_s + known_s), disturbed)
        >= verdict.seen_s + known_s
    ):
        verdict.worst_end_s = max(verdict.worst_end_s, abs(late_s))
        if not attempt.on_gpu[-1][1] - attempt.end_s - TICK_S <= late_s <= verdict.late_s:
            verdict.violations.append(
                f"{run} ended {late_s:.3f} s after {attempt}; disturbed: "
                f"{near(attempt.end_s, disturbed)}"
            )
    elif late_s > verdict.late_s + _disturbed_s(attempt.end_s, disturbed):
        verdict.violations.append(
            f"{run} ended {late_s:.3f} s after {attempt}, and the exporter ran again before"
        )


def _check_energy(
    run: FoundRun, true_energy_j: Callable[[str, float, float], float], verdict: Verdict
) -> None:
    if run.end_s is None:
        return
    if not run.energies and not run.has_notes:
        verdict.violations.append(f"{run} has no energy")
    for gpu, (joules, half_width_j) in run.energies.items():
        true_j = true_energy_j(gpu, run.begin_s, run.end_s)
        verdict.energies += 1
        verdict.joules += joules
        verdict.true_joules += true_j
        ratio = abs(joules - true_j) / max(half_width_j, 1e-3, 1e-9 * true_j)
        verdict.outside += ratio > 1.0
        if ratio > CHANCE and not run.has_notes:
            verdict.violations.append(
                f"{run}: {joules:.3f} J on {gpu}, true {true_j:.3f} J ± {half_width_j:.3f} J"
            )


def _overlaps(run: FoundRun, attempt: Attempt) -> bool:
    """Return True if the run is of the attempt; a run that ends late touches no later attempt.

    Starts are whole clock ticks: one may lie before the end of an earlier attempt.
    """
    end_s = float("inf") if run.end_s is None else run.end_s
    if run.begin_s == end_s:
        return attempt.begin_s - TICK_S <= run.begin_s <= attempt.end_s + TICK_S
    return run.begin_s < attempt.end_s - TICK_S and end_s > attempt.begin_s + TICK_S


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for begin_s, end_s in sorted(intervals):
        if merged and begin_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end_s, merged[-1][1])
        else:
            merged.append((begin_s, end_s))
    return merged


def _longest_clear_s(span: Interval, disturbed: list[Interval]) -> float:
    """Return the longest time in the span without a disturbance."""
    begin_s, end_s = span
    place = max(0, bisect_left(disturbed, (begin_s, begin_s)) - 1)
    longest_s = 0.0
    for from_s, until_s in disturbed[place:]:
        if from_s >= end_s:
            break
        longest_s = max(longest_s, min(from_s, end_s) - begin_s)
        begin_s = max(begin_s, until_s)
    return max(longest_s, end_s - begin_s)


def near(t_s: float, disturbed: list[Interval]) -> list[Interval]:
    """Return the disturbances within 20 s, for a message."""
    return [span for span in disturbed if span[0] < t_s + 20.0 and span[1] > t_s - 20.0]


def _disturbed_s(t_s: float, disturbed: list[Interval]) -> float:
    """Return the time from `t_s` to the end of the disturbance around or right after it."""
    ends_s = [
        until_s
        for from_s, until_s in disturbed
        if from_s - SEEN_S - END_S <= t_s <= until_s + SEEN_S
    ]
    return max([0.0, *(until_s - t_s + SEEN_S for until_s in ends_s)])
