"""Loads of simulated GPUs, with their energy in closed form, so that tests know the true energy.

`demand_w(elapsed_s)` is the power without a limit. `energy_j(elapsed_s, limit_w)` is the energy
since the load started, with its power capped at the limit; `over_s(elapsed_s, limit_w)` is the time
for which it was capped. The tests' C library repeats them in the same order of operations.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar


class LoadKind(IntEnum):
    CONSTANT = 1
    SQUARE = 2
    RAMP = 3
    TRACE = 4


@dataclass(frozen=True, slots=True)
class Constant:
    w: float
    kind: ClassVar[LoadKind] = LoadKind.CONSTANT

    def demand_w(self, _elapsed_s: float) -> float:
        return self.w

    def energy_j(self, elapsed_s: float, limit_w: float) -> float:
        return min(self.w, limit_w) * elapsed_s

    def over_s(self, elapsed_s: float, limit_w: float) -> float:
        return elapsed_s if self.w > limit_w else 0.0


@dataclass(frozen=True, slots=True)
class Square:
    """Load of `high_w` for the first `duty` of each period, then `low_w`; `phase_s` is its offset
    at the start.
    """

    low_w: float
    high_w: float
    period_s: float
    duty: float = 0.5
    phase_s: float = 0.0
    kind: ClassVar[LoadKind] = LoadKind.SQUARE

    def __post_init__(self) -> None:
        if self.period_s <= 0 or not 0 <= self.duty <= 1:
            raise ValueError(f"a square wave needs a period above 0 s and a duty of 0 to 1: {self}")

    def demand_w(self, elapsed_s: float) -> float:
        at_s = elapsed_s + self.phase_s
        within_s = at_s - math.floor(at_s / self.period_s) * self.period_s
        return self.high_w if within_s < self.duty * self.period_s else self.low_w

    def energy_j(self, elapsed_s: float, limit_w: float) -> float:
        low_w = min(self.low_w, limit_w)
        high_w = min(self.high_w, limit_w)
        at_s = elapsed_s + self.phase_s
        high_s = self.duty * self.period_s
        periods = math.floor(at_s / self.period_s)
        within_s = at_s - periods * self.period_s
        period_j = high_w * high_s + low_w * (self.period_s - high_s)
        return (
            periods * period_j
            + high_w * min(within_s, high_s)
            + low_w * max(0.0, within_s - high_s)
        )

    def over_s(self, elapsed_s: float, limit_w: float) -> float:
        high = float(self.high_w > limit_w)
        low = float(self.low_w > limit_w)
        at_s = elapsed_s + self.phase_s
        high_s = self.duty * self.period_s
        periods = math.floor(at_s / self.period_s)
        within_s = at_s - periods * self.period_s
        period_over_s = high * high_s + low * (self.period_s - high_s)
        return (
            periods * period_over_s
            + high * min(within_s, high_s)
            + low * max(0.0, within_s - high_s)
        )


@dataclass(frozen=True, slots=True)
class Ramp:
    """Load that rises or falls linearly from `from_w` to `to_w` and then stays there."""

    from_w: float
    to_w: float
    duration_s: float
    kind: ClassVar[LoadKind] = LoadKind.RAMP

    def __post_init__(self) -> None:
        if self.duration_s <= 0:
            raise ValueError(f"a ramp needs a duration above 0 s: {self}")

    def demand_w(self, elapsed_s: float) -> float:
        return self.from_w + (self.to_w - self.from_w) * (
            min(elapsed_s, self.duration_s) / self.duration_s
        )

    def energy_j(self, elapsed_s: float, limit_w: float) -> float:
        ramp_s = min(elapsed_s, self.duration_s)
        hold_j = min(self.to_w, limit_w) * (elapsed_s - ramp_s)
        from_w = self.from_w
        end_w = self.demand_w(ramp_s)
        if from_w <= limit_w and end_w <= limit_w:
            return ramp_s * (from_w + end_w) / 2 + hold_j
        if from_w >= limit_w and end_w >= limit_w:
            return ramp_s * limit_w + hold_j
        crossing_s = (limit_w - from_w) * self.duration_s / (self.to_w - self.from_w)
        under_s, over_s = (
            (crossing_s, ramp_s - crossing_s)
            if from_w < limit_w
            else (ramp_s - crossing_s, crossing_s)
        )
        return under_s * (min(from_w, end_w) + limit_w) / 2 + over_s * limit_w + hold_j

    def over_s(self, elapsed_s: float, limit_w: float) -> float:
        ramp_s = min(elapsed_s, self.duration_s)
        hold_s = elapsed_s - ramp_s if self.to_w > limit_w else 0.0
        from_w = self.from_w
        end_w = self.demand_w(ramp_s)
        if from_w <= limit_w and end_w <= limit_w:
            return hold_s
        if from_w >= limit_w and end_w >= limit_w:
            return ramp_s + hold_s
        crossing_s = (limit_w - from_w) * self.duration_s / (self.to_w - self.from_w)
        return (ramp_s - crossing_s if from_w < limit_w else crossing_s) + hold_s


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Recorded power: `watts[i]` from `times_s[i]` to the next time; the times start at 0."""

    times_s: tuple[float, ...]
    watts: tuple[float, ...]

    @classmethod
    def from_csv(cls, path: Path) -> Recording:
        """Read columns `t` (seconds) and `watts`."""
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            if not {"t", "watts"} <= set(rows.fieldnames or ()):
                raise ValueError(
                    f"{path}: a power trace has the columns t,watts, not {rows.fieldnames}"
                )
            points = [(float(row["t"]), float(row["watts"])) for row in rows]
        if not points or any(after[0] <= before[0] for before, after in itertools.pairwise(points)):
            raise ValueError(f"{path}: a power trace needs at least one row, with increasing t")
        return cls(tuple(t - points[0][0] for t, _ in points), tuple(watts for _, watts in points))


@functools.lru_cache(maxsize=64)
def _energies_j(recording: Recording, limit_w: float) -> tuple[float, ...]:
    """Return the energy up to each point of a recording under a limit; cached, for up to 30,000
    points.
    """
    steps = (
        min(watts, limit_w) * (after_s - before_s)
        for watts, (before_s, after_s) in zip(
            recording.watts, itertools.pairwise(recording.times_s), strict=False
        )
    )
    return tuple(itertools.accumulate(steps, initial=0.0))


@functools.lru_cache(maxsize=64)
def _times_over_s(recording: Recording, limit_w: float) -> tuple[float, ...]:
    """Return the time above the limit up to each point."""
    steps = (
        after_s - before_s if watts > limit_w else 0.0
        for watts, (before_s, after_s) in zip(
            recording.watts, itertools.pairwise(recording.times_s), strict=False
        )
    )
    return tuple(itertools.accumulate(steps, initial=0.0))


@dataclass(frozen=True, slots=True)
class Trace:
    """Load of the state file's recording from `start_s` on; its last power continues."""

    recording: Recording
    start_s: float = 0.0
    kind: ClassVar[LoadKind] = LoadKind.TRACE

    def demand_w(self, elapsed_s: float) -> float:
        return self.recording.watts[
            max(0, bisect_right(self.recording.times_s, elapsed_s + self.start_s) - 1)
        ]

    def energy_j(self, elapsed_s: float, limit_w: float) -> float:
        at_s = elapsed_s + self.start_s
        i = max(0, bisect_right(self.recording.times_s, at_s) - 1)
        inside_j = min(self.recording.watts[i], limit_w) * (at_s - self.recording.times_s[i])
        return _energies_j(self.recording, limit_w)[i] + inside_j

    def over_s(self, elapsed_s: float, limit_w: float) -> float:
        at_s = elapsed_s + self.start_s
        i = max(0, bisect_right(self.recording.times_s, at_s) - 1)
        inside_s = at_s - self.recording.times_s[i] if self.recording.watts[i] > limit_w else 0.0
        return _times_over_s(self.recording, limit_w)[i] + inside_s


Load = Constant | Square | Ramp | Trace
