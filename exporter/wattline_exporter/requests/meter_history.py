"""Energy of a GPU at past instants, also of those whose polls are no longer kept."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Protocol

import numpy as np

from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.requests.division.arrays import FloatArray

PAUSE_S = 3.0
"""Time without polls from which the power in it is a mean: a GPU is polled each second, or faster.
"""
_MAX_GAPS = 100
MARGIN_S = 0.5
"""Time from the first poll that is kept to the first instant at which the polls around it are
known.
"""


class EnergyHistory(Protocol):
    def energy_at(self, times_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the energy of a GPU at rising instants, and its half-widths."""


class MeterHistory:
    """Energies that were read from a meter, and its polls. Times are CLOCK_BOOTTIME."""

    def __init__(self, meter: DeviceMeter) -> None:
        self._meter = meter
        self._times_s, self._joules, self._half_j = np.empty(0), np.empty(0), np.empty(0)
        self.begin_s = math.inf
        """First instant with a known energy."""

    @property
    def first_s(self) -> float:
        """Time from which the polls are kept, -inf if none was discarded."""
        polls = self._meter.polls
        return (
            polls[0].poll.after_s + MARGIN_S
            if polls and polls.has_discarded(-math.inf)
            else -math.inf
        )

    @property
    def last_s(self) -> float:
        """Last instant that was read after the polls of its time, inf if there is none."""
        return float(self._times_s[-1]) if len(self._times_s) else math.inf

    def gaps_s(self, since_s: float) -> list[tuple[float, float]]:
        """Return begin and end of the times after an instant without polls, and of those whose
        polls are not kept.
        """
        times_s = [poll.poll.after_s for poll in self._meter.polls]
        gaps = [
            (begin_s, end_s)
            for begin_s, end_s in pairwise(times_s)
            if end_s > max(since_s, begin_s + PAUSE_S)
        ]
        return [*([(self.last_s, self.first_s)] if self.last_s < self.first_s else []), *gaps]

    def energy_at(self, times_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the energy at rising instants, and its half-widths; keep them instead of those
        from the first one on.

        Energies after the latest poll are not kept: further polls may be late. An instant before
        the polls has the energy that was read, or a mean between it and that of the polls.
        """
        if self.begin_s == math.inf and self._meter.polls:
            self.begin_s = max(self.first_s, self._meter.polls[0].poll.after_s)
        old = int(np.searchsorted(times_s, self.first_s))
        old_j, old_half_j = (
            self._old_energy_at(times_s[:old]) if old else (np.empty(0), np.empty(0))
        )
        found = np.array([self._meter.energy_at(t_s) for t_s in times_s[old:].tolist()]).reshape(
            -1, 2
        )
        joules, half_j = np.append(old_j, found[:, 0]), np.append(old_half_j, found[:, 1])
        kept = slice(0, int(np.searchsorted(self._times_s, times_s[0])))
        latest = self._meter.latest
        new = slice(0, int(np.searchsorted(times_s, latest.after_s, side="right")) if latest else 0)
        self._times_s = np.append(self._times_s[kept], times_s[new])
        self._joules = np.append(self._joules[kept], joules[new])
        self._half_j = np.append(self._half_j[kept], half_j[new])
        return joules, half_j

    def forget(self, until_s: float) -> None:
        """Forget the energies before an instant."""
        first = max(0, int(np.searchsorted(self._times_s, until_s, side="right")) - 1)
        self._times_s, self._joules, self._half_j = (
            each[first:] for each in (self._times_s, self._joules, self._half_j)
        )

    def _old_energy_at(self, times_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        first_s = self.first_s
        first_j, first_half_j = self._meter.energy_at(first_s)
        known = slice(0, int(np.searchsorted(self._times_s, first_s)))
        known_s, known_j = (
            np.append(self._times_s[known], first_s),
            np.append(self._joules[known], first_j),
        )
        known_j = np.maximum.accumulate(known_j)
        joules = np.interp(times_s, known_s, known_j)
        half_j = np.interp(times_s, known_s, np.append(self._half_j[known], first_half_j))
        if len(known_s) > 1:
            begin_s, begin_j, most_w = known_s[-2], known_j[-2], self._meter.most_w
            above_j = np.minimum(known_j[-1], begin_j + most_w * (times_s - begin_s)) - joules
            below_j = joules - np.maximum(begin_j, known_j[-1] - most_w * (first_s - times_s))
            half_j += np.where(
                times_s > begin_s, np.maximum(np.maximum(above_j, below_j), 0.0), 0.0
            )
        return joules, half_j


class Gaps:
    """Latest times in which the power of a GPU is a mean; those that overlap are one."""

    def __init__(self) -> None:
        self._times_s: deque[tuple[float, float]] = deque(maxlen=_MAX_GAPS)

    def add(self, histories: Iterable[MeterHistory], since_s: float) -> None:
        """Add the times of GPUs after an instant."""
        for gap in sorted(gap for each in histories for gap in each.gaps_s(since_s)):
            is_new = not self._times_s or gap[0] > self._times_s[-1][1]
            before = gap if is_new else self._times_s.pop()
            self._times_s.append((min(before[0], gap[0]), max(before[1], gap[1])))

    def overlap_s(self, begins_s: FloatArray, ends_s: FloatArray) -> FloatArray:
        """Return the seconds of these times between N begins and ends."""
        total_s = np.zeros(len(begins_s))
        for begin_s, end_s in self._times_s:
            total_s += np.maximum(np.minimum(ends_s, end_s) - np.maximum(begins_s, begin_s), 0.0)
        return total_s
