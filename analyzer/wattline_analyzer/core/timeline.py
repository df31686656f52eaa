"""Time windows of a run by instance and of other runs there, and the energy of its devices over
time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.core.facts import Fact
from wattline_analyzer.core.samples import FloatArray


@dataclass(frozen=True, slots=True)
class Window:
    """The run on one instance, in Unix seconds; `end_s` is the last scrape where it has not
    `ended`.

    `aligned` says that the samples and the run have timestamps of the same clock.
    """

    start_s: float
    end_s: float
    ended: bool
    duration_s: float
    aligned: bool = True


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Start, end and duration of a run, from its windows by instance."""

    windows: Mapping[str, Window]

    @property
    def instances(self) -> tuple[str, ...]:
        return tuple(sorted(self.windows))

    @property
    def started_at_s(self) -> float:
        return min(window.start_s for window in self.windows.values())

    @property
    def ended_at_s(self) -> float | None:
        """The last end; None while the run has not ended on some instance."""
        if not all(window.ended for window in self.windows.values()):
            return None
        return max(window.end_s for window in self.windows.values())

    @property
    def duration_s(self) -> float:
        """The instance's own duration; with several instances the time from the first start to the
        last end.

        Where their clocks disagree, the longest duration counts.
        """
        if len(self.windows) == 1 or not all(window.aligned for window in self.windows.values()):
            return max(window.duration_s for window in self.windows.values())
        return max(window.end_s for window in self.windows.values()) - self.started_at_s


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


def other_runs(facts: Sequence[Fact], run_id: str) -> list[OtherRun]:
    """Return the runs except `run_id` of which there are facts: starts, ends and GPUs. A run
    without a known end lasts until its last scrape.
    """
    ends_s: dict[tuple[str, str], float] = {}
    gpus: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for fact in facts:
        key = fact.instance, fact.labels["run_id"]
        if fact.metric is m.RUN_END:
            ends_s[key] = fact.value
        elif fact.metric is m.RUN_GPU_INFO:
            gpus[key].add(fact.labels["uuid"])
    found = []
    for fact in facts:
        key = fact.instance, fact.labels["run_id"]
        if fact.metric is m.RUN_START and key[1] != run_id:
            end_s = ends_s.get(key, fact.t)
            found.append(OtherRun(key[1], key[0], fact.value, end_s, frozenset(gpus[key])))
    return found


def free_spans(
    start_s: float, end_s: float, excluded: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return [start_s, end_s] without the `excluded` spans."""
    left = []
    position_s = start_s
    for excluded_start_s, excluded_end_s in sorted([*excluded, (end_s, math.inf)]):
        if excluded_start_s > position_s:
            left.append((position_s, min(excluded_start_s, end_s)))
        position_s = max(position_s, excluded_end_s)
        if position_s >= end_s:
            break
    return left


@dataclass(frozen=True, slots=True, eq=False)
class EnergyTrack:
    """Energy of a device since the start of the run, in joules, at rising times `t` from its start
    to its end.

    `low_j` and `high_j` are the limits of `value_j`, which are equal at start and end. A value may
    be older than its time by `age_s`, or newer by `ahead_s`. The device never uses more than
    `high_w`.
    """

    t: FloatArray
    value_j: FloatArray
    low_j: FloatArray
    high_j: FloatArray
    age_s: FloatArray
    ahead_s: FloatArray
    high_w: float

    def values(self, times_s: FloatArray) -> FloatArray:
        """Return the energies at some times, constant before the start and after the end."""
        found: FloatArray = np.interp(times_s, self.t, self.value_j)
        return found

    def at(self, t_s: float) -> Figure:
        """Return the energy at one time with its limits: the energy rises, and at most by
        `high_w`.
        """
        value_j = float(np.interp(t_s, self.t, self.value_j))
        lows = self.low_j + self.high_w * np.minimum(t_s - (self.t + self.ahead_s), 0.0)
        highs = self.high_j + self.high_w * np.maximum(t_s - (self.t - self.age_s), 0.0)
        low_j = min(float(lows.max()), value_j)
        high_j = max(float(highs.min()), value_j)
        return Figure(value_j, skewed=(low_j, high_j))


EnergyTracks = Mapping[tuple[str, str], Sequence[EnergyTrack]]
"""Tracks of the devices by instance and component."""
