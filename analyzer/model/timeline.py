"""When the run was on, on each of its instances, and which other runs were on beside it. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from analyzer.model.samples import RunFrames, last
from exporter.contract import metrics as m


@dataclass(frozen=True, slots=True)
class Window:
    """The run on one instance, in Unix seconds; `end_s` is the last scrape where it has not `ended`.

    `aligned` says that the timestamps of samples are of the clock that names its begin and end.
    """

    start_s: float
    end_s: float
    ended: bool
    duration_s: float
    aligned: bool = True


@dataclass(frozen=True, slots=True)
class OtherRun:
    """Another run on an instance of this one; `gpus` are UUIDs."""

    run_id: str
    instance: str
    start_s: float
    end_s: float
    gpus: frozenset[str]

    def overlaps(self, window: Window) -> bool:
        return self.start_s < window.end_s and self.end_s > window.start_s


def windows(frames: RunFrames) -> dict[str, Window]:
    """By instance. The duration is the exporter's own, from a clock that no one sets."""
    ends_s = {row.instance: row.value for row in last(frames.ledger, m.RUN_END, run_id=frames.run_id)}
    durations_s = {row.instance: row.value for row in last(frames.ledger, m.RUN_DURATION, run_id=frames.run_id)}
    found = {}
    for row in last(frames.ledger, m.RUN_START, run_id=frames.run_id):
        end_s = ends_s.get(row.instance, row.t)
        duration_s = durations_s.get(row.instance, end_s - row.value)
        found[row.instance] = Window(row.value, end_s, row.instance in ends_s, duration_s)
    return found


def other_runs(frames: RunFrames) -> list[OtherRun]:
    """A run whose end was never seen counts until its last scrape."""
    ends_s = {(row.instance, row.labels["run_id"]): row.value for row in last(frames.others, m.RUN_END)}
    gpus: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in last(frames.others, m.RUN_GPU_INFO):
        gpus[row.instance, row.labels["run_id"]].add(row.labels["uuid"])
    return [
        OtherRun(key[1], row.instance, row.value, ends_s.get(key, row.t), frozenset(gpus[key]))
        for row in last(frames.others, m.RUN_START)
        if (key := (row.instance, row.labels["run_id"]))[1] != frames.run_id
    ]


def free_of(start_s: float, end_s: float, taken: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """What is left of [start_s, end_s] without the `taken` stretches."""
    left, position_s = [], start_s
    for taken_start_s, taken_end_s in sorted([*taken, (end_s, math.inf)]):
        if taken_start_s > position_s:
            left.append((position_s, min(taken_start_s, end_s)))
        position_s = max(position_s, taken_end_s)
        if position_s >= end_s:
            break
    return left
